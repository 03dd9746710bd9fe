#pragma once
#include <cstdint>

#include "costmodel/step/model_costs.h"

// One micro-batch through one stage.
namespace foldwise::costmodel {

/// What the pieces of a stage add up to, and what is known only of all of them: host, power, transfers.
struct StageCost {
  BlockCost cost;
  Seconds hidden{};  ///< Of the EP exchange, in a merged (F, B) pair.
  Seconds saving{};  ///< What such a pair takes less: `hidden` and the host's idle time, as far as that is filled.
  HostIdle host;
  Seconds weight_gradient{};  ///< Of the backward's compute; for schedules that split the backward, else 0.
  Seconds send{};             ///< Of its output to the next stage, beside compute where that is how transfers run.
  /// Part of `comm`: what the compute loses to the transfers between stages that run beside it.
  Seconds forward_transfers{}, backward_transfers{};
  std::int64_t layers = 0, moe_layers = 0;
  bool loss = false, mtp = false;
  std::uint32_t mixers = 0, mlps = 0;  ///< Bits of the mixers and the kinds of MLP that it has.
  CommunicationSum gather, reduction;  ///< data_parallel_ops.
  Bytes fsdp_buffers{}, fsdp_whole{};  ///< FsdpMemory.
  [[nodiscard]] Seconds forward() const { return cost.forward.device() + host.forward; }
  [[nodiscard]] Seconds backward() const { return cost.backward.device() + host.backward; }
};
/// `mtp_depths` MTP layers and the head of a stage follow its decoder layers.
[[nodiscard]] StageCost stage_cost(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                                   const StageContent& content);

/// What the gradient buffers of a chunk with `parameters` hold besides: only that is set in the result. `bucketed`: as
/// gradient_buffers.
[[nodiscard]] ParameterCount buffer_padding(const StepContext& context, const ModelKinds& kinds,
                                            const ModelCosts& costs, const StageContent& content,
                                            const ParameterCount& parameters, bool bucketed);
/// Whether buckets can change the padding of a chunk: not where every tensor ends where a bucket may.
[[nodiscard]] bool buckets_add_padding(const StepContext& context, const ModelCosts& costs);

/// A micro-batch's activations from one stage to the next; its gradient takes as long back.
[[nodiscard]] Op stage_transfer(const StepContext& context);

/// Whether the host waits for the device at every transfer between stages: plain 1F1B exchanges in batches.
[[nodiscard]] bool blocks_on_transfers(const TrainingOptions& options);

}  // namespace foldwise::costmodel

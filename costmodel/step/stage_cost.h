#pragma once
#include <cstdint>

#include "costmodel/step/model_costs.h"

// One micro-batch through one stage.
namespace foldwise::costmodel {

/// Sum of the pieces of a stage, and what is known only for the whole stage: host, power, transfers.
struct StageCost {
  BlockCost cost;
  Seconds hidden{};  ///< Hidden part of the EP exchange in a merged (F, B) pair.
  Seconds saving{};  ///< Time that such a pair saves: `hidden`, and idle time of the host that is filled.
  HostIdle host;
  Seconds weight_gradient{};  ///< Weight-gradient part of the backward's compute, for schedules that split it; else 0.
  Seconds send{};             ///< Transfer of the output to the next stage; beside compute if transfers run that way.
  /// Part of `comm`: slowdown of the compute by transfers between stages beside it.
  Seconds forward_transfers{}, backward_transfers{};
  std::int64_t layers = 0, moe_layers = 0;
  bool loss = false, mtp = false;
  std::uint32_t mixers = 0, mlps = 0;                        ///< Bit sets of its mixers and its kinds of MLP.
  CommunicationSum gather, reduction;                        ///< Of data_parallel_ops().
  Bytes fsdp_buffers{}, fsdp_whole{}, fsdp_between_steps{};  ///< See FsdpMemory.
  [[nodiscard]] Seconds forward() const { return cost.forward.device() + host.forward; }
  [[nodiscard]] Seconds backward() const { return cost.backward.device() + host.backward; }
};
/// `mtp_depths` MTP layers and the head of a stage follow its decoder layers.
[[nodiscard]] StageCost stage_cost(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                                   const StageContent& content);

/// The gradient buffers of a chunk, with its tensors. `bucketed`: as in gradient_buffers().
[[nodiscard]] std::array<GradientBuffer, kGradientBuffers> filled_buffers(const StepContext& context,
                                                                          const ModelKinds& kinds,
                                                                          const ModelCosts& costs,
                                                                          const StageContent& content, bool bucketed);
/// Padding that the gradient buffers of a chunk with `parameters` add. Only that is set in the result. `bucketed`: as
/// in gradient_buffers().
[[nodiscard]] ParameterCount buffer_padding(const StepContext& context, const ModelKinds& kinds,
                                            const ModelCosts& costs, const StageContent& content,
                                            const ParameterCount& parameters, bool bucketed);
/// Whether buckets can change the padding of a chunk. They cannot if every tensor ends where a bucket may end.
[[nodiscard]] bool buckets_add_padding(const StepContext& context, const ModelCosts& costs);

/// Transfer of a micro-batch's activations from one stage to the next. Its gradient takes as long back.
[[nodiscard]] Op stage_transfer(const StepContext& context);

/// Whether the host waits for the device at every transfer between stages. Plain 1F1B does, because it exchanges in
/// batches.
[[nodiscard]] bool blocks_on_transfers(const TrainingOptions& options);

}  // namespace foldwise::costmodel

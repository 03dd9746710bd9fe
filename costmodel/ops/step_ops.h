#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "costmodel/memory/gradient_buffer.h"
#include "costmodel/ops/block_ops.h"

// Builders of what happens once a step: data-parallel collectives and the optimizer. Unlike those of a layer they see
// all options.
namespace foldwise::costmodel {

/// A run to be predicted. Refers to its parts: they must outlive it.
struct StepContext {
  const ModelSpec& model;
  const TrainingOptions& options;
  const Hardware& hardware;
  /// CUDA_DEVICE_MAX_CONNECTIONS is 1, and so kernels of different streams begin in the order of their launches: what
  /// Megatron requires before Blackwell of TP and CP, and does not want with EP overlap (docs/rules.md, env.cdmc). With
  /// FSDP it refuses it, which is not here: what a layer costs does not depend on the step.
  [[nodiscard]] bool one_queue() const {
    return hardware.before_blackwell() && (options.layer.tp > 1 || options.layer.cp > 1) &&
           !options.pipeline.overlaps.ep_a2a;
  }
  [[nodiscard]] BuildContext layer() const {
    return {model, options.layer, hardware, options.layout().world(), one_queue()};
  }
};

/// Whether quantised weights have no bf16 primaries.
[[nodiscard]] bool low_precision_primaries(const TrainingOptions& options);

/// Empty buffers of one chunk; `bucketed`: in buckets of --ddp-bucket-size, by default max(40e6, 1e6 DP CP) elements.
/// Source: DistributedDataParallel in megatron/core/distributed/distributed_data_parallel.py.
[[nodiscard]] std::array<GradientBuffer, kGradientBuffers> gradient_buffers(const TrainingOptions& options,
                                                                            bool bucketed);
[[nodiscard]] std::int64_t bucket_size(const TrainingOptions& options);
/// Of an element of the buffers that gradients are added up and reduced in.
[[nodiscard]] double gradient_bytes(const TrainingOptions& options);

/// Ranks that share what is kept of a parameter.
struct Shards {
  double dense = 1.0, expert = 1.0;
  [[nodiscard]] double own(const ParameterCount& count) const { return count.dense / dense + count.expert / expert; }
};
/// Of gradients, and with FSDP of weights: with HSDP the ranks of one group.
[[nodiscard]] Shards group_shards(const TrainingOptions& options);
/// Less what one rank alone has, which is in no shards.
[[nodiscard]] ParameterCount in_shards(const TrainingOptions& options, ParameterCount count);
/// Of parameters, `quantised` of which products take in low precision.
[[nodiscard]] double fsdp_gathered_bytes(const TrainingOptions& options, double parameters, double quantised);
/// Of the optimizer's masters and states.
[[nodiscard]] Shards optimizer_shards(const TrainingOptions& options);

/// Types of what Adam widens to fp32 before its kernel, a parameter group at a time: masters and states below fp32.
[[nodiscard]] std::vector<DataType> widened(const Optimizer& optimizer);
/// Whether experts' parameters are a group of their own in the optimizer: with EP, Megatron sets their `allreduce` to
/// false (megatron/core/extensions/transformer_engine.py:1551 and optimizer/__init__.py of core_v0.16.1).
[[nodiscard]] constexpr bool experts_apart(const LayerOptions& layer) { return layer.ep > 1; }

/// Once per step, for a chunk that trains these parameters: gather over data-parallel ranks in forward, reduction of
/// gradients in backward. What of them is hidden, the schedule decides. Empty where Megatron-FSDP does it every
/// micro-batch.
[[nodiscard]] OpList data_parallel_ops(const StepContext& context, const ParameterCount& count);

/// Once per step, on a rank that trains these parameters, after its gradients are reduced: all-reduce of replicated
/// gradients, gradient scaling, norm, clipping, optimizer, cast, quantisation of weights, zeroing. In backward what
/// runs beside those reductions: optimizer states that come back to the device.
[[nodiscard]] OpList step_ops(const StepContext& context, const ParameterCount& count);

/// Of the time of copies beside the host's update of parameters (Overlap::kOffload) the share that it does not hide.
[[nodiscard]] double exposed_copies(const std::vector<Op>& step, const Hardware& hardware);

/// Megatron-FSDP, per micro-batch: gradient reduce-scatter (optim_grads and up), parameter gather in forward and
/// backward (optim_grads_params).
[[nodiscard]] OpList fsdp_ops(const StepContext& context, const ParameterCount& count);

/// Bytes that a rank holds between steps, besides buffers of the software.
struct StaticBytes {
  Bytes parameters{};  ///< Weights with their low-precision copies.
  Bytes gradients{};
  Bytes optimizer{};             ///< fp32 masters and states, less `returning`.
  Bytes low_precision_copies{};  ///< Part of `parameters` that the first step makes.
  Bytes setup_optimizer{};       ///< Part of `optimizer` and `returning` before the first step.
  Bytes gradient_copies{};  ///< fp32 copies of a bf16 gradient shard: from the optimizer step to the next zero_grad.
  Bytes step_extra{};       ///< Highest level above these while the optimizer steps.
  /// Masters and states that are on the device only while the optimizer steps, then on the host: part of `step_extra`
  /// and, less what the allocator rounds up, of `host`.
  Bytes returning{};
  Bytes host{};  ///< Optimizer states offloaded to the host.
  /// At least so much of the holes between the states of experts can no activation use, and torch cannot give it back:
  /// what the widened states leave when the optimizer has stepped (docs/memory.md#reserved). Beside activations.
  Bytes holes{};
};
[[nodiscard]] StaticBytes static_bytes(const StepContext& context, const ParameterCount& all);

}  // namespace foldwise::costmodel

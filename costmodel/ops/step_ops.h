#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "costmodel/memory/gradient_buffer.h"
#include "costmodel/ops/block_ops.h"

// Builders of the ops that run once a step: data-parallel collectives and the optimizer. Unlike builders of layers,
// they read all options.
namespace foldwise::costmodel {

/// A run to be predicted. It refers to its parts, which must outlive it.
struct StepContext {
  const ModelSpec& model;
  const TrainingOptions& options;
  const Hardware& hardware;
  std::int64_t num_gpus = 0;  ///< Of the job; 0: those of the layout.
  /// Whether CUDA_DEVICE_MAX_CONNECTIONS is 1, so that kernels of different streams start in launch order. Megatron
  /// requires this for TP and CP before Blackwell, but not with EP overlap (docs/rules.md, env.cdmc). With FSDP it
  /// refuses 1. That is ignored here, because the cost of a layer must not depend on the step.
  [[nodiscard]] bool one_queue() const {
    return hardware.before_blackwell() && (options.layer.tp > 1 || options.layer.cp > 1) &&
           !options.pipeline.overlaps.ep_a2a;
  }
  [[nodiscard]] BuildContext layer() const {
    return {model, options.layer, hardware, num_gpus > 0 ? num_gpus : options.layout().world(), one_queue()};
  }
};

/// Whether quantised weights have no bf16 primaries.
[[nodiscard]] bool low_precision_primaries(const TrainingOptions& options);

/// Empty buffers of one chunk. `bucketed`: in buckets of --ddp-bucket-size, by default max(40e6, 1e6 DP CP) elements.
/// Source: DistributedDataParallel in megatron/core/distributed/distributed_data_parallel.py.
[[nodiscard]] std::array<GradientBuffer, kGradientBuffers> gradient_buffers(const TrainingOptions& options,
                                                                            bool bucketed);
[[nodiscard]] std::int64_t bucket_size(const TrainingOptions& options);
/// Bytes per element of the buffers in which gradients are accumulated and reduced.
[[nodiscard]] double gradient_bytes(const TrainingOptions& options);

/// Number of ranks among which a parameter's data is divided.
struct Shards {
  double dense = 1.0, expert = 1.0;
  [[nodiscard]] double own(const ParameterCount& count) const { return count.dense / dense + count.expert / expert; }
};
/// Shards of gradients, and with FSDP of weights. With HSDP these are the ranks of one group.
[[nodiscard]] Shards group_shards(const TrainingOptions& options);
/// `count` without parameters that only one rank has, which are not sharded.
[[nodiscard]] ParameterCount in_shards(const TrainingOptions& options, ParameterCount count);
/// Bytes that FSDP gathers for `parameters`, of which `quantised` are used in low precision.
[[nodiscard]] double fsdp_gathered_bytes(const TrainingOptions& options, double parameters, double quantised);
/// Bytes per element of the transposes of low-precision primaries that Megatron-FSDP drops after use, so that only the
/// running layer has them; 0 where it drops none. MXFP8's column form is a buffer of its own, which is sharded. Source:
/// fp8_discard_transpose_cache in mixed_precision.py, megatron_fsdp.py:544 of core_v0.16.1, :631 of core_v0.19.0.
[[nodiscard]] double dropped_transpose_bytes(const TrainingOptions& options, const Hardware& hardware);
/// Shards of the optimizer's masters and states.
[[nodiscard]] Shards optimizer_shards(const TrainingOptions& options);

/// Buckets of a rank's gradients.
struct BucketCount {
  double dense = 0.0, expert = 0.0;
  [[nodiscard]] double total() const { return dense + expert; }
};
/// Time that the host takes to issue the optimizer's loops over the parameter tensors of this rank's shard, of which
/// those at the ends of `buckets` are parts. Source: benchmarks/accuracy/journal.md#the-host-of-a-steps-end.
[[nodiscard]] Seconds optimizer_issue(const StepContext& context, const ParameterCount& count,
                                      const BucketCount& buckets);

/// After Adam, Transformer Engine makes BF16 copies of all masters of quantised primaries, and quantises these
/// (cast_master_weights_to_fp8 in TE 2.12's pytorch/tensor/utils.py:56). Not of those that Adam itself owns, and not of
/// MXFP8's, which go into the gradients' buffer.
[[nodiscard]] bool quantises_copies(const TrainingOptions& options);

/// Types that Adam widens to FP32 before its kernel, one parameter group at a time: masters and states below FP32.
[[nodiscard]] std::vector<DataType> widened(const Optimizer& optimizer);
/// Whether experts' parameters form a parameter group of their own in the optimizer. Megatron sets their `allreduce` to
/// false with EP, and with ETP other than TP (core_v0.19.0 extensions/transformer_engine.py:2163; earlier releases do
/// not, rule grid.etp_without_ep).
[[nodiscard]] constexpr bool experts_apart(const LayerOptions& layer) { return layer.ep > 1 || layer.etp != layer.tp; }

/// Once-per-step collectives of a chunk that trains these parameters: the data-parallel gather in forward and the
/// reduction of gradients in backward. The schedule decides how much is hidden. Empty if Megatron-FSDP communicates in
/// every micro-batch.
[[nodiscard]] OpList data_parallel_ops(const StepContext& context, const ParameterCount& count);

/// Once-per-step ops of a rank that trains these parameters, after its gradients are reduced: all-reduce of replicated
/// gradients, gradient scaling, norm, clipping, optimizer, cast, quantisation of weights, zeroing. Its backward has
/// what runs beside the reductions: optimizer states that return to the device.
[[nodiscard]] OpList step_ops(const StepContext& context, const ParameterCount& count);

/// Exposed share of the copies that run beside the host's update of parameters (Overlap::kOffload).
[[nodiscard]] double exposed_copies(const std::vector<Op>& step, const Hardware& hardware);

/// Megatron-FSDP's collectives per micro-batch: gradient reduce-scatter (optim_grads and optim_grads_params), and
/// parameter gathers in forward and backward (optim_grads_params).
[[nodiscard]] OpList fsdp_ops(const StepContext& context, const ParameterCount& count);

/// Bytes that a rank holds between steps, apart from buffers of the software.
struct StaticBytes {
  Bytes parameters{};  ///< Weights with their low-precision copies.
  Bytes gradients{};
  Bytes optimizer{};             ///< FP32 masters and states, without `returning`.
  Bytes low_precision_copies{};  ///< Part of `parameters` that the first step makes.
  Bytes setup_optimizer{};       ///< Part of `optimizer` and `returning` before the first step.
  Bytes setup_transposes{};      ///< Whole transposes beside `parameters` until the first forward drops them.
  Bytes gradient_copies{};  ///< FP32 copies of a BF16 gradient shard, which live from the optimizer step to the next
                            ///< zero_grad.
  Bytes step_extra{};       ///< Highest level above all these during the optimizer step.
  /// Masters and states that are on the device only during the optimizer step, and otherwise on the host. They are part
  /// of `step_extra` and, before rounding by the allocator, of `host`.
  Bytes returning{};
  Bytes host{};  ///< Optimizer states offloaded to the host.
  /// Lower bound of the holes between the experts' states that no activation can use and torch cannot give back. The
  /// widened states leave them after the optimizer step (docs/memory.md#reserved). They count beside activations.
  Bytes holes{};
};
[[nodiscard]] StaticBytes static_bytes(const StepContext& context, const ParameterCount& all);

}  // namespace foldwise::costmodel

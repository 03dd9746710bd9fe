#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/step/composition.h"

// Data-parallel collectives of a step, and its end.
namespace foldwise::costmodel {

/// Sums of the communicating ops, and of all other ops.
[[nodiscard]] CommunicationSum communication_of(const std::vector<Op>& ops, const Hardware& hardware);
[[nodiscard]] ComputeSum compute_of(const std::vector<Op>& ops, const Hardware& hardware);

/// Exposed time of communication in pieces beside the work that uses or makes them in turn. The first (or last) piece
/// is exposed; the others run beside `window`.
[[nodiscard]] Seconds piecewise(const StepContext& context, const CommunicationSum& communication, Seconds piece,
                                const ComputeSum& window);
/// The same where `exposed` runs beside nothing, and `starts` pieces beside `window`.
[[nodiscard]] Seconds piecewise(const StepContext& context, const CommunicationSum& communication, Seconds exposed,
                                const ComputeSum& window, double starts);

/// Whether the first chunk of the first rank has its gradients in buckets. No other chunk has. Source:
/// DistributedDataParallel in megatron/core/distributed/distributed_data_parallel.py.
[[nodiscard]] bool first_chunk_bucketed(const TrainingOptions& options);

/// Adds gathers and reductions of a rank's chunks: their times, and the slowdown of work beside them. A chunk's gather
/// runs beside the first group of forwards of the chunk before. Its reduction runs beside the last group of backwards
/// of the chunk before, which end later. The schedule decides whether they end in time. Source:
/// docs/formulas.md#data-parallel.
void add_data_parallel(const StepContext& context, std::int64_t rank, Seconds update, Composition& composition);

/// Time that the GPU is idle in backward because the host checks `buckets` of gradients for NaN. `behind`: the host is
/// not ahead of the device before either.
[[nodiscard]] Seconds bucket_checks(const StepContext& context, double buckets, bool behind);

/// `count` of a rank whose gradients are in `buckets`. Sets `update` to the time of the ops that update the parameters.
[[nodiscard]] StepTail step_tail(const StepContext& context, const ParameterCount& count, const BucketCount& buckets,
                                 Seconds& update);

}  // namespace foldwise::costmodel

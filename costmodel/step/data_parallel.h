#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/step/composition.h"

// A step's data-parallel collectives and its end.
namespace foldwise::costmodel {

/// Of those of `ops` that communicate, and of the others.
[[nodiscard]] CommunicationSum communication_of(const std::vector<Op>& ops, const Hardware& hardware);
[[nodiscard]] ComputeSum compute_of(const std::vector<Op>& ops, const Hardware& hardware);

/// Communication in pieces beside the work that needs (or makes) them one after another: the first (or last) piece has
/// nothing to hide under, the others run beside `window`.
[[nodiscard]] Seconds piecewise(const StepContext& context, const CommunicationSum& communication, Seconds piece,
                                const ComputeSum& window);

/// Whether the first chunk of the first rank has its gradients in buckets; no other chunk has. Source:
/// DistributedDataParallel in megatron/core/distributed/distributed_data_parallel.py.
[[nodiscard]] bool first_chunk_bucketed(const TrainingOptions& options);

/// Gathers and reductions of a rank's chunks: their times, and what they cost the work beside them. A chunk's gather
/// runs beside the first group of forwards of the chunk before, its reduction beside the last group of backwards of the
/// chunk before (which end later). Whether they are done in time is for the schedule to say. Source:
/// docs/formulas.md#data-parallel.
void add_data_parallel(const StepContext& context, std::int64_t rank, Seconds update, Composition& composition);

/// `update`: time of the ops that update the parameters.
[[nodiscard]] StepTail step_tail(const StepContext& context, const ParameterCount& count, Seconds& update);

}  // namespace foldwise::costmodel

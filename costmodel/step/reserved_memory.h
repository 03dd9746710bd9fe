#pragma once
#include "costmodel/step/step.h"

namespace foldwise::costmodel {

/// Fills StageMemory::reserved of every rank of `prediction`, of this step: replays the allocations of the rank through
/// the caching allocator: set-up, then three steps of the rank's schedule, tensor by tensor as the op lists keep, hold
/// and need them; up to ten where rows of experts vary from micro-batch to micro-batch as random balanced routing makes
/// them, and micro-batches are few; weight gradients come back when the host sees that the device has passed them. Up
/// to seconds for a deep pipeline: for one run, not for a search. False where it would take longer: nothing is filled
/// then. Source: docs/memory.md#reserved.
bool add_reserved(const Step& step, Prediction& prediction);

}  // namespace foldwise::costmodel

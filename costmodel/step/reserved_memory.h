#pragma once
#include "costmodel/step/step.h"

namespace foldwise::costmodel {

struct ReplayOptions {
  double share = 1.0;    ///< Of the device's memory, that the run may use.
  bool segments = true;  ///< With the default allocator too.
};

/// Fills StageMemory::reserved and ::pressure of every rank of `prediction`, of this step, and Prediction::fits is
/// false where torch runs out of memory. Replays the allocations of the rank through the caching allocator: set-up,
/// then three steps of the rank's schedule, tensor by tensor as the op lists keep, hold and need them; up to ten where
/// rows of experts vary from micro-batch to micro-batch as random balanced routing makes them, and micro-batches are
/// few; weight gradients come back when the host sees that the device has passed them. The device has what context,
/// NCCL, dispatcher and graphs leave. Up to seconds for a deep pipeline: for one run, not for a search. False where it
/// would take longer: nothing is filled then. Source: docs/memory.md#reserved.
bool add_reserved(const Step& step, Prediction& prediction, const ReplayOptions& options = {});

}  // namespace foldwise::costmodel

#pragma once
#include <cstddef>
#include <functional>

#include "costmodel/step/step.h"

namespace foldwise::costmodel {

struct ReplayOptions {
  double share = 1.0;    ///< Share of the device's memory that the run may use.
  bool segments = true;  ///< Also replay the default allocator.
  /// Replay the fullest ranks first, and no others once torch has no room on one.
  bool only_whether_it_fits = false;
  /// Calls `work` for 0 to `count` - 1, in any order or at the same time: ranks are independent. Empty: in order.
  std::function<void(std::size_t count, const std::function<void(std::size_t)>& work)> each{};
};

/// Fills StageMemory::reserved and ::pressure of every rank of `prediction`, which must belong to `step`.
/// Prediction::fits becomes false if torch runs out of memory. The rank's allocations are replayed through the caching
/// allocator: set-up, then three steps of the rank's schedule, tensor by tensor as the op lists keep, hold and need
/// them. Up to ten steps are replayed if the experts' rows vary between micro-batches (random balanced routing) and
/// micro-batches are few. Weight gradients are reusable after the host sees that the device has passed them. The
/// device's capacity excludes context, NCCL, dispatcher and graphs. A replay takes up to seconds for a deep pipeline,
/// so it is for one run, not for a search. Returns false and fills nothing if it would take longer. Source:
/// docs/memory.md#reserved.
bool add_reserved(const Step& step, Prediction& prediction, const ReplayOptions& options = {});

}  // namespace foldwise::costmodel

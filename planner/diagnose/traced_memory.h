#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"

// What stands in the GPU's memory when most is allocated.
namespace foldwise::planner {

/// Bytes that an owner asked for in the trace and that are still allocated at its peak.
struct OwnedMemory {
  MemoryOwner owner;
  std::int64_t bytes = 0, tensors = 0;
};

struct TracedMemory {
  std::int64_t allocated = 0;  ///< Bytes at the peak: what the lines below add up to.
  std::int64_t time = 0;       ///< Of the peak, nanoseconds of the trace.
  /// Allocated before the trace began, and at the peak still: what a rank holds between steps, if it began there.
  std::int64_t before = 0;
  std::vector<OwnedMemory> owned;  ///< The largest first.
};

/// None: the trace has no allocations.
[[nodiscard]] std::optional<TracedMemory> traced_memory(const Trace& trace, const MappedKernels& kernels);

}  // namespace foldwise::planner

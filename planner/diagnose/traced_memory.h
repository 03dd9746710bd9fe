#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"

// Contents of the GPU's memory at its peak.
namespace foldwise::planner {

/// Bytes that an owner allocated in the trace and that are live at its peak.
struct OwnedMemory {
  MemoryOwner owner;
  std::int64_t bytes = 0, tensors = 0;
};

struct TracedMemory {
  std::int64_t allocated = 0;  ///< Bytes at the peak: the sum of `before` and `owned`.
  std::int64_t time = 0;       ///< Time of the peak in nanoseconds of the trace.
  /// Allocated before the trace began and live at the peak. If the trace began between steps: what a rank keeps between
  /// them.
  std::int64_t before = 0;
  std::vector<OwnedMemory> owned;  ///< The largest first.
};

/// Nullopt: the trace has no allocations.
[[nodiscard]] std::optional<TracedMemory> traced_memory(const Trace& trace, const MappedKernels& kernels);

}  // namespace foldwise::planner

#include "planner/diagnose/traced_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>

namespace foldwise::planner {

std::optional<TracedMemory> traced_memory(const Trace& trace, const MappedKernels& kernels) {
  if (trace.allocations.empty()) return std::nullopt;
  const auto peak = std::ranges::max_element(trace.allocations, {}, &Allocation::total);
  std::unordered_map<std::int64_t, std::size_t> standing;  // Live allocations that the trace saw, by address.
  for (auto at = trace.allocations.begin(); at <= peak; ++at) {
    if (at->bytes > 0)
      standing.insert_or_assign(at->address, static_cast<std::size_t>(at - trace.allocations.begin()));
    else
      standing.erase(at->address);
  }
  std::map<std::int32_t, OwnedMemory> owned;  // By index into MappedKernels::owners.
  TracedMemory memory{.allocated = peak->total, .time = peak->time, .before = peak->total, .owned = {}};
  for (const auto& [address, index] : standing) {
    const std::int32_t owner = kernels.owner[index];
    OwnedMemory& line = owned[owner];
    line.owner = kernels.owners[static_cast<std::size_t>(owner)];
    line.bytes += trace.allocations[index].bytes;
    ++line.tensors;
    memory.before -= trace.allocations[index].bytes;
  }
  for (auto& [owner, line] : owned) memory.owned.push_back(std::move(line));
  std::ranges::stable_sort(memory.owned, std::ranges::greater{}, &OwnedMemory::bytes);
  return memory;
}

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/step/composition.h"
#include "costmodel/step/prediction.h"

// Memory of one pipeline rank: static state, what stays between steps, and the peak over the moments of its schedule
// (docs/memory.md).
namespace foldwise::costmodel {

/// in_flight_peaks() of one rank as flat arrays, for the search's inner loop.
struct PeakTable {
  std::vector<double> counts;         ///< [moments][vpp] chunks in flight.
  std::vector<std::int32_t> running;  ///< [moments] the chunk whose task runs.
  std::vector<bool> forward;          ///< [moments] the direction of that task.
  std::vector<double> largest;        ///< [vpp] most of each chunk in flight at any moment.
  double most = 0;                    ///< Largest total.
};
[[nodiscard]] PeakTable peak_table(const ScheduleShape& shape, std::int64_t rank);

/// Memory of pipeline rank `rank`; `peaks` is peak_table(schedule_shape(options), rank).
[[nodiscard]] StageMemory rank_memory(const StepContext& context, const Composition& composition, std::int64_t rank,
                                      const PeakTable& peaks);

/// FsdpMemory::whole of all chunks of a pipeline rank.
[[nodiscard]] Bytes fsdp_whole(const Composition& composition, std::int64_t rank);

/// Whether `host` bytes fit into a rank's part of the host's memory. True if that is not known.
[[nodiscard]] bool fits_host(Bytes host, const Hardware& hardware);
/// Whether a rank fits into its device's memory with `left` bytes free, and into its part of the host's memory.
[[nodiscard]] bool fits(const StageMemory& memory, const Hardware& hardware, Bytes left = {});
/// Whether every pipeline rank fits. It gives the result of rank_memory() without its parts. `peaks` is [pp].
[[nodiscard]] bool fits(const StepContext& context, const Composition& composition, const std::vector<PeakTable>& peaks,
                        Bytes left = {});

}  // namespace foldwise::costmodel

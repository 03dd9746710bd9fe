#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/pipeline/timeline.h"

// Integer times for the sources behind timeline.h. For this folder only.
namespace foldwise::costmodel {

using Picoseconds = std::int64_t;

/// The only place where a time is rounded. Times are not negative, and llround would be a function call.
[[nodiscard]] inline Picoseconds to_ps(Seconds time) {
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return static_cast<Picoseconds>(time.to<double>() * 1e12 + 0.5);
}
/// chunk_ticks() and reload_ticks() into vectors that are reused from call to call.
void to_ticks(const PipelineTimes& times, std::vector<ChunkTicks>& ticks);
void to_reload_ticks(const PipelineTimes& times, std::vector<Picoseconds>& ticks);

}  // namespace foldwise::costmodel

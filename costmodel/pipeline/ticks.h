#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/pipeline/timeline.h"

// Times as integers, for the sources behind timeline.h; not for other folders.
namespace foldwise::costmodel {

using Picoseconds = std::int64_t;

/// The only place where a time is rounded. None is negative, and llround is a call.
// NOLINTNEXTLINE(bugprone-incorrect-roundings)
[[nodiscard]] inline Picoseconds to_ps(Seconds time) {
  return static_cast<Picoseconds>(time.to<double>() * 1e12 + 0.5);
}
/// chunk_ticks and reload_ticks into vectors that are kept from call to call.
void to_ticks(const PipelineTimes& times, std::vector<ChunkTicks>& ticks);
void to_reload_ticks(const PipelineTimes& times, std::vector<Picoseconds>& ticks);

}  // namespace foldwise::costmodel

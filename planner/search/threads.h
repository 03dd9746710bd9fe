#pragma once
#include <tbb/global_control.h>

#include <cstddef>
#include <optional>

namespace foldwise::planner {

/// Holds down the number of threads as long as it lives; 0 threads: all cores.
[[nodiscard]] inline std::optional<tbb::global_control> thread_limit(int threads) {
  return threads > 0 ? std::optional<tbb::global_control>(std::in_place, tbb::global_control::max_allowed_parallelism,
                                                          static_cast<std::size_t>(threads))
                     : std::nullopt;
}

}  // namespace foldwise::planner

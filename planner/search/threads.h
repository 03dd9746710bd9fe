#pragma once
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

namespace foldwise::planner {

/// Limits the number of threads as long as it lives. 0 threads: all cores.
[[nodiscard]] inline std::optional<tbb::global_control> thread_limit(int threads) {
  return threads > 0 ? std::optional<tbb::global_control>(std::in_place, tbb::global_control::max_allowed_parallelism,
                                                          static_cast<std::size_t>(threads))
                     : std::nullopt;
}

/// Calls `work` for 0 to `count` - 1, on all threads.
inline void side_by_side(std::size_t count, const std::function<void(std::size_t)>& work) {
  tbb::parallel_for(std::size_t{0}, count, work, tbb::simple_partitioner());
}

/// Asks the caller whether to go on. Any thread may call it, but only the thread that made it calls the question.
class GoesOn {
 public:
  explicit GoesOn(std::function<bool()> question) : question_(std::move(question)) {}
  bool operator()() {
    if (std::this_thread::get_id() == caller_ && !question_()) stopped_ = true;
    return !stopped_;
  }

 private:
  std::function<bool()> question_;
  std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<bool> stopped_ = false;
};

}  // namespace foldwise::planner

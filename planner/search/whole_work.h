#pragma once
#include <array>
#include <cstddef>
#include <functional>

#include "planner/search/plans.h"

// How much of the whole work on an answer is done, over all its phases (Work).
namespace foldwise::planner {

/// Tells the caller how much of the whole answer is done. Never goes back.
class WholeWork {
 public:
  /// `explained`: all phases follow the search, not only hosts. `longer`: so does a longer list.
  WholeWork(std::function<bool(const Progress&)> progress, bool explained, bool longer);
  /// Of a search for the answer.
  bool searching(Work work, Progress now);
  /// Of what follows on a result.
  bool following(Work work, double done, const PlanResult& result);

 private:
  /// Seconds of each Work in an answer whose search takes one, about: the mean of DeepSeek-V3 on 256 GB200,
  /// Qwen3-235B on 256 H100, Llama 3 70B on 64 H100 and Qwen3-30B on 16 H200, with the usual effort on two cores.
  static constexpr std::array kSeconds = {1.0, 0.9, 0.1, 0.25, 0.25, 0.0};

  static std::size_t index(Work work) { return static_cast<std::size_t>(work); }
  bool tell(Work work, double done, Progress& now);

  std::function<bool(const Progress&)> progress_;
  std::array<double, kSeconds.size()> seconds_{};
  double share_ = 0.0;
};

}  // namespace foldwise::planner

#include "planner/search/whole_work.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace foldwise::planner {

WholeWork::WholeWork(std::function<bool(const Progress&)> progress, bool explained, bool longer)
    : progress_(std::move(progress)) {
  for (std::size_t i = 0; i < kSeconds.size(); ++i)
    seconds_[i] = i == 0 || explained || i == index(Work::kHosts) ? kSeconds[i] : 0.0;
  if (longer) seconds_[index(Work::kList)] = kSeconds.front();
}

bool WholeWork::searching(Work work, Progress now) {
  now.work = work;
  return tell(work, now.effort, now);
}

bool WholeWork::following(Work work, double done, const PlanResult& result) {
  Progress now{.effort = 1.0, .least = result.least};
  if (!result.plans.empty()) now.best = result.plans.front().prediction.step_time;
  if (!result.plans.empty()) now.first = &result.plans.front();
  now.work = work;
  return tell(work, done, now);
}

bool WholeWork::tell(Work work, double done, Progress& now) {
  if (!progress_) return true;
  const auto before = std::reduce(seconds_.begin(), seconds_.begin() + static_cast<std::ptrdiff_t>(index(work)));
  const double share =
      (before + std::min(1.0, done) * seconds_[index(work)]) / std::reduce(seconds_.begin(), seconds_.end());
  now.share = share_ = std::max(share_, share);
  return progress_(now);
}

}  // namespace foldwise::planner

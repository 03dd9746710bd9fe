#include "planner/search/unproven.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace foldwise::planner {

void find_unproven(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on,
                   SharedCosts& costs) {
  constexpr std::int64_t kShare = 4;  // Of the problem's effort.
  constexpr std::size_t kMost = 2;    // Plans.
  constexpr double kGain = 0.005;     // Of the first plan's time: less is not worth a run.
  if (result.plans.empty() || result.evidence == Evidence::kAny || !goes_on(0.0)) return;
  PlanProblem wider = problem;
  wider.evidence = Evidence::kAny;
  wider.effort = std::max<std::int64_t>(1, problem.effort / kShare);
  wider.top = kMost;
  std::vector<Found> known;
  for (const Plan& plan : result.plans) known.push_back({plan.prediction.step_time, plan.digits, plan.options});
  PlanResult found = plan(
      wider, [&](const Progress& progress) { return progress.effort < 1.0 && goes_on(progress.effort); }, &costs,
      known);
  const Seconds worth = (1.0 - kGain) * result.plans.front().prediction.step_time;
  for (Plan& faster : found.plans)
    if (faster.prediction.step_time < worth && evidence_of(run_of(problem, faster)).level > result.evidence)
      result.unproven.push_back(std::move(faster));
}

}  // namespace foldwise::planner

#include "planner/search/unproven.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace foldwise::planner {

void find_unproven(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on,
                   SharedCosts& costs) {
  const FollowUpParameters& p = problem.parameters.follow_up;
  if (result.plans.empty() || result.evidence == Evidence::kAny || !goes_on(0.0)) return;
  PlanProblem wider = problem;
  wider.evidence = Evidence::kAny;
  wider.effort = share_of_effort(problem, p.unproven_share);
  wider.top = static_cast<std::int64_t>(p.unproven_plans);
  std::vector<Solution> known;
  for (const Plan& plan : result.plans) known.push_back({plan.prediction.step_time, plan.assignment, plan.options});
  PlanResult found = plan(
      wider, [&](const Progress& progress) { return progress.effort < 1.0 && goes_on(progress.effort); }, &costs,
      known);
  const Seconds worth = (1.0 - p.unproven_gain) * result.plans.front().prediction.step_time;
  for (Plan& faster : found.plans)
    if (faster.prediction.step_time < worth && evidence_of(run_of(problem, faster)).level > result.evidence)
      result.unproven.push_back(std::move(faster));
}

}  // namespace foldwise::planner

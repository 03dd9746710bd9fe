#include "planner/search/why_not.h"

#include <algorithm>
#include <utility>

#include "planner/search/contradiction.h"
#include "planner/search/shortage.h"

namespace foldwise::planner {

WhyNot why_not(const PlanProblem& problem, Asked asked, const std::function<bool()>& goes_on) {
  const std::function<bool()> always = [&] { return !goes_on || goes_on(); };
  WhyNot result;
  result.asked = std::move(asked);
  PlanProblem narrow = problem;
  for (const auto& [key, values] : result.asked) narrow.space.set(key, values);
  narrow.top = 1;
  narrow.effort = share_of_effort(problem, problem.parameters.follow_up.why_not_share);
  result.refused = contradiction(narrow);
  if (!result.refused.empty()) return result;
  PlanResult found = plan(narrow, [&](const Progress&) { return always(); });
  result.proven = found.proven;
  if (found.refused)
    result.refused = least_refused(narrow);
  else if (!found.plans.empty())
    result.plan = std::move(found.plans.front());
  else
    result.shortage = nearest_misses(narrow, always);
  return result;
}

}  // namespace foldwise::planner

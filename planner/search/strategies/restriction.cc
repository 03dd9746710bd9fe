#include "planner/search/strategies/restriction.h"

#include <algorithm>
#include <vector>

#include "planner/search/contradiction.h"
#include "planner/search/search.h"
#include "planner/search/strategies/state.h"

namespace foldwise::planner {

PlanProblem least_memory_part(const PlanProblem& problem) {
  PlanProblem part = problem;
  std::vector<Dimension*> plain;
  for (Dimension& d : part.space.dimensions)
    if (!d.named && d.values.size() > 1 && d.field->saves_time) plain.push_back(&d);
  std::vector<std::vector<nlohmann::json>> all;
  for (Dimension* d : plain) {
    all.push_back(d->values);
    d->values.resize(1);
  }
  if (contradiction(part).empty()) return part;
  for (std::size_t i = 0; i < plain.size(); ++i) plain[i]->values = all[i];
  for (std::size_t i = 0; i < plain.size(); ++i) {
    std::vector<nlohmann::json>& values = plain[i]->values;
    values.resize(1);
    while (values.size() < all[i].size() && !contradiction(part).empty()) values.push_back(all[i][values.size()]);
  }
  return part;
}

bool Restriction::step(SearchState& search) {
  PlanProblem part = least_memory_part(search.problem);
  if (part.space.size() >= search.problem.space.size()) return false;
  part.effort = search.share(search.parameters.restriction_share);
  const PlanResult found = planner::search(
      part, [&](const Progress& now) { return now.best <= Seconds{} && search.goes_on(); }, search.costs);
  search.spend(found.effort);
  for (const StrategyUse& use : found.log) search.moves += use.moves;
  for (const Plan& plan : found.plans)
    search.incumbents.offer(
        {.time = plan.prediction.step_time, .assignment = plan.assignment, .options = plan.options});
  return false;
}

}  // namespace foldwise::planner

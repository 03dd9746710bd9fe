#pragma once
#include <functional>

#include "planner/search/search.h"

// Faster plans that a search leaves out because their choices were not measured together.
namespace foldwise::planner {

/// Fills PlanResult::unproven with up to two plans that are faster than the first one and of which less was measured
/// than PlanResult::evidence. The search is shorter than the problem's and starts from its plans. `goes_on` is told
/// which share is done, and returns whether to go on.
void find_unproven(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on,
                   SharedCosts& costs);

}  // namespace foldwise::planner

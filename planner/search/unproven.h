#pragma once
#include <functional>

#include "planner/search/search.h"

// What a search leaves out because it was not measured together.
namespace foldwise::planner {

/// Up to two plans that are faster than the first one and of which less was measured than PlanResult::evidence. A
/// shorter search than the problem's, from its plans. `goes_on` is told which share is done, and returns whether to
/// go on.
void find_unproven(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on,
                   SharedCosts& costs);

}  // namespace foldwise::planner

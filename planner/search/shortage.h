#pragma once
#include <functional>

#include "planner/search/search.h"

// Why nothing fits, which plans come nearest, and which changes of the question help.
namespace foldwise::planner {

/// Searches the same problem with more memory until something fits, then with more GPUs, other batches and shorter
/// sequences. These searches are small and may miss what a longer one finds. Requires a result without plans. `goes_on`
/// returns whether to go on.
[[nodiscard]] Shortage shortage(const PlanProblem& problem, const std::function<bool()>& goes_on);

/// shortage() without the ways out.
[[nodiscard]] Shortage nearest_misses(const PlanProblem& problem, const std::function<bool()>& goes_on);

/// Fills the members of a result besides its plans: alternatives to the first plan's choices, or why there is no plan.
/// `shared`: costs shared with the search that found the result.
void explain(const PlanProblem& problem, PlanResult& result, const Doing& doing = {}, SharedCosts* shared = nullptr);

/// Only puts first the plan that explain() would put first, provided that no alternative turns out faster. Requires a
/// plan.
void choose_first(const PlanProblem& problem, PlanResult& result, const Doing& doing = {});

}  // namespace foldwise::planner

#pragma once
#include <functional>

#include "planner/search/search.h"

// Why nothing fits, what comes nearest, and what would make something fit.
namespace foldwise::planner {

/// Searches the same problem with more memory until something fits, with more GPUs, other batches and shorter
/// sequences. Small searches, which may miss what a longer one finds. Requires a result without plans. `goes_on`
/// returns whether to go on.
[[nodiscard]] Shortage shortage(const PlanProblem& problem, const std::function<bool()>& goes_on);

/// Why nothing fits, and what comes nearest: shortage() without the ways out.
[[nodiscard]] Shortage nearest_misses(const PlanProblem& problem, const std::function<bool()>& goes_on);

/// Fills what a result says besides its plans: alternatives to the choices of the first one, or why there is none.
/// `shared`: with the search that found the result.
void explain(const PlanProblem& problem, PlanResult& result, const Doing& doing = {}, SharedCosts* shared = nullptr);

/// Only puts the plan first that explain() would, as far as no alternative turns out faster. Requires a plan.
void choose_first(const PlanProblem& problem, PlanResult& result, const Doing& doing = {});

}  // namespace foldwise::planner

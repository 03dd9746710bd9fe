#pragma once
#include <functional>
#include <vector>

#include "planner/search/plans.h"

// Memory that PyTorch's allocator reserves beyond what counts as needed. Only a replay of it tells how much. It costs
// as much as a thousand candidates: so plans are replayed, and no other candidate (docs/search.md#reserve).
namespace foldwise::planner {

/// Replays a plan's allocations (docs/memory.md#reserved) into its prediction: whether torch runs out of memory, or
/// must give memory back in every step, on a device 3 % smaller than it is. Then Prediction::fits is whether it runs on
/// the whole one.
[[nodiscard]] bool reserves_too_much(const PlanProblem& problem, Plan& plan);

/// One search of a problem, from candidates that are known to fit.
using SearchOnce = std::function<PlanResult(const PlanProblem& problem, const std::vector<Solution>& known)>;

/// The answer of a search whose plans torch has room for. Where the first plan is none of these, it is searched again
/// with what that one lacks in what counts as needed; then nothing is proven.
[[nodiscard]] PlanResult search_with_reserve(const PlanProblem& problem, const std::vector<Solution>& known,
                                             const SearchOnce& search);

}  // namespace foldwise::planner

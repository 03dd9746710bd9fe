#pragma once
#include <functional>
#include <vector>

#include "planner/search/plans.h"

// Memory that PyTorch's allocator reserves beyond what it allocates. Only a replay of the allocator gives the amount. A
// replay costs as much as 1,000 candidates, so only plans are replayed (docs/search.md#reserve).
namespace foldwise::planner {

/// Replays the allocations of a plan (docs/memory.md#reserved) into its prediction. True if torch, on a device 3 %
/// smaller than it is, runs out of memory or must give memory back in every step. Prediction::fits then says whether
/// the plan runs on the whole device.
[[nodiscard]] bool reserves_too_much(const PlanProblem& problem, Plan& plan);

/// Removes the plans that torch has no room for; where it has none for `first` either, those that do not run. Returns
/// whether any is left.
[[nodiscard]] bool keep_with_room(const PlanProblem& problem, const Plan& first, std::vector<Plan>& plans);

/// One search of a problem. `known`: candidates that fit, to start from.
using SearchOnce = std::function<PlanResult(const PlanProblem& problem, const std::vector<Solution>& known)>;

/// Searches until the first plan is one that torch has room for. If the first plan is not, the search is repeated with
/// a reserve of the memory that this plan lacks; the answer is then not proven.
[[nodiscard]] PlanResult search_with_reserve(const PlanProblem& problem, const std::vector<Solution>& known,
                                             const SearchOnce& search);

}  // namespace foldwise::planner

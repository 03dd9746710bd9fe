#pragma once
#include <functional>

#include "planner/search/search.h"

// What the first plan's choices earn: the same problem, searched with one of them taken back.
namespace foldwise::planner {

/// Puts the plainest plan first of those within 1 % of the fastest, which is less than can be told (docs/accuracy.md):
/// each without the choices that earn less and need a library, the host's memory or rarely run code, then the one with
/// the fewest choices, then the one that leaves most memory. Requires a plan.
void prefer_plain(const PlanProblem& problem, PlanResult& result);

/// For each choice of the first plan that has a plainer one in the space: the fastest plan with that, those that cost
/// most first. Searches shorter than the problem's (docs/design.md#search): they prove nothing, so a choice may earn
/// less than they say. A plan that turns out faster than the first one takes its place in `result`, and the
/// choices are looked at again. Requires a plan. `goes_on` returns whether to go on.
void find_alternatives(const PlanProblem& problem, PlanResult& result, const std::function<bool()>& goes_on,
                       SharedCosts& costs);

}  // namespace foldwise::planner

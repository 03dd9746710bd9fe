#pragma once
#include <functional>

#include "planner/search/search.h"

// What the first plan's choices earn: the same problem, searched with one of them taken back.
namespace foldwise::planner {

/// Puts the plainest plan first of those within 1 % of the fastest, which is less than can be told (docs/accuracy.md):
/// each without the choices that earn less and need a library, the host's memory or rarely run code, then the one with
/// the fewest choices, then the one that leaves most memory. Requires a plan.
void prefer_plain(const PlanProblem& problem, PlanResult& result);

/// Where the host's prices are assumed: puts the plan first that loses least in the mean over these and the prices that
/// virtual machines were measured to take, of the plans, the alternatives and what a shorter search finds at those
/// prices. Not for less than 1 %. Requires a plan. `goes_on` is told which share is done, and returns whether to go on.
void prefer_on_any_host(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on);

/// The fastest plan with fp32 states of the optimizer where the first has them in another type, or in bf16 where it has
/// fp32: a shorter search. None: the question names a type. Requires a plan.
[[nodiscard]] std::optional<Alternative> with_other_states(const PlanProblem& problem, const Plan& first,
                                                           const std::function<bool(double)>& goes_on);

/// For each choice of the first plan that has a plainer one in the space: the fastest plan with that, those that cost
/// most first. Searches shorter than the problem's (docs/search.md#other-questions): they prove nothing, so a choice
/// may earn less than they say. A plan that turns out faster than the first one takes its place in `result`, and the
/// choices are looked at again. Requires a plan. `goes_on` is told which share is done, and returns whether to go on.
void find_alternatives(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on,
                       SharedCosts& costs);

}  // namespace foldwise::planner

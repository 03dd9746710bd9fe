#pragma once
#include <functional>

#include "planner/search/search.h"

// What each choice of the first plan gains: the problem is searched again without that choice.
namespace foldwise::planner {

/// Puts the plainest plan first among those within 1 % of the fastest; the model cannot tell these apart
/// (docs/accuracy.md). Each of them is first freed of choices that gain less than that and need a library, host memory
/// or rarely run code. Then the plan with the fewest choices wins, and among equals the one that leaves most memory
/// free. Requires a plan.
void prefer_plain(const PlanProblem& problem, PlanResult& result);

/// Applies where a profile assumes the prices of its host. Puts the plan first whose mean loss over two sets of prices
/// is least: the profile's, and those measured on virtual machines. The candidates are the plans, the alternatives and
/// what a shorter search finds at the second prices. A gain below 1 % changes nothing. Requires a plan. `goes_on` is
/// told which share is done, and returns whether to go on.
void prefer_on_any_host(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on);

/// The fastest plan of a shorter search with another type of the optimizer's states: fp32 if the first plan has another
/// type, bf16 if it has fp32. Nothing if the question names a type. Requires a plan.
[[nodiscard]] std::optional<Alternative> with_other_states(const PlanProblem& problem, const Plan& first,
                                                           const std::function<bool(double)>& goes_on);

/// Puts the plan of `result.other_states`, with the states of the first plan, before that one if it fits and is faster:
/// the search had missed it.
void keep_states(const PlanProblem& problem, PlanResult& result);

/// For each choice of the first plan that has a plainer value in the space: the fastest plan with that value. Choices
/// that gain most come first. The searches are shorter than the problem's (docs/search.md#other-questions) and prove
/// nothing, so a choice may gain less than they say. A plan that is faster than the first one replaces it in `result`,
/// and the choices are searched again. Requires a plan. `goes_on` is told which share is done, and returns whether to
/// go on.
void find_alternatives(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on,
                       SharedCosts& costs);

}  // namespace foldwise::planner

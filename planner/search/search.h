#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/search/plans.h"
#include "planner/search/reserve.h"

namespace foldwise::planner {

class SharedCosts;

/// Finds the fastest candidate that breaks no rule and fits, with the strategies of docs/search.md. If the result is
/// `proven`, it is the one that predicting every candidate would find (tests/search_test.cc). The answer does not
/// depend on the number of threads. For each other layout it lists the fastest candidate found. If proven, that layout
/// has none that is more than 5 % faster. A plan that the allocator has no room for is not listed (reserve.h).
/// `progress` returns whether to go on; if it does not, the answer is the best plan so far and `proven` is false.
/// `shared`: costs shared with other searches. `known`: candidates that fit, to start from.
[[nodiscard]] PlanResult plan(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress = {},
                              SharedCosts* shared = nullptr, const std::vector<Solution>& known = {});

/// The same, but without replays of the allocator.
[[nodiscard]] PlanResult search(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress,
                                SharedCosts& costs, const std::vector<Solution>& known = {});

/// Descends from the fastest start: changes one field, or two fields to their next values, while that is faster and the
/// effort is below `most` (in units of PlanProblem::effort). A start of infinite time may break rules or not fit. Has
/// no plan if none was found.
[[nodiscard]] PlanResult changed(const PlanProblem& problem, const std::vector<Solution>& starts, std::int64_t most,
                                 SharedCosts& costs);

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/search/plans.h"
#include "planner/search/reserve.h"

namespace foldwise::planner {

class SharedCosts;

/// Finds the fastest candidate that breaks no rule and fits, by the strategies of docs/search.md: if it is `proven`, it
/// is the one that predicting every candidate would give (tests/search_test.cc). The answer does not depend on the
/// number of threads. Of other layouts it lists the fastest that it found: none of them has a candidate that is more
/// than 5 % faster. A plan that torch's allocator has no room for is none (reserve.h). `progress` returns whether to go
/// on; if not, the answer is the best so far and `proven` is false. `shared`: with other searches. `known`: candidates
/// that fit, to start from.
[[nodiscard]] PlanResult plan(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress = {},
                              SharedCosts* shared = nullptr, const std::vector<Solution>& known = {});

/// The same without a look at the allocator.
[[nodiscard]] PlanResult search(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress,
                                SharedCosts& costs, const std::vector<Solution>& known = {});

/// The fastest plan, if any, that changes of one field, or of two by the next value each, make of the fastest start,
/// while one is faster and less than `most` is spent (as PlanProblem::effort counts). A start of infinite time may
/// break rules or not fit.
[[nodiscard]] PlanResult changed(const PlanProblem& problem, const std::vector<Solution>& starts, std::int64_t most,
                                 SharedCosts& costs);

}  // namespace foldwise::planner

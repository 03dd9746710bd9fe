#pragma once
#include <functional>
#include <vector>

#include "planner/search/search.h"

// What the first plan's choices earn: the same problem, searched with one of them taken back.
namespace foldwise::planner {

/// For each choice of the first plan that has a plainer one in the space: the fastest plan with that. Two small
/// searches each, near the first plan (docs/design.md#alternatives): they prove nothing, so a choice may earn less than
/// they say. Requires a plan. `goes_on` returns whether to go on.
[[nodiscard]] std::vector<Alternative> alternatives(const PlanProblem& problem, const PlanResult& result,
                                                    const std::function<bool()>& goes_on);

}  // namespace foldwise::planner

#pragma once
#include <string>
#include <vector>

#include "planner/search/space.h"

// Whether a problem can have a valid candidate, and which rules speak against it.
namespace foldwise::planner {

/// Explains a problem that has no valid candidate. It takes a candidate for which no change of one field breaks fewer
/// rules. It lists the rules that this candidate breaks ("grid.experts_div_ep: --expert-model-parallel-size 3 does not
/// divide ...") and the named fields that do not apply in it. Empty if there is a valid candidate.
[[nodiscard]] std::vector<std::string> least_refused(const PlanProblem& problem);

/// The same list within milliseconds, if the problem is contradictory as far as this can be told from the parallel
/// sizes, the micro-batch and the values that each rule leaves to its fields. Empty if some candidate may be valid, or
/// if the space is too large to tell.
[[nodiscard]] std::vector<std::string> contradiction(const PlanProblem& problem);

}  // namespace foldwise::planner

#pragma once
#include "planner/search/space.h"

namespace foldwise::planner {

/// The part of the problem that needs least memory: what only saves time has its plainest value where the user named
/// none, and micro-batches and interleaving, which only add to what is in flight, their least. What is named may need
/// some of it: a size of micro-batch groups needs interleaving.
[[nodiscard]] PlanProblem lean(const PlanProblem& problem);

}  // namespace foldwise::planner

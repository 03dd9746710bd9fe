#pragma once
#include "planner/search/space.h"
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// The part of the problem that needs least memory: what only saves time has its plainest value where the user named
/// none, and micro-batches and interleaving, which only add to what is in flight, their least. What is named may need
/// some of it: a size of micro-batch groups needs interleaving.
[[nodiscard]] PlanProblem least_memory_part(const PlanProblem& problem);

/// Where hardly anything fits: a first incumbent of that part, by a search of it that ends as soon as it has one.
class Restriction : public Strategy {
 public:
  bool step(SearchState& search) override;
};

}  // namespace foldwise::planner

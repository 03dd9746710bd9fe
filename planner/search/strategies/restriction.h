#pragma once
#include "planner/search/space.h"
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// The part of the problem that needs least memory. Unless the user named a value, fields that only save time have
/// their plainest value. Micro-batch size and interleaving, which only add activations in flight, are least. Named
/// values may need some interleaving: a size of micro-batch groups does.
[[nodiscard]] PlanProblem least_memory_part(const PlanProblem& problem);

/// Finds a first incumbent in that part if hardly anything fits. Its search ends with its first solution.
class Restriction : public Strategy {
 public:
  bool step(SearchState& search) override;
};

}  // namespace foldwise::planner

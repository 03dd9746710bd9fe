#pragma once
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// Finds a first incumbent and first limits. For each size of TP and of the micro-batch it takes the choice of
/// attention with the least bound, and explores its choices of experts with the least bounds in turn, depth first.
class Dive : public Strategy {
 public:
  bool step(SearchState& search) override;
};

}  // namespace foldwise::planner

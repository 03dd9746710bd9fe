#pragma once
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// A first incumbent and first limits: below the most promising choice of attention of each size of tensor parallelism
/// and of the micro-batch, the most promising choices of experts in turn, depth first.
class Dive : public Strategy {
 public:
  bool step(SearchState& search) override;
};

}  // namespace foldwise::planner

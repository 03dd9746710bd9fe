#pragma once
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// Refines the incumbents in what a search tries few of many: splits of layers, and parts of the optimizer on the host
/// (candidates.h).
class Polish : public Strategy {
 public:
  bool step(SearchState& search) override;
};

}  // namespace foldwise::planner

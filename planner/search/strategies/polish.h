#pragma once
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// Refines the incumbents where a search tries few of many values: splits of layers, and the optimizer's share on the
/// host (candidates.h).
class Polish : public Strategy {
 public:
  bool step(SearchState& search) override;
};

}  // namespace foldwise::planner

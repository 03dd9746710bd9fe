#pragma once
#include <cstdint>
#include <vector>

#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

struct Node;

/// Best-first branch and bound. It explores the open node with the least bound until no open node can be faster than
/// the incumbent, the effort ends, or a faster solution is found. If too many choices of experts may be the fastest for
/// the effort that is left, it only raises the least bounds.
class Proof : public Strategy {
 public:
  bool step(SearchState& search) override;

 private:
  /// Opens choices of attention with bounds below the incumbent's time, until none is left or there are too many
  /// children.
  std::vector<Node> open_children(SearchState& search, double known);
  void explore(SearchState& search, double known, std::int64_t doubtful);
};

}  // namespace foldwise::planner

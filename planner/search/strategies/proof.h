#pragma once
#include <cstdint>
#include <vector>

#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

struct Node;

/// Best-first branch and bound: explores the open node with the least bound until nothing open is faster than the
/// incumbent, the effort ends, or something faster is found. Not where the choices of experts that may be the fastest
/// are too many for the effort that is left: then it only raises the least bounds.
class Proof : public Strategy {
 public:
  bool step(SearchState& search) override;

 private:
  /// Opens choices of attention below the incumbent's time until none is left, or their children are too many.
  std::vector<Node> open_children(SearchState& search, double known);
  void explore(SearchState& search, double known, std::int64_t doubtful);
};

}  // namespace foldwise::planner

#pragma once
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "planner/search/incumbents.h"
#include "planner/search/parameters.h"
#include "planner/search/space.h"
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

struct Node;

/// Large neighbourhood search. It explores the nodes (choices of attention and experts) of incumbents and their
/// neighbours, with graphs, pipeline, step and memory choice open. It starts at the fastest incumbent's own node, and
/// searches more widely the less it finds.
class NeighbourhoodSearch : public Strategy {
 public:
  void begin(const SearchState& search) override;
  bool step(SearchState& search) override;

 private:
  /// Explores around the incumbents of `from` layouts, with `budget` for each neighbour.
  struct Pass {
    Budget budget;
    std::size_t from = 1;
    std::set<Assignment> centres{}, seen{};
  };
  /// The fastest incumbent whose node has not been a centre of this pass.
  static std::optional<Solution> next_centre(SearchState& search, Pass& pass);
  /// Explores neighbours until one is faster. False if no centre is left.
  static bool explore(SearchState& search, Pass& pass);
  void explore_own(SearchState& search, const Solution& centre);
  bool explore_centres(SearchState& search);

  Pass own_, dives_, explored_, wide_, longest_;
};

}  // namespace foldwise::planner

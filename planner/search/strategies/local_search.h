#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "planner/search/incumbents.h"
#include "planner/search/neighbourhood.h"
#include "planner/search/strategies/strategy.h"

namespace foldwise::planner {

/// Local search over whole candidates: moves to a faster neighbour of an incumbent, which differs in one field, or if
/// none is faster in two. A neighbour costs little, because rules refuse most.
class LocalSearch : public Strategy {
 public:
  void begin(const SearchState& search) override;
  /// From the first of the fastest incumbents that was not a centre.
  bool step(SearchState& search) override;
  /// From the fastest incumbent as long as one is faster, for so much effort.
  void descend(SearchState& search, std::int64_t effort);
  /// Finds a first incumbent: the start itself, which may break rules, or a neighbour of it.
  static void repair(SearchState& search, const Solution& start, std::int64_t end);

 private:
  bool move(SearchState& search, std::size_t from, std::int64_t end);
  /// Offers the first neighbours, a batch at a time, until some are faster than the centre. False: none is.
  static bool any_faster(SearchState& search, const std::vector<Assignment>& neighbours, const Solution& centre,
                         std::int64_t end);

  std::int64_t left_ = 0;                                 ///< Effort of the round that is left.
  std::set<std::pair<Assignment, std::string>> centres_;  ///< With their splits.
};

}  // namespace foldwise::planner

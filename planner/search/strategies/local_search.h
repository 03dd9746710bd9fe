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

/// Local search over whole candidates. It moves from an incumbent to a faster neighbour that differs in one field, or
/// if there is none, in two. A neighbour costs little, because rules refuse most neighbours.
class LocalSearch : public Strategy {
 public:
  void begin(const SearchState& search) override;
  /// Searches around the fastest incumbent that was not yet a centre.
  bool step(SearchState& search) override;
  /// Moves from the fastest incumbent to faster ones until none is faster or the effort is spent.
  void descend(SearchState& search, std::int64_t effort);
  /// Finds a first incumbent: the start, which may break rules, or a neighbour of it.
  static void repair(SearchState& search, const Solution& start, std::int64_t end);

 private:
  bool move(SearchState& search, std::size_t from, std::int64_t end);
  /// Offers neighbours, one batch at a time, until some are faster than the centre. False if none is.
  static bool any_faster(SearchState& search, const std::vector<Assignment>& neighbours, const Solution& centre,
                         std::int64_t end);

  std::int64_t left_ = 0;                                 ///< Effort left for this round.
  std::set<std::pair<Assignment, std::string>> centres_;  ///< With their layout strings.
};

}  // namespace foldwise::planner

#pragma once

namespace foldwise::planner {

class SearchState;

/// A method that finds faster incumbents, or proves that there are none.
class Strategy {
 public:
  virtual ~Strategy() = default;
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  /// Begins a round. What was tried in the last round may be tried again.
  virtual void begin(const SearchState& /*search*/) {}
  /// Takes one step. False if nothing is left to try in this round.
  virtual bool step(SearchState& search) = 0;
};

}  // namespace foldwise::planner

#pragma once

namespace foldwise::planner {

class SearchState;

/// A way to make the incumbents of a search faster, or to show that nothing is.
class Strategy {
 public:
  virtual ~Strategy() = default;
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  /// Begins a round: what was tried in the one before may be tried again.
  virtual void begin(const SearchState& /*search*/) {}
  /// One step. False: nothing is left to try in this round.
  virtual bool step(SearchState& search) = 0;
};

}  // namespace foldwise::planner

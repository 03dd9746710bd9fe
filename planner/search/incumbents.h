#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "costmodel/parallel/options.h"
#include "planner/search/space.h"

// What a search has found.
namespace foldwise::planner {

/// A candidate that fits.
struct Solution {
  Seconds time{};
  Assignment assignment;  ///< In the order of the space.
  costmodel::TrainingOptions options;
};

/// The fastest candidate of each layout, as far as it is among the first `top`.
class Incumbents {
 public:
  explicit Incumbents(std::size_t top) : top_(top) {}
  /// Keeps it if it is faster than what is known of its layout.
  void offer(const Solution& found);
  /// Seconds below which a candidate of the layout, or of any, can still enter the answer.
  [[nodiscard]] double limit(const costmodel::Layout& layout) const;
  [[nodiscard]] double limit() const { return limit_; }
  /// Of all; infinity: nothing was found.
  [[nodiscard]] double fastest() const { return fastest_; }
  /// The fastest of so many layouts, fastest first.
  [[nodiscard]] std::vector<Solution> first(std::size_t count) const;
  /// The answer.
  [[nodiscard]] std::vector<Solution> sorted() const;

 private:
  using Key =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  static Key key(const costmodel::Layout& l) { return {l.tp, l.cp, l.dp, l.pp, l.vpp, l.ep, l.etp}; }
  std::size_t top_;
  std::map<Key, std::shared_ptr<const Solution>> found_;
  double limit_ = std::numeric_limits<double>::infinity(), fastest_ = limit_;
};

struct Statistics {
  /// Candidates, by rule; then those that do not fit, those that do not at p99 of routing, those with too many stages.
  std::vector<double> rejected;
  std::int64_t composed = 0, fitting = 0, simulated = 0;
  bool valid = false;  ///< A candidate was priced, so rules do not refuse them all.
  Statistics& operator+=(const Statistics& other);
};

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "costmodel/parallel/options.h"
#include "planner/search/space.h"

// The solutions that a search has found.
namespace foldwise::planner {

/// A candidate that fits.
struct Solution {
  Seconds time{};
  Assignment assignment;  ///< In the order of the space.
  costmodel::TrainingOptions options;
};

/// The fastest candidates of the `top` fastest layouts.
class Incumbents {
 public:
  explicit Incumbents(std::size_t top) : top_(top) {}
  /// Keeps `found` if it is faster than the known candidate of its layout.
  void offer(const Solution& found);
  /// A candidate of the layout, or of any layout, can still enter the answer if it takes fewer seconds than this.
  [[nodiscard]] double limit(const costmodel::Layout& layout) const;
  [[nodiscard]] double limit() const { return limit_; }
  /// Seconds of the fastest candidate; infinity if nothing was found.
  [[nodiscard]] double fastest() const { return fastest_; }
  /// The fastest candidates of the `count` fastest layouts, fastest first.
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
  /// Number of rejected candidates by rule. Three more numbers follow: too much memory, too much at p99 of routing, too
  /// many stages.
  std::vector<double> rejected;
  std::int64_t composed = 0, fitting = 0, simulated = 0;
  bool valid = false;  ///< A candidate was priced, so the rules do not refuse all.
  Statistics& operator+=(const Statistics& other);
};

}  // namespace foldwise::planner

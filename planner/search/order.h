#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/parallel/options.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"
#include "planner/search/space.h"

// In which order a search decides, and which rules it can check when.
namespace foldwise::planner {

/// Rules that the search keeps by construction of its splits, unless the split is given (and checks on its answer).
[[nodiscard]] bool about_splits(std::string_view rule);

class DecisionOrder {
 public:
  explicit DecisionOrder(const PlanProblem& problem);

  /// Dimensions in the order of decision: indices into SearchSpace::dimensions, by level, within it as in the table.
  [[nodiscard]] const std::vector<std::size_t>& dimensions() const { return dimensions_; }
  [[nodiscard]] std::size_t size() const { return dimensions_.size(); }
  [[nodiscard]] const Dimension& at(std::size_t position) const;
  [[nodiscard]] std::size_t end_of(Level level) const { return end_[static_cast<std::size_t>(level)]; }
  [[nodiscard]] std::size_t begin_of(Level level) const {
    return level == Level::kAttention ? 0 : end_[static_cast<std::size_t>(level) - 1];
  }
  /// Rules all of whose fields are decided once this position is, and were not before: indices into rules().
  [[nodiscard]] const std::vector<std::size_t>& rules_at(std::size_t position) const { return rules_at_[position]; }
  /// Rules of no dimension.
  [[nodiscard]] const std::vector<std::size_t>& rules_of_none() const { return rules_of_none_; }
  /// Rules about memory choices and the pipeline or the step, which stand at no position: lists of memory choices are
  /// shared by all pipelines and steps.
  [[nodiscard]] const std::vector<std::size_t>& late_rules() const { return late_rules_; }
  /// Rules about the experts' overlap with another micro-batch (overlaps.ep_a2a) that read nothing else that is decided
  /// after the experts.
  [[nodiscard]] const std::vector<std::size_t>& overlap_rules() const { return overlap_rules_; }
  struct MemoryRule {
    std::size_t rule = 0;              ///< Index into rules().
    std::vector<std::size_t> reads{};  ///< Positions before the memory choices.
  };
  /// Rules about memory choices and what is decided before them, which stand at no position: lists of memory choices
  /// keep to them.
  [[nodiscard]] const std::vector<MemoryRule>& memory_rules() const { return memory_rules_; }
  /// Candidates that differ only in what is decided from `position` on.
  [[nodiscard]] double candidates_from(std::size_t position) const { return candidates_from_[position]; }
  /// An assignment in the order of the space's dimensions. `assignment` may be shorter than the order: the rest is 0.
  [[nodiscard]] Assignment in_space(const Assignment& assignment) const;
  /// The reverse, of the first `size` positions.
  [[nodiscard]] Assignment in_order(const Assignment& assignment, std::size_t size) const;

 private:
  const PlanProblem& problem_;
  std::vector<std::size_t> dimensions_;
  std::array<std::size_t, 6> end_{};
  std::vector<std::vector<std::size_t>> rules_at_;
  std::vector<std::size_t> rules_of_none_, late_rules_, overlap_rules_;
  std::vector<MemoryRule> memory_rules_;
  std::vector<double> candidates_from_;
};

}  // namespace foldwise::planner

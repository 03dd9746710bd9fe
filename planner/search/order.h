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

// The order in which a search decides the dimensions, and the rules that it can test after each.
namespace foldwise::planner {

/// Whether the search keeps to the rule by the way it makes splits. Such a rule is tested only on a split that is
/// given, and on the answer.
[[nodiscard]] bool about_splits(std::string_view rule);

class DecisionOrder {
 public:
  explicit DecisionOrder(const PlanProblem& problem);

  /// Indices into SearchSpace::dimensions in the order of decision: by level, and within a level as in the table.
  [[nodiscard]] const std::vector<std::size_t>& dimensions() const { return dimensions_; }
  [[nodiscard]] std::size_t size() const { return dimensions_.size(); }
  [[nodiscard]] const Dimension& at(std::size_t position) const;
  [[nodiscard]] std::size_t end_of(Level level) const { return end_[static_cast<std::size_t>(level)]; }
  [[nodiscard]] std::size_t begin_of(Level level) const {
    return level == Level::kAttention ? 0 : end_[static_cast<std::size_t>(level) - 1];
  }
  /// Rules whose last field is decided at this position: indices into rules().
  [[nodiscard]] const std::vector<std::size_t>& rules_at(std::size_t position) const { return rules_at_[position]; }
  /// Rules that name no dimension.
  [[nodiscard]] const std::vector<std::size_t>& rules_of_none() const { return rules_of_none_; }
  /// Rules about memory choices and the pipeline or the step. They have no position, because all pipelines and steps
  /// share the lists of memory choices.
  [[nodiscard]] const std::vector<std::size_t>& late_rules() const { return late_rules_; }
  /// Rules about the experts' overlap with another micro-batch (overlaps.ep_a2a) whose other fields are all decided
  /// with the experts or before.
  [[nodiscard]] const std::vector<std::size_t>& overlap_rules() const { return overlap_rules_; }
  struct MemoryRule {
    std::size_t rule = 0;              ///< Index into rules().
    std::vector<std::size_t> reads{};  ///< Positions before the memory choices.
  };
  /// Rules about memory choices and fields decided before them. They have no position, because the lists of memory
  /// choices keep to them.
  [[nodiscard]] const std::vector<MemoryRule>& memory_rules() const { return memory_rules_; }
  /// Number of candidates that differ only from `position` on.
  [[nodiscard]] double candidates_from(std::size_t position) const { return candidates_from_[position]; }
  /// An assignment in the order of the space's dimensions. Positions beyond the end of `assignment` become 0.
  [[nodiscard]] Assignment in_space(const Assignment& assignment) const;
  /// The reverse, for the first `size` positions.
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

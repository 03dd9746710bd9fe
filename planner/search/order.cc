#include "planner/search/order.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace foldwise::planner {

bool about_splits(std::string_view rule) {
  return rule == "pp.even" || rule == "pp.vpp_even" || rule.starts_with("pp.layout_");
}

DecisionOrder::DecisionOrder(const PlanProblem& problem) : problem_(problem) {
  const std::vector<Dimension>& all = problem.space.dimensions;
  for (std::size_t level = 0; level < end_.size(); ++level) {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].field->level == static_cast<Level>(level)) dimensions_.push_back(i);
    end_[level] = dimensions_.size();
  }
  rules_at_.resize(dimensions_.size());
  const bool fixed_split = problem.space.names_splits();
  for (std::size_t rule = 0; rule < rules().size(); ++rule) {
    if (!fixed_split && about_splits(rules()[rule].id)) continue;
    std::optional<std::size_t> last;
    std::vector<std::size_t> before_memory;
    bool pipeline = false, beside_experts = std::ranges::count(rules()[rule].keys, "overlaps.ep_a2a") > 0;
    for (std::size_t i = 0; i < dimensions_.size(); ++i) {
      const std::string& key = at(i).field->key;
      if (std::ranges::count(rules()[rule].keys, key) == 0) continue;
      last = i;
      if (i < begin_of(Level::kMemory)) before_memory.push_back(i);
      beside_experts = beside_experts && (i < end_of(Level::kExperts) || key == "overlaps.ep_a2a");
      // Memory choices are listed for each way to overlap the experts' exchange.
      pipeline = pipeline || (i >= begin_of(Level::kPipeline) && i < end_of(Level::kStep) && key != "overlaps.ep_a2a" &&
                              key != "overlaps.delay_wgrad");
    }
    if (beside_experts) overlap_rules_.push_back(rule);
    const bool memory_choice = last && *last >= begin_of(Level::kMemory);
    if (memory_choice && !pipeline && !before_memory.empty())
      memory_rules_.push_back({rule, std::move(before_memory)});
    else
      (!last ? rules_of_none_ : memory_choice && pipeline ? late_rules_ : rules_at_[*last]).push_back(rule);
  }
  candidates_from_.assign(dimensions_.size() + 1, 1.0);
  for (std::size_t i = dimensions_.size(); i-- > 0;)
    candidates_from_[i] = candidates_from_[i + 1] * static_cast<double>(at(i).values.size());
}

const Dimension& DecisionOrder::at(std::size_t position) const {
  return problem_.space.dimensions[dimensions_[position]];
}

Assignment DecisionOrder::in_space(const Assignment& assignment) const {
  Assignment result(dimensions_.size(), 0);
  for (std::size_t i = 0; i < assignment.size(); ++i) result[dimensions_[i]] = assignment[i];
  return result;
}

Assignment DecisionOrder::in_order(const Assignment& assignment, std::size_t size) const {
  Assignment result(size, 0);
  for (std::size_t i = 0; i < size; ++i) result[i] = assignment[dimensions_[i]];
  return result;
}

}  // namespace foldwise::planner

#include "planner/search/contradiction.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <string_view>

#include "planner/rules/rules.h"
#include "planner/search/order.h"

namespace foldwise::planner {
namespace {

using costmodel::TrainingOptions;

/// Decides sizes one after the other, those with one value first, and checks each rule once all that it looks at is
/// decided.
class Sizes {
 public:
  explicit Sizes(const PlanProblem& problem)
      : problem_(problem),
        bases_(problem),
        rule_problem_{problem.model, problem.hardware, problem.num_gpus, problem.folding} {
    for (const std::string_view key : {"tp", "cp", "pp", "micro_batch", "etp", "ep", "vpp"})
      if (const Dimension* dimension = problem.space.find(key)) sizes_.push_back(dimension);
    std::stable_sort(sizes_.begin(), sizes_.end(), [](const Dimension* a, const Dimension* b) {
      return (a->values.size() > 1) < (b->values.size() > 1);
    });
    for (const Rule& rule : rules()) {
      std::size_t last = 0;
      if (std::all_of(rule.keys.begin(), rule.keys.end(), [&](const auto& key) { return known(key, last); }))
        rules_at_.emplace(last, &rule);
    }
  }

  /// Whether some are valid, or too many had to be looked at.
  bool any() {
    Digits digits(problem_.space.dimensions.size(), 0);
    return any(digits, 0);
  }

 private:
  /// Whether the field has one value once `last` sizes are decided, which grows if need be.
  bool known(const std::string& key, std::size_t& last) const {
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      if (sizes_[i]->field->key == key) {
        last = std::max(last, i + 1);
        return true;
      }
    const Dimension* dimension = problem_.space.find(key);
    if (dimension == nullptr) return problem_.stated.contains(key);
    return dimension->values.size() == 1 && dimension->field->applies == nullptr;
  }

  bool any(Digits& digits, std::size_t decided) {
    constexpr int kMost = 100'000;  // Some tens of milliseconds.
    if (++visited_ > kMost) return true;
    const TrainingOptions options = options_of(digits, decided);
    const auto [first, end] = rules_at_.equal_range(decided);
    if (std::any_of(first, end, [&](const auto& at) { return at.second->violated(rule_problem_, options); }))
      return false;
    if (decided == sizes_.size()) return true;
    std::uint16_t& digit = digits[static_cast<std::size_t>(sizes_[decided] - problem_.space.dimensions.data())];
    for (digit = 0; digit < sizes_[decided]->values.size(); ++digit)
      if (any(digits, decided + 1)) return true;
    digit = 0;
    return false;
  }

  [[nodiscard]] TrainingOptions options_of(const Digits& digits, std::size_t decided) const {
    TrainingOptions options = bases_.of(digits);
    for (const Dimension& d : problem_.space.dimensions)
      if (d.values.size() == 1 && d.field->applies == nullptr) d.field->value.set(options, d.values.front());
    for (std::size_t i = 0; i < decided; ++i) {
      const auto at = static_cast<std::size_t>(sizes_[i] - problem_.space.dimensions.data());
      sizes_[i]->field->value.set(options, sizes_[i]->values[digits[at]]);
    }
    settle_data_parallel(problem_, options);
    return options;
  }

  const PlanProblem& problem_;
  Bases bases_;
  Problem rule_problem_;
  std::vector<const Dimension*> sizes_;
  std::multimap<std::size_t, const Rule*> rules_at_;  ///< By how many sizes must be decided.
  int visited_ = 0;
};

/// A candidate, and what speaks against it.
class Refusals {
 public:
  explicit Refusals(const PlanProblem& problem)
      : problem_(problem),
        bases_(problem),
        rule_problem_{problem.model, problem.hardware, problem.num_gpus, problem.folding} {
    const bool fixed_split = problem.space.find("pipeline_layout") != nullptr;
    for (const Rule& rule : rules())
      if (fixed_split || !about_splits(rule.id)) rules_.push_back(&rule);
  }

  /// With `list` the reasons too.
  int count(const Digits& digits, std::vector<std::string>* list = nullptr) const {
    TrainingOptions options = bases_.of(digits);
    int found = 0;
    for (std::size_t i = 0; i < digits.size(); ++i) {
      const Dimension& d = problem_.space.dimensions[i];
      const bool applied = apply(problem_, d, digits[i], options);
      settle_data_parallel(problem_, options);
      if (applied || !d.named || digits[i] != 0) continue;
      ++found;
      if (list != nullptr)
        list->push_back(fmt::format("{} = {} does not apply: only where {}", d.field->key, value_text(d.values.front()),
                                    d.field->when));
    }
    for (const Rule* rule : rules_) {
      if (!rule->violated(rule_problem_, options)) continue;
      ++found;
      if (list != nullptr) list->push_back(fmt::format("{}: {}", rule->id, rule->reason(rule_problem_, options)));
      if (rule == &rules().front()) break;  // The others divide by these sizes.
    }
    return found;
  }

 private:
  const PlanProblem& problem_;
  Bases bases_;
  Problem rule_problem_;
  std::vector<const Rule*> rules_;
};

}  // namespace

bool contradictory(const PlanProblem& problem) { return !Sizes(problem).any(); }

std::vector<std::string> least_refused(const PlanProblem& problem) {
  constexpr int kStarts = 3;
  const Refusals refusals(problem);
  const std::vector<Dimension>& dimensions = problem.space.dimensions;
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same answer every time.
  Digits best;
  int fewest = 0;
  for (int start = 0; start < kStarts && (best.empty() || fewest > 1); ++start) {
    Digits digits(dimensions.size(), 0);
    for (std::size_t i = 0; i < digits.size() && start > 0; ++i)
      digits[i] = static_cast<std::uint16_t>(random() % dimensions[i].values.size());
    int count = refusals.count(digits);
    for (bool fewer = true; fewer && count > 1;) {
      fewer = false;
      for (std::size_t i = 0; i < digits.size(); ++i)
        for (std::uint16_t value = 0; value < dimensions[i].values.size() && count > 1; ++value) {
          Digits other = digits;
          other[i] = value;
          const int then = refusals.count(other);
          if (then >= count) continue;
          fewer = true;
          count = then;
          digits = other;
        }
    }
    if (best.empty() || count < fewest) {
      best = digits;
      fewest = count;
    }
  }
  std::vector<std::string> list;
  static_cast<void>(refusals.count(best, &list));
  return list;
}

}  // namespace foldwise::planner

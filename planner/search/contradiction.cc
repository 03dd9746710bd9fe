#include "planner/search/contradiction.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "planner/rules/rules.h"

namespace foldwise::planner {
namespace {

using costmodel::TrainingOptions;

// Decisions that are looked at before giving up: some tens of milliseconds.
constexpr int kMost = 100'000;
constexpr std::size_t kLines = 3;

/// Decides sizes one after the other, those with one value first, and checks each rule once all that it looks at is
/// decided.
class Contradiction {
 public:
  explicit Contradiction(const PlanProblem& problem)
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

  std::vector<std::string> reasons() {
    Digits digits(problem_.space.dimensions.size(), 0);
    if (valid(digits, 0) || visited_ > kMost) return {};
    std::vector<std::pair<int, std::string>> list;
    for (const auto& [rule, refusal] : refusals_)
      list.emplace_back(refusal.count, fmt::format("{}: {}", rule, refusal.example));
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::string> lines;
    for (const auto& [count, line] : list)
      if (lines.size() < kLines) lines.push_back(line);
    return lines;
  }

 private:
  struct Refusal {
    int count = 0;
    std::string example;
  };

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

  /// Whether something below the first `decided` sizes may be valid.
  bool valid(Digits& digits, std::size_t decided) {
    if (++visited_ > kMost) return true;
    const TrainingOptions options = options_of(digits, decided);
    const auto [first, end] = rules_at_.equal_range(decided);
    for (auto at = first; at != end; ++at)
      if (const Rule& rule = *at->second; rule.violated(rule_problem_, options)) {
        Refusal& refusal = refusals_[rule.id];
        if (refusal.count++ == 0) refusal.example = rule.reason(rule_problem_, options);
        return false;
      }
    if (decided == sizes_.size()) return true;
    std::uint16_t& digit = digits[static_cast<std::size_t>(sizes_[decided] - problem_.space.dimensions.data())];
    for (digit = 0; digit < sizes_[decided]->values.size(); ++digit)
      if (valid(digits, decided + 1)) return true;
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
  std::map<std::string_view, Refusal> refusals_;
  int visited_ = 0;
};

}  // namespace

std::vector<std::string> contradiction(const PlanProblem& problem) { return Contradiction(problem).reasons(); }

}  // namespace foldwise::planner

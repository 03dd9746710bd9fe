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

/// Whether the field's value counts, as apply() has it.
bool acts(const Field& f, const TrainingOptions& options) {
  return f.applies_to(options) && (f.differs == nullptr || f.differs(options));
}

bool always_acts(const Field& f) { return f.applies == nullptr && f.differs == nullptr; }

/// Decides sizes, and what decides whether fields with one value apply, one after the other, and checks each rule and
/// each such field once all that it looks at is decided.
class Few {
 public:
  explicit Few(const PlanProblem& problem) : problem_(problem), bases_(problem), rule_problem_(rule_problem(problem)) {
    for (const std::string_view key : {"tp", "cp", "pp", "etp", "ep", "micro_batch", "vpp"})
      decide(problem.space.find(key));
    std::map<const Dimension*, std::vector<const Dimension*>> conditions;
    for (const Dimension& d : problem.space.dimensions)
      if (d.named && d.values.size() == 1 && !always_acts(*d.field)) {
        std::vector<const Dimension*> on = conditions_of(d);
        if (std::any_of(on.begin(), on.end(), [](const Dimension* o) { return !always_acts(*o->field); })) continue;
        decide(&d);
        for (const Dimension* o : on) decide(o);
        conditions.emplace(&d, std::move(on));
      }
    // What has one value first, then conditions; tp, cp and pp, which most rules read, before the other sizes.
    const auto rank = [&](const Dimension* d) {
      if (d->values.size() == 1) return 0;
      const bool condition =
          std::ranges::any_of(conditions, [&](const auto& entry) { return std::ranges::count(entry.second, d) > 0; });
      return condition ? 1 : 2;
    };
    std::stable_sort(decided_.begin(), decided_.end(),
                     [&](const Dimension* a, const Dimension* b) { return rank(a) < rank(b); });
    for (const auto& [dimension, on] : conditions) {
      std::size_t last = place(dimension);
      for (const Dimension* o : on) last = std::max(last, place(o));
      applies_at_.emplace(last + 1, dimension);
    }
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
  void decide(const Dimension* dimension) {
    if (dimension != nullptr && std::ranges::count(decided_, dimension) == 0) decided_.push_back(dimension);
  }
  std::size_t place(const Dimension* dimension) const {
    return static_cast<std::size_t>(std::ranges::find(decided_, dimension) - decided_.begin());
  }
  std::size_t index(const Dimension* dimension) const {
    return static_cast<std::size_t>(dimension - problem_.space.dimensions.data());
  }

  /// Dimensions whose values decide whether the field applies, as far as random candidates show.
  [[nodiscard]] std::vector<const Dimension*> conditions_of(const Dimension& field) const {
    constexpr int kSamples = 30;
    std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same answer every time.
    std::vector<const Dimension*> list;
    for (int sample = 0; sample < kSamples; ++sample) {
      TrainingOptions options = bases_.of(Digits(problem_.space.dimensions.size(), 0));
      for (const Dimension& d : problem_.space.dimensions)
        d.field->value.set(options, d.values[random() % d.values.size()]);
      const bool before = acts(*field.field, options);
      for (const Dimension& d : problem_.space.dimensions) {
        if (&d == &field || std::ranges::count(list, &d) > 0) continue;
        for (const nlohmann::json& value : d.values) {
          TrainingOptions other = options;
          d.field->value.set(other, value);
          if (acts(*field.field, other) == before) continue;
          list.push_back(&d);
          break;
        }
      }
    }
    return list;
  }

  /// Whether the field has one value once `last` dimensions are decided, which grows if need be.
  bool known(const std::string& key, std::size_t& last) const {
    for (std::size_t i = 0; i < decided_.size(); ++i)
      if (decided_[i]->field->key == key) {
        last = std::max(last, i + 1);
        return true;
      }
    const Dimension* dimension = problem_.space.find(key);
    if (dimension == nullptr) return problem_.stated.contains(key);
    return dimension->values.size() == 1 && always_acts(*dimension->field);
  }

  bool any(Digits& digits, std::size_t decided) {
    constexpr int kMost = 30'000;  // Some tens of milliseconds.
    if (++visited_ > kMost) return true;
    const TrainingOptions options = options_of(digits, decided);
    const auto [rule, rules_end] = rules_at_.equal_range(decided);
    if (std::any_of(rule, rules_end, [&](const auto& at) { return at.second->violated(rule_problem_, options); }))
      return false;
    const auto [field, fields_end] = applies_at_.equal_range(decided);
    if (std::any_of(field, fields_end, [&](const auto& at) { return idle(*at.second, options); })) return false;
    if (decided == decided_.size()) return true;
    std::uint16_t& digit = digits[index(decided_[decided])];
    for (digit = 0; digit < decided_[decided]->values.size(); ++digit)
      if (any(digits, decided + 1)) return true;
    digit = 0;
    return false;
  }

  /// Whether the field has a value where it does not apply.
  static bool idle(const Dimension& dimension, const TrainingOptions& options) {
    static const TrainingOptions untouched;
    const Field& f = *dimension.field;
    return !acts(f, options) && dimension.values.front() != f.value.get(untouched);
  }

  [[nodiscard]] TrainingOptions options_of(const Digits& digits, std::size_t decided) const {
    TrainingOptions options = bases_.of(digits);
    for (const Dimension& d : problem_.space.dimensions)
      if (d.values.size() == 1 && always_acts(*d.field)) d.field->value.set(options, d.values.front());
    for (std::size_t i = 0; i < decided; ++i)
      decided_[i]->field->value.set(options, decided_[i]->values[digits[index(decided_[i])]]);
    settle_data_parallel(problem_, options);
    return options;
  }

  const PlanProblem& problem_;
  Bases bases_;
  Problem rule_problem_;
  std::vector<const Dimension*> decided_;
  // By how many dimensions must be decided.
  std::multimap<std::size_t, const Rule*> rules_at_;
  std::multimap<std::size_t, const Dimension*> applies_at_;
  int visited_ = 0;
};

/// A candidate, and what speaks against it.
class Refusals {
 public:
  explicit Refusals(const PlanProblem& problem)
      : problem_(problem), bases_(problem), rule_problem_(rule_problem(problem)) {
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
      if (applied || !d.named || d.values.size() > 1) continue;
      found += 2;  // Rules say more.
      if (list != nullptr)
        list->push_back(fmt::format("{} = {} does not apply{}{}", d.field->key, value_text(d.values.front()),
                                    d.field->when.empty() ? "" : ": only where ", d.field->when));
    }
    if (const std::int64_t stages = options.pipeline.pp * options.pipeline.vpp;
        stages > problem_.model.num_layers() + 2) {
      ++found;
      if (list != nullptr)
        list->push_back(fmt::format("search.more_stages_than_layers: {} stages x chunks for {} layers", stages,
                                    problem_.model.num_layers()));
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

std::vector<std::string> contradiction(const PlanProblem& problem) {
  return Few(problem).any() ? std::vector<std::string>{} : least_refused(problem);
}

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

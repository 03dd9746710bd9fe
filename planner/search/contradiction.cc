#include "planner/search/contradiction.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <random>
#include <string_view>

#include "planner/rules/rules.h"
#include "planner/search/order.h"

namespace foldwise::planner {
namespace {

using costmodel::TrainingOptions;

/// For each field that does not always act, the dimensions that decide whether it acts.
using Conditions = std::map<const Dimension*, std::vector<const Dimension*>>;

Conditions conditions(const PlanProblem& problem) {
  Conditions map;
  for (const Dimension& d : problem.space.dimensions) {
    if (d.field->always_acts()) continue;
    std::vector<const Dimension*>& on = map[&d];
    for (const std::string& key : d.field->decided_by)
      if (const Dimension* const other = problem.space.find(key); other != nullptr && other->values.size() > 1)
        on.push_back(other);
  }
  return map;
}

/// Arc consistency: removes values of fields that a rule allows with no remaining values of the other fields, until
/// nothing changes.
class Narrowing {
 public:
  Narrowing(const PlanProblem& problem, const Bases& bases, const Conditions& conditions)
      : problem_(problem), bases_(bases), rule_problem_(rule_problem(problem)) {
    static const TrainingOptions plain;
    const std::vector<Dimension>& dimensions = problem.space.dimensions;
    for (const Dimension& d : dimensions) {
      left_.emplace_back(d.values.size() + 1, true);
      // As in apply(): a named field may stay out of a run only with its default value.
      left_.back().back() =
          !d.field->always_acts() && (!d.named || std::ranges::count(d.values, d.field->value.get(plain)) > 0);
    }
    const bool fixed_split = problem.space.names_splits();
    for (const Rule& rule : rules()) {
      if (!fixed_split && about_splits(rule.id)) continue;
      Demand demand{.rule = &rule};
      bool by_default = false;
      for (const std::string& key : rule.keys) {
        if (const Dimension* const d = problem.space.find(key))
          demand.on.push_back(index(d));
        else
          by_default = by_default || !problem.stated.contains(key);
      }
      for (std::size_t i = 0; i < dimensions.size() && by_default; ++i)
        if (bases.depends_on(i)) demand.on.push_back(i);
      demands_.push_back(std::move(demand));
    }
    for (const auto& [dimension, on] : conditions)
      if (!left_[index(dimension)].back()) {
        Demand demand{.applies = dimension->field};
        for (const Dimension* d : on) demand.on.push_back(index(d));
        demands_.push_back(std::move(demand));
      }
    for (Demand& demand : demands_) {
      std::sort(demand.on.begin(), demand.on.end());
      demand.on.erase(std::unique(demand.on.begin(), demand.on.end()), demand.on.end());
      for (const std::size_t i : demand.on) {
        const auto found = conditions.find(&dimensions[i]);
        demand.known.push_back(found != conditions.end() &&
                               std::ranges::all_of(found->second, [&](const Dimension* on) {
                                 return std::ranges::binary_search(demand.on, index(on));
                               }));
      }
    }
  }

  /// Whether some field has no value left.
  bool none_left() {
    for (bool narrower = true; narrower;) {
      narrower = false;
      for (const Demand& demand : demands_)
        for (const std::size_t i : demand.on)
          for (std::size_t value = 0; value < left_[i].size(); ++value) {
            if (!left_[i][value] || allows(demand, i, value)) continue;
            left_[i][value] = false;
            narrower = true;
            if (std::ranges::count(left_[i], true) == 0) return true;
          }
    }
    return false;
  }

 private:
  /// A constraint: a rule on the fields that it names, or a field that must apply on the fields that decide it.
  struct Demand {
    const Rule* rule = nullptr;
    const Field* applies = nullptr;
    std::vector<std::size_t> on{};  ///< Dimensions.
    std::vector<bool> known{};      ///< [on] whether the other fields decide that it applies.
  };

  [[nodiscard]] std::size_t index(const Dimension* dimension) const {
    return static_cast<std::size_t>(dimension - problem_.space.dimensions.data());
  }

  /// Whether the constraint can be met with this value of a dimension. True also if there are too many cases to look
  /// at.
  bool allows(const Demand& demand, std::size_t dimension, std::size_t value) {
    std::vector<bool> only(left_[dimension].size(), false);
    only[value] = true;
    std::swap(only, left_[dimension]);
    tried_ = 0;
    Assignment assignment(left_.size(), 0);
    const bool met = can_be_met(demand, 0, assignment);
    std::swap(only, left_[dimension]);
    return met;
  }

  bool can_be_met(const Demand& demand, std::size_t decided, Assignment& assignment) {
    constexpr int kMost = 300;
    if (decided == demand.on.size()) return ++tried_ > kMost || met(demand, assignment);
    const std::vector<bool>& left = left_[demand.on[decided]];
    for (std::size_t value = 0; value < left.size(); ++value) {
      assignment[demand.on[decided]] = static_cast<std::uint16_t>(value);
      if (left[value] && can_be_met(demand, decided + 1, assignment)) return true;
    }
    return false;
  }

  [[nodiscard]] bool met(const Demand& demand, const Assignment& assignment) const {
    static const TrainingOptions plain;
    Assignment of_base(assignment.size(), 0);
    for (const std::size_t i : demand.on)
      if (assignment[i] < problem_.space.dimensions[i].values.size()) of_base[i] = assignment[i];
    TrainingOptions options = bases_.of(of_base);
    for (std::size_t k = 0; k < demand.on.size(); ++k) {
      const std::size_t i = demand.on[k];
      const Dimension& d = problem_.space.dimensions[i];
      const bool applies = assignment[i] < d.values.size();
      if (demand.known[k] && d.field->acts_in(options) != applies) return false;
      d.field->value.set(options, applies ? d.values[assignment[i]] : d.field->value.get(plain));
    }
    settle_data_parallel(problem_, options);
    return demand.rule != nullptr ? !demand.rule->broken(rule_problem_, options) : demand.applies->acts_in(options);
  }

  const PlanProblem& problem_;
  const Bases& bases_;
  Problem rule_problem_;
  std::vector<std::vector<bool>> left_;  ///< [dimensions][values]; the last entry: the field does not apply.
  std::vector<Demand> demands_;
  int tried_ = 0;
};

/// Backtracking over the sizes and the fields that decide whether fields with one value apply. It tests each rule, and
/// each field with one value, once all fields that it reads are decided.
class Few {
 public:
  Few(const PlanProblem& problem, const Bases& bases, Conditions conditions)
      : problem_(problem), bases_(bases), rule_problem_(rule_problem(problem)) {
    // Other integers would multiply the cases, and few rules read them.
    for (const std::string_view key : {"tp", "cp", "pp", "etp", "ep", "micro_batch", "vpp"})
      decide(problem.space.find(key));
    std::erase_if(conditions, [](const auto& entry) {
      return !entry.first->named || entry.first->values.size() > 1 ||
             std::ranges::any_of(entry.second, [](const Dimension* o) { return !o->field->always_acts(); });
    });
    for (const auto& [dimension, on] : conditions) {
      decide(dimension);
      for (const Dimension* o : on) decide(o);
    }
    // Fields with one value first, then conditions.
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

  /// Whether some candidate is valid, or too many cases had to be looked at.
  bool any() {
    Assignment assignment(problem_.space.dimensions.size(), 0);
    return any(assignment, 0);
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

  /// Whether the field has one value after `last` decided dimensions. Raises `last` if more are needed.
  bool known(const std::string& key, std::size_t& last) const {
    for (std::size_t i = 0; i < decided_.size(); ++i)
      if (decided_[i]->field->key == key) {
        last = std::max(last, i + 1);
        return true;
      }
    const Dimension* dimension = problem_.space.find(key);
    if (dimension == nullptr) return problem_.stated.contains(key);
    return dimension->values.size() == 1 && dimension->field->always_acts();
  }

  bool any(Assignment& assignment, std::size_t decided) {
    constexpr int kMost = 30'000;  // Some tens of milliseconds.
    if (++visited_ > kMost) return true;
    const TrainingOptions options = options_of(assignment, decided);
    const auto [rule, rules_end] = rules_at_.equal_range(decided);
    if (std::any_of(rule, rules_end, [&](const auto& at) { return at.second->broken(rule_problem_, options); }))
      return false;
    const auto [field, fields_end] = applies_at_.equal_range(decided);
    if (std::any_of(field, fields_end, [&](const auto& at) { return idle(*at.second, options); })) return false;
    if (decided == decided_.size()) return true;
    std::uint16_t& choice = assignment[index(decided_[decided])];
    for (choice = 0; choice < decided_[decided]->values.size(); ++choice)
      if (any(assignment, decided + 1)) return true;
    choice = 0;
    return false;
  }

  /// Whether the field has a value although it does not apply.
  static bool idle(const Dimension& dimension, const TrainingOptions& options) {
    static const TrainingOptions untouched;
    const Field& f = *dimension.field;
    return !f.acts_in(options) && dimension.values.front() != f.value.get(untouched);
  }

  [[nodiscard]] TrainingOptions options_of(const Assignment& assignment, std::size_t decided) const {
    TrainingOptions options = bases_.of(assignment);
    for (const Dimension& d : problem_.space.dimensions)
      if (d.values.size() == 1 && d.field->always_acts()) d.field->value.set(options, d.values.front());
    for (std::size_t i = 0; i < decided; ++i)
      decided_[i]->field->value.set(options, decided_[i]->values[assignment[index(decided_[i])]]);
    settle_data_parallel(problem_, options);
    return options;
  }

  const PlanProblem& problem_;
  const Bases& bases_;
  Problem rule_problem_;
  std::vector<const Dimension*> decided_;
  // By the number of dimensions that must be decided.
  std::multimap<std::size_t, const Rule*> rules_at_;
  std::multimap<std::size_t, const Dimension*> applies_at_;
  int visited_ = 0;
};

/// Counts what speaks against a candidate.
class Refusals {
 public:
  explicit Refusals(const PlanProblem& problem)
      : problem_(problem), bases_(problem), rule_problem_(rule_problem(problem)) {
    const bool fixed_split = problem.space.names_splits();
    for (const Rule& rule : rules())
      if (fixed_split || !about_splits(rule.id)) rules_.push_back(&rule);
  }

  /// Number of violations; adds their reasons to `list`.
  int count(const Assignment& assignment, std::vector<std::string>* list = nullptr) const {
    TrainingOptions options = bases_.of(assignment);
    int found = 0;
    for (std::size_t i = 0; i < assignment.size(); ++i) {
      const Dimension& d = problem_.space.dimensions[i];
      const bool applied = apply(problem_, d, assignment[i], options);
      settle_data_parallel(problem_, options);
      if (applied || !d.named) continue;
      found += 3;  // Broken rules say more, so this counts three times.
      if (list == nullptr) continue;
      const Field& f = *d.field;
      list->push_back(fmt::format("{} = {} does not apply{}", f.key, value_text(d.values[assignment[i]]),
                                  !f.when.empty() ? ": only where " + f.when
                                  : !f.decided_by.empty()
                                      ? fmt::format(": that depends on {}", fmt::join(f.decided_by, ", "))
                                      : ""));
    }
    if (const std::int64_t stages = options.pipeline.pp * options.pipeline.vpp;
        stages > problem_.model.num_layers() + 2) {
      ++found;
      if (list != nullptr)
        list->push_back(fmt::format("search.more_stages_than_layers: {} stages x chunks for {} layers", stages,
                                    problem_.model.num_layers()));
    }
    for (const Rule* rule : rules_) {
      if (!rule->broken(rule_problem_, options)) continue;
      ++found;
      if (list != nullptr) list->push_back(fmt::format("{}: {}", rule->id, rule->reason(rule_problem_, options)));
      if (rule == &rules().front()) break;  // The other rules divide by these sizes.
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
  const Bases bases(problem);
  const Conditions on = conditions(problem);
  const bool refused = Narrowing(problem, bases, on).none_left() || !Few(problem, bases, on).any();
  return refused ? least_refused(problem) : std::vector<std::string>{};
}

std::vector<std::string> least_refused(const PlanProblem& problem) {
  constexpr int kStarts = 3;
  const Refusals refusals(problem);
  const std::vector<Dimension>& dimensions = problem.space.dimensions;
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same answer every time.
  Assignment best;
  int fewest = 0;
  for (int start = 0; start < kStarts && (best.empty() || fewest > 1); ++start) {
    Assignment assignment(dimensions.size(), 0);
    for (std::size_t i = 0; i < assignment.size() && start > 0; ++i)
      assignment[i] = static_cast<std::uint16_t>(random() % dimensions[i].values.size());
    int count = refusals.count(assignment);
    for (bool fewer = true; fewer && count > 1;) {
      fewer = false;
      for (std::size_t i = 0; i < assignment.size(); ++i)
        for (std::uint16_t value = 0; value < dimensions[i].values.size() && count > 1; ++value) {
          Assignment other = assignment;
          other[i] = value;
          const int then = refusals.count(other);
          if (then >= count) continue;
          fewer = true;
          count = then;
          assignment = other;
        }
    }
    if (best.empty() || count < fewest) {
      best = assignment;
      fewest = count;
    }
  }
  std::vector<std::string> list;
  static_cast<void>(refusals.count(best, &list));
  return list;
}

}  // namespace foldwise::planner

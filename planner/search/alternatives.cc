#include "planner/search/alternatives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "costmodel/step/step.h"
#include "planner/rules/rules.h"
#include "planner/search/threads.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

using Values = std::vector<json>;
using Set = std::map<std::string, Values>;

/// Fields whose plain values (Field::plain) belong together.
struct Choice {
  std::string name;
  std::vector<const Field*> fields;

  [[nodiscard]] int burden() const { return fields.front()->plain.burden; }
  /// Whether most runs make this choice.
  [[nodiscard]] bool usual() const {
    return std::ranges::any_of(fields, [](const Field* f) {
      return !f->usual.is_null() && std::ranges::count(f->plain.values, f->usual) == 0;
    });
  }
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> list = [] {
    std::vector<Choice> made;
    for (const Field& f : fields()) {
      if (f.plain.without.empty()) continue;
      auto choice = std::ranges::find(made, f.plain.without, &Choice::name);
      if (choice == made.end()) choice = made.insert(made.end(), {f.plain.without, {}});
      choice->fields.push_back(&f);
    }
    return made;
  }();
  return list;
}

/// Choices that are given up if they gain nothing, in this order.
const std::vector<const Choice*>& burdens() {
  static const std::vector<const Choice*> list = [] {
    std::vector<const Choice*> made;
    for (const Choice& choice : choices())
      if (choice.burden() > 0) made.push_back(&choice);
    std::ranges::stable_sort(made, {}, &Choice::burden);
    return made;
  }();
  return list;
}

bool has(const Values& values, const json& value) { return std::ranges::count(values, value) > 0; }

/// The plain values that the space has for the fields of a choice. Empty if the options have them already, or if the
/// space has none.
Set taken_back(const PlanProblem& problem, const Choice& choice, const TrainingOptions& o) {
  Set set;
  bool differs = false;
  for (const Field* f : choice.fields) {
    const Dimension* const dimension = problem.space.find(f->key);
    if (dimension == nullptr) continue;
    Values left;
    for (const json& value : dimension->values)
      if (has(f->plain.values, value)) left.push_back(value);
    const bool other = f->counts_in(problem.model, o) && !has(f->plain.values, f->value.get(o));
    if (left.empty() && other) return {};
    differs = differs || other;
    if (!left.empty()) set[f->key] = left;
  }
  return differs ? set : Set{};
}

bool keeps_to(const Set& set, const TrainingOptions& o) {
  return std::ranges::all_of(set, [&](const auto& entry) {
    const Field& f = field(entry.first);
    return has(entry.second, f.value.get(o)) || !f.applies_to(o);
  });
}

/// The assignment of the same candidate in the wider space, which has the same dimensions.
Assignment assignment_in(const SearchSpace& wide, const SearchSpace& narrow, const Assignment& assignment) {
  Assignment result;
  for (std::size_t i = 0; i < assignment.size(); ++i) {
    const Values& values = wide.dimensions[i].values;
    const auto at = std::ranges::find(values, narrow.dimensions[i].values[assignment[i]]);
    result.push_back(static_cast<std::uint16_t>(at - values.begin()));
  }
  return result;
}

/// A plan moved into the narrow space. Fields whose values the narrow space lacks take its first value. That may
/// contradict the rest, so the time is then infinite.
Solution narrowed(const PlanProblem& narrow, const PlanProblem& problem, const Plan& plan) {
  Solution found{.time = plan.prediction.step_time, .assignment = {}, .options = plan.options};
  for (std::size_t i = 0; i < plan.assignment.size(); ++i) {
    const auto& [field, values, named] = narrow.space.dimensions[i];
    const auto at = std::ranges::find(values, problem.space.dimensions[i].values[plan.assignment[i]]);
    found.assignment.push_back(at == values.end() ? 0 : static_cast<std::uint16_t>(at - values.begin()));
    if (at != values.end() || !field->applies_to(plan.options)) continue;
    field->value.set(found.options, values.front());
    found.time = Seconds{std::numeric_limits<double>::infinity()};
  }
  return found;
}

/// Fixes the fields for which `which` holds to the values of the options, except the fields of the set.
void keep(const std::function<bool(const Field&)>& which, const Set& set, const TrainingOptions& options,
          PlanProblem& narrow) {
  for (Dimension& d : narrow.space.dimensions)
    if (!set.contains(d.field->key) && d.values.size() > 1 && which(*d.field)) d.values = {d.field->value.get(options)};
}

enum class How : std::uint8_t {
  kAsIs,    ///< The first plan with the values, everything else as it is.
  kHops,    ///< Local search from that plan, or from the fastest known plan with the values.
  kSearch,  ///< After that a small search with its sizes of layers, and one of the whole space.
};

/// The fastest plan with these values.
std::vector<Plan> searched(const PlanProblem& problem, const Set& set, const Plan& first,
                           const std::vector<Plan>& known, How how, const std::function<bool()>& goes_on,
                           SharedCosts& costs) {
  const FollowUpParameters& p = problem.parameters.follow_up;
  PlanProblem narrow = problem;
  for (const auto& [key, values] : set) narrow.space.set(key, values);
  narrow.top = 1;
  narrow.effort = share_of_effort(problem, p.near_share);
  keep([](const Field& f) { return f.numerics; }, set, first.options, narrow);
  std::vector<Solution> starts = {narrowed(narrow, problem, first)};
  for (const Plan& plan : known)
    if (keeps_to(set, plan.options)) starts.push_back(narrowed(narrow, problem, plan));
  PlanResult result = changed(narrow, starts, how == How::kAsIs ? 1 : narrow.effort, costs);
  const auto time = [&] {
    return result.plans.empty() ? Seconds{std::numeric_limits<double>::infinity()}
                                : result.plans.front().prediction.step_time;
  };
  bool vetted = false;  // plan() has replayed it.
  const auto search = [&](const PlanProblem& space) {
    std::vector<Solution> found;
    for (const Plan& plan : result.plans) found.push_back(narrowed(space, narrow, plan));
    PlanResult more = plan(
        space, [&](const Progress& progress) { return progress.effort < 1.0 && goes_on(); }, &costs, found);
    if (more.plans.empty()) return;
    // If a plan reserves too much, plan() leaves out all plans like it. This one may not be like it.
    if (time() < more.plans.front().prediction.step_time && !reserves_too_much(problem, result.plans.front())) return;
    for (Plan& best : more.plans) best.assignment = assignment_in(narrow.space, space.space, best.assignment);
    result = std::move(more);
    vetted = true;
  };
  if (how == How::kSearch && goes_on()) {
    PlanProblem near = narrow;
    keep([](const Field& f) { return f.parallel && f.level < Level::kPipeline; }, set,
         result.plans.empty() ? first.options : result.plans.front().options, near);
    search(near);
  }
  if (how == How::kSearch && time() > p.near * first.prediction.step_time && goes_on()) {
    narrow.effort = share_of_effort(problem, p.alternative_share);
    search(narrow);
  }
  if (!vetted)
    std::erase_if(result.plans, [&](Plan& plan) { return reserves_too_much(problem, plan) && !plan.prediction.fits; });
  for (Plan& best : result.plans) best.assignment = assignment_in(problem.space, narrow.space, best.assignment);
  return std::move(result.plans);
}

void take_faster(std::optional<Plan> other, std::optional<Plan>& best) {
  if (other && (!best || other->prediction.step_time < best->prediction.step_time)) best = std::move(other);
}

bool faster(const Plan& a, const Plan& b) { return a.prediction.step_time < b.prediction.step_time; }

/// Adds the fastest plan with Megatron's even split of layers. It is one of the known plans, or one of them with an
/// even split at any number of chunks that has one.
void add_even_split(const PlanProblem& problem, const Plan& first, std::vector<Plan> known,
                    std::vector<Alternative>& list) {
  const Dimension* const vpp = problem.space.find("vpp");
  if (first.options.pipeline.layout.empty() || vpp == nullptr || problem.space.names_splits()) return;
  std::ranges::stable_sort(known, faster);
  bool exists = false;
  std::optional<Plan> best;
  constexpr std::size_t kAtOnce = 8;
  const std::size_t counts = vpp->values.size();
  for (std::size_t from = 0; from < known.size(); from += kAtOnce) {
    if (best && !faster(known[from], *best)) break;  // Hardly any plan gets faster by an even split.
    std::vector<std::optional<Plan>> evens(std::min(kAtOnce, known.size() - from) * counts);
    side_by_side(evens.size(), [&](std::size_t i) {
      Plan even = known[from + i / counts];
      const std::size_t index = i % counts;
      even.options.pipeline.layout.clear();
      even.options.pipeline.vpp = vpp->values[index].get<std::int64_t>();
      even.assignment[static_cast<std::size_t>(vpp - problem.space.dimensions.data())] =
          static_cast<std::uint16_t>(index);
      if (first_violation(rule_problem(problem), even.options)) return;
      even.prediction =
          costmodel::predict(costmodel::compose_step(problem.model, even.options, problem.hardware), false);
      evens[i] = std::move(even);
    });
    for (std::optional<Plan>& even : evens) {
      exists = exists || even;
      if (even && even->prediction.fits &&
          even->prediction.peak_memory <= (1.0 - problem.headroom) * problem.hardware.hbm_capacity)
        take_faster(std::move(even), best);
    }
  }
  if (best) best->prediction = costmodel::predict(problem.model, best->options, problem.hardware);
  if (exists) list.push_back({.choice = "even split of layers", .set = {}, .plan = std::move(best)});
}

/// For each choice of the first plan, the fastest known plan without it. A choice that was not searched (`asked`) and
/// that no known plan answers is left out.
std::vector<Alternative> alternatives(const PlanProblem& problem, const Plan& first, const std::vector<Plan>& known,
                                      const std::set<std::string>& asked) {
  std::vector<Alternative> list;
  for (const Choice& choice : choices()) {
    Alternative alternative{.choice = choice.name, .set = taken_back(problem, choice, first.options), .plan = {}};
    if (alternative.set.empty()) continue;
    for (const Plan& plan : known)
      if (keeps_to(alternative.set, plan.options)) take_faster(plan, alternative.plan);
    if (alternative.plan || asked.contains(choice.name)) list.push_back(std::move(alternative));
  }
  add_even_split(problem, first, known, list);
  std::ranges::stable_sort(list, std::ranges::greater{}, [](const Alternative& alternative) {
    return alternative.plan ? alternative.plan->prediction.step_time.to<double>()
                            : std::numeric_limits<double>::infinity();
  });
  return list;
}

/// The plan with its prediction. Nothing if it breaks rules or does not fit.
std::optional<Plan> valid(const PlanProblem& problem, Plan plan) {
  if (first_violation(rule_problem(problem), plan.options)) return std::nullopt;
  plan.prediction = costmodel::predict(costmodel::compose_step(problem.model, plan.options, problem.hardware), false);
  plan.imbalance = costmodel::imbalance(problem.model, plan.options, problem.hardware);
  const bool fits = plan.prediction.fits &&
                    plan.prediction.peak_memory <= (1.0 - problem.headroom) * problem.hardware.hbm_capacity &&
                    plan.imbalance.p99_memory <= problem.hardware.hbm_capacity;
  return fits ? std::optional(std::move(plan)) : std::nullopt;
}

/// The plan without the choice, everything else as it is. Nothing if that breaks rules or does not fit.
std::optional<Plan> without(const PlanProblem& problem, const Choice& choice, const Plan& plan) {
  const Set set = taken_back(problem, choice, plan.options);
  if (set.empty()) return std::nullopt;
  Plan plain = plan;
  for (std::size_t i = 0; i < problem.space.dimensions.size(); ++i) {
    const Dimension& d = problem.space.dimensions[i];
    const auto values = set.find(d.field->key);
    if (values == set.end() || has(values->second, d.field->value.get(plain.options))) continue;
    d.field->value.set(plain.options, values->second.front());
    plain.assignment[i] =
        static_cast<std::uint16_t>(std::ranges::find(d.values, values->second.front()) - d.values.begin());
  }
  for (std::size_t i = 0; i < problem.space.dimensions.size(); ++i) {  // Fields that count only beside the choice.
    const Dimension& d = problem.space.dimensions[i];
    const bool counted = d.field->counts_in(problem.model, plan.options);
    if (d.named || !counted || d.field->counts_in(problem.model, plain.options)) continue;
    d.field->value.set(plain.options, d.values.front());
    plain.assignment[i] = 0;
  }
  settle(plain.options);
  const bool drops_named = std::ranges::any_of(problem.space.dimensions, [&](const Dimension& d) {
    return d.named && d.field->acts_in(plan.options) &&
           (!d.field->acts_in(plain.options) || !has(d.values, d.field->value.get(plain.options)));
  });
  if (drops_named) return std::nullopt;
  return valid(problem, std::move(plain));
}

/// Takes back the plan's choices one by one while its step takes no longer than `most`. Returns the plan and the names
/// of the choices.
std::pair<Plan, std::vector<std::string_view>> plainest(const PlanProblem& problem, Plan plan, Seconds most) {
  std::vector<std::string_view> taken;
  for (const Choice* choice : burdens()) {
    std::optional<Plan> plain = without(problem, *choice, plan);
    if (!plain || plain->prediction.step_time > most) continue;
    plan = std::move(*plain);
    taken.emplace_back(choice->name);
  }
  return {std::move(plan), std::move(taken)};
}

/// Number of a plan's choices that have a plainer value. Usual choices are not counted.
std::ptrdiff_t choices_of(const PlanProblem& problem, const Plan& plan) {
  return std::ranges::count_if(choices(), [&](const Choice& choice) {
    return !choice.usual() && !taken_back(problem, choice, plan.options).empty();
  });
}

}  // namespace

void prefer_plain(const PlanProblem& problem, PlanResult& result) {
  const double idle = problem.parameters.follow_up.idle;
  const Seconds fastest = result.plans.front().prediction.step_time, most = (1.0 + idle) * fastest;
  std::vector<Plan>& plans = result.plans;
  for (Plan& plan : plans) {
    if (plan.prediction.step_time > most) continue;
    auto [plain, taken] = plainest(problem, plan, most);
    if (taken.empty() || reserves_too_much(problem, plain)) continue;
    plain.prediction = costmodel::predict(problem.model, plain.options, problem.hardware);
    plain.why = limits(problem, plain);
    plain.why.push_back(
        fmt::format("its fastest has more: this one is without {}, for {:.1f} % of its time", fmt::join(taken, ", "),
                    100.0 * ((plain.prediction.step_time / plan.prediction.step_time).to<double>() - 1.0)));
    plan = std::move(plain);
  }
  const auto rank = [&](const Plan& plan) {
    return std::tuple(plan.prediction.step_time > most, choices_of(problem, plan), plan.prediction.peak_memory);
  };
  std::vector<std::size_t> order(plans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return rank(plans[i]); });
  const auto has_room = [&](std::size_t i) {
    Plan replayed = plans[i];
    return i == 0 || (plans[i].prediction.step_time <= most && !reserves_too_much(problem, replayed));
  };
  const auto best = plans.begin() + static_cast<std::ptrdiff_t>(*std::ranges::find_if(order, has_room));
  std::rotate(plans.begin(), best, best + 1);
  std::ranges::stable_sort(plans.begin() + 1, plans.end(), faster);
  Plan& first = plans.front();
  if (first.prediction.step_time > fastest) {
    first.lead.clear();
    first.preferred = fmt::format("{:.1f} % slower than the fastest found, plainer than it or with more memory left",
                                  100.0 * ((first.prediction.step_time / fastest).to<double>() - 1.0));
    result.proven = false;
  }
  std::erase_if(result.alternatives,
                [&](const Alternative& a) { return !a.set.empty() && keeps_to(a.set, first.options); });
  result.pareto = pareto_of(plans);
}

void prefer_on_any_host(const PlanProblem& problem, PlanResult& result, const std::function<bool(double)>& goes_on) {
  const FollowUpParameters& p = problem.parameters.follow_up;
  const std::optional<costmodel::HostSpec> slow = problem.hardware.host.of_virtual_machine();
  if (!slow) return;
  costmodel::Hardware hardware = problem.hardware;
  hardware.host = *slow;
  std::vector<Plan*> all;
  std::vector<Plan> there;  // Fastest plans at those prices, if they make a difference.
  const auto priced = [&](const Plan& plan) {
    return costmodel::step_time(costmodel::compose_step(problem.model, plan.options, hardware));
  };
  if (priced(result.plans.front()) > (1.0 + p.idle) * result.plans.front().prediction.step_time) {
    PlanProblem other = problem;
    other.hardware = hardware;
    other.effort = share_of_effort(problem, p.host_share);
    there = plan(other, [&](const Progress& now) { return goes_on(now.effort); }).plans;
    for (Plan& plan : there) {
      plan.prediction = costmodel::predict(problem.model, plan.options, problem.hardware);
      plan.why = limits(problem, plan);
    }
  }
  all.reserve(there.size() + result.plans.size() + result.alternatives.size());
  for (Plan& plan : there) all.push_back(&plan);
  for (Plan& plan : result.plans) all.push_back(&plan);
  for (Alternative& alternative : result.alternatives)
    if (alternative.plan) all.push_back(&*alternative.plan);
  side_by_side(all.size(), [&](std::size_t i) { all[i]->on_virtual_machine = priced(*all[i]); });
  Seconds least{std::numeric_limits<double>::infinity()}, least_slow = least;
  for (const Plan* plan : all) {
    least = std::min(least, plan->prediction.step_time);
    least_slow = std::min(least_slow, *plan->on_virtual_machine);
  }
  const auto loss = [&](const Plan& plan) {  // Half for each kind of host: nobody has counted them.
    return 0.5 * (plan.prediction.step_time / least + *plan.on_virtual_machine / least_slow).to<double>() - 1.0;
  };
  std::ranges::stable_sort(all, {}, [&](const Plan* plan) { return loss(*plan); });
  const Plan before = result.plans.front();
  const auto better = std::ranges::find_if(all, [&](const Plan* plan) {
    Plan replayed = *plan;
    return plan == &result.plans.front() || !reserves_too_much(problem, replayed);
  });
  if (loss(before) - loss(**better) < p.idle) return;
  Plan first = **better;
  first.preferred.clear();
  if (before.prediction.step_time < first.prediction.step_time)
    first.preferred = fmt::format(
        "hosts differ: at the profile's prices another plan takes {:.4g} s, but on virtual machines like the measured "
        "ones {:.4g} s, and this plan {:.4g} s",
        before.prediction.step_time.to<double>(), before.on_virtual_machine->to<double>(),
        first.on_virtual_machine->to<double>());
  first.lead.clear();
  for (Plan& plan : result.plans) plan.preferred.clear();
  std::erase_if(result.plans, [&](const Plan& plan) { return plan.options == first.options; });
  std::erase_if(result.alternatives, [&](const Alternative& alternative) {
    return alternative.plan && alternative.plan->options == first.options;
  });
  result.plans.insert(result.plans.begin(), std::move(first));
  if (std::ssize(result.plans) > problem.top) result.plans.pop_back();
  std::erase_if(result.alternatives, [&](const Alternative& alternative) {
    return !alternative.set.empty() && keeps_to(alternative.set, result.plans.front().options);
  });
  result.proven = false;
  result.pareto = pareto_of(result.plans);
}

std::optional<Alternative> with_other_states(const PlanProblem& problem, const Plan& first,
                                             const std::function<bool(double)>& goes_on) {
  const std::array keys{"optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"};
  const auto named = [&](const char* key) { return problem.space.find(key) != nullptr; };
  if (std::ranges::any_of(keys, named) || named("optimizer.precision_aware")) return std::nullopt;
  const Field& states = field(keys.front());
  if (!states.applies_to(first.options)) return std::nullopt;
  const bool fp32 = states.value.get(first.options) == "fp32";
  Alternative result{.choice = fp32 ? "bf16 states" : "fp32 states", .set = {}, .plan = {}};
  for (const char* key : keys) result.set[key] = {fp32 ? "bf16" : "fp32"};
  if (fp32) result.set["optimizer.precision_aware"] = {true};
  PlanProblem other = problem;
  for (const auto& [key, values] : result.set) other.space.set(key, values);
  other.top = 1;
  other.effort = share_of_effort(problem, problem.parameters.follow_up.states_share);
  PlanResult found = plan(other, [&](const Progress& now) { return goes_on(now.effort); });
  if (!found.plans.empty()) result.plan = std::move(found.plans.front());
  return result;
}

void keep_states(const PlanProblem& problem, PlanResult& result) {
  if (!result.other_states || !result.other_states->plan) return;
  const Plan& first = result.plans.front();
  Plan plan = *result.other_states->plan;
  if (first.prediction.step_time <= plan.prediction.step_time) return;
  plan.options.step.optimizer = first.options.step.optimizer;
  plan.assignment.clear();
  for (const Dimension& d : problem.space.dimensions) {  // The other search had more dimensions.
    const auto at = std::ranges::find(d.values, d.field->value.get(plan.options));
    plan.assignment.push_back(at == d.values.end() ? 0 : static_cast<std::uint16_t>(at - d.values.begin()));
  }
  std::optional<Plan> same_states = valid(problem, std::move(plan));
  if (!same_states || !faster(*same_states, first) || reserves_too_much(problem, *same_states)) return;
  same_states->prediction = costmodel::predict(problem.model, same_states->options, problem.hardware);
  same_states->why = limits(problem, *same_states);
  take({std::move(*same_states)}, problem.top, result);
  result.proven = false;
}

void find_alternatives(const PlanProblem& problem, PlanResult& result,
                       const std::function<bool(double)>& asked_to_go_on, SharedCosts& costs) {
  const FollowUpParameters& p = problem.parameters.follow_up;
  std::atomic<double> done = 0.0;  // Share done of the first round, which takes longest.
  GoesOn caller([&] { return asked_to_go_on(done); });
  const std::function<bool()> goes_on = std::ref(caller);
  std::vector<Plan> known = result.plans;
  std::set<std::string> asked;
  Seconds before{std::numeric_limits<double>::infinity()};
  for (int round = 0;; ++round) {  // Ends, because each round has a faster first plan.
    const Plan& first = result.plans.front();
    const bool hops = round < p.alternative_rounds && first.prediction.step_time < (1.0 - p.other_plan) * before;
    before = first.prediction.step_time;
    std::vector<Set> sets;
    for (const Choice& choice : choices()) {
      Set set = taken_back(problem, choice, first.options);
      if (set.empty() || !goes_on()) continue;
      sets.push_back(std::move(set));
      asked.insert(choice.name);
    }
    const How how = !hops ? How::kAsIs : round == 0 ? How::kSearch : How::kHops;
    std::vector<std::vector<Plan>> answers(sets.size());
    side_by_side(sets.size(), [&](std::size_t i) {
      answers[i] = searched(problem, sets[i], first, known, how, goes_on, costs);
      if (round == 0) done.fetch_add(1.0 / static_cast<double>(sets.size()));
    });
    for (std::vector<Plan>& answer : answers) std::ranges::move(answer, std::back_inserter(known));
    std::vector<Plan> better;
    std::vector<Solution> starts;
    for (const Plan& plan : known)
      if (faster(plan, first)) {
        better.push_back(plan);
        starts.push_back({plan.prediction.step_time, plan.assignment, plan.options});
      }
    if (better.empty() || result.proven) break;
    std::ranges::move(changed(problem, starts, problem.effort / p.changes_share, costs).plans,
                      std::back_inserter(better));
    if (!keep_with_room(problem, first, better)) break;
    take(std::move(better), problem.top, result);
  }
  result.alternatives = alternatives(problem, result.plans.front(), known, asked);
}

}  // namespace foldwise::planner

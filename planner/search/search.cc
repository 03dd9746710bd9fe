#include "planner/search/search.h"

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <compare>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/ops/block_ops.h"
#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/step.h"
#include "planner/rules/rules.h"
#include "planner/search/evaluate.h"
#include "planner/search/order.h"
#include "planner/search/restriction.h"
#include "planner/search/threads.h"

namespace foldwise::planner {
namespace {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

std::string percent(Seconds part, Seconds whole) {
  return fmt::format("{:.1f} %", 100.0 * (part / whole).to<double>());
}

std::array<std::pair<std::string_view, Seconds>, 5> parts_of_step(const Breakdown& b) {
  return {{{"compute", b.compute},
           {"exposed communication", b.exposed_communication},
           {"exposed copies", b.exposed_copy},
           {"bubble", b.bubble},
           {"host", b.host}}};
}

}  // namespace

std::vector<std::string> limits(const PlanProblem& problem, const Plan& plan) {
  const Prediction& p = plan.prediction;
  std::vector<std::string> why;
  std::string line = "step on the busiest rank:";
  for (const auto& [name, seconds] : parts_of_step(p.breakdown))
    if (seconds > 0.002 * p.step_time) line += fmt::format(" {} {},", name, percent(seconds, p.step_time));
  line.pop_back();
  why.push_back(line);
  if (!p.detail().empty()) {
    line = "largest costs:";
    for (std::size_t i = 0; i < std::min<std::size_t>(3, p.detail().size()); ++i)
      line += fmt::format(" {}{}{} {},", p.detail()[i].module.empty() ? "" : p.detail()[i].module + " ",
                          p.detail()[i].kind, p.detail()[i].group.empty() ? "" : " over " + p.detail()[i].group,
                          percent(p.detail()[i].seconds, p.step_time));
    line.pop_back();
    why.push_back(line);
  }
  line = fmt::format("memory: {:.1f} of {:.1f} GiB on the fullest stage", in_gib(p.peak_memory),
                     in_gib(problem.hardware.hbm_capacity));
  if (plan.imbalance.p99_load > 1.0)
    line += fmt::format(", {:.1f} at p99 of rows ({:.3f} of the mean, random routing)",
                        in_gib(plan.imbalance.p99_memory), plan.imbalance.p99_load);
  why.push_back(line);
  return why;
}

namespace {

std::string layout_name(const Layout& l) {
  return fmt::format("TP{} CP{} DP{} PP{} VPP{} EP{} ETP{}", l.tp, l.cp, l.dp, l.pp, l.vpp, l.ep, l.etp);
}

/// Where the next plan loses its time against this one.
std::string comparison(const Plan& best, const Plan& other) {
  const Seconds difference = other.prediction.step_time - best.prediction.step_time;
  std::string line = fmt::format("{} is {} slower:", layout_name(other.options.layout()),
                                 percent(difference, best.prediction.step_time));
  const auto a = parts_of_step(best.prediction.breakdown), b = parts_of_step(other.prediction.breakdown);
  for (std::size_t i = 0; i < a.size(); ++i)
    if (units::math::abs(b[i].second - a[i].second) > 0.002 * best.prediction.step_time)
      line += fmt::format(" {} {:+.3f} s,", a[i].first, (b[i].second - a[i].second).to<double>());
  line.pop_back();
  return line;
}

/// A partial decision, and the least step time of its candidates.
struct Node {
  double bound = 0.0;
  Assignment assignment;
  Level level = Level::kAttention;  ///< Decided so far: that or kExperts.
  int visits = 0;  ///< That left something open; of a choice of attention, that gave it its experts' least bound.
  /// Of equal bounds the later assignment first.
  std::partial_ordering operator<=>(const Node& other) const {
    return std::tie(bound, other.assignment) <=> std::tie(other.bound, assignment);
  }
};

class Search {
 public:
  Search(const PlanProblem& problem, SharedCosts& costs)
      : problem_(problem),
        costs_(costs),
        order_(problem),
        capacity_((1.0 - problem.headroom) * problem.hardware.hbm_capacity),
        workers_([this, &costs] { return Evaluator(problem_, order_, costs, capacity_); }) {}

  PlanResult run(const std::function<bool(const Progress&)>& progress, const std::vector<Solution>& known) {
    PlanResult result;
    result.enumerated = problem_.space.size();
    Incumbents best(static_cast<std::size_t>(problem_.top));
    for (const Solution& found : known) best.offer(found);
    Queue open;
    const std::vector<Assignment> attentions = worker(true).attentions();
    std::vector<double> bounds(attentions.size());
    tbb::parallel_for(std::size_t{0}, bounds.size(),
                      [&](std::size_t i) { bounds[i] = worker(false).bound_of_attention(attentions[i]); });
    for (std::size_t i = 0; i < bounds.size(); ++i) open.push({bounds[i], attentions[i], Level::kAttention});
    result.nodes = static_cast<std::int64_t>(open.size());
    bool goes_on = true;
    const auto report = [&] {
      const Progress now{.effort = static_cast<double>(effort_) / static_cast<double>(problem_.effort),
                         .best = Seconds{std::isfinite(best.fastest()) ? best.fastest() : 0.0},
                         .least = Seconds{open.empty() ? best.fastest() : std::min(open.top().bound, best.fastest())}};
      goes_on = goes_on && (!progress || progress(now));
      return goes_on;
    };
    dive(open, best, report);
    if (!std::isfinite(best.fastest()) && goes_on) start_lean(best, report);
    // What a proof finds is climbed from.
    for (double before = 0.0; best.fastest() != before && effort_ < problem_.effort && goes_on;) {
      improve(best, report);
      before = best.fastest();
      prove(open, best, report, result);
    }
    polish(open, best);
    result.proven = goes_on && (open.empty() || open.top().bound >= best.fastest());
    result.least = Seconds{open.empty() ? best.fastest() : std::min(best.fastest(), open.top().bound)};
    result.effort = effort_;
    take(plans_of(best), problem_.top, result);
    Statistics sum;
    for (const Evaluator& worker : workers_) sum += worker.statistics();
    result.composed = sum.composed;
    result.fitting = sum.fitting;
    result.simulated = sum.simulated;
    result.rejected_by_rule = named(sum);
    result.refused = result.proven && result.plans.empty() &&
                     std::ranges::none_of(workers_, [](Evaluator& worker) { return worker.valid(); });
    return result;
  }

  /// What changes of one or two fields make of starts.
  PlanResult changed(const std::vector<Solution>& starts, std::int64_t most) {
    Incumbents best(1);
    for (const Solution& start : starts)
      if (std::isfinite(start.time.to<double>())) best.offer(start);
    for (const Solution& start : starts)
      if (!std::isfinite(start.time.to<double>())) first_near(start, best, most);
    hop_on(best, most - effort_);
    PlanResult result;
    result.proven = false;
    result.effort = effort_;
    take(plans_of(best), 1, result);
    return result;
  }

 private:
  using Queue = std::priority_queue<Node, std::vector<Node>, std::greater<>>;
  using Report = std::function<bool()>;  ///< Returns whether to go on.

  /// `counts`: what rules refuse, and nothing else does so again.
  Evaluator& worker(bool counts) {
    Evaluator& mine = workers_.local();
    mine.count(counts);
    return mine;
  }

  /// The choices of experts below choices of attention: of each the `most` with the least bounds.
  std::vector<std::vector<Node>> experts_below(const std::vector<Assignment>& attentions, double limit,
                                               std::size_t most, bool counts) {
    std::vector<std::vector<Node>> below(attentions.size());
    std::vector<std::int64_t> spent(attentions.size());
    tbb::parallel_for(std::size_t{0}, attentions.size(), [&](std::size_t i) {
      spent[i] = worker(counts).expand(attentions[i], limit, most, [&](double bound, const Assignment& assignment) {
        below[i].push_back({bound, assignment, Level::kExperts});
      });
    });
    effort_ += std::reduce(spent.begin(), spent.end());
    return below;
  }

  /// All of them.
  std::vector<Node> all_experts_below(const std::vector<Node>& nodes, const Incumbents& best, PlanResult& result) {
    std::vector<Assignment> attentions;
    std::ranges::transform(nodes, std::back_inserter(attentions), &Node::assignment);
    std::vector<Node> all;
    for (std::vector<Node>& list : experts_below(attentions, best.limit(), kAll, true))
      std::ranges::move(list, std::back_inserter(all));
    result.nodes += static_cast<std::int64_t>(all.size());
    return all;
  }

  /// Looks at what is open, the least bound first, until nothing open is faster than what is known, or the effort ends,
  /// or there is something faster to climb from. Not where the choices of experts that may be the fastest are too many
  /// for the effort that is left.
  void prove(Queue& open, Incumbents& best, const Report& goes_on, PlanResult& result) {
    const auto take = [&](std::vector<Node>& nodes) {
      nodes.push_back(open.top());
      open.pop();
    };
    std::vector<Node> experts;
    const double known = best.fastest();
    const auto doubtful = [&] {
      return std::ranges::count_if(experts, [&](const Node& node) { return node.bound < known; });
    };
    const auto too_many = [&] { return doubtful() * kOfAProof > problem_.effort - effort_; };
    while (std::isfinite(known) && !open.empty() && open.top().bound < known && !too_many() && goes_on()) {
      std::vector<Node> attentions;
      while (attentions.size() < kAtOnce && !open.empty() && open.top().bound < known)
        take(open.top().level == Level::kAttention ? attentions : experts);
      std::ranges::move(all_experts_below(attentions, best, result), std::back_inserter(experts));
    }
    const bool begins = !too_many();
    const std::int64_t all = doubtful(), begin = effort_;
    std::int64_t left = all;  // Of those that may be faster than what is known.
    const auto hopeless = [&] {
      const std::int64_t spent = effort_ - begin;
      return kShareOfTrying * spent > problem_.effort &&
             left * spent > kPatience * (all - left) * (problem_.effort - effort_);
    };
    const auto for_visit = [](const Node& node) { return kFirstEffort << std::min(node.visits, kMostVisits); };
    for (Node& node : experts) open.push(std::move(node));
    if (!begins) return raise_least(open, known);
    std::size_t batch = 2;
    while (!open.empty() && open.top().bound < best.limit() &&
           (open.top().level == Level::kAttention || for_visit(open.top()) <= problem_.effort - effort_) && goes_on() &&
           (best.fastest() >= (1.0 - kStep) * known || !may_improve()) && !hopeless()) {
      std::vector<Node> attentions;
      experts.clear();
      batch = std::min(batch, static_cast<std::size_t>((problem_.effort - effort_) / kFirstEffort + 1));
      while (experts.size() < batch && attentions.size() < kMostAtOnce && !open.empty() &&
             open.top().bound < best.limit())
        take(open.top().level == Level::kAttention ? attentions : experts);
      if (experts.size() == batch) batch = std::min(2 * batch, kMostAtOnce);
      for (Node& node : all_experts_below(attentions, best, result)) open.push(std::move(node));
      std::vector<Explored> answers(experts.size());
      tbb::parallel_for(std::size_t{0}, experts.size(), [&](std::size_t i) {
        const Node& node = experts[i];
        answers[i] = worker(node.visits == 0).evaluate(node.assignment, best, {.most = for_visit(node)});
      });
      for (std::size_t i = 0; i < experts.size(); ++i) {
        const double bound = std::max(experts[i].bound, answers[i].left);
        if (std::isfinite(bound)) open.push({bound, experts[i].assignment, Level::kExperts, experts[i].visits + 1});
        if (experts[i].bound < known && bound >= known) --left;
      }
      offer(answers, best);
    }
  }

  /// Gives the choices of attention with the least bounds the least bound of their choices of experts, which stay
  /// unlisted.
  void raise_least(Queue& open, double limit) {
    const auto raises = [&](const Node& node) {
      return node.level == Level::kAttention && node.visits == 0 && node.bound < limit;
    };
    const std::int64_t end = effort_ + problem_.effort / kShareOfBounds;
    while (!open.empty() && raises(open.top()) && effort_ < end) {
      std::vector<Assignment> attentions;
      for (; attentions.size() < kAtOnce && !open.empty() && raises(open.top()); open.pop())
        attentions.push_back(open.top().assignment);
      const std::vector<std::vector<Node>> below = experts_below(attentions, limit, 1, false);
      for (std::size_t i = 0; i < attentions.size(); ++i) {
        const auto least = std::ranges::min_element(below[i], {}, &Node::bound);
        open.push({least == below[i].end() ? limit : least->bound, attentions[i], Level::kAttention, 1});
      }
    }
  }

  void offer(const std::vector<Explored>& answers, Incumbents& best) {
    for (const Explored& answer : answers) {
      effort_ += answer.effort;
      for (const Solution& candidate : answer.found) best.offer(candidate);
    }
  }

  /// Looks below nodes, in parts, so that what the first find is a limit for the others. Without any effort left it
  /// only looks for a first plan.
  void look(std::vector<Node> nodes, Budget budget, Incumbents& best) {
    std::sort(nodes.begin(), nodes.end());
    for (std::size_t from = 0; from < nodes.size(); from += kAtOnce) {
      if (std::isfinite(best.fastest())) {
        if (effort_ >= problem_.effort) return;
        budget.most = std::min(budget.most, problem_.effort - effort_);
      }
      std::vector<Explored> answers(std::min(kAtOnce, nodes.size() - from));
      tbb::parallel_for(std::size_t{0}, answers.size(), [&](std::size_t i) {
        const Node& node = nodes[from + i];
        if (node.bound < best.fastest()) answers[i] = worker(false).evaluate(node.assignment, best, budget);
      });
      offer(answers, best);
    }
  }

  /// First limits: for each size of tensor parallelism and of the micro-batch below the most promising choice of
  /// attention; its choices of experts in turn.
  void dive(Queue open, Incumbents& best, const Report& goes_on) {
    constexpr std::size_t kRounds = 3;
    std::map<std::pair<std::int64_t, std::int64_t>, Assignment> attentions;
    for (; !open.empty(); open.pop()) {
      const LayerOptions o = worker(false).options_of(open.top().assignment);
      attentions.try_emplace({o.tp, o.micro_batch}, open.top().assignment);
    }
    std::vector<Assignment> parents;
    parents.reserve(attentions.size());
    for (const auto& [sizes, assignment] : attentions) parents.push_back(assignment);
    std::vector<std::vector<Node>> first = experts_below(parents, best.limit(), kRounds, false);
    for (std::vector<Node>& list : first) std::sort(list.begin(), list.end());
    const auto look_at_round = [&](std::size_t round, Budget budget) {
      std::vector<Node> nodes;
      for (const std::vector<Node>& list : first)
        if (round < list.size()) nodes.push_back(list[round]);
      look(std::move(nodes), budget, best);
    };
    for (std::size_t round = 0; round < kRounds && (round == 0 || effort_ < problem_.effort / 4) && goes_on(); ++round)
      look_at_round(round, kDive);
    // Where hardly anything fits, what promises most does not.
    for (std::size_t round = 0; round < kRounds && !std::isfinite(best.fastest()) && may_improve() && goes_on();
         ++round)
      look_at_round(round, {.most = kNeighbourEffort});
  }

  /// Where hardly anything fits: a first plan of the part of the problem that needs least memory.
  void start_lean(Incumbents& best, const Report& goes_on) {
    PlanProblem leaner = lean(problem_);
    if (leaner.space.size() >= problem_.space.size()) return;
    leaner.effort = problem_.effort / kShareOfLean;
    const PlanResult found =
        Search(leaner, costs_).run([&](const Progress& now) { return now.best <= Seconds{} && goes_on(); }, {});
    effort_ += found.effort;
    for (const Plan& plan : found.plans)
      best.offer({.time = plan.prediction.step_time, .assignment = plan.assignment, .options = plan.options});
  }

  /// A way to climb: from the fastest candidates of so many layouts, with so much effort for each neighbour.
  struct Climb {
    Budget budget;
    std::size_t from = 1;
    std::set<Assignment> centres{}, seen{};
  };

  /// Climbs from the fastest candidates to faster ones: by hops; where none is faster, by looking longer below the
  /// fastest one's own choice of attention and experts, then by dives below neighbouring ones, then by looking longer
  /// at those of the fastest candidate.
  void improve(Incumbents& best, const Report& goes_on) {
    Climb own, dives{.budget = kDive, .from = kCentres}, looks{.budget = {.most = kNeighbourEffort}},
        wide{.budget = kWideDive}, longest{.budget = {.most = kLongestEffort}, .from = kCentres};
    std::int64_t hops = problem_.effort / kShareOfHops;  // Or none would be left for dives.
    while (may_improve() && goes_on()) {
      const std::int64_t before = effort_;
      const bool hopped = hops > 0 && hop(best, kHops, effort_ + hops);
      hops -= effort_ - before;
      if (hopped) continue;
      if (const std::optional<Assignment> at = untried(best, own)) {
        look_about(*at, dives, best);
      } else if (!climb(dives, best) && !climb(looks, best) && !climb(wide, best) && !look_again(longest, best)) {
        return;
      }
    }
  }
  [[nodiscard]] bool may_improve() const { return 2 * effort_ < problem_.effort; }

  /// Looks longer below a choice, and meanwhile dives below its neighbours, for as much effort.
  void look_about(const Assignment& at, Climb& dives, Incumbents& best) {
    std::vector<Assignment> choices = {at};
    for (Node& node : neighbours(at, best.fastest()))
      if (choices.size() <= kCentreEffort / kDive.most && dives.seen.insert(node.assignment).second)
        choices.push_back(std::move(node.assignment));
    std::vector<Explored> answers(choices.size());
    tbb::parallel_for(
        std::size_t{0}, choices.size(),
        [&](std::size_t i) {
          answers[i] = worker(false).evaluate(choices[i], best, i == 0 ? Budget{.most = kCentreEffort} : kDive);
        },
        tbb::simple_partitioner());
    offer(answers, best);
  }

  /// Looks longest below the fastest candidates' own choices, side by side. False: it was done.
  bool look_again(Climb& longest, Incumbents& best) {
    std::vector<Node> centres;
    while (const std::optional<Assignment> at = untried(best, longest)) centres.push_back({.assignment = *at});
    if (centres.empty()) return false;
    look(std::move(centres), longest.budget, best);
    return true;
  }

  /// The first of the fastest candidates that has not been a centre.
  std::optional<Assignment> untried(const Incumbents& best, Climb& climb) const {
    for (const Solution& found : best.first(climb.from)) {
      Assignment assignment = order_.in_order(found.assignment, order_.end_of(Level::kExperts));
      if (climb.centres.insert(assignment).second) return assignment;
    }
    return std::nullopt;
  }

  /// Looks below neighbours until one is faster. False: there is nothing to climb from.
  bool climb(Climb& climb, Incumbents& best) {
    const std::optional<Assignment> at = untried(best, climb);
    if (!at) return false;
    const std::vector<Node> nodes = neighbours(*at, best.fastest());
    const double enough = (1.0 - kStep) * best.fastest();
    for (std::size_t from = 0; from < nodes.size() && best.fastest() > enough && may_improve();) {
      std::vector<Node> some;
      for (; from < nodes.size() && some.size() < kAtOnce; ++from)
        if (climb.seen.insert(nodes[from].assignment).second) some.push_back(nodes[from]);
      look(std::move(some), climb.budget, best);
    }
    return true;
  }

  /// Choices of attention and experts that differ in one dimension, or in two by one value each, and may take less than
  /// `limit` seconds: the least bounds first.
  std::vector<Node> neighbours(const Assignment& at, double limit) {
    std::vector<Assignment> near;
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto values = static_cast<std::uint16_t>(order_.at(i).values.size());
      for (std::uint16_t index = 0; index < values; ++index) {
        Assignment other = at;
        other[i] = index;
        near.push_back(other);
        if (std::abs(int{index} - int{at[i]}) != 1) continue;
        for (std::size_t k = 0; k < i; ++k)
          for (const int step : {-1, 1}) {
            const int value = at[k] + step;
            if (value < 0 || value >= static_cast<int>(order_.at(k).values.size())) continue;
            Assignment two = other;
            two[k] = static_cast<std::uint16_t>(value);
            near.push_back(two);
          }
      }
    }
    std::vector<std::optional<std::pair<double, Assignment>>> bounded(near.size());
    tbb::parallel_for(std::size_t{0}, near.size(), [&](std::size_t i) { bounded[i] = worker(false).node(near[i]); });
    std::vector<Node> nodes;
    std::set<Assignment> known;
    for (const auto& node : bounded)
      if (node && node->first < limit && known.insert(node->second).second)
        nodes.push_back({node->first, node->second, Level::kExperts});
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  /// Refines the plans, whose splits are few of many; and what is not proven may gain by changes of one or two
  /// fields.
  void polish(const Queue& open, Incumbents& best) {
    const bool proven = open.empty() || open.top().bound >= best.fastest();
    refine(best.sorted(), best);
    if (!proven) hop_on(best, problem_.effort / kShareOfHops);
  }

  void refine(const std::vector<Solution>& plans, Incumbents& best) {
    std::vector<Explored> moved(plans.size());
    tbb::parallel_for(std::size_t{0}, plans.size(), [&](std::size_t i) {
      moved[i] = worker(false).refined(plans[i], problem_.effort / kShareOfHops);
    });
    offer(moved, best);
  }

  /// Finds a first candidate: the start itself, or what changes of one or two fields make of it.
  void first_near(const Solution& start, Incumbents& best, std::int64_t most) {
    const NearAssignments near = near_assignments(problem_, order_, start);
    static_cast<void>(any_faster({order_.in_order(start.assignment, order_.size())}, start, best, most) ||
                      any_faster(near.ones, start, best, most) || any_faster(near.twos, start, best, most));
  }

  /// Hops from the fastest as long as one is faster.
  void hop_on(Incumbents& best, std::int64_t most) {
    const std::int64_t end = effort_ + most;
    for (double before = best.fastest(); effort_ < end && hop(best, 1, end); before = best.fastest())
      if (best.fastest() < before) refine(best.first(1), best);
  }

  /// Takes the fastest of the changes of one of the fastest candidates in one dimension, or if none is faster, of those
  /// in two by the next value each. False: all were tried.
  bool hop(Incumbents& best, std::size_t from, std::int64_t end) {
    for (const Solution& centre : best.first(from))
      if (hopped_.insert({centre.assignment, centre.options.pipeline.layout}).second) {
        const NearAssignments near = near_assignments(problem_, order_, centre);
        static_cast<void>(any_faster(near.ones, centre, best, end) || any_faster(near.twos, centre, best, end));
        return true;
      }
    return false;
  }

  /// Offers the first candidates, until some are faster than the centre. False: none is.
  bool any_faster(const std::vector<Assignment>& candidates, const Solution& centre, Incumbents& best,
                  std::int64_t end) {
    bool any = false;
    for (std::size_t from = 0; from < candidates.size() && !any && effort_ < end; from += kHopsAtOnce) {
      std::vector<Explored> answers(std::min(kHopsAtOnce, candidates.size() - from));
      tbb::parallel_for(std::size_t{0}, answers.size(),
                        [&](std::size_t i) { answers[i] = worker(false).faster_than(centre, candidates[from + i]); });
      offer(answers, best);
      any = std::ranges::any_of(answers, [](const Explored& answer) { return !answer.found.empty(); });
    }
    return any;
  }

  [[nodiscard]] std::vector<std::pair<std::string, double>> named(const Statistics& sum) const {
    std::vector<std::pair<std::string, double>> by_rule;
    for (std::size_t i = 0; i < sum.rejected.size(); ++i)
      if (sum.rejected[i] > 0.0)
        by_rule.emplace_back(i < rules().size()        ? rules()[i].id
                             : i == rules().size()     ? "memory.fits"
                             : i == rules().size() + 1 ? "memory.fits_at_p99"
                                                       : "search.more_stages_than_layers",
                             sum.rejected[i]);
    std::stable_sort(by_rule.begin(), by_rule.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return by_rule;
  }

  [[nodiscard]] std::vector<Plan> plans_of(const Incumbents& best) const {
    const std::vector<Solution> sorted = best.sorted();
    std::vector<Plan> plans(sorted.size());
    tbb::parallel_for(std::size_t{0}, plans.size(), [&](std::size_t i) { plans[i] = to_plan(sorted[i]); });
    return plans;
  }

  [[nodiscard]] Plan to_plan(const Solution& found) const {
    Plan p{.assignment = found.assignment,
           .options = found.options,
           .prediction = {},
           .imbalance = {},
           .why = {},
           .lead = {}};
    const auto broken = first_violation(rule_problem(problem_), p.options);
    FW_CHECK(!broken, "a plan breaks " + broken->text());
    p.prediction = predict(problem_.model, p.options, problem_.hardware);
    FW_CHECK(p.prediction.step_time == found.time,
             fmt::format("a plan takes {} s, not {}", p.prediction.step_time.to<double>(), found.time.to<double>()));
    p.imbalance = imbalance(problem_.model, p.options, problem_.hardware);
    FW_CHECK(p.imbalance.p99_memory <= problem_.hardware.hbm_capacity, "a plan does not fit at p99 of routing");
    p.why = limits(problem_, p);
    return p;
  }

  const PlanProblem& problem_;
  SharedCosts& costs_;
  // A choice of experts is left open where this was not enough; then it gets twice as much.
  static constexpr std::int64_t kFirstEffort = 10'000;
  static constexpr int kMostVisits = 6;  // From here on no more than that.
  static constexpr std::int64_t kCentreEffort = 25'000, kNeighbourEffort = 20'000, kLongestEffort = 60'000;
  static constexpr Budget kDive{.most = 6'000, .dive = true, .pipelines = 2, .steps = 150},
      kWideDive{.most = 35'000, .dive = true, .pipelines = 8, .steps = 150};
  static constexpr std::int64_t kShareOfHops = 8;  // One part of the effort for hops, each time, and for moved layers.
  static constexpr std::int64_t kShareOfLean = 8;  // One part for a first plan where none is found.
  static constexpr std::int64_t kShareOfBounds = 16;  // One part for bounds that begin no proof.
  static constexpr double kStep = 1e-3;  // A share of the time: less is no reason to leave the other neighbours.
  static constexpr std::int64_t kOfAProof = 3'300;  // About, of a choice of experts that may be the fastest.
  // After one part of the effort a proof ends that would take so many times what is left, at the pace so far: what
  // comes first takes longest.
  static constexpr std::int64_t kShareOfTrying = 8, kPatience = 3;
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kMostAtOnce = 256, kAtOnce = 8, kCentres = 4, kHops = 8, kHopsAtOnce = 32;
  DecisionOrder order_;
  Bytes capacity_;                                       ///< That a plan may use.
  std::int64_t effort_ = 0;                              ///< So far.
  std::set<std::pair<Assignment, std::string>> hopped_;  ///< Centres of hops, with their splits.
  tbb::enumerable_thread_specific<Evaluator> workers_;
};

}  // namespace

void take(std::vector<Plan> plans, std::int64_t top, PlanResult& result) {
  std::move(result.plans.begin(), result.plans.end(), std::back_inserter(plans));
  std::ranges::stable_sort(plans, {}, [](const Plan& plan) { return plan.prediction.step_time; });
  result.plans.clear();
  for (Plan& plan : plans) {
    const Layout layout = plan.options.layout();
    const bool known =
        std::ranges::any_of(result.plans, [&](const Plan& other) { return other.options.layout() == layout; });
    if (!known && static_cast<std::int64_t>(result.plans.size()) < top) result.plans.push_back(std::move(plan));
  }
  for (std::size_t i = 0; i < result.plans.size(); ++i)
    result.plans[i].lead = i + 1 < result.plans.size() ? comparison(result.plans[i], result.plans[i + 1]) : "";
  result.pareto = pareto_of(result.plans);
}

std::vector<Plan> pareto_of(std::vector<Plan> plans) {
  std::ranges::stable_sort(plans, {}, [](const Plan& plan) { return plan.prediction.step_time; });
  std::vector<Plan> front;
  for (Plan& plan : plans)
    if (front.empty() || plan.prediction.peak_memory < front.back().prediction.peak_memory)
      front.push_back(std::move(plan));
  return front;
}

PlanResult changed(const PlanProblem& problem, const std::vector<Solution>& starts, std::int64_t most,
                   SharedCosts& costs) {
  return Search(problem, costs).changed(starts, most);
}

std::optional<TrainingOptions> candidate(const PlanProblem& problem, const Bases& bases, const Assignment& assignment) {
  TrainingOptions options = bases.of(assignment);
  const std::vector<Dimension>& dimensions = problem.space.dimensions;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    if (!apply(problem, dimensions[i], assignment[i], options)) return std::nullopt;
    if (dimensions[i].field->key == "pp") settle_data_parallel(problem, options);
  }
  return options;
}

Run run_of(const PlanProblem& problem, const Plan& plan) {
  Run run;
  run.model_name = problem.model_name;
  run.system_name = problem.system_name;
  run.num_gpus = problem.num_gpus;
  run.model = problem.model;
  run.hardware = problem.hardware;
  run.options = plan.options;
  run.release = problem.release;
  run.defaults = problem.defaults;
  run.chosen = true;
  run.task = problem.model_set.value("task", run.task);
  for (const char* key : {"model", "model_overrides", "system_overrides"})
    if (const auto overrides = problem.model_set.find(key); overrides != problem.model_set.end())
      run.json[key] = *overrides;
  return run;
}

namespace {

constexpr double kSure = 0.97;  // Replays are 3 % off, rms (docs/memory.md#accuracy).

/// Whether torch has room for the plan in that share of the device's memory. What takes too long to replay has.
bool has_room(const PlanProblem& problem, const TrainingOptions& options, double share, Prediction& prediction) {
  const Step step = compose_step(problem.model, options, problem.hardware);
  return !add_reserved(step, prediction, {.share = share, .segments = false}) ||
         std::ranges::all_of(prediction.memory, [](const StageMemory& rank) { return rank.pressure.runs(); });
}

/// Takes what plans like this one, which reserves too much, must have beyond what counts as needed: with the least
/// share of the device's memory in which it runs.
void learn_pending(const Plan& plan, PlanProblem& problem) {
  constexpr int kHalvings = 4;
  double low = kSure, high = std::max(low, (plan.prediction.in_use() / problem.hardware.hbm_capacity).to<double>());
  for (int i = 0; i < kHalvings; ++i) {
    const double share = 0.5 * (low + high);
    Prediction prediction = plan.prediction;
    (has_room(problem, plan.options, share, prediction) ? high : low) = share;
  }
  const Bytes more = high / kSure * problem.hardware.hbm_capacity - plan.prediction.peak_memory;
  double& reserve = plan.options.pipeline.overlaps.ep_a2a ? problem.reserve.ep_overlap : problem.reserve.plain;
  reserve = std::max(reserve, (more / tokens_of(problem.model, plan.options)).to<double>());
}

/// Plans that torch has room for, and those that run though it must give memory back in every step, or that need the
/// whole device.
struct Vetted {
  std::vector<Plan> run, pressed;
};

/// Sorts the plans into those. Returns the first if it is not one that torch has room for.
std::optional<Plan> vet(const PlanProblem& problem, std::vector<Plan> plans, Vetted& vetted) {
  std::vector<char> too_much(plans.size());
  tbb::parallel_for(
      std::size_t{0}, plans.size(), [&](std::size_t i) { too_much[i] = reserves_too_much(problem, plans[i]) ? 1 : 0; },
      tbb::simple_partitioner());
  std::optional<Plan> first;
  if (!plans.empty() && too_much.front() != 0) first = plans.front();
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (too_much[i] == 0)
      vetted.run.push_back(std::move(plans[i]));
    else if (plans[i].prediction.fits)
      vetted.pressed.push_back(std::move(plans[i]));
  return first;
}

/// Plans that fit with what the allocator must have.
std::vector<Solution> still_fitting(const PlanProblem& problem, const std::vector<Plan>& plans) {
  std::vector<Solution> found;
  for (const Plan& plan : plans)
    if (plan.prediction.peak_memory + reserve_of(problem, plan.options) <=
        (1.0 - problem.headroom) * problem.hardware.hbm_capacity)
      found.push_back({.time = plan.prediction.step_time, .assignment = plan.assignment, .options = plan.options});
  return found;
}

Seconds fastest(const std::vector<Plan>& plans) {
  Seconds least{std::numeric_limits<double>::infinity()};
  for (const Plan& plan : plans) least = std::min(least, plan.prediction.step_time);
  return least;
}

}  // namespace

bool reserves_too_much(const PlanProblem& problem, Plan& plan) {
  if (has_room(problem, plan.options, kSure, plan.prediction)) return false;
  if (!plan.prediction.fits) {
    plan.prediction.fits = true;
    static_cast<void>(has_room(problem, plan.options, 1.0, plan.prediction));
  }
  return true;
}

PlanResult plan(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress, SharedCosts* shared,
                const std::vector<Solution>& known) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<tbb::global_control> limit = thread_limit(problem.threads);
  SharedCosts own;
  SharedCosts& costs = shared != nullptr ? *shared : own;
  PlanResult result = Search(problem, costs).run(progress, known);
  // Runs that gave memory back took so many times as long (docs/measuring.md#memory-gone): slower is no way out.
  constexpr double kPressed = 1.25;
  constexpr int kMost = 4, kCloser = 2;  // Searches more; each of the first leaves out the plan of the one before.
  PlanProblem learnt = problem;
  Vetted all;
  const std::optional<Plan> left_out = vet(problem, std::exchange(result.plans, {}), all);
  std::optional<Plan> first = left_out;
  for (int again = 0; first && again < kMost; ++again) {
    learn_pending(*first, learnt);
    PlanResult more = Search(learnt, costs).run(progress, still_fitting(learnt, all.run));
    result.effort += more.effort;
    if (more.plans.empty() || fastest(more.plans) > kPressed * fastest(all.pressed)) break;
    first = vet(learnt, std::move(more.plans), all);
  }
  // What one plan must have leaves out others that torch has room for: again with less of it.
  AllocatorReserve least = problem.reserve, most = learnt.reserve;
  for (int again = 0; left_out && !first && again < kCloser; ++again) {
    learnt.reserve = {.plain = (least.plain + most.plain) / 2.0,
                      .ep_overlap = (least.ep_overlap + most.ep_overlap) / 2.0};
    PlanResult more = Search(learnt, costs).run(progress, still_fitting(learnt, all.run));
    result.effort += more.effort;
    (vet(learnt, std::move(more.plans), all) ? least : most) = learnt.reserve;
  }
  learnt.reserve = most;
  const bool pressed = fastest(all.run) > kPressed * fastest(all.pressed);
  if (left_out && !(pressed && left_out->prediction.fits)) result.proven = false;
  if (!pressed) result.reserve = learnt.reserve;
  const Seconds from = pressed ? Seconds{} : fastest(all.run);  // Behind a plan that has room they are listed.
  for (Plan& plan : all.pressed)
    if (plan.prediction.step_time > from) {
      plan.why.emplace_back("torch would have to give memory back in every step, or needs the whole device");
      all.run.push_back(std::move(plan));
    }
  take(std::move(all.run), problem.top, result);
  if (left_out && !pressed && !result.plans.empty())
    result.plans.front().why.push_back(fmt::format(
        "faster ones, from {:.4g} s on, are left out: torch would {}", left_out->prediction.step_time.to<double>(),
        left_out->prediction.fits ? "have to give memory back in every step" : "run out of memory"));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace foldwise::planner

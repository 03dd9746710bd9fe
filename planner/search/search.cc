#include "planner/search/search.h"

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <tuple>

#include "costmodel/check.h"
#include "costmodel/step/step.h"
#include "planner/rules/rules.h"
#include "planner/search/evaluate.h"
#include "planner/search/order.h"

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

std::vector<std::string> limits(const PlanProblem& problem, const Plan& plan) {
  const Prediction& p = plan.prediction;
  std::vector<std::string> why;
  std::string line = "step on the busiest rank:";
  for (const auto& [name, seconds] : parts_of_step(p.breakdown))
    if (seconds > 0.002 * p.step_time) line += fmt::format(" {} {},", name, percent(seconds, p.step_time));
  line.pop_back();
  why.push_back(line);
  if (!p.detail.empty()) {
    line = "largest costs:";
    for (std::size_t i = 0; i < std::min<std::size_t>(3, p.detail.size()); ++i)
      line += fmt::format(" {} {}{} {},", p.detail[i].module, p.detail[i].kind,
                          p.detail[i].group.empty() ? "" : " over " + p.detail[i].group,
                          percent(p.detail[i].seconds, p.step_time));
    line.pop_back();
    why.push_back(line);
  }
  why.push_back(fmt::format("memory: {:.1f} of {:.1f} GiB on the fullest stage", in_gib(p.peak_memory),
                            in_gib(problem.hardware.hbm_capacity)));
  return why;
}

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
  Digits digits;
  bool operator>(const Node& other) const {
    return std::tie(bound, other.digits) > std::tie(other.bound, digits);  // Of equal ones the later digits first.
  }
};

class Search {
 public:
  explicit Search(const PlanProblem& problem)
      : problem_(problem), order_(problem), workers_([this] { return Evaluator(problem_, order_); }) {}

  PlanResult run(const std::function<bool(const Progress&)>& progress) {
    PlanResult result;
    result.enumerated = problem_.space.size();
    std::vector<Found> best = search(1.0, static_cast<std::size_t>(problem_.top), progress, result);
    for (const Found& found : best) result.plans.push_back(to_plan(found));
    for (std::size_t i = 0; i + 1 < result.plans.size(); ++i)
      result.plans[i].why.push_back(comparison(result.plans[i], result.plans[i + 1]));
    if (!best.empty()) result.pareto.push_back(result.plans.front());
    Statistics sum;
    for (const Evaluator& worker : workers_) sum += worker.statistics();
    result.composed = sum.composed;
    result.fitting = sum.fitting;
    result.simulated = sum.simulated;
    result.rejected_by_rule = named(sum);
    return result;
  }

 private:
  std::vector<Found> search(double share, std::size_t top, const std::function<bool(const Progress&)>& progress,
                            PlanResult& result) {
    std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
    Best best(top);
    const Bytes capacity = share * (1.0 - problem_.headroom) * problem_.hardware.hbm_capacity;
    workers_.local().attention_nodes([&](double bound, const Digits& digits) { open.push({bound, digits}); });
    result.nodes += static_cast<std::int64_t>(open.size());
    dive(open, capacity, best);
    constexpr std::size_t kMostAtOnce = 256;
    std::size_t batch = 2;  // Of choices of experts; those of attention are cheap.
    while (!open.empty() && open.top().bound < best.limit()) {
      std::vector<Node> nodes;
      std::size_t experts = 0;
      while (experts < batch && nodes.size() < kMostAtOnce && !open.empty() && open.top().bound < best.limit()) {
        nodes.push_back(open.top());
        open.pop();
        experts += nodes.back().digits.size() > order_.end_of(Level::kAttention) ? 1 : 0;
      }
      if (experts == batch) batch = std::min(2 * batch, kMostAtOnce);
      std::vector<std::vector<Node>> children(nodes.size());
      std::vector<std::vector<Found>> found(nodes.size());
      tbb::parallel_for(std::size_t{0}, nodes.size(), [&](std::size_t i) {
        Evaluator& worker = workers_.local();
        if (nodes[i].digits.size() == order_.end_of(Level::kAttention))
          worker.expand(nodes[i].digits, best.limit(), [&](double bound, const Digits& digits) {
            children[i].push_back({bound, digits});
          });
        else
          found[i] = worker.evaluate(nodes[i].digits, capacity, best);
      });
      for (const std::vector<Node>& list : children) {
        result.nodes += static_cast<std::int64_t>(list.size());
        for (const Node& child : list) open.push(child);
      }
      for (std::size_t i = 0; i < found.size(); ++i)
        for (const Found& candidate : found[i]) { if(getenv("FW_V"))printf("FOUND %.4f in leaf %.4f pp %ld vpp %ld mbs %ld tp %ld ep %ld\n",candidate.time.to<double>(),nodes[i].bound,candidate.options.pipeline.pp,candidate.options.pipeline.vpp,candidate.options.layer.micro_batch,candidate.options.layer.tp,candidate.options.layer.ep); best.offer(candidate);}

      if (progress &&
          !progress({.open = static_cast<double>(open.size()), .best = Seconds{best.fastest()}, .nodes = result.nodes})) {
        result.proven = false;
        break;
      }
    }
    return best.sorted();
  }

  /// First limits: below the most promising choice of each micro-batch.
  void dive(std::priority_queue<Node, std::vector<Node>, std::greater<>> open, Bytes capacity, Best& best) {
    constexpr std::int64_t kEffort = 60;
    constexpr std::size_t kRounds = 8;
    std::map<std::int64_t, std::vector<Node>> first;  // By micro-batch.
    for (; !open.empty(); open.pop()) {
      std::vector<Node>& list = first[workers_.local().micro_batch(open.top().digits)];
      if (list.empty())
        workers_.local().expand(open.top().digits, best.limit(),
                                [&](double bound, const Digits& digits) { list.push_back({bound, digits}); });
    }
    for (auto& [size, list] : first) std::sort(list.begin(), list.end(), [](const Node& a, const Node& b) { return b > a; });
    for (std::size_t round = 0; round < kRounds; ++round) {
      std::vector<const Node*> nodes;
      for (const auto& [size, list] : first)
        if (round < list.size() && list[round].bound < best.limit()) nodes.push_back(&list[round]);
      std::vector<std::vector<Found>> found(nodes.size());
      tbb::parallel_for(std::size_t{0}, nodes.size(), [&](std::size_t i) {
        found[i] = workers_.local().evaluate(nodes[i]->digits, capacity, best, kEffort);
      });
      for (const std::vector<Found>& list : found)
        for (const Found& candidate : list) best.offer(candidate);
      if(getenv("FW_V"))printf("dive best %.4f at %.3f\n",best.fastest(),double(clock())/CLOCKS_PER_SEC);
    }
  }

  [[nodiscard]] std::vector<std::pair<std::string, double>> named(const Statistics& sum) const {
    std::vector<std::pair<std::string, double>> by_rule;
    for (std::size_t i = 0; i < sum.rejected.size(); ++i)
      if (sum.rejected[i] > 0.0)
        by_rule.emplace_back(i < rules().size()    ? rules()[i].id
                             : i == rules().size() ? "memory.fits"
                                                   : "search.more_stages_than_layers",
                             sum.rejected[i]);
    std::stable_sort(by_rule.begin(), by_rule.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return by_rule;
  }

  Plan to_plan(const Found& found) const {
    Plan p{.digits = found.digits, .options = found.options, .prediction = {}, .why = {}};
    const auto broken = first_violation({problem_.model, problem_.hardware, problem_.num_gpus}, p.options);
    FW_CHECK(!broken, fmt::format("a plan breaks {}: {}", broken->rule, broken->reason));
    p.prediction = predict(problem_.model, p.options, problem_.hardware);
    FW_CHECK(p.prediction.step_time == found.time,
             fmt::format("a plan takes {} s, not {}", p.prediction.step_time.to<double>(), found.time.to<double>()));
    p.why = limits(problem_, p);
    return p;
  }

  const PlanProblem& problem_;
  DecisionOrder order_;
  tbb::enumerable_thread_specific<Evaluator> workers_;
};

}  // namespace

std::optional<TrainingOptions> candidate(const PlanProblem& problem, const Bases& bases, const Digits& digits) {
  TrainingOptions options = bases.of(digits);
  const std::vector<Dimension>& dimensions = problem.space.dimensions;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    if (!apply(problem, dimensions[i], digits[i], options)) return std::nullopt;
    if (dimensions[i].field->key == "pp") settle_data_parallel(problem, options);
  }
  return options;
}

PlanResult plan(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<tbb::global_control> limit =
      problem.threads > 0
          ? std::optional<tbb::global_control>(std::in_place, tbb::global_control::max_allowed_parallelism,
                                               static_cast<std::size_t>(problem.threads))
          : std::nullopt;
  PlanResult result = Search(problem).run(progress);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace foldwise::planner

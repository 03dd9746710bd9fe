#include "planner/search/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/step/step.h"
#include "planner/rules/rules.h"

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

/// The parts of the step in which the next plan loses time against this one.
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

}  // namespace

Plan to_plan(const PlanProblem& problem, const Solution& found) {
  Plan p{.assignment = found.assignment,
         .options = found.options,
         .prediction = {},
         .imbalance = {},
         .why = {},
         .lead = {}};
  const auto broken = first_violation(rule_problem(problem), p.options);
  FW_CHECK(!broken, "a plan breaks " + broken->text());
  p.prediction = predict(problem.model, p.options, problem.hardware);
  FW_CHECK(p.prediction.step_time == found.time,
           fmt::format("a plan takes {} s, not {}", p.prediction.step_time.to<double>(), found.time.to<double>()));
  p.imbalance = imbalance(problem.model, p.options, problem.hardware);
  FW_CHECK(p.imbalance.p99_memory <= problem.hardware.hbm_capacity, "a plan does not fit at p99 of routing");
  p.why = limits(problem, p);
  return p;
}

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

StrategyUse& StrategyUse::operator+=(const StrategyUse& other) {
  steps += other.steps;
  moves += other.moves;
  effort += other.effort;
  gains += other.gains;
  gained += other.gained;
  return *this;
}

std::string log_text(const PlanResult& result) {
  std::string text = fmt::format("{:<22}{:>7}{:>9}{:>12}{:>9}{:>12}\n", "strategy", "steps", "moves", "effort, s",
                                 "gains", "gained, s");
  for (std::size_t i = 0; i < result.log.size(); ++i) {
    const StrategyUse& use = result.log[i];
    text += fmt::format("{:<22}{:>7}{:>9}{:>12.3f}{:>9}{:>12.4g}\n", to_string(static_cast<StrategyName>(i)), use.steps,
                        use.moves, 1e-6 * static_cast<double>(use.effort), use.gains, use.gained.to<double>());
  }
  return text;
}

}  // namespace foldwise::planner

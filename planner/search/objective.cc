#include "planner/search/objective.h"

#include <algorithm>
#include <utility>

#include "costmodel/config/diagnostics.h"

namespace foldwise::planner {
namespace {

// Of the device's memory: what a bisection leaves open.
constexpr double kResolution = 0.01;

// Above that, no cluster.
constexpr std::int64_t kMostGpus = 1'000'000;

Seconds step_time(const Plan& plan) { return plan.prediction.step_time; }

/// Drops what takes longer.
void keep_within(Seconds limit, PlanResult& result) {
  const auto slow = [&](const Plan& plan) { return step_time(plan) > limit; };
  std::erase_if(result.plans, slow);
  std::erase_if(result.pareto, slow);
}

Tried tried(const PlanProblem& problem, const PlanResult& result, Seconds limit) {
  Tried t{.num_gpus = problem.num_gpus,
          .memory_allowed = (1.0 - problem.headroom) * problem.hardware.hbm_capacity,
          .proven = result.least > limit || (result.proven && result.plans.empty())};
  if (result.plans.empty()) return t;
  const Plan* least = &result.plans.front();  // The fastest.
  t.step_time = step_time(*least);
  t.within = t.step_time <= limit;
  for (const Plan& plan : result.plans)
    if (t.within && step_time(plan) <= limit && plan.prediction.peak_memory < least->prediction.peak_memory)
      least = &plan;
  t.peak_memory = least->prediction.peak_memory;
  return t;
}

PlanProblem within_memory(const PlanProblem& problem, Bytes allowed) {
  PlanProblem narrower = problem;
  // A plan that needs just so much fits in spite of rounding.
  narrower.headroom = 1.0 - (1.0 + 1e-12) * (allowed / problem.hardware.hbm_capacity).to<double>();
  return narrower;
}

}  // namespace

Answered least_memory(const PlanProblem& problem, std::optional<Seconds> limit, double slack, const Report& progress) {
  bool goes_on = true;
  const auto report = [&](const Progress& now) {
    goes_on = goes_on && (!progress || progress(now));
    return goes_on;
  };
  Answered answer{.problem = problem, .result = plan(problem, report)};
  answer.limit = limit                         ? *limit
                 : answer.result.plans.empty() ? Seconds{}
                                               : (1.0 + slack) * step_time(answer.result.plans.front());
  answer.tried.push_back(tried(problem, answer.result, answer.limit));
  keep_within(answer.limit, answer.result);
  if (answer.result.plans.empty()) return answer;
  answer.problem.pending = answer.result.pending;
  Bytes above{}, enough = answer.tried.back().peak_memory;  // No plan, and one.
  PlanResult smallest = answer.result;
  while (goes_on && enough - above > kResolution * problem.hardware.hbm_capacity) {
    const PlanProblem narrower = within_memory(answer.problem, 0.5 * (above + enough));
    PlanResult result = plan(narrower, [&](const Progress& now) {
      const bool found = now.best > Seconds{} && now.best <= answer.limit;
      return report(now) && !found && now.least <= answer.limit;
    });
    const Tried t = tried(narrower, result, answer.limit);
    answer.tried.push_back(t);
    if (!t.within) {
      above = t.memory_allowed;
      continue;
    }
    enough = t.peak_memory;
    smallest = std::move(result);
  }
  // The fastest with so much.
  const PlanProblem last = within_memory(answer.problem, enough);
  if (goes_on) answer.result = plan(last, report);
  answer.tried.push_back(tried(last, answer.result, answer.limit));
  if (!goes_on || !answer.tried.back().within) answer.result = std::move(smallest);
  keep_within(answer.limit, answer.result);
  return answer;
}

Answered fewest_gpus(std::int64_t num_gpus, Seconds limit,
                     const std::function<PlanProblem(std::int64_t num_gpus)>& problem_of, const Report& progress) {
  Answered answer{.problem = problem_of(num_gpus), .result = {}, .limit = limit};
  bool goes_on = true;
  const auto search = [&](const PlanProblem& problem) {
    PlanResult result = plan(problem, [&](const Progress& now) {
      goes_on = goes_on && (!progress || progress(now));
      return goes_on;
    });
    answer.tried.push_back(tried(problem, result, limit));
    return result;
  };
  answer.result = search(answer.problem);
  const costmodel::Network& network = answer.problem.hardware.network;
  const bool down = answer.tried.back().within;
  for (std::int64_t size = num_gpus; goes_on;) {
    if (down && size % 2 != 0) break;
    size = down ? size / 2 : 2 * size;
    const std::int64_t domain = network.ranks_per_domain;
    if ((size % domain != 0 && domain % size != 0) || size > kMostGpus ||
        (!down && network.domains > 0 && size > network.domains * domain))
      break;
    const Seconds before = answer.tried.back().step_time;
    try {
      PlanProblem problem = problem_of(size);
      PlanResult result = search(problem);
      const Tried& now = answer.tried.back();
      if (now.within) {
        answer.problem = std::move(problem);
        answer.result = std::move(result);
      }
      if (now.within != down) break;  // No smaller one will do; this one does.
      if (!down && before > Seconds{} && now.step_time >= before) break;
    } catch (const config::ConfigError&) {
      answer.tried.push_back({.num_gpus = size, .proven = true});
      break;
    }
  }
  keep_within(limit, answer.result);
  return answer;
}

}  // namespace foldwise::planner

#include "planner/search/objective.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "costmodel/config/diagnostics.h"

namespace foldwise::planner {
namespace {

// No cluster is larger.
constexpr std::int64_t kMostGpus = 1'000'000;

Seconds step_time(const Plan& plan) { return plan.prediction.step_time; }

/// Drops plans that take longer.
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
  const Plan* least = &result.plans.front();  // The fastest plan.
  t.step_time = step_time(*least);
  t.within = t.step_time <= limit;
  for (const Plan& plan : result.plans)
    if (t.within && step_time(plan) <= limit && plan.prediction.peak_memory < least->prediction.peak_memory)
      least = &plan;
  t.peak_memory = least->prediction.peak_memory;
  return t;
}

/// The smallest number of GPUs, at least `size`, that a user can get: any number within an NVLink domain, whole
/// machines of up to 8 GPUs beyond it.
std::int64_t rounded_up(std::int64_t size, std::int64_t domain) {
  constexpr std::int64_t kMostOfMachine = 8;  // HGX and DGX boards (NVIDIA's data sheets).
  const std::int64_t machine = size <= domain ? 1 : std::gcd(domain, kMostOfMachine);
  return (size + machine - 1) / machine * machine;
}

PlanProblem within_memory(const PlanProblem& problem, Bytes allowed) {
  PlanProblem narrower = problem;
  // The margin lets a plan that needs exactly this much fit despite rounding.
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
  answer.problem.reserve = answer.result.reserve;
  Bytes above{}, enough = answer.tried.back().peak_memory;  // `above`: no plan was found with it; `enough`: a plan was.
  PlanResult smallest = answer.result;
  while (goes_on && enough - above > problem.parameters.follow_up.memory_resolution * problem.hardware.hbm_capacity) {
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
  // The fastest plans with this memory.
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
  const auto search = [&](const PlanProblem& problem, bool ends) {
    PlanResult result = plan(problem, [&](const Progress& now) {
      goes_on = goes_on && (!progress || progress(now));
      const bool known = (now.best > Seconds{} && now.best <= limit) || now.least > limit;
      return goes_on && !(ends && known);
    });
    answer.tried.push_back(tried(problem, result, limit));
    return result;
  };
  /// Whether a plan on this many GPUs is within the limit. If so, it becomes the answer. `ends`: end the search as soon
  /// as this is known.
  const auto does = [&](std::int64_t size, bool ends) {
    try {
      PlanProblem problem = problem_of(size);
      PlanResult result = search(problem, ends);
      if (!answer.tried.back().within) return false;
      answer.problem = std::move(problem);
      answer.result = std::move(result);
      return true;
    } catch (const config::ConfigError&) {
      answer.tried.push_back({.num_gpus = size, .proven = true});
      return false;
    }
  };
  answer.result = search(answer.problem, false);
  const costmodel::Network& network = answer.problem.hardware.network;
  std::int64_t enough = num_gpus, above = 0;  // Numbers of GPUs: `enough` suffices; `above`, which is less, does not.
  bool found = answer.tried.back().within;
  if (found) {
    while (goes_on && enough > 1) {
      const std::int64_t half = rounded_up(enough / 2, network.ranks_per_domain);
      if (half == enough) break;
      if (!does(half, false)) {
        above = half;
        break;
      }
      enough = half;
    }
  } else {
    for (std::int64_t size = 2 * num_gpus; goes_on && !found && size <= kMostGpus; size *= 2) {
      if (network.domains > 0 && size > network.domains * network.ranks_per_domain) break;
      const Seconds before = answer.tried.back().step_time;
      above = size / 2;
      found = does(size, false);
      enough = size;
      if (!found && before > Seconds{} && answer.tried.back().step_time >= before) break;
    }
  }
  // Step times do not fall with every additional GPU. So of the sizes between, the first that suffices is taken.
  for (std::int64_t size = above + 1; goes_on && found && size < enough; ++size)
    if (size == rounded_up(size, network.ranks_per_domain) && does(size, true)) {
      enough = size;
      if (PlanResult whole = search(answer.problem, false); answer.tried.back().within)
        answer.result = std::move(whole);
    }
  keep_within(limit, answer.result);
  return answer;
}

}  // namespace foldwise::planner

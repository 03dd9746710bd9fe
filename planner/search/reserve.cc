#include "planner/search/reserve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/step.h"
#include "planner/search/threads.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

/// True if torch has room for the plan in this share of the device's memory and never gives memory back on the whole
/// device. Also true if a replay takes too long. Some plans whose replay gave memory back once gave it back in every
/// step when they ran (benchmarks/accuracy/started.md#started).
bool has_room(const PlanProblem& problem, const TrainingOptions& options, double share, Prediction& prediction) {
  const Step step = compose_step(problem.model, options, problem.hardware);
  return !add_reserved(step, prediction, {.share = share, .segments = false}) ||
         prediction.torch_has_room(share / problem.parameters.certain_share * problem.hardware.hbm_capacity);
}

/// Sets the reserve of plans like this one, which reserves too much. It is what the plan needs beyond its predicted
/// peak in the smallest share of the device's memory in which it runs.
void learn_reserve(const Plan& plan, PlanProblem& problem) {
  const double certain = problem.parameters.certain_share;
  double low = certain, high = std::max(low, (plan.prediction.in_use() / problem.hardware.hbm_capacity).to<double>());
  for (int i = 0; i < problem.parameters.reserve_halvings; ++i) {
    const double share = 0.5 * (low + high);
    Prediction prediction = plan.prediction;
    (has_room(problem, plan.options, share, prediction) ? high : low) = share;
  }
  const Bytes more = high / certain * problem.hardware.hbm_capacity - plan.prediction.peak_memory;
  double& reserve = plan.options.pipeline.overlaps.ep_a2a ? problem.reserve.ep_overlap : problem.reserve.plain;
  reserve = std::max(reserve, (more / tokens_of(problem.model, plan.options)).to<double>());
}

/// Replayed plans. `run`: torch has room for them. `pressed`: they run, but give memory back in every step or need the
/// whole device. `run_out`: they run out of memory.
struct Vetted {
  std::vector<Plan> run, pressed, run_out;
};

std::vector<Plan>::const_iterator find(const std::vector<Plan>& plans, const TrainingOptions& options) {
  return std::ranges::find(plans, options, &Plan::options);
}

/// Replays the plans that are not in `vetted` yet and sorts them into it: a search finds plans of the one before again.
/// Returns the first plan if torch has no room for it.
std::optional<Plan> vet(const PlanProblem& problem, std::vector<Plan> plans, Vetted& vetted) {
  if (plans.empty()) return std::nullopt;
  const TrainingOptions first = plans.front().options;
  std::erase_if(plans, [&](const Plan& plan) {
    return std::ranges::any_of(std::array{&vetted.run, &vetted.pressed, &vetted.run_out},
                               [&](const auto* list) { return find(*list, plan.options) != list->end(); });
  });
  std::vector<char> too_much(plans.size());
  side_by_side(plans.size(), [&](std::size_t i) { too_much[i] = reserves_too_much(problem, plans[i]) ? 1 : 0; });
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool fits = plans[i].prediction.fits;
    (too_much[i] == 0 ? vetted.run : fits ? vetted.pressed : vetted.run_out).push_back(std::move(plans[i]));
  }
  for (const std::vector<Plan>* list : {&vetted.pressed, &vetted.run_out})
    if (const auto plan = find(*list, first); plan != list->end()) return *plan;
  return std::nullopt;
}

/// Plans that still fit with the reserve.
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
  if (has_room(problem, plan.options, problem.parameters.certain_share, plan.prediction)) return false;
  if (!plan.prediction.fits) {
    plan.prediction.fits = true;
    static_cast<void>(has_room(problem, plan.options, 1.0, plan.prediction));
  }
  return true;
}

bool keep_with_room(const PlanProblem& problem, const Plan& first, std::vector<Plan>& plans) {
  std::erase_if(plans, [&](Plan& plan) {
    Plan replayed = first;  // Replayed only where that decides.
    return reserves_too_much(problem, plan) && !(plan.prediction.fits && reserves_too_much(problem, replayed));
  });
  return !plans.empty();
}

PlanResult search_with_reserve(const PlanProblem& problem, const std::vector<Solution>& known,
                               const SearchOnce& search) {
  const SearchParameters& p = problem.parameters;
  PlanResult result = search(problem, known);
  PlanProblem learnt = problem;
  Vetted all;
  const std::optional<Plan> left_out = vet(problem, std::exchange(result.plans, {}), all);
  std::optional<Plan> first = left_out;
  const auto search_again = [&] {
    PlanResult more = search(learnt, still_fitting(learnt, all.run));
    result.effort += more.effort;
    for (std::size_t i = 0; i < kStrategies; ++i) result.log[i] += more.log[i];
    return more;
  };
  for (int again = 0; first && again < p.reserve_searches; ++again) {
    learn_reserve(*first, learnt);
    PlanResult more = search_again();
    first = vet(learnt, std::move(more.plans), all);  // Nothing if no plan fits with this reserve.
  }
  // The reserve of one plan excludes others that need less. Search again with a smaller reserve.
  AllocatorReserve least = problem.reserve, most = learnt.reserve;
  for (int again = 0; left_out && !first && again < p.reserve_bisections; ++again) {
    learnt.reserve = {.plain = (least.plain + most.plain) / 2.0,
                      .ep_overlap = (least.ep_overlap + most.ep_overlap) / 2.0};
    PlanResult more = search_again();
    (vet(learnt, std::move(more.plans), all) ? least : most) = learnt.reserve;
  }
  learnt.reserve = most;
  // Plans with room come first, however much slower they are: runs that gave memory back in every step took up to eight
  // times as long, or ran out of memory (benchmarks/accuracy/started.md#started). If all plans must give memory back,
  // keep those that do so only in the first steps.
  const auto settles = [](const Plan& plan) {
    return std::ranges::all_of(plan.prediction.memory, [](const StageMemory& rank) { return rank.pressure.runs(); });
  };
  if (std::ranges::any_of(all.pressed, settles)) std::erase_if(all.pressed, std::not_fn(settles));
  const bool pressed = all.run.empty() && !all.pressed.empty();
  if (left_out && !(pressed && left_out->prediction.fits)) {  // Else it is itself among those listed.
    result.proven = false;
    result.reserve = learnt.reserve;
  }
  const Seconds from = pressed ? Seconds{} : fastest(all.run);
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
  return result;
}

}  // namespace foldwise::planner

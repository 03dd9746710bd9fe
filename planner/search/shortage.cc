#include "planner/search/shortage.h"

#include <tbb/parallel_invoke.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "costmodel/step/rank_memory.h"
#include "planner/search/alternatives.h"
#include "planner/search/strategies/restriction.h"
#include "planner/search/threads.h"
#include "planner/search/workbench.h"

namespace foldwise::planner {

using costmodel::Prediction;

namespace {

using Question = std::function<bool()>;  ///< Whether to go on.

Bytes capacity_of(const PlanProblem& problem) { return (1.0 - problem.headroom) * problem.hardware.hbm_capacity; }

constexpr Bytes kUnlimited{1e18};                // Memory of one GPU.
constexpr std::int64_t kShortestSequence = 128;  ///< Tokens. Shorter sequences are not tried.
constexpr std::int64_t kMostGpus = 1'000'000, kMostSequences = 16'777'216;  ///< The limits of run files.

/// A small search. With `any` it ends with the first plans that fit.
std::vector<Plan> searched(PlanProblem problem, bool any, const Question& goes_on) {
  problem.effort = share_of_effort(problem, problem.parameters.follow_up.shortage_share);
  problem.top = static_cast<std::int64_t>(problem.parameters.follow_up.nearest);
  return plan(problem,
              [&](const Progress& now) { return now.effort < 1.0 && !(any && now.best > Seconds{}) && goes_on(); })
      .plans;
}

/// The plan predicted on the problem's own hardware, and the memory that this hardware lacks.
NearMiss missed_by(const PlanProblem& problem, Plan plan) {
  NearMiss miss{.plan = std::move(plan)};
  Prediction& p = miss.plan.prediction;
  p = predict(problem.model, miss.plan.options, problem.hardware);
  Bytes host{};
  for (std::size_t stage = 0; stage < p.memory.size(); ++stage) {
    if (p.memory[stage].total() > p.memory[miss.stage].total()) miss.stage = stage;
    host = std::max(host, p.memory[stage].host);
  }
  miss.over = std::max(Bytes{}, p.memory[miss.stage].total() - capacity_of(problem));
  if (!costmodel::fits_host(host, problem.hardware)) miss.host_over = host - problem.hardware.host.memory_per_gpu;
  return miss;
}

void take_faster(std::vector<Plan> others, std::vector<Plan>& plans) {
  if (!others.empty() && others.front().prediction.step_time < plans.front().prediction.step_time)
    plans = std::move(others);
}

Bytes needed(const NearMiss& miss) { return miss.over + miss.host_over; }

/// The nearest misses: searches with more and more memory until something fits, then with less.
class Nearest {
 public:
  Nearest(const PlanProblem& problem, const Question& goes_on)
      : problem_(problem), parameters_(problem.parameters.follow_up), goes_on_(goes_on) {}

  Shortage::Cause find() {
    PlanProblem larger = least_memory_part(problem_);
    for (int i = 0; i < parameters_.doublings && misses_.empty() && goes_on_(); ++i)
      look(larger, 2.0 * larger.hardware.hbm_capacity);
    if (misses_.empty()) {
      larger.hardware.host.memory_per_gpu = Bytes{};  // Unlimited.
      look(larger, kUnlimited);
    }
    if (misses_.empty()) return Shortage::Cause::kRules;
    // Bisects between memory in which nothing was found and the least memory in which something fits.
    Bytes low = problem_.hardware.hbm_capacity;
    for (int i = 0; i < parameters_.bisections && goes_on_(); ++i) {
      const Bytes high = least_capacity();
      if (high - low <= parameters_.close_enough * low) break;
      const Bytes middle = 0.5 * (low + high);
      if (!look(larger, middle)) low = middle;
    }
    return list().front().over > Bytes{} ? Shortage::Cause::kDevice : Shortage::Cause::kHost;
  }

  /// The plan of each layout that needs least memory.
  [[nodiscard]] std::vector<NearMiss> list() const {
    std::vector<NearMiss> sorted = misses_;
    std::ranges::stable_sort(sorted, {}, needed);
    std::vector<NearMiss> result;
    for (NearMiss& miss : sorted) {
      const bool known = std::ranges::any_of(
          result, [&](const NearMiss& other) { return other.plan.options.layout() == miss.plan.options.layout(); });
      if (!known && result.size() < parameters_.nearest) result.push_back(std::move(miss));
    }
    return result;
  }

 private:
  /// Whether something fits into this much memory.
  bool look(PlanProblem& larger, Bytes capacity) {
    larger.hardware.hbm_capacity = capacity;
    const std::vector<Plan> plans = searched(larger, true, goes_on_);
    for (const Plan& plan : plans) misses_.push_back(missed_by(problem_, plan));
    return !plans.empty();
  }

  [[nodiscard]] Bytes least_capacity() const {
    Bytes least = misses_.front().plan.prediction.peak_memory;
    for (const NearMiss& miss : misses_) least = std::min(least, miss.plan.prediction.peak_memory);
    return least / (1.0 - problem_.headroom);
  }

  const PlanProblem& problem_;
  const FollowUpParameters& parameters_;
  const Question& goes_on_;
  std::vector<NearMiss> misses_;
};

/// Sizes of the question.
struct Sizes {
  std::int64_t num_gpus = 1, global_batch = 1, seq_len = 1;
};

/// The same question with other sizes. Values that the user named stay; all others are the default values for these
/// sizes.
PlanProblem with_sizes(const PlanProblem& problem, const Sizes& sizes) {
  PlanProblem other = problem;
  other.num_gpus = sizes.num_gpus;
  other.stated["global_batch"] = sizes.global_batch;
  other.stated["seq_len"] = sizes.seq_len;
  other.space = default_space({.model = other.model,
                               .hardware = other.hardware,
                               .num_gpus = sizes.num_gpus,
                               .seq_len = sizes.seq_len,
                               .global_batch = sizes.global_batch,
                               .release = other.release});
  for (const Dimension& d : problem.space.dimensions)
    if (d.named) other.space.set(d.field->key, d.values);
  return other;
}

/// The first of these sizes with which something fits.
std::optional<WayOut> first_of(const PlanProblem& problem, const std::vector<Sizes>& list, const Question& goes_on) {
  for (const Sizes& sizes : list) {
    if (!goes_on()) return std::nullopt;
    const PlanProblem other = with_sizes(problem, sizes);
    std::vector<Plan> plans = searched(least_memory_part(other), true, goes_on);
    if (plans.empty()) continue;
    take_faster(searched(other, false, goes_on), plans);
    return WayOut{.num_gpus = sizes.num_gpus,
                  .global_batch = sizes.global_batch,
                  .seq_len = sizes.seq_len,
                  .plan = std::move(plans.front())};
  }
  return std::nullopt;
}

/// Doubles the members again and again, or halves them if not `up`, as long as this is possible.
std::vector<Sizes> scaled(Sizes sizes, bool up, int doublings, const std::vector<std::int64_t Sizes::*>& members) {
  std::vector<Sizes> list;
  for (int i = 0; i < doublings; ++i) {
    for (std::int64_t Sizes::*const member : members) {
      std::int64_t& value = sizes.*member;
      if (!up && value % 2 != 0) return list;
      value = up ? 2 * value : value / 2;
    }
    if (sizes.num_gpus > kMostGpus || sizes.global_batch > kMostSequences || sizes.seq_len < kShortestSequence)
      return list;
    list.push_back(sizes);
  }
  return list;
}

}  // namespace

Shortage nearest_misses(const PlanProblem& problem, const Question& goes_on) {
  Shortage result;
  Nearest nearest(problem, goes_on);
  result.cause = nearest.find();
  result.nearest = nearest.list();
  return result;
}

Shortage shortage(const PlanProblem& problem, const std::function<bool()>& asked_to_go_on) {
  GoesOn caller(asked_to_go_on);
  const Question goes_on = std::ref(caller);
  const Sizes asked{.num_gpus = problem.num_gpus,
                    .global_batch = problem.stated.at("global_batch").get<std::int64_t>(),
                    .seq_len = problem.stated.at("seq_len").get<std::int64_t>()};
  const int doublings = problem.parameters.follow_up.doublings;
  using Way = std::optional<WayOut>;
  // If the batch does not divide by the number of GPUs, it grows with them.
  const auto more_gpus = [&] {
    Way way = first_of(problem, scaled(asked, true, doublings, {&Sizes::num_gpus}), goes_on);
    return way ? way
               : first_of(problem, scaled(asked, true, doublings, {&Sizes::num_gpus, &Sizes::global_batch}), goes_on);
  };
  // Shorter sequences or smaller batches help only if the smallest one helps.
  const auto less_of = [&](std::int64_t Sizes::*member) {
    const std::vector<Sizes> list = scaled(asked, false, doublings, {member});
    return !list.empty() && first_of(problem, {list.back()}, goes_on) ? first_of(problem, list, goes_on) : Way{};
  };
  Shortage result;
  Way gpus, batch, sequence;
  tbb::parallel_invoke([&] { result = nearest_misses(problem, goes_on); }, [&] { gpus = more_gpus(); },
                       [&] { batch = less_of(&Sizes::global_batch); }, [&] { sequence = less_of(&Sizes::seq_len); });
  // More sequences need no less memory, but the rules may require them.
  if (result.cause == Shortage::Cause::kRules) {
    batch = first_of(problem, scaled(asked, true, doublings, {&Sizes::global_batch}), goes_on);
    sequence.reset();
  }
  for (Way& way : {std::ref(gpus), std::ref(batch), std::ref(sequence)})
    if (way) result.ways.push_back(std::move(*way));
  return result;
}

namespace {

std::function<bool(double)> part_of(const Doing& doing, Work work) {
  return [&doing, work](double done) { return !doing || doing(work, done); };
}

}  // namespace

void choose_first(const PlanProblem& problem, PlanResult& result, const Doing& doing) {
  prefer_plain(problem, result);
  prefer_on_any_host(problem, result, part_of(doing, Work::kHosts));
}

void explain(const PlanProblem& problem, PlanResult& result, const Doing& doing, SharedCosts* shared) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<tbb::global_control> limit = thread_limit(problem.threads);
  const Question always = [&] { return !doing || doing(Work::kAlternatives, 0.0); };
  SharedCosts own;
  if (!result.plans.empty()) {
    find_alternatives(problem, result, part_of(doing, Work::kAlternatives), shared != nullptr ? *shared : own);
    result.other_states = with_other_states(problem, result.plans.front(), part_of(doing, Work::kStates));
    keep_states(problem, result);
    choose_first(problem, result, doing);
  } else if (always())
    result.shortage = shortage(problem, always);
  result.explained_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace foldwise::planner

#include "planner/search/search.h"

#include <chrono>
#include <cmath>
#include <optional>

#include "planner/search/strategies/dive.h"
#include "planner/search/strategies/local_search.h"
#include "planner/search/strategies/neighbourhood_search.h"
#include "planner/search/strategies/polish.h"
#include "planner/search/strategies/proof.h"
#include "planner/search/strategies/restriction.h"
#include "planner/search/strategies/state.h"
#include "planner/search/threads.h"

namespace foldwise::planner {
namespace {

/// Runs steps of the strategies that are switched on, and keeps the log.
class Steps {
 public:
  explicit Steps(SearchState& state) : state_(state) {}

  /// Runs a step unless the strategy is off. True if the strategy has more to try.
  bool run(StrategyName name, const std::function<bool()>& step) {
    if (state_.parameters.off.contains(name)) return false;
    const std::int64_t effort = state_.effort(), moves = state_.moves;
    const double before = state_.incumbents.fastest();
    const bool more = step();
    const double after = state_.incumbents.fastest();
    const StrategyUse use{.steps = 1,
                          .moves = state_.moves - moves,
                          .effort = state_.effort() - effort,
                          .gains = after < before ? 1 : 0,
                          .gained = Seconds{after < before && std::isfinite(before) ? before - after : 0.0}};
    log[static_cast<std::size_t>(name)] += use;
    return more;
  }
  bool run(StrategyName name, Strategy& strategy) {
    return run(name, [&] { return strategy.step(state_); });
  }

  SearchLog log{};

 private:
  SearchState& state_;
};

}  // namespace

PlanResult search(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress, SharedCosts& costs,
                  const std::vector<Solution>& known) {
  SearchState state(problem, costs, problem.top, &progress);
  Steps steps(state);
  Dive dive;
  Restriction restriction;
  LocalSearch local;
  NeighbourhoodSearch neighbourhoods;
  Proof proof;
  Polish polish;
  for (const Solution& candidate : known) state.incumbents.offer(candidate);
  state.open_roots();
  steps.run(StrategyName::kDive, dive);
  if (!state.found() && !state.stopped()) steps.run(StrategyName::kRestriction, restriction);
  // If a proof finds a faster solution, that one is improved first.
  for (double before = 0.0; state.incumbents.fastest() != before && state.left() > 0 && !state.stopped();) {
    local.begin(state);
    neighbourhoods.begin(state);
    while (state.may_improve() && state.goes_on() &&
           (steps.run(StrategyName::kLocalSearch, local) ||
            steps.run(StrategyName::kNeighbourhoodSearch, neighbourhoods))) {
    }
    before = state.incumbents.fastest();
    steps.run(StrategyName::kProof, proof);
  }
  const bool proven = state.proven();
  steps.run(StrategyName::kPolish, polish);
  if (!proven)
    steps.run(StrategyName::kLocalSearch, [&] {
      local.descend(state, state.share(state.parameters.local_share));
      return false;
    });
  PlanResult result = state.result(problem.top);
  result.log = steps.log;
  return result;
}

PlanResult changed(const PlanProblem& problem, const std::vector<Solution>& starts, std::int64_t most,
                   SharedCosts& costs) {
  SearchState state(problem, costs, 1);
  LocalSearch local;
  const auto valid = [](const Solution& start) { return std::isfinite(start.time.to<double>()); };
  for (const Solution& start : starts)
    if (valid(start)) state.incumbents.offer(start);
  for (const Solution& start : starts)
    if (!valid(start)) LocalSearch::repair(state, start, most);
  local.descend(state, most - state.effort());
  PlanResult result = state.result(1);
  result.proven = result.refused = false;  // No node was opened.
  return result;
}

PlanResult plan(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress, SharedCosts* shared,
                const std::vector<Solution>& known) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<tbb::global_control> limit = thread_limit(problem.threads);
  SharedCosts own;
  SharedCosts& costs = shared != nullptr ? *shared : own;
  PlanResult result =
      search_with_reserve(problem, known, [&](const PlanProblem& learnt, const std::vector<Solution>& candidates) {
        return search(learnt, progress, costs, candidates);
      });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace foldwise::planner

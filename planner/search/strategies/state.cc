#include "planner/search/strategies/state.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/rules/rules.h"

namespace foldwise::planner {

SearchState::SearchState(const PlanProblem& plan_problem, SharedCosts& shared_costs, std::int64_t top,
                         const std::function<bool(const Progress&)>* progress)
    : problem(plan_problem),
      parameters(plan_problem.parameters),
      costs(shared_costs),
      order(plan_problem),
      incumbents(static_cast<std::size_t>(top)),
      progress_(progress),
      capacity_((1.0 - problem.headroom) * problem.hardware.hbm_capacity),
      workers_([this] { return Evaluator(problem, order, costs, capacity_); }) {}

bool SearchState::goes_on() {
  const Progress now{.effort = static_cast<double>(effort_) / static_cast<double>(problem.effort),
                     .best = Seconds{found() ? incumbents.fastest() : 0.0},
                     .least = Seconds{least()},
                     .found = &incumbents,
                     .problem = &problem};
  stopped_ = stopped_ || (progress_ != nullptr && *progress_ && !(*progress_)(now));
  return !stopped_;
}

bool SearchState::found() const { return std::isfinite(incumbents.fastest()); }

double SearchState::least() const {
  return open.empty() ? incumbents.fastest() : std::min(open.top().bound, incumbents.fastest());
}

bool SearchState::proven() const { return open.empty() || open.top().bound >= incumbents.fastest(); }

void SearchState::open_roots() {
  const std::vector<Assignment> roots = worker(true).roots();
  std::vector<double> bounds(roots.size());
  tbb::parallel_for(std::size_t{0}, roots.size(), [&](std::size_t i) { bounds[i] = worker().bound_of_root(roots[i]); });
  for (std::size_t i = 0; i < roots.size(); ++i) open.push({bounds[i], roots[i], Level::kAttention});
  nodes = static_cast<std::int64_t>(open.size());
}

Evaluator& SearchState::worker(bool counts) {
  Evaluator& mine = workers_.local();
  mine.count(counts);
  return mine;
}

std::vector<std::vector<Node>> SearchState::children(const std::vector<Assignment>& attentions, double limit,
                                                     std::size_t most, bool counts) {
  std::vector<std::vector<Node>> below(attentions.size());
  std::vector<std::int64_t> spent(attentions.size());
  tbb::parallel_for(std::size_t{0}, attentions.size(), [&](std::size_t i) {
    spent[i] = worker(counts).branch(attentions[i], limit, most, [&](double bound, const Assignment& assignment) {
      below[i].push_back({bound, assignment, Level::kExperts});
    });
  });
  spend(std::reduce(spent.begin(), spent.end()));
  return below;
}

void SearchState::explore(std::vector<Node> list, Budget budget) {
  std::sort(list.begin(), list.end());
  const std::size_t batch = parameters.batch;
  for (std::size_t from = 0; from < list.size(); from += batch) {
    if (found()) {
      if (left() <= 0) return;
      budget.most = std::min(budget.most, left());
    }
    std::vector<Explored> explored(std::min(batch, list.size() - from));
    tbb::parallel_for(std::size_t{0}, explored.size(), [&](std::size_t i) {
      const Node& node = list[from + i];
      if (node.bound < incumbents.fastest()) explored[i] = worker().explore(node.assignment, incumbents, budget);
    });
    offer(explored);
  }
}

void SearchState::refine(const std::vector<Solution>& candidates) {
  std::vector<Explored> refined(candidates.size());
  tbb::parallel_for(std::size_t{0}, candidates.size(), [&](std::size_t i) {
    refined[i] = worker().refined(candidates[i], share(parameters.local_share));
  });
  offer(refined);
}

void SearchState::offer(const std::vector<Explored>& explored) {
  moves += std::ranges::count_if(explored, [](const Explored& part) { return part.effort > 0; });
  for (const Explored& part : explored) {
    spend(part.effort);
    for (const Solution& candidate : part.found) incumbents.offer(candidate);
  }
}

PlanResult SearchState::result(std::int64_t top) {
  PlanResult result;
  result.enumerated = problem.space.size();
  result.nodes = nodes;
  result.proven = !stopped_ && proven();
  result.least = Seconds{least()};
  result.effort = effort_;
  const std::vector<Solution> sorted = incumbents.sorted();
  std::vector<Plan> plans(sorted.size());
  tbb::parallel_for(std::size_t{0}, plans.size(), [&](std::size_t i) { plans[i] = to_plan(problem, sorted[i]); });
  take(std::move(plans), top, result);
  Statistics sum;
  for (const Evaluator& worker : workers_) sum += worker.statistics();
  result.composed = sum.composed;
  result.fitting = sum.fitting;
  result.simulated = sum.simulated;
  result.rejected_by_rule = rejections(sum);
  result.refused = result.proven && result.plans.empty() &&
                   std::ranges::none_of(workers_, [](Evaluator& worker) { return worker.valid(); });
  return result;
}

std::vector<std::pair<std::string, double>> SearchState::rejections(const Statistics& sum) const {
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

}  // namespace foldwise::planner

#pragma once
#include <tbb/enumerable_thread_specific.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/search/evaluate.h"
#include "planner/search/incumbents.h"
#include "planner/search/order.h"
#include "planner/search/plans.h"

// The state that the strategies of a search share.
namespace foldwise::planner {

/// A partial assignment, and a lower bound of the step time of its candidates, in seconds.
struct Node {
  double bound = 0.0;
  Assignment assignment;
  Level level = Level::kAttention;  ///< Last level decided: kAttention or kExperts.
  /// Number of visits that did not exhaust this node. A choice of attention has 1 once its bound was raised to the
  /// least bound of its choices of experts.
  int visits = 0;
  /// Least bound first; among equal bounds the later assignment.
  std::partial_ordering operator<=>(const Node& other) const {
    return std::tie(bound, other.assignment) <=> std::tie(other.bound, assignment);
  }
};

class SearchState {
 public:
  /// Open nodes, least bound first.
  using OpenNodes = std::priority_queue<Node, std::vector<Node>, std::greater<>>;

  /// `top`: number of layouts whose incumbents are kept. `progress`: as in plan(); may be null.
  SearchState(const PlanProblem& plan_problem, SharedCosts& shared_costs, std::int64_t top,
              const std::function<bool(const Progress&)>* progress = nullptr);

  const PlanProblem& problem;
  const SearchParameters& parameters;
  SharedCosts& costs;
  const DecisionOrder order;
  Incumbents incumbents;
  OpenNodes open;
  std::int64_t nodes = 0;  ///< Nodes that were bounded.
  std::int64_t moves = 0;  ///< Nodes explored and candidates tried.

  /// Effort spent, effort left, and one part of the whole, in microseconds of a core, about.
  [[nodiscard]] std::int64_t effort() const { return effort_; }
  [[nodiscard]] std::int64_t left() const { return problem.effort - effort_; }
  [[nodiscard]] std::int64_t share(std::int64_t parts) const { return problem.effort / parts; }
  void spend(std::int64_t microseconds) { effort_ += microseconds; }
  /// True until the effort of local search and neighbourhood search is spent.
  [[nodiscard]] bool may_improve() const {
    return static_cast<double>(effort_) < parameters.until * static_cast<double>(problem.effort);
  }
  /// Reports progress; returns whether its caller wants to go on.
  bool goes_on();
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// True if there is an incumbent.
  [[nodiscard]] bool found() const;
  /// Least seconds that a candidate may take.
  [[nodiscard]] double least() const;
  [[nodiscard]] bool proven() const;

  /// Opens every assignment of the first level.
  void open_roots();
  /// The calling thread's evaluator. `counts`: count the candidates that rules refuse; only one caller may do so for
  /// each candidate.
  Evaluator& worker(bool counts = false);
  /// For each choice of attention the `most` choices of experts with the least bounds, if below `limit` seconds.
  std::vector<std::vector<Node>> children(const std::vector<Assignment>& attentions, double limit, std::size_t most,
                                          bool counts);
  /// Explores nodes in batches; what a batch finds limits the next one. If no effort is left, it only looks for a first
  /// incumbent.
  void explore(std::vector<Node> list, Budget budget);
  /// Makes candidates faster in what their assignments do not say (candidates.h).
  void refine(const std::vector<Solution>& candidates);
  void offer(const std::vector<Explored>& explored);

  /// The answer, once the strategies are done.
  [[nodiscard]] PlanResult result(std::int64_t top);

 private:
  [[nodiscard]] std::vector<std::pair<std::string, double>> rejections(const Statistics& sum) const;

  const std::function<bool(const Progress&)>* progress_;
  bool stopped_ = false;
  std::int64_t effort_ = 0;
  Bytes capacity_;  ///< Bytes that a plan may use.
  tbb::enumerable_thread_specific<Evaluator> workers_;
};

}  // namespace foldwise::planner

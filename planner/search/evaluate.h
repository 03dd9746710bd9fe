#pragma once
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/search/candidates.h"
#include "planner/search/subtree_search.h"

namespace foldwise::planner {

/// One thread's part of the search: bounds of partial assignments, and the search below them.
class Evaluator {
 public:
  /// `capacity`: bytes that a plan may use.
  Evaluator(const PlanProblem& problem, const DecisionOrder& order, SharedCosts& costs, Bytes capacity)
      : bench_(problem, order, costs) {
    bench_.hardware.hbm_capacity = capacity;
  }

  using Push = std::function<void(double bound, const Assignment& assignment)>;
  /// Every assignment of the first level.
  [[nodiscard]] std::vector<Assignment> roots();
  /// Lower bound of the step time below such an assignment, in seconds.
  [[nodiscard]] double bound_of_root(const Assignment& assignment);
  /// Pushes choices of experts below it. Their bounds are below `limit` seconds, and their parameters, gradients and
  /// optimizer states may fit. It may stop once it has the `most` choices with the least bounds. Returns the effort, as
  /// Explored::effort.
  std::int64_t branch(const Assignment& assignment, double limit, std::size_t most, const Push& push);
  /// A choice of attention and experts with its bound; nothing if a rule refuses it. The value of a field that does not
  /// apply becomes 0.
  [[nodiscard]] std::optional<std::pair<double, Assignment>> node(const Assignment& assignment);
  /// The solutions below a choice of attention and experts that are faster than `incumbents`.
  [[nodiscard]] Explored explore(const Assignment& assignment, const Incumbents& incumbents, Budget budget);

  /// The whole candidate `assignment`, if it is faster than `near`, from which it may differ in a few fields. The value
  /// of a field that does not apply becomes 0.
  [[nodiscard]] Explored faster_than(const Solution& near, const Assignment& assignment);
  /// refined() of candidates.h.
  [[nodiscard]] Explored refined(const Solution& found, std::int64_t most);
  /// Whether to count the candidates that rules refuse.
  void count(bool counts) { bench_.counts = counts; }
  [[nodiscard]] costmodel::LayerOptions options_of(const Assignment& assignment) const {
    return bench_.state_of(assignment).options.layer;
  }
  [[nodiscard]] const Statistics& statistics() const { return bench_.statistics; }
  /// Whether rules allow some candidate that was seen, whatever memory it needs.
  [[nodiscard]] bool valid();

 private:
  /// The state of an assignment; nothing if a rule refuses it. The value of a field that does not apply becomes 0.
  [[nodiscard]] std::optional<State> decided(const Assignment& assignment);
  /// Work of all layers on one rank for one micro-batch, as far as a choice of attention decides it.
  struct Layers {
    Load others;  ///< All but the experts.
    struct Experts {
      const costmodel::LayerSpec* layer = nullptr;
      const costmodel::NodeTimes* mixer = nullptr;
      double count = 0.0;  ///< Number of equal layers.
    };
    std::vector<Experts> experts{};
  };
  [[nodiscard]] Layers layers(const costmodel::TrainingOptions& options);
  /// Step time if every rank does its share of the work.
  [[nodiscard]] double seconds(const costmodel::TrainingOptions& options, Load load) const;
  [[nodiscard]] double bound_of_sizes(const Layers& layers, const costmodel::TrainingOptions& options);
  [[nodiscard]] double bound_of(const Layers& layers, const costmodel::TrainingOptions& options);
  /// Whether the other kernel of experts (CUTLASS' instead of grouped products, or the reverse) takes no longer. Both
  /// keep the same tensors in memory, and no rule about later fields tells them apart. If both take equally long, the
  /// plainer one stays.
  [[nodiscard]] bool beaten_by_other_kernel(const Layers& layers, const costmodel::TrainingOptions& options);
  /// Whether some pipeline and step may leave memory for activations, given the sizes of attention and experts.
  [[nodiscard]] bool may_fit(const State& sizes);
  [[nodiscard]] bool some_step_may_fit(const State& sizes);
  /// Whether rules allow a candidate below these sizes, whatever memory it needs.
  [[nodiscard]] bool allowed(const State& sizes);

  Workbench bench_;
  std::vector<Assignment> unfit_;  ///< Sizes that fit nowhere; collected until a valid candidate is seen.
  std::map<std::vector<std::int64_t>, bool> may_fit_;  ///< By sizes and numerics.
  MemoryChoiceLists memory_choices_;
  StepChoices steps_;
};

}  // namespace foldwise::planner

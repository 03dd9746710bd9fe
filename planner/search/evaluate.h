#pragma once
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/search/candidates.h"
#include "planner/search/subtree_search.h"

namespace foldwise::planner {

/// One thread's part of the search: partial decisions and what is below them.
class Evaluator {
 public:
  /// `capacity`: bytes that a plan may use.
  Evaluator(const PlanProblem& problem, const DecisionOrder& order, SharedCosts& costs, Bytes capacity)
      : bench_(problem, order, costs) {
    bench_.hardware.hbm_capacity = capacity;
  }

  using Push = std::function<void(double bound, const Assignment& assignment)>;
  /// Every choice of the first level.
  [[nodiscard]] std::vector<Assignment> roots();
  /// Of the step time of what is below such a choice, in seconds.
  [[nodiscard]] double bound_of_root(const Assignment& assignment);
  /// The choices of experts below it that may take less than `limit` seconds and whose parameters, gradients and
  /// optimizer states may fit; at least the `most` of them whose bounds are least. Returns what it spent, as
  /// Explored::effort.
  std::int64_t branch(const Assignment& assignment, double limit, std::size_t most, const Push& push);
  /// A choice of attention and experts, and its bound; nothing if a rule refuses it. What does not apply is 0 in it.
  [[nodiscard]] std::optional<std::pair<double, Assignment>> node(const Assignment& assignment);
  /// What is below a choice of attention and experts, faster than `incumbents` know.
  [[nodiscard]] Explored explore(const Assignment& assignment, const Incumbents& incumbents, Budget budget);

  /// A whole candidate, values that do not apply left alone, if it is faster than `near`, which may differ in a
  /// few.
  [[nodiscard]] Explored faster_than(const Solution& near, const Assignment& assignment);
  /// As of candidates.h.
  [[nodiscard]] Explored refined(const Solution& found, std::int64_t most);
  /// Whether to count what rules refuse.
  void count(bool counts) { bench_.counts = counts; }
  [[nodiscard]] costmodel::LayerOptions options_of(const Assignment& assignment) const {
    return bench_.state_of(assignment).options.layer;
  }
  [[nodiscard]] const Statistics& statistics() const { return bench_.statistics; }
  /// Whether a candidate that was looked at is one that rules allow, whatever memory it needs.
  [[nodiscard]] bool valid();

 private:
  /// The state with these values, those that do not apply left alone; nothing if a rule refuses it.
  [[nodiscard]] std::optional<State> decided(const Assignment& assignment);
  /// Of all layers on one rank, for a micro-batch: what a choice of attention leaves to one of experts.
  struct Layers {
    Load others;  ///< All but the experts.
    struct Experts {
      const costmodel::LayerSpec* layer = nullptr;
      const costmodel::NodeTimes* mixer = nullptr;
      double count = 0.0;  ///< Equal ones.
    };
    std::vector<Experts> experts{};
  };
  [[nodiscard]] Layers layers(const costmodel::TrainingOptions& options);
  /// Of a step in which every rank does its share of the work.
  [[nodiscard]] double seconds(const costmodel::TrainingOptions& options, Load load) const;
  [[nodiscard]] double bound_of_sizes(const Layers& layers, const costmodel::TrainingOptions& options);
  [[nodiscard]] double bound_of(const Layers& layers, const costmodel::TrainingOptions& options);
  /// Whether the same choice with CUTLASS' kernel for its experts instead of grouped products, or the other way about,
  /// takes no longer: they keep the same, and no rule of what is decided later tells them apart. Of equal ones the
  /// plainer stays.
  [[nodiscard]] bool beaten_by_other_kernel(const Layers& layers, const costmodel::TrainingOptions& options);
  /// Whether any pipeline and step may leave room for activations: with what the sizes of attention and experts decide.
  [[nodiscard]] bool may_fit(const State& sizes);
  [[nodiscard]] bool some_step_may_fit(const State& sizes);
  /// Whether rules allow a candidate below, whatever memory it needs.
  [[nodiscard]] bool allowed(const State& sizes);

  Workbench bench_;
  std::vector<Assignment> unfit_;                      ///< Sizes that fit nowhere, as long as nothing valid was seen.
  std::map<std::vector<std::int64_t>, bool> may_fit_;  ///< By sizes and numerics.
  MemoryChoiceLists memory_choices_;
  StepChoices steps_;
};

}  // namespace foldwise::planner

#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "planner/search/layers_search.h"

namespace foldwise::planner {

/// One thread's part of the search: partial decisions and what is below them.
class Evaluator {
 public:
  Evaluator(const PlanProblem& problem, const DecisionOrder& order) : bench_(problem, order) {}

  using Push = std::function<void(double bound, const Digits& digits)>;
  /// Every choice of the first level, with a bound of the step time in seconds.
  void attention_nodes(const Push& push);
  /// The choices of experts below such a node that may take less than `limit` seconds; at least the `most` of them
  /// whose bounds are least.
  void expand(const Digits& digits, double limit, std::size_t most, const Push& push);
  /// A choice of attention and experts, and its bound; nothing if a rule refuses it. What does not apply is 0 in it.
  [[nodiscard]] std::optional<std::pair<double, Digits>> node(const Digits& digits);
  /// What is below a choice of attention and experts, faster than `best` knows and within `capacity` bytes.
  [[nodiscard]] Answer evaluate(const Digits& digits, Bytes capacity, const Best& best, Effort effort);

  /// Whether to count what rules refuse.
  void count(bool counts) { bench_.counts = counts; }
  [[nodiscard]] costmodel::LayerOptions options_of(const Digits& digits) const {
    return bench_.state_of(digits).options.layer;
  }
  [[nodiscard]] const Statistics& statistics() const { return bench_.statistics; }

 private:
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
  [[nodiscard]] double bound_of_attention(const costmodel::TrainingOptions& options);
  [[nodiscard]] double bound_of_sizes(const Layers& layers, const costmodel::TrainingOptions& options);
  [[nodiscard]] double bound_of(const Layers& layers, const costmodel::TrainingOptions& options);

  Workbench bench_;
  SaverLists savers_;
  StepChoices steps_;
};

}  // namespace foldwise::planner

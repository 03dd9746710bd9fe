#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "planner/search/workbench.h"

// Choices of the step: data parallelism and the optimizer.
namespace foldwise::planner {

struct StepChoice {
  costmodel::StepOptions options;
  Assignment assignment;  ///< Values of the step's dimensions.
  double end = 0.0;       ///< Lower bound of the end of the step, in seconds.
};

/// Choices that need the same memory and communicate alike during the micro-batches.
struct StepGroup {
  std::size_t memory = 0;          ///< Number below `memories`; equal for groups that need the same memory.
  double every_micro_batch = 0.0;  ///< Seconds of Megatron-FSDP's communication in one direction.
  Seconds beside_forward{}, beside_backward{};  ///< Lower bound of what it adds to the work of a micro-batch.
  std::vector<StepChoice> choices{};            ///< Shortest end first.
};

/// The choices that no rule refuses and whose parameters, gradients and optimizer states may fit.
struct StepChoiceList {
  std::vector<StepGroup> groups{};
  costmodel::StepOptions plainest;  ///< The first choice.
  std::size_t memories = 0;
  bool allowed = false;  ///< Rules allow some choice, which may not fit.
  double end = 0.0;      ///< Least of the choices'.
};

/// Lists of the choices of the step. All pipelines of a layout share a list.
class StepChoices {
 public:
  /// The state decides everything before the step. Of its pipeline the list depends on PP, on whether VPP is above 1,
  /// and on EP overlap.
  const StepChoiceList& of(Workbench& bench, const State& state);
  /// Whether any choice may fit. True also if the state's own step may fit, which rules may refuse.
  bool may_fit(Workbench& bench, const State& state);
  /// Clears the lists if there are many.
  void forget();

 private:
  std::map<std::vector<std::int64_t>, StepChoiceList> lists_;
};

}  // namespace foldwise::planner

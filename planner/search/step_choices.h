#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "planner/search/workbench.h"

// Choices of data parallelism and the optimizer.
namespace foldwise::planner {

struct StepChoice {
  costmodel::StepOptions options;
  Assignment assignment;  ///< Of the step's level.
  double end = 0.0;       ///< Least seconds of the step's end.
};

/// Choices that need the same memory and communicate alike beside the micro-batches.
struct StepGroup {
  std::size_t memory = 0;                       ///< Equal for groups that need the same memory: below `memories`.
  double every_micro_batch = 0.0;               ///< Seconds of Megatron-FSDP's communication in one direction.
  Seconds beside_forward{}, beside_backward{};  ///< That it adds at least to the work of a micro-batch.
  std::vector<StepChoice> choices{};            ///< The one with the shortest end first.
};

/// Those that no rule refuses and whose parameters, gradients and optimizer states may fit.
struct StepChoiceList {
  std::vector<StepGroup> groups{};
  costmodel::StepOptions plainest;  ///< The first choice.
  std::size_t memories = 0;
  bool allowed = false;  ///< Rules allow one, which may not fit.
  double end = 0.0;      ///< Least of the choices'.
};

/// The same for all pipelines of a layout.
class StepChoices {
 public:
  /// The state decides all before the step; of the pipeline PP, whether there are several chunks and EP overlap count.
  const StepChoiceList& of(Workbench& bench, const State& state);
  /// Whether any may fit; true if the state's own step, which rules may refuse, may.
  bool may_fit(Workbench& bench, const State& state);
  /// Drops what was remembered, if that has become much.
  void forget();

 private:
  std::map<std::vector<std::int64_t>, StepChoiceList> lists_;
};

}  // namespace foldwise::planner

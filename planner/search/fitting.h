#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/parallel/options.h"
#include "costmodel/step/prediction.h"
#include "planner/rules/rules.h"

// The cheapest changes that make a run fit which does not. Each change is predicted.
namespace foldwise::planner {

/// One or two changes of a run, made together, and their prediction.
struct FittingChange {
  std::vector<std::string> steps;  ///< "recompute mla_up_proj", "micro-batch 2 -> 1", "pp 4 -> 8".
  costmodel::TrainingOptions options;
  Seconds step_time{};
  Seconds cost{};          ///< Against the unchanged run; negative if faster.
  Bytes peak_allocated{};  ///< What torch.cuda.max_memory_allocated would report on the fullest stage.
  Bytes peak_memory{};     ///< With context, NCCL and fragmentation: what must fit.
  Bytes saved{};           ///< Of peak_memory, against the unchanged run.
  Bytes host{};            ///< Host memory per GPU that the changed run needs.
  bool fits = false;
};

struct Fitting {
  std::size_t stage = 0;  ///< The fullest pipeline stage.
  /// How much more than the device's memory it needs. Zero if only the host's is short, or if torch's allocator, which
  /// needs more than what is allocated, runs out.
  Bytes over{};
  Bytes host_over{};  ///< How much more than its part of the host's memory a GPU needs.
  /// Changes that make the run fit, in a replay of torch's allocator too, least predicted step time first. If none
  /// does, the changes that save most. They differ in what they change: parallel sizes, micro-batch, sharding,
  /// recompute, offload, optimizer, overlaps or CUDA graphs. A change that changes all that an earlier one changes, and
  /// perhaps more, is left out.
  std::vector<FittingChange> changes;
};

/// Nothing if the run fits by `base`, its prediction. Tries on the same number of GPUs: recomputation of more modules
/// or of everything, fewer sequences a micro-batch, bf16 gradients and optimizer states, offloading of activations and
/// of the optimizer, no offloading, more TP, CP, PP, VPP, EP, ETP, sharded optimizer or parameters, low-precision
/// parameters, no EP overlap, no CUDA graphs. If fewer than `top` single changes are left, it also tries every pair.
/// Changes that the rules refuse or that need more host memory than there is are dropped. The options must satisfy the
/// rules. Pure.
[[nodiscard]] std::optional<Fitting> fitting(const Problem& problem, const costmodel::TrainingOptions& options,
                                             const costmodel::Prediction& base, std::size_t top = 3);

}  // namespace foldwise::planner

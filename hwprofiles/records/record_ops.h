#pragma once
#include <vector>

#include "costmodel/ops/op.h"
#include "hwprofiles/records/record.h"

namespace foldwise::hwprofiles {

/// Ops of the cost model for a measurement; the sum of their op_times is the prediction. Empty if the model has no op
/// for it (FP64, launches, overlap).
[[nodiscard]] std::vector<costmodel::Op> ops_of(const Measurement& measurement);

/// Sum of the op_times. Curves are fitted to short runs, so `hw` should be measured_alone(hw, under_load(measurement)).
[[nodiscard]] Seconds predicted_time(const std::vector<costmodel::Op>& ops, const costmodel::Hardware& hw);
/// Hardware for kernels that run alone, not in a step: memory-bound kernels are ours. `loaded`: products run without
/// pause, so that the power limit sets their clock.
[[nodiscard]] costmodel::Hardware measured_alone(costmodel::Hardware hw, bool loaded);
/// `load: sustained`: products without pause.
[[nodiscard]] bool under_load(const Measurement& measurement);

/// Median of the samples.
[[nodiscard]] Seconds measured_time(const Measurement& measurement);

}  // namespace foldwise::hwprofiles

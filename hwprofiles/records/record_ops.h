#pragma once
#include <vector>

#include "costmodel/ops/op.h"
#include "hwprofiles/records/record.h"

namespace foldwise::hwprofiles {

/// The ops that the cost model lists for what a measurement ran; their op_times add up to its prediction. Empty: the
/// model has no op for it (FP64, launches, overlap).
[[nodiscard]] std::vector<costmodel::Op> ops_of(const Measurement& measurement);

/// Sum of the op_times. Curves are fitted to short runs: `hw` should be measured_alone(hw, under_load(measurement)).
[[nodiscard]] Seconds predicted_time(const std::vector<costmodel::Op>& ops, const costmodel::Hardware& hw);
/// The hardware as kernels see it that run alone and not in a step: memory-bound kernels are ours, and if `loaded`,
/// products never pause, so that the power limit sets their clock.
[[nodiscard]] costmodel::Hardware measured_alone(costmodel::Hardware hw, bool loaded);
/// `load: sustained`: products without a pause.
[[nodiscard]] bool under_load(const Measurement& measurement);

/// Median of the samples.
[[nodiscard]] Seconds measured_time(const Measurement& measurement);

}  // namespace foldwise::hwprofiles

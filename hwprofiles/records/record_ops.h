#pragma once
#include <vector>

#include "costmodel/ops/op.h"
#include "hwprofiles/records/record.h"

namespace foldwise::hwprofiles {

/// The ops that the cost model lists for what a measurement ran; their op_times add up to its prediction. Empty: the
/// model has no op for it (FP64, launches, overlap).
[[nodiscard]] std::vector<costmodel::Op> ops_of(const Measurement& measurement);

/// Sum of the op_times. Curves are fitted to short runs: `load: sustained` is predicted at hw.sustained_clock_share,
/// everything else at the full clock.
[[nodiscard]] Seconds predicted_time(const std::vector<costmodel::Op>& ops, const costmodel::Hardware& hw);
[[nodiscard]] bool under_load(const Measurement& measurement);
[[nodiscard]] costmodel::Hardware at_full_clock(costmodel::Hardware hw);

/// Median of the samples.
[[nodiscard]] Seconds measured_time(const Measurement& measurement);

}  // namespace foldwise::hwprofiles

#pragma once
#include <vector>

#include "planner/diagnose/diagnosis.h"

namespace foldwise::planner {

/// Time that the GPU waits for the host to launch kernels, in seconds.
struct HostWaits {
  double predicted = 0.0, measured = 0.0;
  double again = 0.0;     ///< Wait before recomputed kernels, beyond the prediction.
  double profiler = 0.0;  ///< Increase of the step time by the profiler, if the run states it.
  /// Share of the measured waits that is not caused by the profiler. The profiler's cost is host time and is assumed to
  /// be the same share of each wait.
  [[nodiscard]] double own() const;
};
[[nodiscard]] HostWaits host_waits(const Diagnosis& diagnosis);

/// Findings of at least 1 % of the step, from the other members of the diagnosis.
[[nodiscard]] std::vector<Finding> findings_of(const Diagnosis& diagnosis);

/// The differences of the waterfall, summed by reason.
[[nodiscard]] std::vector<Reason> reasons_of(const Diagnosis& diagnosis);

}  // namespace foldwise::planner

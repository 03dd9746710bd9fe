#pragma once
#include <vector>

#include "planner/diagnose/diagnosis.h"

namespace foldwise::planner {

/// For how long the GPU waits for the host to launch its kernels, in seconds.
struct HostWaits {
  double predicted = 0.0, measured = 0.0;
  double again = 0.0;     ///< Before kernels that run again in backward, more than predicted.
  double profiler = 0.0;  ///< What the profiler made the step longer by, where the run says.
  /// Share of the measured ones that is not the profiler's: what it costs is the host's, which records, of each wait
  /// the same share.
  [[nodiscard]] double own() const;
};
[[nodiscard]] HostWaits host_waits(const Diagnosis& diagnosis);

/// What of a diagnosis' other members stands out: findings of a hundredth of the step and more.
[[nodiscard]] std::vector<Finding> findings_of(const Diagnosis& diagnosis);

/// Its waterfall's differences by reason.
[[nodiscard]] std::vector<Reason> reasons_of(const Diagnosis& diagnosis);

}  // namespace foldwise::planner

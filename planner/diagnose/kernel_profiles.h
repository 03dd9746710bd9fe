#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/run/run_file.h"

// Kernel sums by name, from run lists, compared with predictions: a diagnosis without a trace.
namespace foldwise::planner {

struct KindTime {
  double predicted_s = 0.0, measured_s = 0.0;
};

/// measured.kernel_profile_rank0 of a run, and the prediction of the first pipeline stage.
struct ProfiledRun {
  std::string id;
  /// Times by kind of kernel; they add up to the step. "gemm" includes grouped GEMMs, whose kernels have the same
  /// names. Communication includes waits for other pipeline ranks. Communication and copies count only where exposed.
  /// "idle": no kernel runs. "unknown": kernels without a rule. "unnamed": kernels whose names the profile omits.
  /// "overlap", negative: time in which compute kernels run side by side and are counted twice.
  std::map<std::string, KindTime> kinds;
  KindTime step;            ///< Measured with the profiler.
  double recognised = 0.0;  ///< Share of the kernels' time with names that a rule matches.
};

/// Throws ConfigError if no run has a profile.
[[nodiscard]] std::vector<ProfiledRun> profiled_runs(const RunList& list);

/// docs/output.md#diagnose
[[nodiscard]] nlohmann::json profiled_runs_json(const std::vector<ProfiledRun>& runs);
[[nodiscard]] std::string profiled_runs_text(const std::vector<ProfiledRun>& runs);

}  // namespace foldwise::planner

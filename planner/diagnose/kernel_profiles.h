#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/run/run_file.h"

// Sums of kernels by name, as run lists keep them, beside predictions: what is known where there is no trace.
namespace foldwise::planner {

struct KindTime {
  double predicted_s = 0.0, measured_s = 0.0;
};

/// measured.kernel_profile_rank0 of a run, and the prediction of the first pipeline stage.
struct ProfiledRun {
  std::string id;
  /// By kind of kernel; "gemm": grouped ones too, which have the same names. Of communication, which waits for other
  /// pipeline ranks too, and copies what nothing hides; "idle": nothing runs on the GPU; "unknown": kernels that no
  /// rule names; "unnamed": whose names the profile leaves out; "overlap", negative: what computing kernels beside each
  /// other count twice. All add up to the step.
  std::map<std::string, KindTime> kinds;
  KindTime step;            ///< Measured with the profiler.
  double recognised = 0.0;  ///< Share of the kernels' time whose names a rule has.
};

/// Of the runs that have a profile. Throws ConfigError: none has.
[[nodiscard]] std::vector<ProfiledRun> profiled_runs(const RunList& list);

/// docs/output.md#diagnose
[[nodiscard]] nlohmann::json profiled_runs_json(const std::vector<ProfiledRun>& runs);
[[nodiscard]] std::string profiled_runs_text(const std::vector<ProfiledRun>& runs);

}  // namespace foldwise::planner

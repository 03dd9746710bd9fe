#pragma once
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "costmodel/step/step.h"
#include "planner/calibrate/site_fit.h"
#include "planner/diagnose/gpu_speed.h"
#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/ranks.h"
#include "planner/diagnose/trace.h"
#include "planner/diagnose/traced_memory.h"
#include "planner/diagnose/traced_step.h"
#include "planner/report/screen.h"
#include "planner/report/waterfall.h"
#include "planner/run/run_file.h"
#include "planner/search/changes.h"

// Why a run is slower than predicted: compares a measured step with the prediction. docs/diagnose.md
namespace foldwise::planner {

/// A Megatron flag that may cause a finding.
struct FlagBehind {
  std::string flag;          ///< "--moe-permute-fusion"
  std::string field, value;  ///< The run's: "software.permute", "fused"; empty: no field stands for the flag.
};

/// A cause that makes the step longer than predicted.
struct Finding {
  std::string what;
  double seconds = 0.0;  ///< Its share of the measured step beyond the prediction.
  std::string evidence;
  /// Empty: no flag helps. Nullopt: not known.
  std::optional<std::vector<FlagBehind>> flags{};
};

/// A change to the run that is predicted to make it faster.
struct Suggestion {
  Change change;
  /// Changed Megatron arguments ("--micro-batch-size 4 instead of 2"); nullopt: not known, or the run cannot be
  /// expressed as arguments.
  std::optional<std::vector<std::string>> flags{};
};

/// One reason for the difference between the measured and the predicted step.
struct Reason {
  std::string what;      ///< "slower kernels", "low clock", "waiting for the host", ...: docs/diagnose.md.
  double seconds = 0.0;  ///< Negative if shorter than predicted.
};

/// Prefix of the kinds of lines whose ops run again in backward.
inline constexpr std::string_view kRecomputed = "recomputed ";

/// Factor by which the power limit stretches the predicted time of every kernel.
[[nodiscard]] double power_stretch(const costmodel::StagePrediction& stage);

/// Lines of the prediction of a stage, in the terms of a trace. The predicted time is the first of a line's seconds.
[[nodiscard]] ExplainedLines predicted_lines(const costmodel::StagePrediction& stage);

/// The measured line behind a line of the waterfall; nullptr if the measured step has none.
[[nodiscard]] const TracedLine* traced_line(const TracedStep& step, const ExplainedTime& line);

struct Diagnosis {
  std::string file, device;
  std::int64_t rank = -1;
  std::size_t stage = 0;      ///< Pipeline stage of the traced rank.
  std::vector<double> steps;  ///< Seconds of each step in the trace.
  std::size_t step = 0;       ///< Index of the step that is compared with the prediction: the median.
  MappedKernels kernels;      ///< The first trace's.
  TracedStep measured;
  std::shared_ptr<const costmodel::Step> composed;  ///< The run must outlive it.
  costmodel::Prediction prediction;
  Waterfall waterfall;            ///< Predicted and measured. The lines of each add up.
  GpuSpeed speed;                 ///< Relative to the prediction.
  std::vector<Reason> reasons;    ///< Longest first. They add up to measured minus predicted.
  std::vector<Finding> findings;  ///< Largest first.
  RankComparison ranks;
  /// Site parameters that fit the host waits; nullopt if the run's hardware is not that of a profile.
  std::optional<SiteFit> site;
  double site_step_s = 0.0;         ///< Predicted, with the site's factors if there are any.
  std::vector<Suggestion> changes;  ///< Up to three single ones that fit and are predicted faster on this site.
  std::int64_t most_allocated = -1, most_reserved = -1;  ///< Bytes; see Trace.
  std::optional<TracedMemory> memory;
  std::optional<double> unprofiled_s;  ///< measured.step_time_s of the run: step time without a profiler.

  [[nodiscard]] double measured_s() const { return steps[step]; }
  [[nodiscard]] double predicted_s() const { return prediction.step_time.to<double>(); }
  /// Predicted memory of the traced stage.
  [[nodiscard]] const costmodel::StageMemory& stage_memory() const { return prediction.memory.at(stage); }
};

/// `traces`: of different ranks of the run. The first one is compared with the prediction of its pipeline stage. Throws
/// ConfigError for a trace without a complete step, two traces of one rank, and a trace of a job of another size.
[[nodiscard]] Diagnosis diagnose(const Run& run, const std::vector<Trace>& traces);

/// docs/output.md#diagnose
[[nodiscard]] nlohmann::json diagnosis_json(const Run& run, const Diagnosis& diagnosis);
/// The sections that `--explain` of diagnose can name.
[[nodiscard]] const Explanations& diagnosis_explanations();
/// The step, why it differs, what takes longer and what would be faster; then the sections of `explain`.
[[nodiscard]] std::string diagnosis_text(const Screen& screen, const Run& run, const Diagnosis& diagnosis,
                                         const std::vector<std::string>& explain);

}  // namespace foldwise::planner

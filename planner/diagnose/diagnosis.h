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
#include "planner/report/waterfall.h"
#include "planner/run/run_file.h"
#include "planner/search/changes.h"

// Why a run is slower than predicted: a measured step beside the prediction, and what stands out. docs/diagnose.md
namespace foldwise::planner {

/// A flag of Megatron that a finding may come from.
struct FlagBehind {
  std::string flag;          ///< "--moe-permute-fusion"
  std::string field, value;  ///< Of the run: "software.permute", "fused"; empty: a flag that no field is.
};

/// Something that makes the step longer than predicted.
struct Finding {
  std::string what;
  double seconds = 0.0;  ///< Of the measured step, beyond the prediction.
  std::string evidence;
  /// Empty: no flag mends it. None: not known.
  std::optional<std::vector<FlagBehind>> flags{};
};

/// A change of the run that is predicted to be faster.
struct Suggestion {
  Change change;
  /// What Megatron is started with otherwise ("--micro-batch-size 4 instead of 2"); none: not known, or arguments
  /// cannot say the run.
  std::optional<std::vector<std::string>> flags{};
};

/// Part of what the measured step is longer than the predicted one.
struct Reason {
  std::string what;      ///< "slower kernels", "low clock", "waiting for the host", ...: docs/diagnose.md.
  double seconds = 0.0;  ///< Below 0: what is shorter than predicted.
};

/// Of kinds of lines whose ops run again in backward.
inline constexpr std::string_view kRecomputed = "recomputed ";

/// What the power limit makes of a kernel's predicted time, of all of them alike.
[[nodiscard]] double power_stretch(const costmodel::StagePrediction& stage);

/// What the prediction of a stage has, in the terms of a trace: the first of the line's seconds.
[[nodiscard]] ExplainedLines predicted_lines(const costmodel::StagePrediction& stage);

/// What a waterfall's line of the measured step is of; null: the step has none.
[[nodiscard]] const TracedLine* traced_line(const TracedStep& step, const ExplainedTime& line);

struct Diagnosis {
  std::string file, device;
  std::int64_t rank = -1;
  std::size_t stage = 0;      ///< Pipeline stage that the trace is of.
  std::vector<double> steps;  ///< Seconds of each step in the trace.
  std::size_t step = 0;       ///< The one that is laid beside the prediction: the median.
  MappedKernels kernels;      ///< Of the first trace.
  TracedStep measured;
  std::shared_ptr<const costmodel::Step> composed;  ///< Of the run, which must outlive it.
  costmodel::Prediction prediction;
  Waterfall waterfall;            ///< Predicted and measured; the lines of both add up.
  GpuSpeed speed;                 ///< Against the prediction.
  std::vector<Reason> reasons;    ///< They add up to measured minus predicted. Longest first.
  std::vector<Finding> findings;  ///< Largest first.
  RankComparison ranks;
  /// What waiting for the host says of the site; none for a run whose hardware is no profile's.
  std::optional<SiteFit> site;
  double site_step_s = 0.0;         ///< Predicted with the site's factors, or as predicted.
  std::vector<Suggestion> changes;  ///< Up to three single ones that fit and are predicted faster there.
  std::int64_t most_allocated = -1, most_reserved = -1;  ///< Bytes, as Trace has them.
  std::optional<TracedMemory> memory;
  std::optional<double> unprofiled_s;  ///< The run's own measured.step_time_s: what a step takes without a profiler.

  [[nodiscard]] double measured_s() const { return steps[step]; }
  [[nodiscard]] double predicted_s() const { return prediction.step_time.to<double>(); }
  /// Predicted, of the stage.
  [[nodiscard]] const costmodel::StageMemory& stage_memory() const { return prediction.memory.at(stage); }
};

/// `traces`: of different ranks of the run; the first is laid beside the prediction of its pipeline stage. Throws
/// ConfigError: a trace without a whole step, two of one rank, one of a job of more or fewer GPUs.
[[nodiscard]] Diagnosis diagnose(const Run& run, const std::vector<Trace>& traces);

/// docs/output.md#diagnose
[[nodiscard]] nlohmann::json diagnosis_json(const Run& run, const Diagnosis& diagnosis);
[[nodiscard]] std::string diagnosis_text(const Run& run, const Diagnosis& diagnosis);

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/report/screen.h"
#include "planner/run/run_file.h"
#include "planner/uncertainty/error_model.h"

// Predictions against published measurements, row by row: what `validate` computes and prints.
namespace foldwise::planner {

/// A measurement as seconds per step.
/// Why a measured step is no step of this run: it is ten times off what is predicted and more, as in another unit. No
/// row of ours is off by a factor of 3. Empty: nothing speaks against it.
[[nodiscard]] std::string mistake_in_step(const Run& run, Seconds predicted);

struct MeasuredStep {
  double seconds = 0.0;
  std::string from;  ///< The field it was computed from: "step_time_s", "tflops_per_gpu", ...
};

/// Seconds per step that the run measured: step_time_s; else tokens/s/GPU, or TFLOPS/GPU with Megatron's FLOP count
/// where the tokens are rounded to a whole number of global samples a second and both say the same but for rounding;
/// else TFLOPS/GPU; MFU against the GPU's peak only when there is nothing else. Nothing for a run that ran out of
/// memory.
[[nodiscard]] std::optional<MeasuredStep> measured_step(const Run& run);

/// The machine of a measured run that names one (`host`); else empty.
[[nodiscard]] std::string machine_of(const Run& run);

/// What was measured of `run`, out of a prediction of it: all; or of a rank that ran alone its time without waiting for
/// others, and its memory.
[[nodiscard]] costmodel::Prediction as_measured(const Run& run, costmodel::Prediction prediction);

/// Errors in percent: (predicted - measured) / measured.
struct ErrorStatistics {
  std::int64_t count = 0;
  double mape = 0.0, median_ape = 0.0, p90_ape = 0.0;  ///< Of absolute errors; percentiles interpolate linearly.
  double bias_pct = 0.0;                               ///< Mean of signed errors.
};
[[nodiscard]] ErrorStatistics error_statistics(std::vector<double> errors_pct);

struct ValidatedRow {
  Run run;
  costmodel::Prediction prediction;
  std::optional<MeasuredStep> step;
  std::optional<double> step_error_pct;
  std::optional<double> memory_error_pct, reserved_error_pct;  ///< Allocated and reserved peak of the fullest rank.
  std::vector<double> rank_memory_errors_pct;                  ///< Peak of every global rank, where the row has them.
  std::vector<double> rank_reserved_errors_pct;                ///< The same of reserved memory.
  std::optional<double> after_setup_error_pct, between_steps_error_pct;  ///< Allocated by the first rank.
};

struct SkippedRow {
  std::string id, reason;
};

struct Validation {
  std::vector<ValidatedRow> rows;
  std::vector<SkippedRow> skipped;
  std::vector<ValidatedRow> out_of_memory;  ///< Rows whose source ran out of memory: they test `fits`, not time.
  bool found_bug = false;                   ///< A row failed one of our own checks; it is among `skipped`.
};

/// Predicts every run of `lists` that Megatron would accept.
[[nodiscard]] Validation validate(std::vector<RunList> lists);

[[nodiscard]] nlohmann::json validation_json(const Validation& validation, const ErrorModel& errors);
/// Counts, the errors of all rows, and the ten worst rows or all of them.
[[nodiscard]] std::string validation_text(const Screen& screen, const Validation& validation, bool all_rows);
/// What `validate --explain` says besides: why rows were skipped; errors by model, system, precision and release; the
/// keys that no source states; and the levels of memory of single ranks.
[[nodiscard]] std::string skipped_text(const Screen& screen, const Validation& validation);
[[nodiscard]] std::string statistics_text(const Validation& validation);
[[nodiscard]] std::string inferences_text(const Screen& screen, const Validation& validation);
[[nodiscard]] std::string memory_by_rank(const Validation& validation);

}  // namespace foldwise::planner

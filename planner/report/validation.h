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

// Predictions against published measurements, row by row: output of `validate`.
namespace foldwise::planner {

/// Why the measured step time cannot belong to this run: it differs from the prediction by a factor of ten or more, as
/// with a wrong unit. No row of ours differs by a factor of 3. Empty if it is plausible.
[[nodiscard]] std::string mistake_in_step(const Run& run, Seconds predicted);

struct MeasuredStep {
  double seconds = 0.0;
  std::string from;  ///< The field it was computed from: "step_time_s", "tflops_per_gpu", ...
};

/// Seconds per step that the run measured, from the first of these that it has: step_time_s; tokens/s/GPU; TFLOPS/GPU
/// with Megatron's FLOP count; MFU against the GPU's peak. TFLOPS/GPU replaces tokens/s/GPU if the tokens are rounded
/// to a whole number of global samples per second and both agree within rounding. Unset for a run that ran out of
/// memory.
[[nodiscard]] std::optional<MeasuredStep> measured_step(const Run& run);

/// `host` of a measured run; empty if it has none.
[[nodiscard]] std::string machine_of(const Run& run);

/// The part of the prediction that `run` measured. Usually all; for a rank that ran alone, its memory and its time
/// without waiting for others.
[[nodiscard]] costmodel::Prediction as_measured(const Run& run, costmodel::Prediction prediction);

/// Errors in percent: (predicted - measured) / measured.
struct ErrorStatistics {
  std::int64_t count = 0;
  double mape = 0.0, median_ape = 0.0, p90_ape = 0.0;  ///< Absolute errors. Percentiles interpolate linearly.
  double bias_pct = 0.0;                               ///< Mean of signed errors.
};
[[nodiscard]] ErrorStatistics error_statistics(std::vector<double> errors_pct);

struct ValidatedRow {
  Run run;
  costmodel::Prediction prediction;
  std::optional<MeasuredStep> step;
  std::optional<double> step_error_pct;
  std::optional<double> memory_error_pct, reserved_error_pct;  ///< Allocated and reserved peak of the fullest rank.
  std::vector<double> rank_memory_errors_pct;    ///< Allocated peak of every global rank, if the row has them.
  std::vector<double> rank_reserved_errors_pct;  ///< Reserved peak of every global rank.
  std::optional<double> after_setup_error_pct, between_steps_error_pct;  ///< Allocated by the first rank.
};

struct SkippedRow {
  std::string id, reason;
};

struct Validation {
  std::vector<ValidatedRow> rows;
  std::vector<SkippedRow> skipped;
  std::vector<ValidatedRow> out_of_memory;  ///< Rows whose source ran out of memory. They test `fits`, not time.
  bool found_bug = false;                   ///< A row failed one of our own checks; it is also in `skipped`.
};

/// Predicts every run of `lists` that Megatron would accept.
[[nodiscard]] Validation validate(std::vector<RunList> lists);
/// The same of lists of measured runs in files. Throws ConfigError for a file that is none.
[[nodiscard]] Validation validate_files(const std::vector<std::string>& files);

[[nodiscard]] nlohmann::json validation_json(const Validation& validation, const ErrorModel& errors);
/// Counts, error statistics of all rows, and the ten worst rows or all rows.
[[nodiscard]] std::string validation_text(const Screen& screen, const Validation& validation, bool all_rows);
/// Sections of `validate --explain`: why rows were skipped; errors by model, system, precision and release; the
/// inferred keys; and the memory levels of single ranks.
[[nodiscard]] std::string skipped_text(const Screen& screen, const Validation& validation);
[[nodiscard]] std::string statistics_text(const Validation& validation);
[[nodiscard]] std::string inferences_text(const Screen& screen, const Validation& validation);
[[nodiscard]] std::string memory_by_rank(const Validation& validation);

}  // namespace foldwise::planner

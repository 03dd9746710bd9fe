#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "costmodel/step/prediction.h"
#include "planner/run/run_file.h"

// Cost of a whole training: days, GPU-hours, money and energy from the seconds of a step, and the time lost to failures
// and checkpoints (docs/sweep.md#cost).
namespace foldwise::planner {

struct Failures {
  Seconds mtbf_per_gpu{};  ///< Mean time between failures that stop the job, per GPU and its share of the rest.
  Bandwidth storage{};     ///< Writes of the whole job's checkpoint, which no compute overlaps.
  Seconds restart{};       ///< From a failure to the start of the next step, including reading the checkpoint.
};

struct LongRun {
  double tokens = 0.0;
  std::optional<double> price_per_gpu_hour;  ///< In any currency.
  std::optional<Failures> failures;
};

/// Goodput of a job whose failures are random and independent of its past, and which resumes from its last checkpoint.
struct Goodput {
  Bytes checkpoint{};
  Seconds write{};     ///< Per checkpoint.
  Seconds mtbf{};      ///< The job's.
  Seconds interval{};  ///< Work between checkpoints: the whole number of steps nearest to daly_interval().
  double share = 1.0;  ///< Work divided by expected time.
  /// Whether one start in a thousand comes to its next checkpoint before a failure. Otherwise the expected time says
  /// nothing: the job starts again and again from the same step.
  bool progresses = true;
};

struct TrainingCost {
  double steps = 0.0;
  /// Expected; includes failures and checkpoints if LongRun::failures is set. Unset if the training does not progress.
  std::optional<Seconds> wall;
  std::optional<double> gpu_hours;
  std::optional<double> money;
  /// Energy of the GPUs while they work, without time lost to failures and checkpoints. Unset if the profile has no
  /// power limit.
  std::optional<double> energy_j;
  std::optional<Goodput> goodput;  ///< Also unset for LoRA.
};

/// Approximately optimal work between checkpoints. Source: J. T. Daly, "A higher order estimate of the optimum
/// checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006), eq. 37. Its first term is due
/// to J. W. Young, Communications of the ACM 17 (1974).
[[nodiscard]] Seconds daly_interval(Seconds write, Seconds mtbf);

/// Work divided by expected time of a job that checkpoints after every `interval` of work. Failures are exponentially
/// distributed and also happen during writes and restarts: interval / (M e^(R/M) (e^((interval + write)/M) - 1)).
/// Source: Daly, eq. 20.
[[nodiscard]] double expected_goodput(Seconds interval, Seconds write, Seconds restart, Seconds mtbf);

/// Bytes of Megatron's distributed checkpoint of a training of all weights, each parameter once: bf16 weights, fp32
/// masters and fp32 optimizer states. Unset for LoRA, whose checkpoint is not modelled.
[[nodiscard]] std::optional<Bytes> checkpoint_bytes(const costmodel::ModelSpec& model,
                                                    const costmodel::TrainingOptions& options);

[[nodiscard]] TrainingCost training_cost(const LongRun& question, const Run& run,
                                         const costmodel::Prediction& prediction);

/// {tokens, steps, days, gpu_hours, money, energy_mwh, goodput {...}, note}; unknown values are null
/// (docs/sweep.md#cost).
[[nodiscard]] nlohmann::json training_cost_json(const LongRun& question, const TrainingCost& cost);
[[nodiscard]] std::string training_cost_text(const LongRun& question, const TrainingCost& cost);

}  // namespace foldwise::planner

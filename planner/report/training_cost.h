#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "costmodel/step/prediction.h"
#include "planner/run/run_file.h"

// What a whole training costs: from the seconds of a step to days, GPU-hours, money, energy, and what failures and
// checkpoints take of them (docs/sweep.md#cost).
namespace foldwise::planner {

/// How a job fails and saves itself.
struct Failures {
  Seconds mtbf_per_gpu{};  ///< Mean time between failures that stop the job, of one GPU with its share of the rest.
  Bandwidth storage{};     ///< At which the whole job writes a checkpoint, which nothing overlaps.
  Seconds restart{};       ///< From a failure until the next step starts, reading the checkpoint included.
};

/// What is asked about a training.
struct LongRun {
  double tokens = 0.0;
  std::optional<double> price_per_gpu_hour;  ///< In any money.
  std::optional<Failures> failures;
};

/// Of a job that fails at random, independently of its past, and goes on from its last checkpoint.
struct Goodput {
  Bytes checkpoint{};
  Seconds write{};     ///< Of one checkpoint.
  Seconds mtbf{};      ///< Of the job.
  Seconds interval{};  ///< Work between checkpoints: whole steps, nearest to daly_interval().
  double share = 1.0;  ///< Work over expected time.
};

struct TrainingCost {
  double steps = 0.0;
  Seconds wall{};  ///< Expected, failures and checkpoints included where they are asked for.
  double gpu_hours = 0.0;
  std::optional<double> money;
  /// Of the GPUs while they work, without what failures and checkpoints add; unset where the profile has no power
  /// limit.
  std::optional<double> energy_j;
  std::optional<Goodput> goodput;  ///< Unset for LoRA too.
};

/// Time of work between checkpoints that is about best. Source: J. T. Daly, "A higher order estimate of the optimum
/// checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006), eq. 37; its first term is J.
/// W. Young's, Communications of the ACM 17 (1974).
[[nodiscard]] Seconds daly_interval(Seconds write, Seconds mtbf);

/// Work over expected time of a job that checkpoints after every `interval` of work and fails at random, exponentially
/// distributed, while it works, writes and restarts: interval / (M e^(R/M) (e^((interval + write)/M) - 1)). Source:
/// Daly, eq. 20.
[[nodiscard]] double expected_goodput(Seconds interval, Seconds write, Seconds restart, Seconds mtbf);

/// What Megatron's distributed checkpoint holds of a training of all weights, each parameter once: bf16 weights, and
/// the masters and the optimizer's states in fp32. Unset for LoRA, whose checkpoint is not modelled.
[[nodiscard]] std::optional<Bytes> checkpoint_bytes(const costmodel::ModelSpec& model,
                                                    const costmodel::TrainingOptions& options);

[[nodiscard]] TrainingCost training_cost(const LongRun& question, const Run& run,
                                         const costmodel::Prediction& prediction);

/// {tokens, steps, days, gpu_hours, money, energy_mwh, goodput {...}}, null what is not known (docs/sweep.md#cost).
[[nodiscard]] nlohmann::json training_cost_json(const LongRun& question, const TrainingCost& cost);
[[nodiscard]] std::string training_cost_text(const LongRun& question, const TrainingCost& cost);

}  // namespace foldwise::planner

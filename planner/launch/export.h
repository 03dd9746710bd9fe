#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/run/run_file.h"

// What starts a run: Megatron's arguments and the environment, as a list, a torchrun script, a Slurm job, or overrides
// of Megatron-Bridge's ConfigContainer (docs/launch.md).
namespace foldwise::planner {

/// GPUs of a machine whose GPUs share an NVLink domain of that many.
[[nodiscard]] std::int64_t gpus_of_node(std::int64_t ranks_per_domain);

enum class LaunchTarget : std::uint8_t { kMegatronLm, kMegatronBridge, kSlurm, kTorchrun };
[[nodiscard]] const std::vector<std::pair<std::string, LaunchTarget>>& launch_targets();

struct EnvironmentVariable {
  std::string name, value, reason;
};

/// A run as a start of Megatron-LM.
struct Launch {
  std::string title;  ///< "deepseek-v3 on 256 x gb200-nvl72"
  const Release* release = nullptr;
  Settings model, plan;  ///< The model's geometry, and everything else that is the plan's.
  Settings trial;        ///< What a short run on made-up data takes besides; none: it is not asked for.
  std::vector<EnvironmentVariable> environment;
  std::int64_t num_gpus = 1, gpus_per_node = 8;
  std::string entry;                 ///< Megatron-LM's script: "pretrain_gpt.py".
  std::int64_t nodes_of_domain = 1;  ///< That share NVLink; 1: a node is a domain.

  [[nodiscard]] std::int64_t nodes() const { return (num_gpus + gpus_per_node - 1) / gpus_per_node; }
};

/// A short run to see whether a plan starts, trains, fits and takes the time that is predicted: kTrialSteps steps on
/// Megatron's made-up data, with the log that `import` reads.
enum class Trial : std::uint8_t {
  kNone,
  kNatural,   ///< Tokens are routed as the router likes.
  kBalanced,  ///< --moe-router-force-load-balancing: as predictions have it.
};
inline constexpr int kTrialSteps = 20;

/// Throws ConfigError with everything that keeps this run from being started: rules that it breaks, fields that the
/// release has no argument for, what Megatron refuses of the arguments.
/// The release is the run's own; where it names none, the newest one with a number that takes the run.
[[nodiscard]] Launch launch_of(const Run& run, LaunchTarget target = LaunchTarget::kMegatronLm,
                               Trial trial = Trial::kNone);

/// An argument or a variable that one start has and another has not, or has otherwise.
struct ArgumentChange {
  std::string name;                     ///< "--micro-batch-size", "CUDA_DEVICE_MAX_CONNECTIONS".
  std::optional<std::string> from, to;  ///< As on a command line, "" of a flag alone; none: not given.
  /// "--micro-batch-size 4 instead of 2", "--overlap-grad-reduce", "without --recompute-modules moe", "NAME=1".
  [[nodiscard]] std::string text() const;
};
/// What `to` is started with otherwise than `from`, in Megatron's order, then the environment's.
[[nodiscard]] std::vector<ArgumentChange> argument_changes(const Launch& from, const Launch& to);
/// The same of a run and what it is with other options; none: launch_of() throws for one of them.
[[nodiscard]] std::optional<std::vector<ArgumentChange>> argument_changes(const Run& run,
                                                                          const costmodel::TrainingOptions& changed);

[[nodiscard]] std::string launch_text(const Launch& launch, LaunchTarget target);
/// {"release", "num_gpus", "environment": [{"name", "value", "reason"}], "arguments": [{"flag", "values"}], "text"}
[[nodiscard]] nlohmann::json launch_json(const Launch& launch, LaunchTarget target);

}  // namespace foldwise::planner

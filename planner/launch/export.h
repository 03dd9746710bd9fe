#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/run/requirements.h"
#include "planner/run/run_file.h"

// Exports a run: Megatron's arguments and the environment, as a list, a torchrun script, a Slurm job, or overrides of
// Megatron-Bridge's ConfigContainer (docs/launch.md).
namespace foldwise::planner {

/// Number of GPUs in a machine whose NVLink domain has `ranks_per_domain` GPUs.
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
  std::vector<Requirement> needs;
  std::vector<std::string> model_remarks;  ///< How the model's file was read, and what of it no argument sets.
  Settings model, plan;                    ///< The model's geometry, and all other arguments.
  Settings trial;  ///< Further arguments for a short run on made-up data; empty if none is asked for.
  std::vector<EnvironmentVariable> environment;
  std::int64_t num_gpus = 1, gpus_per_node = 8;
  std::string entry;                 ///< Megatron-LM's script: "pretrain_gpt.py".
  std::int64_t nodes_of_domain = 1;  ///< Nodes that share an NVLink domain; 1: a node is a domain.

  [[nodiscard]] std::int64_t nodes() const { return (num_gpus + gpus_per_node - 1) / gpus_per_node; }
};

/// A short run that tests whether a plan starts, trains, fits and takes the predicted time: kTrialSteps steps on
/// Megatron's mock data, with the log that `import` reads.
enum class Trial : std::uint8_t {
  kNone,
  kNatural,   ///< The router decides freely.
  kBalanced,  ///< --moe-router-force-load-balancing, which predictions assume.
};
inline constexpr int kTrialSteps = 20;

/// Throws ConfigError with everything that prevents a start: violated rules, fields for which the release has no
/// argument, and arguments that Megatron refuses. The release is the run's own. If the run names none, it is the newest
/// numbered release that accepts the run.
[[nodiscard]] Launch launch_of(const Run& run, LaunchTarget target = LaunchTarget::kMegatronLm,
                               Trial trial = Trial::kNone);

/// An argument or variable in which two starts differ.
struct ArgumentChange {
  std::string name;                     ///< "--micro-batch-size", "CUDA_DEVICE_MAX_CONNECTIONS".
  std::optional<std::string> from, to;  ///< As on a command line, "" for a flag alone; nothing: not given.
  /// "--micro-batch-size 4 instead of 2", "--overlap-grad-reduce", "without --recompute-modules moe", "NAME=1".
  [[nodiscard]] std::string text() const;
};
/// The changes from `from` to `to`: arguments in Megatron's order, then variables.
[[nodiscard]] std::vector<ArgumentChange> argument_changes(const Launch& from, const Launch& to);
/// The same for a run and its options after a change. Nothing if launch_of() throws for one of them.
[[nodiscard]] std::optional<std::vector<ArgumentChange>> argument_changes(const Run& run,
                                                                          const costmodel::TrainingOptions& changed);

[[nodiscard]] std::string launch_text(const Launch& launch, LaunchTarget target);
/// {"release", "num_gpus", "environment": [{"name", "value", "reason"}], "arguments": [{"flag", "values"}], "text"}
[[nodiscard]] nlohmann::json launch_json(const Launch& launch, LaunchTarget target);

}  // namespace foldwise::planner

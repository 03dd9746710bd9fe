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

enum class LaunchTarget : std::uint8_t { kMegatronLm, kMegatronBridge, kSlurm, kTorchrun };
[[nodiscard]] const std::vector<std::pair<std::string, LaunchTarget>>& launch_targets();

struct EnvironmentVariable {
  std::string name, value, reason;
};

/// A run as a start of Megatron-Core `release`.
struct Launch {
  std::string title;  ///< "deepseek-v3 on 256 x gb200-nvl72"
  std::string release;
  Settings model, plan;  ///< The model's geometry, and everything else.
  std::vector<EnvironmentVariable> environment;
  std::int64_t num_gpus = 1, gpus_per_node = 8;
  std::int64_t nodes_of_domain = 1;  ///< That share NVLink; 1: a node is a domain.

  [[nodiscard]] std::int64_t nodes() const { return (num_gpus + gpus_per_node - 1) / gpus_per_node; }
};

/// Throws ConfigError with everything that keeps this run from being started: rules that it breaks, fields that the
/// release has no argument for, what Megatron refuses of the arguments.
[[nodiscard]] Launch launch_of(const Run& run, const std::string& release = std::string(kRelease),
                               LaunchTarget target = LaunchTarget::kMegatronLm);

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

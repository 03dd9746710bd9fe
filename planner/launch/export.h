#pragma once
#include <nlohmann/json.hpp>
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

[[nodiscard]] std::string launch_text(const Launch& launch, LaunchTarget target);
/// {"release", "num_gpus", "environment": [{"name", "value", "reason"}], "arguments": [{"flag", "values"}], "text"}
[[nodiscard]] nlohmann::json launch_json(const Launch& launch, LaunchTarget target);

}  // namespace foldwise::planner

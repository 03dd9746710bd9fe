#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "hwprofiles/load/profile.h"

// Models and systems in the form that `models NAME` and `systems NAME` print: docs/output.md.
namespace foldwise::planner {

/// A model as Megatron builds it. "config" is the config.json of a built-in model, else null. Throws ConfigError.
[[nodiscard]] nlohmann::json model_json(const std::string& name);

/// {models: [name]}, the built-in ones.
[[nodiscard]] nlohmann::json models_json();

/// {systems: [name], lines: [system_line()]}, the built-in ones.
[[nodiscard]] nlohmann::json systems_json();

/// {name, gpu, memory_gib, nvlink_domain, nvlink_gb_s, nic_gbit_s, measured_share, unmeasured}: a line of `systems`.
[[nodiscard]] nlohmann::json system_line(const hwprofiles::Profile& profile, double measured_share);

/// {name, gpu, facts [{field, value, kind, source, date, note}], profile}
[[nodiscard]] nlohmann::json system_json(const hwprofiles::Profile& profile);

}  // namespace foldwise::planner

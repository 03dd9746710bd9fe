#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/foldwise.h"

// Axes of a sweep, and how the values of a point change a run file or a question to `plan`.
namespace foldwise::planner {

struct Axis {
  std::string key;  ///< Key of a run file, "model_overrides.KEY", or "system.KEY" of a number in the profile.
  std::vector<std::string> values;  ///< As typed on a command line.
};

[[nodiscard]] config::Location axis_location(const std::string& key);
/// "/optimizer/name" for "optimizer.name".
[[nodiscard]] nlohmann::json::json_pointer pointer_of(const std::string& key);

/// Sets the value of an axis as a run file has it.
void set_in_run(nlohmann::json& run, const std::string& key, const std::string& text);
/// The run file of a point. A stated data-parallel size is removed where an axis changes the sizes that it follows
/// from.
[[nodiscard]] nlohmann::json run_of_point(nlohmann::json run, const std::vector<Axis>& axes,
                                          const std::vector<std::string>& values);
[[nodiscard]] PlanRequest request_of_point(PlanRequest request, const std::vector<Axis>& axes,
                                           const std::vector<std::string>& values);

/// Axes with canonical names. Reports keys that no run file has, and values that a field does not take.
[[nodiscard]] std::vector<Axis> known_axes(std::vector<Axis> axes, config::Diagnostics& diagnostics);
/// Values of the axis of that key; nullptr: there is none.
[[nodiscard]] const std::vector<std::string>* values_of(const std::vector<Axis>& axes, std::string_view key);

}  // namespace foldwise::planner

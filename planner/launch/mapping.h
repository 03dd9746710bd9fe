#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/run/fields.h"
#include "planner/run/run_file.h"

// Converts between the fields of a run file and Megatron's arguments. Most fields are one argument, which the table of
// fields names (Field::flags). The others have a form (forms.h).
namespace foldwise::planner {

/// The settings that start this run's options in Megatron-Core `release`. Values that no argument of the release can
/// express are reported with the key as the field. With `configuration`, options without an argument become members of
/// Megatron's configuration, which Megatron-Bridge can set.
[[nodiscard]] Settings settings_of_options(const Run& run, const Release& release, config::Diagnostics& diagnostics,
                                           bool configuration = false);

/// The fields that settings state.
struct StatedFields {
  nlohmann::json fields = nlohmann::json::object();  ///< As a run file has them: {"tp": 2, "recompute": {...}}.
  /// (key, what Megatron derives from the arguments).
  std::vector<std::pair<std::string, std::string>> inferred;
};
/// The settings must be ones that Megatron accepts (launch/checks.h). Reports choices that are not modelled, because a
/// run file cannot have them.
[[nodiscard]] StatedFields fields_of(const Settings& settings, const std::string& file,
                                     config::Diagnostics& diagnostics);

/// Whether a field or the model's geometry reads this member. All others mean nothing to the cost model.
[[nodiscard]] bool is_read(std::string_view dest);

}  // namespace foldwise::planner

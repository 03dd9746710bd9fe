#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/run/fields.h"
#include "planner/run/run_file.h"

// Between the fields of a run file and Megatron's arguments, both ways. Most fields are one argument, which the table
// of fields names (Field::flags); the others have a form here.
namespace foldwise::planner {

/// The settings that start this run's options in Megatron-Core `release`. Adds to `diagnostics`, with the key as the
/// field, what no argument of that release says. With `configuration` an option is a member of Megatron's configuration
/// too where its parser has no argument for it, as Megatron-Bridge sets it.
[[nodiscard]] Settings settings_of_options(const Run& run, const Release& release, config::Diagnostics& diagnostics,
                                           bool configuration = false);

/// What settings say of a run file's fields.
struct StatedFields {
  nlohmann::json fields = nlohmann::json::object();  ///< As a run file has them: {"tp": 2, "recompute": {...}}.
  /// (key, what Megatron makes of the arguments without saying so).
  std::vector<std::pair<std::string, std::string>> inferred;
};
/// Of settings that Megatron accepts (launch/checks.h). Adds what cannot be a run file: choices that are not modelled.
[[nodiscard]] StatedFields fields_of(const Settings& settings, const std::string& file,
                                     config::Diagnostics& diagnostics);

/// Members of the Namespace that some field or the model's geometry reads; the others mean nothing to the cost model.
[[nodiscard]] bool is_read(std::string_view dest);

}  // namespace foldwise::planner

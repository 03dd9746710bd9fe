#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/launch/launch_command.h"
#include "planner/rules/rules.h"
#include "planner/run/run_file.h"

// Makes a run file from a launch script, an argument list, Megatron's log, or Megatron-Bridge's configuration as YAML
// (docs/launch.md).
namespace foldwise::planner {

struct Imported {
  nlohmann::json json;                ///< The run file: what the text states, `inferred`, `source`, `measured`.
  Run run;                            ///< As the reader of run files reads it.
  std::vector<Argument> unknown;      ///< Flags that Megatron does not know: another program's, or mistyped.
  std::vector<Argument> unused;       ///< Flags of Megatron that change nothing we model.
  std::vector<Rejection> refused;     ///< Violated rules, with Megatron's checks.
  std::vector<std::string> notes;     ///< What a script asked for and did not find, and similar remarks.
  std::vector<std::string> left_out;  ///< Iterations of the log that are not in `measured`, and why.
  std::size_t steady = 0;             ///< Number of iterations in `measured`.
};

/// Imports the text of a script, a log or a configuration. Throws ConfigError with everything that Megatron would
/// refuse or a run file cannot express, with `file` and the line.
[[nodiscard]] Imported import_launch(const std::string& text, const std::string& file, const ImportRequest& request);

/// {run, notes, left_out, steady_iterations, unknown, unused [{flag, values, line}], refused [{rule, reason}]}
[[nodiscard]] nlohmann::json imported_json(const Imported& imported);

}  // namespace foldwise::planner

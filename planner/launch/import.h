#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/rules/rules.h"
#include "planner/run/run_file.h"

// Makes a run file from a launch script, an argument list, Megatron's log, or Megatron-Bridge's configuration as YAML
// (docs/launch.md).
namespace foldwise::planner {

/// Values that the text may not state.
struct ImportRequest {
  std::string system;                    ///< Empty: the log's GPU.
  std::string model;                     ///< Empty: the geometry of the arguments.
  std::optional<std::int64_t> num_gpus;  ///< Empty: from torchrun, srun or the log.
  /// Release of the arguments. Null: the newest that knows every flag.
  const Release* release = nullptr;
  std::map<std::string, std::string> variables;  ///< Environment variables.
  std::string folder;                            ///< Folder of the script; empty: it sees no folder.
  std::vector<std::string> arguments;            ///< Arguments of the script.
  std::int64_t start = 1;                        ///< Which of the script's starts to take, counted from 1.
  bool sandbox = true;                           ///< False: no process is started; scripts that need one are refused.
};

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

/// A start that a script makes, for callers that need only its arguments. Throws ConfigError.
struct LaunchCommand {
  std::vector<Argument> arguments;
  std::map<std::string, std::string> environment;
  std::optional<std::int64_t> num_gpus;
  std::string model;                                 ///< Model that a front end names.
  std::string model_option;                          ///< Option of the front end that names the model.
  std::string defaults;                              ///< The front end's own set of defaults.
  nlohmann::json fields = nlohmann::json::object();  ///< Fields of the run file that the front end gives.
  std::string program;                               ///< The script that Python runs; empty: not known.
  std::vector<std::string> notes;
  std::string outgrown;  ///< Why a shown call of the script is incomplete; empty: it is complete.
};
[[nodiscard]] LaunchCommand read_launch_command(const std::string& text, const std::string& file,
                                                const ImportRequest& request);

}  // namespace foldwise::planner

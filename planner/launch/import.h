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

// A run file from what starts a run or what a run prints: a launch script or an argument list, Megatron's log, or
// Megatron-Bridge's configuration as YAML (docs/launch.md).
namespace foldwise::planner {

/// What the text may leave open.
struct ImportRequest {
  std::string system;                    ///< Empty: the log's GPU.
  std::string model;                     ///< Empty: the geometry of the arguments.
  std::optional<std::int64_t> num_gpus;  ///< Empty: torchrun's, srun's or the log's.
  /// Whose arguments they are. Null: the newest that knows every flag.
  const Release* release = nullptr;
  std::map<std::string, std::string> variables;  ///< Of the environment.
  std::string folder;                            ///< That a script stands in; empty: it sees no folder.
  std::vector<std::string> arguments;            ///< Of a script.
  std::int64_t start = 1;                        ///< Of those that a script makes, counted from 1.
  bool sandbox = true;                           ///< False: no process is started; scripts that need one are refused.
};

struct Imported {
  nlohmann::json json;                ///< The run file: what the text states, `inferred`, `source`, `measured`.
  Run run;                            ///< As the reader of run files reads it.
  std::vector<Argument> unknown;      ///< Flags that Megatron does not know: of another program, or mistyped.
  std::vector<Argument> unused;       ///< Flags of Megatron's that change nothing we model.
  std::vector<Rejection> refused;     ///< What the rules say of it; those of Megatron's name its check.
  std::vector<std::string> notes;     ///< What a script asked for and did not find.
  std::vector<std::string> left_out;  ///< Iterations of the log that are not in `measured`, and why.
  std::size_t steady = 0;             ///< Iterations that are.
};

/// Of the text of a script, a log or a configuration. Throws ConfigError with everything that Megatron would refuse of
/// the arguments, or that a run file cannot say, with `file` and the line.
[[nodiscard]] Imported import_launch(const std::string& text, const std::string& file, const ImportRequest& request);

/// {run, notes, left_out, steady_iterations, unknown, unused [{flag, values, line}], refused [{rule, reason}]}
[[nodiscard]] nlohmann::json imported_json(const Imported& imported);

/// The start in a script, for one that only wants its arguments. Throws ConfigError.
struct LaunchCommand {
  std::vector<Argument> arguments;
  std::map<std::string, std::string> environment;
  std::optional<std::int64_t> num_gpus;
  std::string model;                                 ///< That a front end names.
  std::string model_option;                          ///< Of a front end that names its model.
  std::string defaults;                              ///< Its own set of them.
  nlohmann::json fields = nlohmann::json::object();  ///< Of the run file, that a front end says.
  std::string program;                               ///< The script that Python runs; empty: not known.
  std::vector<std::string> notes;
  std::string outgrown;  ///< Why the call of a script that is shown does not say all; empty: it does.
};
[[nodiscard]] LaunchCommand read_launch_command(const std::string& text, const std::string& file,
                                                const ImportRequest& request);

}  // namespace foldwise::planner

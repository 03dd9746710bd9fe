#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/launch/ranks.h"
#include "planner/launch/sandbox.h"
#include "planner/run/release.h"

// The program that a launch script starts: its arguments as Megatron's, its ranks, its environment, and what its front
// end adds.
namespace foldwise::planner {

/// Values that the imported text may not state.
struct ImportRequest {
  std::string system;                    ///< Empty: the log's GPU.
  std::string model;                     ///< Empty: the geometry of the arguments.
  std::optional<std::int64_t> num_gpus;  ///< Empty: from torchrun, srun or the log.
  /// Release of the arguments. Null: the newest that knows every flag.
  const Release* release = nullptr;
  std::map<std::string, std::string> variables;  ///< Environment variables.
  std::string folder;                            ///< Folder of the script; empty: it sees no folder.
  std::vector<std::string> arguments;            ///< Arguments of the script.
  /// Which start to take, counted from 1; 0: a script's first, the last one of a log that has iterations.
  std::int64_t start = 0;
  bool sandbox = true;  ///< False: no process is started; scripts that need one are refused.
};

/// A start of training.
struct LaunchCommand {
  std::vector<Argument> arguments;
  std::map<std::string, std::string> environment;
  std::optional<std::int64_t> num_gpus;
  std::string ranks_of;                              ///< Unset variables on which the number of ranks depends.
  std::string model;                                 ///< Model that a front end names.
  std::string model_option;                          ///< Option of the front end that names the model.
  bool length_of_model = false;                      ///< Without a sequence length it is the model's.
  std::string defaults;                              ///< The front end's own set of defaults.
  nlohmann::json fields = nlohmann::json::object();  ///< Fields of the run file that the front end gives.
  std::string program;                               ///< The script that Python runs; empty: not known.
  std::vector<std::string> notes;
  std::string outgrown;  ///< Why arguments may be missing; empty: nothing is known.
};
/// The start that a script makes, for callers that need only its arguments. Throws ConfigError.
[[nodiscard]] LaunchCommand read_launch_command(const std::string& text, const std::string& file,
                                                const ImportRequest& request);

/// The same of a start that is known without a script, on nodes of eight GPUs. `lines`: the lines of its words.
[[nodiscard]] LaunchCommand read_started(const Started& started, const std::map<std::string, int>& lines);

}  // namespace foldwise::planner

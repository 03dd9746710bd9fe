#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/launch/arguments.h"
#include "planner/launch/sandbox.h"

// Finds what a launch script starts, by running it with bash in a sandbox (sandbox.h). A command line that needs no
// shell is read without starting a process.
namespace foldwise::planner {

/// A script, and what the caller knows about it.
struct ScriptQuestion {
  std::string text, file;
  std::string folder;  ///< Folder of the script on this machine; empty: it sees none.
  std::vector<std::string> arguments;
  std::map<std::string, std::string> variables;
  std::optional<std::int64_t> num_gpus;
  std::int64_t gpus_per_node = 8;
  std::string gpu = "NVIDIA GPU";
  bool sandbox = true;  ///< False: no process is started, and a script that needs one is an error.
};

/// One start of training.
struct ScriptStart {
  Started started;
  std::vector<Argument> arguments;  ///< A value that depends on an unset variable is "$NAME".
};

struct ScriptStarts {
  std::vector<ScriptStart> starts;  ///< All with different arguments.
  std::vector<std::string> notes;   ///< Values that were assumed because nobody set them.
  std::string outgrown;             ///< Why the shown call of the script gives no complete start; empty: it does.
};

/// Converts a start's words to Megatron's arguments. Empty if it does not start training.
using ArgumentsOf = std::function<std::vector<Argument>(const Started&)>;

/// Reads a plain command line, a list of arguments (one or more a line), or output of `ps`. Nothing if it needs a
/// shell.
[[nodiscard]] std::optional<Started> plain_command(const std::string& text);

/// If there is no start, adds the reason to `diagnostics`: no sandbox, or the script's error.
[[nodiscard]] ScriptStarts starts_of(const ScriptQuestion& question, const ArgumentsOf& arguments_of,
                                     config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

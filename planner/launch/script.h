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
  Machine machine;
  bool sandbox = true;  ///< False: no process is started, and a script that needs one is an error.
};

/// One start of training.
struct ScriptStart {
  Started started;
  std::optional<std::int64_t> ranks;
  std::string ranks_of{};           ///< Unset variables on which the number of ranks depends; empty: on none.
  std::vector<Argument> arguments;  ///< A value that depends on an unset variable is "$NAME".
};

struct ScriptStarts {
  std::vector<ScriptStart> starts;  ///< All with different arguments or ranks.
  std::vector<std::string> notes;   ///< Values that were assumed because nobody set them.
  std::string outgrown;             ///< Why a start may lack arguments; empty: nothing is known.
};

/// How the caller reads a start.
struct StartReader {
  /// Converts its words to Megatron's arguments. Empty if it does not start a program with Megatron's arguments.
  std::function<std::vector<Argument>(const Started&)> arguments;
  std::function<std::optional<std::int64_t>(const Started&)> ranks;
  /// Whether it trains. Tools that prepare data or convert checkpoints have some of Megatron's arguments too.
  std::function<bool(const Started&, const std::vector<Argument>&)> trains;
};

/// Reads a plain command line, a list of arguments (one or more a line), output of `ps`, or /proc/PID/cmdline. Nothing
/// if it is a script: it has a shebang, more than one command, or something that only a shell understands.
[[nodiscard]] std::optional<Started> plain_command(const std::string& text, const std::string& file);

/// If there is no start, adds the reason to `diagnostics`: no sandbox, or the script's error.
[[nodiscard]] ScriptStarts starts_of(const ScriptQuestion& question, const StartReader& reader,
                                     config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

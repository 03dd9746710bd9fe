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

// What a launch script starts, as bash in a sandbox finds it (sandbox.h). A command line that needs no shell is read
// without one: it starts no process.
namespace foldwise::planner {

/// What the caller knows of a script.
struct ScriptQuestion {
  std::string text, file;
  std::string folder;  ///< The machine's folder that it stands in; empty: none is shown to it.
  std::vector<std::string> arguments;
  std::map<std::string, std::string> variables;
  std::optional<std::int64_t> num_gpus;
  std::int64_t gpus_per_node = 8;
  std::string gpu = "NVIDIA GPU";
  bool sandbox = true;  ///< False: no process is started; a script that needs one is an error.
};

/// One start of training.
struct ScriptStart {
  Started started;
  std::vector<Argument> arguments;  ///< A value that hangs on a variable that nobody set is "$NAME".
};

struct ScriptStarts {
  std::vector<ScriptStart> starts;  ///< Each of other arguments.
  std::vector<std::string> notes;   ///< What was taken to be there, and was not set.
  std::string outgrown;             ///< The call that is shown gives no whole start: which one; empty: it does.
};

/// What a start's words say in Megatron's arguments; empty: it starts no training.
using ArgumentsOf = std::function<std::vector<Argument>(const Started&)>;

/// A plain command line, a list of arguments (one or more a line), or what `ps` printed; nothing: it takes a shell.
[[nodiscard]] std::optional<Started> plain_command(const std::string& text);

/// Adds to `diagnostics` why there is no start: no sandbox, or what the script ended with.
[[nodiscard]] ScriptStarts starts_of(const ScriptQuestion& question, const ArgumentsOf& arguments_of,
                                     config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

#pragma once
#include <map>
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"

// A launch script as far as it can be read without running it: variables, arrays, exports, simple conditions, and the
// words of its commands. Of bash's grammar it knows quotes, backslashes, $NAME, ${NAME:-default}, ${NAME[@]}, $((...)),
// NAME=, NAME+=, export, ( ... ), if [ ... ], here-documents and comments.
namespace foldwise::planner {

struct ShellWord {
  std::string text;  ///< A variable that the script does not set stays "$NAME".
  int line = 0;
};
struct ShellCommand {
  std::vector<ShellWord> words;                    ///< The first is the program.
  std::map<std::string, std::string> environment;  ///< Exported before it, or set for it.
};
struct ShellScript {
  std::vector<ShellCommand> commands;
  std::map<std::string, std::string> variables;  ///< At the end; of an array its first word.
  std::map<std::string, std::string> sbatch;     ///< "#SBATCH --nodes=4" as {"nodes": "4"}; -N, -n as their long names.
};

/// Reads `text`; `file` is what messages call it. `given` are variables that the caller knows (NAME=VALUE): they win
/// over the script's own. Adds quotes and parentheses that do not close, and conditions that cannot be decided.
[[nodiscard]] ShellScript read_shell(const std::string& text, const std::string& file,
                                     const std::map<std::string, std::string>& given, config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

#include "planner/launch/no_command.h"

#include <fmt/format.h>

#include <cstdlib>
#include <regex>

#include "planner/launch/files.h"

namespace foldwise::planner {

std::vector<NoCommand> no_commands(const SandboxResult& result) {
  std::vector<NoCommand> lines = result.no_commands;
  static const std::regex path(R"(([^\s:]*): line (\d+): (--[^\s:]{1,200}): No such file or directory)");
  for (std::sregex_iterator it(result.output.begin(), result.output.end(), path), end; it != end; ++it)
    lines.push_back({.file = base_of((*it)[1]), .line = std::atoi((*it)[2].str().c_str()), .word = (*it)[3]});
  return lines;
}

std::string told(const NoCommand& line, const std::string& file) {
  std::string where = line.file == base_of(file) ? "" : line.file.empty() ? "a text that it runs, " : line.file + ", ";
  return fmt::format(
      "{}line {}: \"{}\" is no command (bash: command not found), and its line is not read: the backslash that "
      "continues the line above is missing, or a blank or a comment follows it",
      where, line.line, line.word.substr(0, 80));
}

}  // namespace foldwise::planner

#pragma once
#include <string>
#include <vector>

#include "planner/launch/sandbox.h"

// Lines that bash takes for commands and that begin with an option or a number: the continuation of the line above them
// is missing or broken.
namespace foldwise::planner {

[[nodiscard]] std::vector<NoCommand> no_commands(const SandboxResult& result);

/// What a user is told of such a line. `file`: the script.
[[nodiscard]] std::string told(const NoCommand& line, const std::string& file);

}  // namespace foldwise::planner

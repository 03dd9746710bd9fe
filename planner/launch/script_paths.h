#pragma once
#include <string>
#include <vector>

#include "planner/launch/sandbox.h"
#include "planner/launch/script.h"

// The files and folders that a script sees in the sandbox, and those that it asks for in vain. Each function changes
// the request of the script's next run.
namespace foldwise::planner {

/// Chooses the folders that a script sees: those of its checkout, otherwise its own. Of a folder that holds more than
/// work it sees only the files.
void choose_tree(const ScriptQuestion& question, SandboxRequest& request);

/// The paths that the script did not find, according to its output.
[[nodiscard]] std::vector<std::string> missing_paths(const std::string& output);

/// Lets the script see a missing path that is on this machine beside what it sees. False if there is none.
[[nodiscard]] bool find_beside(const std::string& path, SandboxRequest& request);

/// Creates paths that are missing or cannot be written, according to the script's output; if there are none, the path
/// that it asked for last. False if nothing was created.
[[nodiscard]] bool mend_paths(const std::vector<std::string>& missing, const SandboxResult& result,
                              SandboxRequest& request);

}  // namespace foldwise::planner

#pragma once
#include <string>

#include "planner/run/run_file.h"

namespace foldwise::cli {

/// Reads a run file (.json) or any input of `import`. `system`: used if the input names none; empty for a
/// run file, which states its own. Throws ConfigError.
[[nodiscard]] planner::Run run_from(const std::string& path, const std::string& system);

}  // namespace foldwise::cli

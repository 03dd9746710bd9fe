#pragma once
#include <string>

#include "planner/run/run_file.h"

namespace foldwise::cli {

/// Reads a run file (.json) or any input of `import`. `system`: used if the input names none. Throws ConfigError.
[[nodiscard]] planner::Run run_from(const std::string& path, const std::string& system);

}  // namespace foldwise::cli

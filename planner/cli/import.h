#pragma once
#include <string>

#include "planner/run/run_file.h"

namespace foldwise::cli {

/// A run file (.json), or what `import` reads as one; `system` where that does not name it. Throws ConfigError.
[[nodiscard]] planner::Run run_from(const std::string& path, const std::string& system);

}  // namespace foldwise::cli

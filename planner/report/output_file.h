#pragma once
#include <string>

namespace foldwise::planner {

/// Writes `path` anew: beside it first, then renamed, so that a reader never sees half a file. Throws ConfigError.
void write_output_file(const std::string& path, const std::string& text);

}  // namespace foldwise::planner

#pragma once
#include <string>

// Files that the program reads whole.
namespace foldwise::config {

/// The bytes of `path`. Throws ConfigError: no such file, a directory, unreadable, larger than 256 MiB.
[[nodiscard]] std::string read_input_file(const std::string& path);

}  // namespace foldwise::config

#pragma once
#include <string>

// Files that the program reads whole.
namespace foldwise::config {

/// A file that is there, or "-", which is stdin.
[[nodiscard]] bool is_input_file(const std::string& path);
/// The bytes of `path`; "-": of stdin, which is read once. Throws ConfigError: no such file, a directory, unreadable,
/// larger than 256 MiB.
[[nodiscard]] std::string read_input_file(const std::string& path);

}  // namespace foldwise::config

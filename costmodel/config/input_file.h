#pragma once
#include <fstream>
#include <string>

// Files that the program reads. A user's mistake, and a disk's, is one message that names the file.
namespace foldwise::config {

/// Throws ConfigError: no such file, a directory, unreadable. What fails later sets the stream's badbit, or, read
/// through its buffer, throws std::ios_base::failure.
[[nodiscard]] std::ifstream open_input_file(const std::string& path);

/// A file that is there, or "-", which is stdin.
[[nodiscard]] bool is_input_file(const std::string& path);
/// The bytes of `path`; "-": of stdin, which is read once. Throws ConfigError: no such file, a directory, unreadable,
/// larger than 256 MiB.
[[nodiscard]] std::string read_input_file(const std::string& path);

}  // namespace foldwise::config

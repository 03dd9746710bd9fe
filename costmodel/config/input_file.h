#pragma once
#include <fstream>
#include <string>

// Input files. Every failure, a user's or a disk's, becomes one message with the file's name.
namespace foldwise::config {

/// Throws ConfigError if there is no such file, it is a directory, or it cannot be read. A later failure sets the
/// stream's badbit; a reader of its buffer gets std::ios_base::failure.
[[nodiscard]] std::ifstream open_input_file(const std::string& path);

/// Whether the file exists, or is "-" (stdin).
[[nodiscard]] bool is_input_file(const std::string& path);
/// The bytes of `path`, or of stdin for "-", which is read once. Throws ConfigError if there is no such file, it is a
/// directory, it cannot be read, or it has more than 256 MiB.
[[nodiscard]] std::string read_input_file(const std::string& path);

}  // namespace foldwise::config

#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace foldwise::cli {

/// The program `name` beside this executable: in the same directory (installed), or in kernels/ of the same build.
/// Throws config::ConfigError where it is not, with `hint` on how to get it.
[[nodiscard]] std::filesystem::path find_program(const std::string& name, const std::string& hint);

/// Runs `program` with `arguments`, its output on our stderr, and waits. Returns its exit status, or 128 plus the
/// signal that ended it. Throws std::system_error if it cannot be started.
[[nodiscard]] int run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments);

}  // namespace foldwise::cli

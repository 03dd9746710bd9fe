#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace foldwise::cli {

/// The program `name` in this executable's directory (installed), or in kernels/ of the same build. Throws
/// config::ConfigError if it is missing; `hint` says how to get it.
[[nodiscard]] std::filesystem::path find_program(const std::string& name, const std::string& hint);

/// Runs `program` with its output on our stderr, and waits. Returns its exit status, or 128 plus the signal that ended
/// it. Throws std::system_error if it cannot be started.
[[nodiscard]] int run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments);

}  // namespace foldwise::cli

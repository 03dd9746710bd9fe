#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

// Outputs of commands. main() checks all of them before a command starts: a mistyped directory must not cost a long
// answer, and an answer must not overwrite its own input.
namespace foldwise::cli {

/// Adds an option for an output file. An empty `path` means no output.
CLI::Option* add_output_file(CLI::App& command, const std::string& name, std::string& path, const std::string& what);
/// Adds an option for an output directory, which is created if missing.
CLI::Option* add_output_folder(CLI::App& command, const std::string& name, std::string& path, const std::string& what);

/// Throws ConfigError with all problems of the outputs: a missing or read-only directory, a file that the command also
/// reads (named on the command line, or by a JSON file that it reads), a file named by two options or connected to
/// stdout.
void check_outputs(const CLI::App& command);

/// Exclusive write access to a directory. Creates it if missing, and removes it if nothing was written. Throws
/// ConfigError if another process has it, or if it cannot be created.
class OwnFolder {
 public:
  explicit OwnFolder(std::string path);
  ~OwnFolder();
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

 private:
  [[noreturn]] void fail(const std::string& what);
  void give_up();

  std::string path_, lock_;
  std::vector<std::filesystem::path> made_;  ///< Innermost first.
  int descriptor_ = -1;
};

/// Removes the lock of an OwnFolder and the folders created for it, if the program ends early. Async-signal-safe.
void remove_left_behind() noexcept;

}  // namespace foldwise::cli

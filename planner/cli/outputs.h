#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

// What commands write to. main() looks at all of a command's outputs before its work starts: an answer of minutes is
// not lost to a mistyped directory, nor an input to its own answer.
namespace foldwise::cli {

/// Adds an option that names a file to write; a command leaves it alone where `path` is empty.
CLI::Option* add_output_file(CLI::App& command, const std::string& name, std::string& path, const std::string& what);
/// Adds one that names a directory to write files into, which is made where it is missing.
CLI::Option* add_output_folder(CLI::App& command, const std::string& name, std::string& path, const std::string& what);

/// Throws ConfigError with everything that is wrong with the outputs given: a directory that is missing or closed, a
/// file that the command reads too (named on the command line or, directly or not, in a JSON file that is), one that
/// two options name, or that stdout goes to.
void check_outputs(const CLI::App& command);

/// A directory that no other foldwise writes while this lives. Made if it is missing; if nothing is put in it, it is
/// removed again. Throws ConfigError: another has it, or it cannot be made.
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
  std::vector<std::filesystem::path> made_;  ///< From the inmost outwards.
  int descriptor_ = -1;
};

/// What a program that ends at once must not leave: the lock of its OwnFolder, and the folders made for it. Calls
/// nothing that a handler of signals may not call.
void remove_left_behind() noexcept;

}  // namespace foldwise::cli

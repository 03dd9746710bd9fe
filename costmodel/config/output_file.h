#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Files that the program writes: looked at before the work whose answer they get, and whole or not there after it.
namespace foldwise::config {

/// Why write_output_file(path) would fail, as far as that can be known before: "cannot be written: Is a directory".
/// Empty: nothing speaks against it. Nothing is opened or made.
[[nodiscard]] std::string output_file_mistake(const std::string& path);
/// The same of a directory that is made, with those above it, where it is missing.
[[nodiscard]] std::string output_folder_mistake(const std::string& path);

/// Whether both paths lead to one regular file or FIFO, or will once it is made.
[[nodiscard]] bool same_file(const std::string& a, const std::string& b);

/// Writes `path` anew: beside it, synced and then renamed, so that a reader never sees half a file and a crash leaves
/// the old one or the new one. A symbolic link stays: what it leads to is replaced. A device or a FIFO is written
/// into. Throws ConfigError; what was there is still there then.
void write_output_file(const std::string& path, std::string_view text);

/// Files that appear together: each is written beside its name, and all are renamed once none can fail for want of
/// room. What is not committed is removed again.
class StagedFiles {
 public:
  StagedFiles() = default;
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;
  ~StagedFiles();

  /// Of a regular or a missing file. Throws ConfigError.
  void add(const std::string& path, std::string_view text);
  void commit();

 private:
  struct Staged {
    std::string path, beside, target;
  };
  std::vector<Staged> files_;
};

}  // namespace foldwise::config

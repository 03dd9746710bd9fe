#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Output files. They are checked before the work that fills them, and afterwards they are complete or absent.
namespace foldwise::config {

/// Why write_output_file(path) would fail, as far as this is known in advance: "cannot be written: Is a directory".
/// Empty if nothing is wrong. Opens and creates nothing.
[[nodiscard]] std::string output_file_mistake(const std::string& path);
/// The same for a directory, which is created with its parents if it does not exist.
[[nodiscard]] std::string output_folder_mistake(const std::string& path);

/// Whether both paths lead to one regular file or FIFO, or would after creation.
[[nodiscard]] bool same_file(const std::string& a, const std::string& b);

/// Replaces `path`: writes a file beside it, syncs and renames it. A reader never sees half a file, and a crash leaves
/// the old or the new one. A symbolic link stays, and its target is replaced. A device or FIFO is written directly.
/// Throws ConfigError and then leaves the old file.
void write_output_file(const std::string& path, std::string_view text);

/// A set of files that appear together. Each is written beside its name. commit() renames all, when none can fail for
/// lack of space. Files that are not committed are removed.
class StagedFiles {
 public:
  StagedFiles() = default;
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;
  ~StagedFiles();

  /// Adds a regular or new file. Throws ConfigError.
  void add(const std::string& path, std::string_view text);
  void commit();

 private:
  struct Staged {
    std::string path, beside, target;
  };
  std::vector<Staged> files_;
};

}  // namespace foldwise::config

#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "planner/sweep/sweep.h"

// The rows of a sweep as text, and their file. It is written row by row, so that a sweep that was killed can resume.
namespace foldwise::planner {

enum class RowFormat : std::uint8_t { kCsv, kJsonLines };

/// The line of a row, with its end. kCsv leaves "run" out (RFC 4180, but lines end with "\n"). The line of a row's
/// `first` cells is a prefix of the row's line.
[[nodiscard]] std::string row_text(RowFormat format, const SweepRow& row);
/// For CSV the line of column names; empty for JSON lines.
[[nodiscard]] std::string header_text(RowFormat format, const std::vector<std::string>& columns);
/// Reads a line of row_text().
[[nodiscard]] SweepRow read_row(RowFormat format, const std::vector<std::string>& columns, const std::string& line);

/// A file that grows by whole rows only. Locked while open: a second sweep into it is refused.
class RowFile {
 public:
  /// Opens or creates `path`, removes a partial last line, and checks that its rows are the first ones of `sweep`. If
  /// they are not: leaves the file unchanged and throws ConfigError with file and line.
  RowFile(std::string path, RowFormat format, const Sweep& sweep);
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  [[nodiscard]] const std::vector<std::string>& found() const { return found_; }  ///< Their lines, without line ends.
  /// Writes `text` at once. Throws ConfigError: no space, no permission, or another program changed the file.
  void append(const std::string& text);
  /// Throws ConfigError if another program changed, truncated or replaced the file since our last write.
  void expect_unchanged() const;

 private:
  [[noreturn]] void fail(int line, const std::string& message) const;
  void check(const std::string& text, RowFormat format, const Sweep& sweep);
  void remember();

  std::string path_;
  int descriptor_ = -1;
  std::optional<struct stat> left_;  ///< State after our last write; nullopt if not a regular file.
  std::vector<std::string> found_;
};

}  // namespace foldwise::planner

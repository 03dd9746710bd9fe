#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "planner/sweep/sweep.h"

// The rows of a sweep as text, and the file that they go to: row by row, so that what a killed sweep has computed is
// not computed again.
namespace foldwise::planner {

enum class RowFormat : std::uint8_t { kCsv, kJsonLines };

/// The line of a row, with its end; kCsv leaves "run" out (RFC 4180, lines end with "\n"). `first` cells of a row are
/// the start of its line.
[[nodiscard]] std::string row_text(RowFormat format, const SweepRow& row);
/// Of CSV the line of names; empty of JSON lines.
[[nodiscard]] std::string header_text(RowFormat format, const std::vector<std::string>& columns);
/// What row_text() wrote.
[[nodiscard]] SweepRow read_row(RowFormat format, const std::vector<std::string>& columns, const std::string& line);

/// A file that only grows by whole rows. Locked while open: a second sweep to it is refused.
class RowFile {
 public:
  /// Opens `path` or makes it, cuts a partial last line, and looks whether its rows are the first ones of `sweep`.
  /// Throws ConfigError with file and line where they are not; the file is left as it is then.
  RowFile(std::string path, RowFormat format, const Sweep& sweep);
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  [[nodiscard]] const std::vector<std::string>& found() const { return found_; }  ///< Lines of the rows, without ends.
  /// Writes in one piece. Throws ConfigError: no space, no permission, or the file is no longer as we left it.
  void append(const std::string& text);
  /// Throws ConfigError where another program has changed, cut or replaced the file since we last wrote.
  void expect_unchanged() const;

 private:
  [[noreturn]] void fail(int line, const std::string& message) const;
  void check(const std::string& text, RowFormat format, const Sweep& sweep);
  void remember();

  std::string path_;
  int descriptor_ = -1;
  std::optional<struct stat> left_;  ///< As we left it; none: it is no regular file.
  std::vector<std::string> found_;
};

}  // namespace foldwise::planner

#pragma once
#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace foldwise::planner {

/// Columns of text, as wide as their widest cell and two spaces apart.
class Table {
 public:
  /// A title that starts with '<' makes its column left-aligned (the sign is not printed); others are right-aligned.
  explicit Table(std::vector<std::string> titles);
  void add(std::vector<std::string> cells);
  /// Lines below the last row, as they are.
  void note(const std::string& lines) { notes_[rows_.size()] += lines + '\n'; }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  /// Lines that end with '\n', each indented by `indent` spaces.
  [[nodiscard]] std::string text(int indent = 2) const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
  std::map<std::size_t, std::string> notes_;  ///< By the number of rows before.
};

/// `text` cut to at most `width` characters; a cut ends with "..".
[[nodiscard]] std::string shortened(const std::string& text, std::size_t width);

/// `text` in lines of at most `width` characters, cut at spaces; all but the first are indented by `indent` spaces.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// A number as people write it: four significant digits, never an exponent for what a step or a GiB can be.
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace foldwise::planner

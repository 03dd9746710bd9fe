#pragma once
#include <fmt/color.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

// Building blocks of text output: screen width, tables, wrapped lines and, on a terminal, colours and bars.
namespace foldwise::planner {

struct Screen {
  std::size_t width = 80;  ///< Columns.
  bool colour = false;     ///< A terminal with ANSI colours. Bars are drawn only there.

  /// `text`, coloured if the screen has colours.
  [[nodiscard]] std::string in(const fmt::text_style& style, const std::string& text) const;
};
inline constexpr std::size_t kNarrow = 80, kWide = 160;  ///< Least and greatest width of an answer in columns.

/// Columns of UTF-8 text on a terminal. Colour codes take none.
[[nodiscard]] std::size_t columns_of(const std::string& text);

/// A table with two spaces between columns; each column is as wide as its widest cell.
class Table {
 public:
  /// A title that starts with '<' makes its column left-aligned (the sign is not printed); others are right-aligned.
  explicit Table(std::vector<std::string> titles);
  void add(std::vector<std::string> cells);
  /// Lines printed unchanged below the last row.
  void note(const std::string& lines) { notes_[rows_.size()] += lines + '\n'; }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  /// Lines end with '\n' and are indented by `indent` spaces. The last column is cut at column `width`; 0: not cut.
  [[nodiscard]] std::string text(std::size_t indent = 2, std::size_t width = 0) const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
  std::map<std::size_t, std::string> notes_;  ///< By the number of rows before the note.
};

/// `text` cut to at most `width` characters; a cut ends with "..".
[[nodiscard]] std::string shortened(const std::string& text, std::size_t width);

/// `text` in lines of at most `width` columns, broken at spaces; all lines but the first are indented by `indent`.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// Joins as many pieces, separated by `between`, as fit in `width` columns. The first piece is always included,
/// shortened if necessary.
[[nodiscard]] std::string fitting_in(const std::vector<std::string>& pieces, const std::string& between,
                                     std::size_t width);

inline constexpr std::size_t kLabel = 10;  ///< Columns of the labels of an answer's lines.
/// One entry of an answer: a label, then pieces two spaces apart, on as many lines as needed.
[[nodiscard]] std::string line_of(const Screen& screen, const std::string& name,
                                  const std::vector<std::string>& pieces);
/// As line_of(), on one line: pieces that do not fit are left out or cut.
[[nodiscard]] std::string one_line_of(const Screen& screen, const std::string& name,
                                      const std::vector<std::string>& pieces, const std::string& between = ", ");
/// A command to copy; a command wider than the screen continues on lines after a backslash.
[[nodiscard]] std::string command_of(const Screen& screen, const std::string& name, const std::string& command);

struct BarPart {
  std::string name;  ///< "activations": printed in this part of the bar if there is room.
  double amount = 0.0;
};
/// "[parameters activations       ......]": `width` columns stand for `whole`, and each part has its colour. Empty on a
/// screen without colours.
[[nodiscard]] std::string bar(const Screen& screen, const std::vector<BarPart>& parts, double whole, std::size_t width);
/// The legend of a bar: each text in the colour of its part, if the screen has colours.
[[nodiscard]] std::vector<std::string> legend(const Screen& screen, const std::vector<std::string>& texts);

/// Names that `--explain` of a command takes, each with the section that it shows.
using Explanations = std::vector<std::pair<std::string, std::string>>;
/// Whether `asked` contains the name or "all".
[[nodiscard]] bool is_asked(const std::vector<std::string>& asked, const std::string& name);

/// Four significant digits, never with an exponent for seconds of a step or GiB.
[[nodiscard]] std::string seconds_text(double seconds);
/// "4,890": a whole number with commas between thousands.
[[nodiscard]] std::string grouped_digits(double number);

}  // namespace foldwise::planner

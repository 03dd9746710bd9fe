#pragma once
#include <fmt/color.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

// What texts are made of: a screen of some width, tables, wrapped lines, and, on a terminal, colour and bars.
namespace foldwise::planner {

/// Where a text is printed.
struct Screen {
  std::size_t width = 80;  ///< Columns.
  bool colour = false;     ///< A terminal that takes ANSI colours: bars are drawn there too.

  /// `text`, coloured where the screen has colours.
  [[nodiscard]] std::string in(const fmt::text_style& style, const std::string& text) const;
};
inline constexpr std::size_t kNarrow = 80, kWide = 160;  ///< The least and the most columns that an answer uses.

/// Columns that UTF-8 text takes on a terminal; colours take none.
[[nodiscard]] std::size_t columns_of(const std::string& text);

/// Columns of text, as wide as their widest cell and two spaces apart.
class Table {
 public:
  /// A title that starts with '<' makes its column left-aligned (the sign is not printed); others are right-aligned.
  explicit Table(std::vector<std::string> titles);
  void add(std::vector<std::string> cells);
  /// Lines below the last row, as they are.
  void note(const std::string& lines) { notes_[rows_.size()] += lines + '\n'; }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  /// Lines that end with '\n', each indented by `indent` spaces. `width`: the last column is cut to end there; 0:
  /// never.
  [[nodiscard]] std::string text(std::size_t indent = 2, std::size_t width = 0) const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
  std::map<std::size_t, std::string> notes_;  ///< By the number of rows before.
};

/// `text` cut to at most `width` characters; a cut ends with "..".
[[nodiscard]] std::string shortened(const std::string& text, std::size_t width);

/// `text` in lines of at most `width` columns, cut at spaces; all but the first are indented by `indent` spaces.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// As many of the pieces, joined by `between`, as take at most `width` columns; at least the first, shortened to that.
[[nodiscard]] std::string fitting_in(const std::vector<std::string>& pieces, const std::string& between,
                                     std::size_t width);

inline constexpr std::size_t kLabel = 10;  ///< Columns of the names of an answer's lines.
/// A line of an answer: its name, and pieces two spaces apart, in as many lines as they need.
[[nodiscard]] std::string line_of(const Screen& screen, const std::string& name,
                                  const std::vector<std::string>& pieces);
/// The same in one line: what does not fit is left out, or cut.
[[nodiscard]] std::string one_line_of(const Screen& screen, const std::string& name,
                                      const std::vector<std::string>& pieces, const std::string& between = ", ");
/// A command to be copied, in lines that end with a backslash where it is longer than the screen.
[[nodiscard]] std::string command_of(const Screen& screen, const std::string& name, const std::string& command);

/// A share of a bar.
struct BarPart {
  std::string name;  ///< "activations": written into its part where it has room.
  double amount = 0.0;
};
/// "[parameters activations       ......]" in `width` columns, which stand for `whole`, a colour for each part. Empty
/// without colours.
[[nodiscard]] std::string bar(const Screen& screen, const std::vector<BarPart>& parts, double whole, std::size_t width);
/// The names and texts of a bar's parts, each in its colour, where there are colours.
[[nodiscard]] std::vector<std::string> legend(const Screen& screen, const std::vector<std::string>& texts);

/// What `--explain` of a command may name, and what it then shows.
using Explanations = std::vector<std::pair<std::string, std::string>>;
/// Whether `asked` has the name, or "all".
[[nodiscard]] bool is_asked(const std::vector<std::string>& asked, const std::string& name);

/// A number as people write it: four significant digits, never an exponent for what a step or a GiB can be.
[[nodiscard]] std::string seconds_text(double seconds);
/// "4,890": a whole number with commas between thousands.
[[nodiscard]] std::string grouped_digits(double number);

}  // namespace foldwise::planner

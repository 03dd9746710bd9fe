#pragma once
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "planner/report/screen.h"

// What commands know of the terminal that they run in.
namespace foldwise::cli {

/// Of stdout: as wide as the terminal, with colours where there is one that takes them and no NO_COLOR
/// (no-color.org). A file or a pipe: 80 columns.
[[nodiscard]] planner::Screen screen_of_stdout();

/// Lines on a terminal's stderr that are drawn anew and erased at the end. Nothing in a file or a pipe.
class ProgressLines {
 public:
  ProgressLines();
  ~ProgressLines() { erase(); }
  ProgressLines(const ProgressLines&) = delete;
  ProgressLines& operator=(const ProgressLines&) = delete;

  /// Whether lines would be seen now: there is a terminal, and the last ones are old enough. `at_once`: they are not
  /// waited for.
  [[nodiscard]] bool is_due(bool at_once = false) const;
  void draw(const std::vector<std::string>& lines);
  void erase();

 private:
  bool terminal_ = false;
  std::size_t width_ = 80, drawn_ = 0;  ///< Lines that stand there.
  std::chrono::steady_clock::time_point last_;
};

/// "[########........] 45 %"
[[nodiscard]] std::string share_bar(double share);

/// Adds `--explain [WHAT,...]`: sections that are printed besides. Alone it means all.
void add_explain(CLI::App& command, std::vector<std::string>& what, const planner::Explanations& known);
/// "--explain" that nothing of that command's follows, written out: "--explain=all".
[[nodiscard]] std::vector<std::string> with_explained(const CLI::App& app, int argc, char** argv);

}  // namespace foldwise::cli

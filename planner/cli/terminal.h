#pragma once
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "planner/report/screen.h"

// Properties of the terminal that a command runs in.
namespace foldwise::cli {

/// Screen of stdout: the terminal's width, with colours if the terminal supports them and NO_COLOR (no-color.org) is
/// not set. 80 columns for a file or a pipe.
[[nodiscard]] planner::Screen screen_of_stdout();

/// Progress lines on a terminal's stderr: redrawn in place and erased at the end. Silent for a file or a pipe.
class ProgressLines {
 public:
  ProgressLines();
  ~ProgressLines() { erase(); }
  ProgressLines(const ProgressLines&) = delete;
  ProgressLines& operator=(const ProgressLines&) = delete;

  /// Whether to draw now: stderr is a terminal, and the last lines are old enough. `at_once`: ignores their age.
  [[nodiscard]] bool is_due(bool at_once = false) const;
  void draw(const std::vector<std::string>& lines);
  void erase();

 private:
  bool terminal_ = false;
  std::size_t width_ = 80, drawn_ = 0;  ///< Lines on the screen.
  std::chrono::steady_clock::time_point last_;
};

/// "[########........] 45 %"
[[nodiscard]] std::string share_bar(double share);

/// Adds `--explain [WHAT,...]`, which prints additional sections. Without a value: all.
void add_explain(CLI::App& command, std::vector<std::string>& what, const planner::Explanations& known);
/// The arguments with a bare "--explain" written out as "--explain=all".
[[nodiscard]] std::vector<std::string> with_explained(const CLI::App& app, int argc, char** argv);

}  // namespace foldwise::cli

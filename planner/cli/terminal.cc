#include "planner/cli/terminal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "planner/cli/commands.h"

namespace foldwise::cli {
namespace {

constexpr std::size_t kLeastColumns = 60;

std::size_t columns_of_terminal(int descriptor) {
  struct winsize size {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return planner::kNarrow;
  return std::clamp<std::size_t>(size.ws_col, kLeastColumns, planner::kWide);
}

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_terminal(int descriptor) { return ::isatty(descriptor) != 0 && environment("TERM") != "dumb"; }

}  // namespace

planner::Screen screen_of_stdout() {
  if (!is_terminal(STDOUT_FILENO)) return {};
  return {.width = columns_of_terminal(STDOUT_FILENO), .colour = environment("NO_COLOR").empty()};
}

ProgressLines::ProgressLines()
    : terminal_(is_terminal(STDERR_FILENO)), last_(std::chrono::steady_clock::now() + std::chrono::milliseconds(300)) {
  if (terminal_) width_ = columns_of_terminal(STDERR_FILENO);
}

bool ProgressLines::is_due(bool at_once) const {
  constexpr std::chrono::milliseconds kBetween{100};
  return terminal_ && (at_once || std::chrono::steady_clock::now() >= last_ + kBetween);
}

void ProgressLines::draw(const std::vector<std::string>& lines) {
  if (!terminal_) return;
  erase();
  std::string text;
  for (const std::string& line : lines) {
    if (!text.empty()) text += '\n';
    text += planner::shortened(line, width_ - 1);
  }
  drawn_ = lines.size();
  last_ = std::chrono::steady_clock::now();
  static_cast<void>(std::fputs(text.c_str(), stderr));
}

void ProgressLines::erase() {
  if (drawn_ == 0) return;
  std::string back = "\r";
  for (; drawn_ > 1; --drawn_) back += "\033[A";
  drawn_ = 0;
  static_cast<void>(std::fputs((back + "\033[J").c_str(), stderr));
}

std::string share_bar(double share) {
  constexpr std::size_t kColumns = 24;
  const auto full = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(kColumns)));
  return fmt::format("[{}{}] {:2.0f} %", std::string(full, '#'), std::string(kColumns - full, '.'), 100.0 * share);
}

void add_explain(CLI::App& command, std::vector<std::string>& what, const planner::Explanations& known) {
  std::vector<std::string> names = {"all"}, lines;
  for (const auto& [name, shows] : known) {
    names.push_back(name);
    lines.push_back(name + ": " + shows);
  }
  command.add_option("--explain", what, fmt::format("Print more: all, or {}", fmt::join(lines, "; ")))
      ->delimiter(',')
      ->check(CLI::IsMember(names))
      ->group(kOutput);
}

std::vector<std::string> with_explained(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const CLI::App* command = nullptr;
  for (const CLI::App* its : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!words.empty() && its->get_name() == words.front()) command = its;
  const CLI::Option* const explain = command == nullptr ? nullptr : command->get_option_no_throw("--explain");
  if (explain == nullptr) return words;
  const std::vector<std::string> known = values_in_help(*explain);
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] != "--explain") continue;
    const std::string next = i + 1 < words.size() ? words[i + 1].substr(0, words[i + 1].find(',')) : "";
    if (std::ranges::count(known, next) == 0) words[i] += "=all";
  }
  return words;
}

}  // namespace foldwise::cli

#include "planner/report/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::planner {
namespace {

constexpr std::array kHues = {fmt::terminal_color::cyan,  fmt::terminal_color::yellow, fmt::terminal_color::magenta,
                              fmt::terminal_color::green, fmt::terminal_color::blue,   fmt::terminal_color::red};

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// Offset in bytes after the first `columns` columns of a text and the colour codes that follow them.
std::size_t byte_behind(const std::string& text, std::size_t columns) {
  std::size_t at = 0;
  for (std::size_t seen = 0; at < text.size();) {
    if (text[at] == '\033') {
      at = std::min(text.find('m', at), text.size() - 1) + 1;
      continue;
    }
    if (!continues_character(text[at]) && seen++ == columns) break;
    ++at;
  }
  return at;
}

}  // namespace

std::string Screen::in(const fmt::text_style& style, const std::string& text) const {
  return colour && !text.empty() ? fmt::format(style, "{}", text) : text;
}

std::size_t columns_of(const std::string& text) {
  std::size_t columns = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\033')
      at = std::min(text.find('m', at), text.size());
    else if (!continues_character(text[at]))
      ++columns;
  }
  return columns;
}

Table::Table(std::vector<std::string> titles) : titles_(std::move(titles)) {
  for (std::string& title : titles_) {
    left_.push_back(!title.empty() && title.front() == '<');
    if (left_.back()) title.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> cells) {
  FW_CHECK(cells.size() == titles_.size(), "a row must have one cell per column");
  rows_.push_back(std::move(cells));
}

std::string Table::text(std::size_t indent, std::size_t width) const {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < titles_.size(); ++column) {
    widths.push_back(columns_of(titles_[column]));
    for (const auto& row : rows_) widths.back() = std::max(widths.back(), columns_of(row[column]));
  }
  std::size_t before_last = indent + 2 * (widths.size() - 1);
  for (std::size_t column = 0; column + 1 < widths.size(); ++column) before_last += widths[column];
  const std::size_t room = width == 0 ? widths.back() : std::max<std::size_t>(width, before_last + 2) - before_last;
  std::string result;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(indent, ' ');
    for (std::size_t column = 0; column < cells.size(); ++column) {
      if (column > 0) text += "  ";
      const bool last = column + 1 == cells.size();
      const std::string cell = last && width > 0 ? shortened(cells[column], room) : cells[column];
      const std::string blank(widths[column] - std::min(widths[column], columns_of(cell)), ' ');
      text += left_[column] ? cell + blank : blank + cell;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    result += text + '\n';
  };
  line(titles_);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    line(rows_[i]);
    if (const auto note = notes_.find(i + 1); note != notes_.end()) result += note->second;
  }
  return result;
}

std::string shortened(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width || width < 2) return text;
  return text.substr(0, byte_behind(text, width - 2)) + "..";
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string result;
  std::string rest = text;
  const std::string margin(indent, ' ');
  while (true) {
    const std::size_t room = result.empty() ? width : width - indent;
    if (!result.empty()) result += '\n' + margin;
    if (columns_of(rest) <= room) return result + rest;
    std::size_t cut = rest.rfind(' ', byte_behind(rest, room));
    if (cut == std::string::npos || cut == 0) cut = std::min(rest.find(' '), rest.size());
    result += rest.substr(0, cut);
    rest.erase(0, std::min(cut + 1, rest.size()));
    if (rest.empty()) return result;
  }
}

std::string fitting_in(const std::vector<std::string>& pieces, const std::string& between, std::size_t width) {
  std::string text;
  for (const std::string& piece : pieces) {
    const std::string more = text.empty() ? piece : fmt::format("{}{}{}", text, between, piece);
    if (columns_of(more) > width) {
      if (text.empty()) return shortened(piece, width);
      return columns_of(text + between) + 2 <= width ? text + between + ".." : text;
    }
    text = more;
  }
  return text;
}

namespace {

std::string label(const Screen& screen, const std::string& name) {
  return screen.in(fmt::emphasis::bold, fmt::format("{:<{}}", name, kLabel));
}

}  // namespace

std::string line_of(const Screen& screen, const std::string& name, const std::vector<std::string>& pieces) {
  // Lines break between pieces. A piece is cut only if it is longer than a line.
  std::string text, line;
  const std::size_t room = screen.width - kLabel;
  const std::string margin = '\n' + std::string(kLabel, ' ');
  for (const std::string& piece : pieces) {
    const std::string more = line.empty() ? piece : fmt::format("{}  {}", line, piece);
    if (!line.empty() && columns_of(more) > room) {
      text += line + margin;
      line = piece;
    } else {
      line = more;
    }
    if (columns_of(line) > room) line = wrapped(line, room, 0);
  }
  text += line;
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1))
    if (text.compare(at, margin.size(), margin) != 0) text.insert(at + 1, kLabel, ' ');
  return label(screen, name) + text + '\n';
}

std::string one_line_of(const Screen& screen, const std::string& name, const std::vector<std::string>& pieces,
                        const std::string& between) {
  return label(screen, name) + fitting_in(pieces, between, screen.width - kLabel) + '\n';
}

std::string command_of(const Screen& screen, const std::string& name, const std::string& command) {
  std::string text = wrapped(command, screen.width - kLabel - 2, 0);
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
    text.insert(at, " \\");
    at += 2;
    text.insert(at + 1, kLabel + 2, ' ');
  }
  return label(screen, name) + text + '\n';
}

std::string bar(const Screen& screen, const std::vector<BarPart>& parts, double whole, std::size_t width) {
  if (!screen.colour || width < 4 || !(whole > 0.0)) return "";
  const std::size_t room = width - 2;
  std::string text;
  double sum = 0.0;
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sum += parts[i].amount;
    const auto end = std::min(room, static_cast<std::size_t>(std::llround(static_cast<double>(room) * sum / whole)));
    if (end <= drawn) continue;
    const std::size_t columns = end - drawn;
    const std::string name = parts[i].name.size() <= columns ? parts[i].name : "";
    text +=
        fmt::format(fmt::fg(fmt::terminal_color::black) | fmt::bg(kHues[i % kHues.size()]), "{:<{}}", name, columns);
    drawn = end;
  }
  return '[' + text + std::string(room - drawn, '.') + ']';
}

std::vector<std::string> legend(const Screen& screen, const std::vector<std::string>& texts) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < texts.size(); ++i)
    result.push_back(screen.in(fmt::fg(kHues[i % kHues.size()]), texts[i]));
  return result;
}

bool is_asked(const std::vector<std::string>& asked, const std::string& name) {
  return std::ranges::count(asked, name) > 0 || std::ranges::count(asked, "all") > 0;
}

std::string seconds_text(double seconds) {
  if (seconds >= 1000.0) return fmt::format("{:.0f}", seconds);
  if (seconds >= 100.0) return fmt::format("{:.1f}", seconds);
  if (seconds >= 10.0) return fmt::format("{:.2f}", seconds);
  if (seconds >= 1.0) return fmt::format("{:.3f}", seconds);
  return fmt::format("{:.4f}", seconds);
}

std::string grouped_digits(double number) {
  std::string text = fmt::format("{:.0f}", number);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > (text.front() == '-' ? 1 : 0); at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

}  // namespace foldwise::planner

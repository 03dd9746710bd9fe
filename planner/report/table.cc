#include "planner/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::planner {

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

std::string Table::text(int indent) const {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < titles_.size(); ++column) {
    widths.push_back(titles_[column].size());
    for (const auto& row : rows_) widths.back() = std::max(widths.back(), row[column].size());
  }
  std::string result;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(static_cast<std::size_t>(indent), ' ');
    for (std::size_t column = 0; column < cells.size(); ++column) {
      if (column > 0) text += "  ";
      text += left_[column] ? fmt::format("{:<{}}", cells[column], widths[column])
                            : fmt::format("{:>{}}", cells[column], widths[column]);
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
  if (text.size() <= width || width < 2) return text;
  return text.substr(0, width - 2) + "..";
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string result;
  std::string rest = text;
  const std::string margin(indent, ' ');
  while (true) {
    const std::size_t room = result.empty() ? width : width - indent;
    if (!result.empty()) result += '\n' + margin;
    if (rest.size() <= room) return result + rest;
    std::size_t cut = rest.rfind(' ', room);
    if (cut == std::string::npos || cut == 0) cut = std::min(rest.find(' '), rest.size());
    result += rest.substr(0, cut);
    rest.erase(0, std::min(cut + 1, rest.size()));
    if (rest.empty()) return result;
  }
}

std::string seconds_text(double seconds) {
  if (seconds >= 1000.0) return fmt::format("{:.0f}", seconds);
  if (seconds >= 100.0) return fmt::format("{:.1f}", seconds);
  if (seconds >= 10.0) return fmt::format("{:.2f}", seconds);
  if (seconds >= 1.0) return fmt::format("{:.3f}", seconds);
  return fmt::format("{:.4f}", seconds);
}

}  // namespace foldwise::planner

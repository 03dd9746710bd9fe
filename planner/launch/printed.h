#pragma once
#include <cmath>
#include <optional>
#include <string_view>

#include "costmodel/config/number.h"

// Parts of a text that a program printed.
namespace foldwise::planner {

/// `text` without blanks at its ends.
[[nodiscard]] inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// The finite number that the whole text represents.
[[nodiscard]] inline std::optional<double> finite_number_in(std::string_view text) {
  const auto number = config::number_in<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

}  // namespace foldwise::planner

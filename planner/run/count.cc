#include "planner/run/count.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

namespace foldwise::planner {

std::optional<std::int64_t> count_in(std::string_view text, int kilo) {
  constexpr std::string_view kLetters = "KMBT";
  constexpr double kMost = 1e18;
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc{} || rest.size() > 1) return std::nullopt;
  if (!rest.empty()) {
    const auto letter = static_cast<char>(std::toupper(static_cast<unsigned char>(rest.front())));
    const std::size_t power = kLetters.find(letter == 'G' ? 'B' : letter);
    if (power == std::string_view::npos) return std::nullopt;
    number *= std::pow(kilo, static_cast<double>(power + 1));
  }
  const double whole = std::round(number);
  if (!(std::abs(number) <= kMost) || std::abs(number - whole) > 1e-9 * std::abs(number)) return std::nullopt;
  return static_cast<std::int64_t>(whole);
}

}  // namespace foldwise::planner

#pragma once
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace foldwise::config {

/// The number that the whole text represents, as from_chars reads it (including "inf" and "nan"). Nothing if it is no
/// number or does not fit into `Number`.
template <typename Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace foldwise::config

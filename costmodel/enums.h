#pragma once
#include <array>
#include <cstddef>
#include <string_view>

// Array sizes and name lists for enums, derived from the enum itself. A new enumerator enlarges the array, and a list
// of names without it does not compile.
namespace foldwise::costmodel {

/// Whether `Value` is an enumerator. Compilers print any other value of an enum as a cast, "(Enum)7".
template <auto Value>
[[nodiscard]] consteval bool is_enumerator() {
  const std::string_view signature = __PRETTY_FUNCTION__, value = signature.substr(signature.rfind('=') + 2);
  const std::size_t cast = value.rfind(')');
  return cast == std::string_view::npos || value[cast + 1] < '0' || value[cast + 1] > '9';
}

/// Number of enumerators of an enum that counts from 0 without gaps.
template <typename Enum, std::size_t From = 0>
[[nodiscard]] consteval std::size_t enumerators() {
  if constexpr (is_enumerator<static_cast<Enum>(From)>())
    return enumerators<Enum, From + 1>();
  else
    return From;
}

/// Names of an enum's values, in order.
template <typename Enum, typename... Names>
[[nodiscard]] consteval auto names_of(Names... names) {
  static_assert(sizeof...(Names) == enumerators<Enum>(), "one name for every enumerator");
  return std::array<std::string_view, sizeof...(Names)>{names...};
}

}  // namespace foldwise::costmodel

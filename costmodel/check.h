#pragma once
#include <stdexcept>
#include <string>

namespace foldwise::detail {
[[noreturn]] inline void check_failed(const char* file, int line, const char* condition, const std::string& what) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition +
                         (what.empty() ? "" : ": " + what));
}
}  // namespace foldwise::detail

/// Checks an invariant of ours, never the user's input. Always on. Throws std::logic_error, which main reports as a
/// bug.
#define FW_CHECK(condition, ...)                                                                                  \
  do {                                                                                                            \
    if (!(condition)) ::foldwise::detail::check_failed(__FILE__, __LINE__, #condition, std::string{__VA_ARGS__}); \
  } while (false)

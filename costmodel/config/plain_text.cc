#include "costmodel/config/plain_text.h"

#include <algorithm>
#include <cstddef>

namespace foldwise::config {
namespace {

constexpr char kEscape = '\x1b', kBell = '\x07';

/// The end of the escape sequence that begins at `at` (ECMA-48, 5.4 and 5.6). One that is not complete within its line
/// is the escape character alone.
std::size_t end_of_sequence(const std::string& text, std::size_t at) {
  const std::size_t line = std::min(text.find('\n', at), text.size());
  std::size_t next = at + 1;
  if (next >= line) return at + 1;
  if (text[next] == '[') {  // Parameters, then one final byte: "\x1b[1;31m".
    for (++next; next < line; ++next)
      if (text[next] >= '@' && text[next] <= '~') return next + 1;
    return at + 1;
  }
  if (text[next] == ']') {  // A title or a link, up to a bell or "\x1b\".
    for (++next; next < line; ++next) {
      if (text[next] == kBell) return next + 1;
      if (text[next] == kEscape && next + 1 < line && text[next + 1] == '\\') return next + 2;
    }
    return at + 1;
  }
  while (next < line && text[next] >= ' ' && text[next] <= '/') ++next;  // Intermediate bytes: "\x1b(B".
  return next < line ? next + 1 : at + 1;
}

}  // namespace

std::string plain_text(const std::string& text) {
  std::string plain;
  plain.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == kEscape) {
      at = end_of_sequence(text, at);
      continue;
    }
    if (text[at] != '\r' || at + 1 == text.size() || text[at + 1] != '\n') plain += text[at];
    ++at;
  }
  return plain;
}

}  // namespace foldwise::config

#pragma once
#include <string>

// Texts that came through a terminal or another system.
namespace foldwise::config {

/// The text without terminal escape sequences (colours, ECMA-48) and with "\n" for "\r\n". Lines keep their numbers.
[[nodiscard]] std::string plain_text(const std::string& text);

}  // namespace foldwise::config

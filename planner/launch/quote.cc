#include "planner/launch/quote.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string_view>

#include "planner/launch/arguments.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

/// The text in double quotes, with control characters, quotes and backslashes escaped as in JSON. Python reads it the
/// same way. Invalid UTF-8 becomes U+FFFD.
std::string escaped(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string shell_word(const std::string& text) {
  if (text.find('\0') != std::string::npos) throw std::logic_error("a word of a shell cannot hold a NUL");
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+./:,=") == std::string::npos;
  if (plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string python_literal(const json& value) {
  if (value.is_null()) return "None";
  if (value.is_string()) return escaped(value.get<std::string>());
  if (!value.is_array()) return word_of(value);
  std::string text;
  for (const json& item : value) text += (text.empty() ? "" : ", ") + python_literal(item);
  return "[" + text + "]";
}

std::string comment_text(const std::string& text) {
  bool plain = true;
  for (const char c : text) plain &= static_cast<unsigned char>(c) >= ' ' && c != '\x7f';
  if (plain) return text;
  const std::string quoted = escaped(text);
  return quoted.substr(1, quoted.size() - 2);
}

std::string with_placeholders(const std::string& script, std::set<std::string>& found) {
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  const auto ends_word = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0 || c == '/' || c == ':';
  };
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = script.find('<'); at != std::string::npos; at = script.find('<', at + 1)) {
    if (at < done) continue;
    // NAME="<some folder>" is quoted here, but perhaps not where the variable is used.
    if (const std::size_t close = script.find_first_of("<>\"'\n", at + 1);
        at > 1 && script[at - 1] == '"' && script[at - 2] == '=' && close < script.size() - 1 && close > at + 1 &&
        script.compare(close, 2, ">\"") == 0) {
      const std::string placeholder = script.substr(at, close + 1 - at);
      found.insert(placeholder);
      std::string text = placeholder.substr(1, placeholder.size() - 2);
      std::ranges::replace(text, ' ', '-');
      result += script.substr(done, at - done) + text;
      done = close + 1;
      continue;
    }
    if (at == 0 || std::string_view("=:/").find(script[at - 1]) == std::string_view::npos) continue;
    const bool assigned = script[at - 1] == '=';  // PATH=<Specify path>_text_document
    std::size_t end = at + 1;
    while (end < script.size() && (is_name(script[end]) || (assigned && end > at + 1 && script[end] == ' '))) ++end;
    if (end == at + 1 || end >= script.size() || script[end] != '>') continue;
    if (end + 1 < script.size() && !ends_word(script[end + 1]) && !(assigned && script[end + 1] == '_')) continue;
    const std::string placeholder = script.substr(at, end + 1 - at);
    found.insert(placeholder);
    result += script.substr(done, at - done) + "'" + placeholder + "'";
    done = end + 1;
  }
  return result + script.substr(done);
}

}  // namespace foldwise::planner

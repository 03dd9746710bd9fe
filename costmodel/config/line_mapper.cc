#include "costmodel/config/line_mapper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "costmodel/config/counting_iterator.h"

// A pass of SAX events over an iterator that counts newlines fills the map from JSON pointer to line, and finds
// duplicates and syntax errors.
namespace foldwise::config {
namespace {

using Json = nlohmann::json;

/// Our files have at most ten levels.
constexpr std::size_t kMaxDepth = 100;
/// Limit for the pointers of all values, with some bytes for each: half a million values. Our largest file has 125,000.
constexpr std::size_t kMostPointerBytes = std::size_t{48} << 20, kValueBytes = 64;

/// Receives the events of one parse. The library prescribes the names of the members.
class LineMapper {
 public:
  LineMapper(std::string_view text, const std::string& file, Progress& progress, Diagnostics& diagnostics,
             std::unordered_map<std::string, int>& lines)
      : text_(text),
        first_line_(progress.line),
        file_(file),
        progress_(progress),
        diagnostics_(diagnostics),
        lines_(lines) {}

  bool null() { return value(progress_.line); }
  bool boolean(bool /*unused*/) { return value(progress_.line); }
  bool number_integer(Json::number_integer_t /*unused*/) { return value(line_of_number()); }
  bool number_unsigned(Json::number_unsigned_t /*unused*/) { return value(line_of_number()); }
  bool number_float(Json::number_float_t /*unused*/, const Json::string_t& /*unused*/) {
    return value(line_of_number());
  }
  bool string(Json::string_t& /*unused*/) { return value(progress_.line); }
  bool binary(Json::binary_t& /*unused*/) { return value(progress_.line); }
  bool start_object(std::size_t /*unused*/) { return open(false); }
  bool start_array(std::size_t /*unused*/) { return open(true); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(Json::string_t& name) {
    Level& level = levels_.back();
    level.child = level.pointer + "/" + pointer_step(name);
    const auto [seen, is_new] = level.keys.emplace(name, progress_.line);
    if (!is_new)
      diagnostics_.error({file_, progress_.line, level.child},
                         fmt::format("duplicate key; the first is on line {}", seen->second));
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*last token*/, const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 2, column 1: syntax error ..." -> "syntax error ..."
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'" -> "number overflow parsing '1e999'"
    std::string reason = error.what();
    if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
    if (reason.rfind("parse error at ", 0) == 0)
      if (const auto colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
    // The text read last may be long or not UTF-8, which may be why it was refused.
    if (const auto last_read = reason.find("; last read: "); last_read != std::string::npos) reason.erase(last_read);
    constexpr std::size_t kLongestReason = 200;  // An overflowing number may have any number of digits.
    if (reason.size() > kLongestReason) reason.replace(kLongestReason, std::string::npos, "...");
    if (text_.empty())
      reason = "expected an object or a list, found nothing";  // The library's text depends on its version.
    // `position` counts the characters read, including the offending one. At the end of the text there is none.
    const std::size_t offending = position == 0 ? 0 : position - 1;
    const std::string_view before = text_.substr(0, std::min(offending, text_.size()));
    const auto line = first_line_ + std::count(before.begin(), before.end(), '\n');
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
    diagnostics_.error({file_, static_cast<int>(line), ""},
                       fmt::format("not valid JSON at column {}: {}", column, reason));
    return false;
  }

 private:
  struct Level {
    std::string pointer;
    std::string child;  ///< Pointer of the member whose key was read last.
    bool is_array = false;
    std::size_t index = 0;                      ///< Index of the next element.
    std::unordered_map<std::string, int> keys;  ///< Line of each key.
  };

  /// A number ends where the next character begins, so the lexer has read one character too many.
  [[nodiscard]] int line_of_number() const { return progress_.line - (progress_.last == '\n' ? 1 : 0); }

  std::string next_pointer() {
    if (levels_.empty()) return "";
    Level& level = levels_.back();
    if (!level.is_array) return level.child;
    return fmt::format("{}/{}", level.pointer, level.index++);
  }

  bool value(int line) { return add_line(next_pointer(), line); }

  bool add_line(const std::string& pointer, int line) {
    bytes_ += pointer.size() + kValueBytes;
    if (bytes_ > kMostPointerBytes) {
      diagnostics_.error({file_, line, ""}, "more values, or longer names of them, than are read: some 500000");
      return false;
    }
    lines_.insert_or_assign(pointer, line);
    return true;
  }

  bool open(bool is_array) {
    if (levels_.size() >= kMaxDepth) {
      diagnostics_.error({file_, progress_.line, ""}, fmt::format("nested more than {} levels deep", kMaxDepth));
      return false;
    }
    Level level;
    level.pointer = next_pointer();
    level.is_array = is_array;
    levels_.push_back(std::move(level));
    return add_line(levels_.back().pointer, progress_.line);
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  int first_line_;
  const std::string& file_;
  Progress& progress_;
  Diagnostics& diagnostics_;
  std::unordered_map<std::string, int>& lines_;
  std::vector<Level> levels_;
  std::size_t bytes_ = 0;  ///< Bytes of the values so far.
};

}  // namespace

std::unordered_map<std::string, int> lines_of_values(std::string_view text, const std::string& file, int first_line,
                                                     Diagnostics& diagnostics) {
  std::unordered_map<std::string, int> lines;
  Progress progress{.line = first_line};
  LineMapper mapper(text, file, progress, diagnostics, lines);
  const char* const end = text.data() + text.size();
  Json::sax_parse(CountingIterator(text.data(), progress), CountingIterator(end, progress), &mapper);
  return lines;
}

std::string pointer_step(std::string_view key) {
  std::string result;
  for (const char c : key) {
    if (c == '~')
      result += "~0";
    else if (c == '/')
      result += "~1";
    else
      result += c;
  }
  return result;
}

}  // namespace foldwise::config

#include "planner/launch/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <system_error>

namespace foldwise::planner {

namespace {

namespace fs = std::filesystem;

/// Words of one line of a call, without quotes; `goes_on`: a backslash ends it. Empty words are kept: they are
/// arguments.
struct CallLine {
  std::vector<std::string> words;
  bool goes_on = false, ends = false;
};

CallLine call_line(const std::string& line) {
  CallLine result;
  std::string word;
  bool any = false;
  char quote = '\0';
  const auto end_word = [&] {
    if (any) result.words.push_back(word.find('$') == std::string::npos ? word : "");
    word.clear();
    any = false;
  };
  for (const char c : line) {
    if (quote != '\0') {
      if (c == quote)
        quote = '\0';
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      any = true;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      end_word();
    } else if (c == '#' && !any) {
      break;
    } else if (c == '|' || c == '&' || c == ';' || c == '`' || c == '>') {
      result.ends = true;
      break;
    } else if (c == '\\') {
      result.goes_on = true;
    } else {
      word += c;
      any = true;
    }
  }
  end_word();
  return result;
}

/// `comments`: only lines that begin with #.
std::optional<ShownCall> call_in(const std::string& text, const std::string& name, bool comments) {
  std::istringstream in(text);
  std::optional<ShownCall> call;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.size() > 8192) continue;
    const std::size_t begin = line.find_first_not_of(comments && line.starts_with('#') ? "# \t" : " \t");
    if (begin == std::string::npos || (comments && !line.starts_with('#'))) {
      if (call) break;
      continue;
    }
    line.erase(0, begin);
    if (!call) {
      static const std::regex command(R"((?:\$ )?(?:sh|bash) (?:\S*/)?([\w.-]+\.sh)((?:\s[^\n]*)?))");
      std::smatch found;
      if (!std::regex_match(line, found, command) || found[1] != name) continue;
      call = ShownCall{.arguments = {}, .where = fmt::format("line {}", number)};
      line = found[2];
    }
    CallLine words = call_line(line);
    call->arguments.insert(call->arguments.end(), words.words.begin(), words.words.end());
    if (words.goes_on && !words.ends) continue;
    if (!call->arguments.empty()) break;
    call.reset();
  }
  return call && !call->arguments.empty() ? call : std::nullopt;
}

}  // namespace

std::optional<ShownCall> shown_call(const std::string& text, const std::string& folder, const std::string& name) {
  if (std::optional<ShownCall> call = call_in(text, name, /*comments=*/true)) return call;
  constexpr std::uintmax_t kMostBytes = 1U << 20U;
  constexpr std::size_t kMostFiles = 16;
  std::error_code error;
  std::vector<fs::path> files;
  if (!folder.empty())
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == ".md" && it->is_regular_file(error) && it->file_size(error) <= kMostBytes)
        files.push_back(it->path());
  std::sort(files.begin(), files.end());
  if (files.size() > kMostFiles) files.resize(kMostFiles);
  for (const fs::path& file : files) {
    std::ifstream in(file);
    const std::string shown{std::istreambuf_iterator<char>(in), {}};
    if (std::optional<ShownCall> call = call_in(shown, name, /*comments=*/false)) {
      call->where = fmt::format("{}, {}", file.filename().string(), call->where);
      return call;
    }
  }
  return std::nullopt;
}

}  // namespace foldwise::planner

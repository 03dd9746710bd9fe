#include "planner/launch/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "planner/launch/files.h"

namespace foldwise::planner {

namespace {

namespace fs = std::filesystem;

/// The words of one line of a call, without quotes. `goes_on`: the line ends with a backslash. Empty words are
/// arguments and are kept.
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

bool is_name(const std::string& word) {
  return !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) == 0 &&
         std::ranges::all_of(word, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

/// Takes NAME=VALUE apart; false if it is none.
bool add_variable(const std::string& word, std::map<std::string, std::string>& variables) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || !is_name(word.substr(0, equals))) return false;
  variables[word.substr(0, equals)] = word.substr(equals + 1);
  return true;
}

/// Nothing if the words call another program, or have no argument.
std::optional<ShownCall> call_of(const std::vector<std::string>& words, const std::string& name) {
  ShownCall call;
  auto word = words.begin();
  const auto is = [&](std::string_view text) { return word != words.end() && *word == text; };
  if (is("$")) ++word;
  while (word != words.end() && add_variable(*word, call.variables)) ++word;
  const bool by_shell = is("sh") || is("bash");
  if (by_shell) ++word;
  if (word == words.end() || base_of(*word) != name) return std::nullopt;
  if (!by_shell && word->find('/') == std::string::npos) return std::nullopt;  // Only mentions the script.
  call.arguments.assign(word + 1, words.end());
  return call.arguments.empty() ? std::nullopt : std::optional(call);
}

/// `comments`: read only lines that begin with #. `where`: text before the line number.
void add_calls(const std::string& text, const std::string& name, bool comments, const std::string& where,
               std::vector<ShownCall>& calls) {
  std::istringstream in(text);
  std::vector<std::string> words;               // Words of a command, joined over lines that end with a backslash.
  std::map<std::string, std::string> exported;  // In lines before, of the same block.
  int number = 0, begun = 0;
  const auto end_command = [&] {
    std::optional<ShownCall> call = call_of(words, name);
    for (std::size_t i = 1; i < words.size() && words.front() == "export"; ++i) add_variable(words[i], exported);
    words.clear();
    if (call) call->variables.insert(exported.begin(), exported.end());
    if (!call || std::ranges::find(calls, call->arguments, &ShownCall::arguments) != calls.end()) return;
    call->where = fmt::format("{}line {}", where, begun);
    calls.push_back(std::move(*call));
  };
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.size() > 8192) continue;
    const std::size_t begin = line.find_first_not_of(comments && line.starts_with('#') ? "# \t" : " \t");
    if (begin == std::string::npos || (comments && !line.starts_with('#'))) {
      end_command();
      if (comments) exported.clear();
      continue;
    }
    if (line.find("```") != std::string::npos) exported.clear();
    const CallLine more = call_line(line.substr(begin));
    if (words.empty()) begun = number;
    words.insert(words.end(), more.words.begin(), more.words.end());
    if (!more.goes_on || more.ends) end_command();
  }
  end_command();
}

}  // namespace

std::vector<ShownCall> shown_calls(const std::string& text, const std::string& folder, const std::string& name) {
  std::vector<ShownCall> calls;
  add_calls(text, name, /*comments=*/true, "", calls);
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
    add_calls(shown, name, /*comments=*/false, file.filename().string() + ", ", calls);
  }
  return calls;
}

}  // namespace foldwise::planner

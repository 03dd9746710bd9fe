#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <regex>
#include <sstream>
#include <string_view>
#include <utility>

#include "planner/launch/files.h"
#include "planner/launch/script.h"

// Reads texts that need no shell.
namespace foldwise::planner {

namespace {

using Words = std::vector<std::string>;

constexpr std::string_view kBlanks = " \t\r";

/// The words of a text's lines. Quotes are removed, and lines are joined after a backslash. `shell`: outside quotes
/// there is something that only a shell understands.
struct Lines {
  std::vector<Words> lines;
  bool shell = false;
};

Lines lines_of(std::string_view text) {
  Lines result;
  Words line;
  std::string word;
  bool any = false;  // `word` is a word, perhaps an empty one.
  char quote = '\0';
  const auto end_word = [&] {
    if (any) line.push_back(std::move(word));
    word.clear();
    any = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      if (c == quote)
        quote = '\0';
      else if (quote == '"' && c == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\'))
        word += text[++i];
      else
        word += c;
      result.shell |= quote == '"' && (c == '$' || c == '`');
    } else if (c == '\\' && i + 1 < text.size()) {
      if (text[i + 1] == '\r') ++i;
      if (i + 1 < text.size() && text[++i] != '\n') word += text[i], any = true;
    } else if (c == '\n' || kBlanks.find(c) != std::string_view::npos) {
      end_word();
      if (c == '\n' && !line.empty()) result.lines.push_back(std::exchange(line, {}));
    } else if (c == '#' && !any) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else {
      any = true;
      if (c == '"' || c == '\'')
        quote = c;
      else
        word += c;
      result.shell |= std::string_view("$`;|&<>(){}").find(c) != std::string_view::npos;
    }
  }
  end_word();
  if (!line.empty()) result.lines.push_back(std::move(line));
  result.shell |= quote != '\0';
  return result;
}

bool is_flag(const std::string& word) { return word.starts_with("--") && word.size() > 2; }

bool is_python(const std::string& word) {
  const std::string base = base_of(word);
  return base == "torchrun" || (base.starts_with("python") && base.find_first_of(" =") == std::string::npos);
}

Words joined(const std::vector<Words>& lines) {
  Words words;
  for (const Words& line : lines) words.insert(words.end(), line.begin(), line.end());
  return words;
}

bool is_assignment(const std::string& word) {
  static const std::regex assignment("[A-Za-z_][A-Za-z_0-9]*=[^]*");
  return word.size() < 4096 && std::regex_match(word, assignment);
}

/// The line of `ps` output that starts the largest command, without the columns before the command. Nothing if the text
/// is not output of `ps`.
std::optional<Started> process_list(const std::string& text) {
  static const std::regex process(R"(\s*([A-Za-z_][-\w.+]*\s+)?\d+\s[^]*)"), head(R"(\s*([A-Z%]+\s+)*PID\s[^]*)");
  Started most;
  std::size_t flags = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(kBlanks) == std::string::npos) continue;
    const std::string begin = line.substr(0, 200);
    if (!std::regex_match(begin, process) && !std::regex_match(begin, head)) return std::nullopt;
    std::istringstream words_in(line);
    Words words;
    for (std::string word; words_in >> word;) words.push_back(std::move(word));
    const auto program = std::ranges::find_if(words, is_python);
    const auto count = static_cast<std::size_t>(std::count_if(program, words.end(), is_flag));
    if (count <= flags) continue;
    flags = count;
    most.words.assign(program, words.end());
  }
  return flags > 0 ? std::optional(most) : std::nullopt;
}

bool is_script_name(const std::string& file) {
  return std::ranges::any_of(std::array{".sh", ".bash", ".sbatch", ".slurm"},
                             [&](const char* end) { return file.ends_with(end); });
}

/// /proc/PID/cmdline, whose words end with a NUL, from the program that trains.
std::optional<Started> words_of_process(const std::string& text) {
  Words words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, '\0');) words.push_back(std::move(word));
  while (!words.empty() && words.back().find_first_not_of('\n') == std::string::npos) words.pop_back();
  const auto program = std::ranges::find_if(words, is_python);
  if (program != words.end()) words.erase(words.begin(), program);
  return words.empty() ? std::nullopt
                       : std::optional(Started{.words = std::move(words), .around = 0, .environment = {}});
}

}  // namespace

std::optional<Started> plain_command(const std::string& text, const std::string& file) {
  if (text.find('\0') != std::string::npos) return words_of_process(text);
  if (text.find("\n#SBATCH") != std::string::npos) return std::nullopt;
  Lines parsed = lines_of(text);
  std::vector<Words>& lines = parsed.lines;
  // The text has one word per line.
  if (lines.size() > 2 && is_python(lines.front().front()) &&
      std::ranges::all_of(lines, [](const Words& line) { return line.size() == 1; }))
    return Started{.words = joined(lines), .around = 0, .environment = {}};
  if (std::optional<Started> process = process_list(text)) return process;
  Started command;
  std::map<std::string, std::string> own;  // Not exported.
  const auto take = [](const std::string& word, std::map<std::string, std::string>& variables) {
    variables[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  };
  while (!lines.empty()) {
    const Words& line = lines.front();
    const bool exports = line.front() == "export" && line.size() > 1;
    if (!std::all_of(line.begin() + (exports ? 1 : 0), line.end(), is_assignment)) break;
    for (const std::string& word : line)
      if (word.find_first_of("$`(") != std::string::npos) return std::nullopt;
    for (auto word = line.begin() + (exports ? 1 : 0); word != line.end(); ++word)
      take(*word, exports ? command.environment : own);
    lines.erase(lines.begin());
  }
  if (lines.empty()) return std::nullopt;
  if (is_flag(lines.front().front())) {  // A shell would not take this for a command.
    command.environment.insert(own.begin(), own.end());
    command.words = joined(lines);
    std::erase(command.words, " ");  // Of a blank behind the backslash that continues a line.
    return command;
  }
  Words& line = lines.front();
  const auto program = std::ranges::find_if_not(line, is_assignment);
  if (parsed.shell || !is_python(*program)) return std::nullopt;
  // Only in a text that is no script a line of arguments continues the command above it.
  const bool script = text.starts_with("#!") || is_script_name(file);
  if (lines.size() > 1 && (script || !std::all_of(lines.begin() + 1, lines.end(),
                                                  [](const Words& other) { return is_flag(other.front()); })))
    return std::nullopt;
  for (auto word = line.begin(); word != program; ++word) take(*word, command.environment);
  line.erase(line.begin(), program);
  command.words = joined(lines);
  return command;
}

}  // namespace foldwise::planner

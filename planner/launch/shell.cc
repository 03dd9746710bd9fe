#include "planner/launch/shell.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

namespace foldwise::planner {
namespace {

using Values = std::vector<std::string>;

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) { return is_blank(c) || std::string_view("\n;|&()<>").find(c) != std::string_view::npos; }

/// $(( ... )): whole numbers, + - * / %, parentheses, names.
class Arithmetic {
 public:
  Arithmetic(std::string_view text, const std::map<std::string, Values>& variables)
      : text_(text), variables_(variables) {}
  std::optional<std::int64_t> value() {
    const std::int64_t result = sum();
    skip();
    return failed_ || at_ != text_.size() ? std::nullopt : std::optional(result);
  }

 private:
  void skip() {
    while (at_ < text_.size() && (is_blank(text_[at_]) || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::int64_t sum() {
    std::int64_t result = product();
    for (;;) {
      if (take('+'))
        failed_ |= __builtin_add_overflow(result, product(), &result);
      else if (take('-'))
        failed_ |= __builtin_sub_overflow(result, product(), &result);
      else
        return result;
    }
  }
  std::int64_t product() {
    std::int64_t result = atom();
    for (;;) {
      const bool times = take('*'), over = !times && take('/'), rest = !times && !over && take('%');
      if (!times && !over && !rest) return result;
      const std::int64_t right = atom();
      if (times)
        failed_ |= __builtin_mul_overflow(result, right, &result);
      else if (right == 0 || right == -1)
        failed_ |= right == 0 || __builtin_sub_overflow(0, over ? result : 0, &result);
      else
        result = over ? result / right : result % right;
    }
  }
  std::int64_t atom() {
    if (++atoms_ > kMostAtoms) failed_ = true;
    if (failed_) return 0;
    if (take('(')) {
      const std::int64_t result = sum();
      failed_ |= !take(')');
      return result;
    }
    if (take('-')) {
      std::int64_t result = 0;
      failed_ |= __builtin_sub_overflow(0, atom(), &result);
      return result;
    }
    static_cast<void>(take('$'));
    const bool braced = take('{');
    skip();
    const std::size_t start = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    std::string word(text_.substr(start, at_ - start));
    if (braced) failed_ |= !take('}');
    if (const auto found = variables_.find(word); found != variables_.end() && !found->second.empty())
      word = found->second.front().substr(0, kMostDigits + 1);
    if (word.empty() || word.size() > kMostDigits ||
        !std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; })) {
      failed_ = true;
      return 0;
    }
    return std::stoll(word);
  }

  std::string_view text_;
  const std::map<std::string, Values>& variables_;
  std::size_t at_ = 0;
  static constexpr int kMostAtoms = 1000;  ///< Each may be a level of parentheses.
  static constexpr std::size_t kMostDigits = 15;
  int atoms_ = 0;
  bool failed_ = false;
};

/// One pass over the text: words are expanded as they are read, because variables change on the way.
class Reader {
 public:
  Reader(const std::string& text, const std::string& file, const std::map<std::string, std::string>& given,
         config::Diagnostics& diagnostics)
      : text_(text), file_(file), diagnostics_(diagnostics) {
    for (const auto& [name, value] : given) {
      variables_[name] = {value};
      given_.insert(name);
    }
  }

  ShellScript read() {
    while (at_ < text_.size()) command();
    if (!conditions_.empty()) mistake(conditions_.back().line, "if without fi");
    for (const auto& [name, values] : variables_)
      if (!values.empty()) script_.variables[name] = values.front();
    return std::move(script_);
  }

 private:
  /// An if that is open: whether its branch runs, and whether one did.
  struct Condition {
    int line = 0;
    bool runs = false, done = false;
  };

  /// Bytes, with those of a text itself, that the values of variables take wherever they are put. Megatron's arguments
  /// are some kilobytes; a few lines that double a variable have no end.
  static constexpr std::size_t kMostExpanded = std::size_t{64} << 20;
  static constexpr int kMaxDepth = 100;

  /// Whether `values` may be put somewhere once more; else that ends the reading.
  bool affords(const Values& values) {
    for (const std::string& value : values) expanded_ += sizeof(std::string) + value.size();
    if (expanded_ > kMostExpanded)
      refuse(fmt::format("the values of variables take more than {} MiB", kMostExpanded >> 20U));
    return !refused_;
  }
  void refuse(std::string message) {
    mistake(line_, std::move(message));
    refused_ = true;
    at_ = text_.size();
  }

  void mistake(int line, std::string message) {
    if (!refused_) diagnostics_.error({file_, line, ""}, std::move(message));
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  char next() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  [[nodiscard]] bool running() const {
    return std::ranges::all_of(conditions_, [](const Condition& c) { return c.runs; });
  }

  bool skip_blanks() {
    for (;;) {
      if (is_blank(peek()))
        next();
      else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n')))
        while (next() != '\n') {
        }
      else
        return at_ < text_.size();
    }
  }

  void comment() {
    const std::size_t start = at_;
    while (at_ < text_.size() && peek() != '\n') next();
    const std::string_view line = std::string_view(text_).substr(start, at_ - start);
    if (!line.starts_with("#SBATCH ")) return;
    std::string words(line.substr(8));
    const std::size_t begin = words.find_first_not_of(" \t");
    const std::size_t end = words.find_first_of("= \t", begin);
    if (begin == std::string::npos || end == std::string::npos) return;
    std::string name = words.substr(begin, end - begin);
    const std::size_t value = words.find_first_not_of("= \t", end);
    const std::size_t value_end = words.find_first_of(" \t\r", value);
    if (value == std::string::npos) return;
    name.erase(0, name.find_first_not_of('-'));
    if (name.empty()) return;  // Dashes alone.
    name = name == "N" ? "nodes" : name == "n" ? "ntasks" : name;
    const std::string& text = script_.sbatch[name] = words.substr(value, value_end - value);
    // What Slurm sets for the job's script.
    static const std::map<std::string, std::vector<std::string>> sets = {
        {"nodes", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
        {"ntasks", {"SLURM_NTASKS"}},
        {"ntasks-per-node", {"SLURM_NTASKS_PER_NODE"}},
        {"gpus-per-node", {"SLURM_GPUS_PER_NODE"}}};
    if (const auto known = sets.find(name); known != sets.end())
      for (const std::string& variable : known->second) variables_.emplace(variable, Values{text});
  }

  void command() {
    ShellCommand command;
    bool exporting = false;
    for (;;) {
      if (!skip_blanks()) break;
      const char c = peek();
      if (c == '#') {
        comment();
        continue;
      }
      if (c == '>' || c == '<') {
        if (redirection()) break;
        continue;
      }
      if (ends_word(c)) {
        next();
        break;
      }
      const bool first = command.words.empty();
      if ((first || exporting) && assignment(command, exporting)) continue;
      const int line = line_;
      for (std::string& word : words()) command.words.push_back({std::move(word), line});
      if (command.words.size() == 1 && first && keyword(command)) return;
      exporting = !command.words.empty() && command.words.front().text == "export";
    }
    if (command.words.empty() || !running()) return;
    if (exporting) {
      for (const ShellWord& word : command.words) exported_.insert(word.text);
      return;
    }
    for (const std::string& name : exported_)
      if (const auto found = variables_.find(name);
          found != variables_.end() && !found->second.empty() && affords({found->second.front()}))
        command.environment.emplace(name, found->second.front());
    script_.commands.push_back(std::move(command));
  }

  /// Whether it was a here-document, which ends the command.
  bool redirection() {
    const bool here = peek() == '<' && peek(1) == '<' && peek(2) != '<';
    while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '-') next();
    skip_blanks();
    const std::vector<std::string> target = words();
    if (!here || target.empty()) return false;
    while (at_ < text_.size() && next() != '\n') {
    }
    while (at_ < text_.size()) {  // To the line that holds the word alone.
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      const std::string line = text_.substr(at_, end - at_);
      while (at_ < end) next();
      if (at_ < text_.size()) next();
      if (line.substr(std::min(line.find_first_not_of('\t'), line.size())) == target.front()) break;
    }
    return true;
  }

  /// NAME=value, NAME+=value, NAME=( ... ).
  bool assignment(ShellCommand& command, bool exporting) {
    std::size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    if (end == at_ || std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) return false;
    const bool adds = text_.compare(end, 2, "+=") == 0;
    if (!adds && (end >= text_.size() || text_[end] != '=')) return false;
    const std::string name = text_.substr(at_, end - at_);
    at_ = end + (adds ? 2 : 1);
    Values values;
    const bool array = peek() == '(';
    if (array) {
      array_words(values);
    } else if (!ends_word(peek())) {
      values = {fmt::format("{}", fmt::join(words(/*splits=*/false), " "))};
    } else {
      values = {""};
    }
    if (!running() || given_.contains(name)) return true;
    Values& variable = variables_[name];
    if (!adds)
      variable = std::move(values);
    else if (array)
      variable.insert(variable.end(), values.begin(), values.end());
    else
      variable = {(variable.empty() ? "" : std::move(variable.front())) + values.front()};
    if (exporting) exported_.insert(name);
    // Before a command it is the command's own; alone, a variable of the script: both see it.
    if (!variable.empty() && affords({variable.front()})) command.environment[name] = variable.front();
    return true;
  }

  void array_words(Values& values) {
    const int opened = line_;
    next();
    for (;;) {
      if (!skip_blanks()) return mistake(opened, "expected ) at the end of the array, found the end of the file");
      if (peek() == '\n') {
        next();
      } else if (peek() == '#') {
        comment();
      } else if (peek() == ')') {
        next();
        return;
      } else if (ends_word(peek())) {
        mistake(line_, fmt::format("expected a word of the array or ), found {}", peek()));
        next();
      } else {
        for (std::string& word : words()) values.push_back(std::move(word));
      }
    }
  }

  bool keyword(const ShellCommand& command) {
    const std::string& word = command.words.front().text;
    if (word == "if" || word == "elif") {
      condition(word == "elif");
    } else if (word == "else") {
      if (conditions_.empty()) return false;
      Condition& open = conditions_.back();
      open.runs = !open.done;
      open.done = true;
    } else if (word == "fi") {
      if (conditions_.empty()) return false;
      conditions_.pop_back();
    } else {
      return word == "then" || word == "do";
    }
    return true;
  }

  void condition(bool again) {
    const int line = line_;
    std::vector<std::string> test;
    while (skip_blanks() && peek() != '\n' && peek() != ';') {
      if (ends_word(peek())) {
        test.emplace_back(1, next());
        continue;
      }
      // A word in a test is one word, whatever its value.
      test.push_back(fmt::format("{}", fmt::join(words(/*splits=*/false), " ")));
    }
    if (again && !conditions_.empty() && conditions_.back().done) {
      conditions_.back().runs = false;
      return;
    }
    const bool enclosing = again ? true : running();
    const std::optional<bool> holds = test_value(test);
    if (!holds && enclosing)
      mistake(line, fmt::format("cannot tell without running it whether \"{}\" holds", fmt::join(test, " ")));
    if (!again) conditions_.push_back({.line = line});
    if (conditions_.empty()) return;
    conditions_.back().runs = holds.value_or(false);
    conditions_.back().done |= conditions_.back().runs;
  }

  static std::optional<bool> test_value(std::vector<std::string> test) {
    if (test.size() >= 2 && (test.front() == "[" || test.front() == "[[")) {
      test.erase(test.begin());
      test.pop_back();
    } else {
      return std::nullopt;
    }
    const bool no = !test.empty() && test.front() == "!";
    if (no) test.erase(test.begin());
    std::optional<bool> result;
    // A name that the script does not set is empty to bash.
    for (std::string& word : test)
      if (word.starts_with('$') && word.find(' ') == std::string::npos) word.clear();
    if (test.size() == 1) result = !test[0].empty();
    if (test.size() == 2 && test[0] == "-n") result = !test[1].empty();
    if (test.size() == 2 && test[0] == "-z") result = test[1].empty();
    if (test.size() == 3) {
      const auto whole = [](const std::string& word) -> std::optional<std::int64_t> {
        if (word.empty() || word.size() > 15 ||
            !std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; }))
          return std::nullopt;
        return std::stoll(word);
      };
      const auto a = whole(test[0]), b = whole(test[2]);
      const std::string& op = test[1];
      if (op == "=" || op == "==") result = test[0] == test[2];
      if (op == "!=") result = test[0] != test[2];
      if (a && b) {
        if (op == "-eq") result = *a == *b;
        if (op == "-ne") result = *a != *b;
        if (op == "-gt") result = *a > *b;
        if (op == "-ge") result = *a >= *b;
        if (op == "-lt") result = *a < *b;
        if (op == "-le") result = *a <= *b;
      }
    }
    if (result && no) result = !*result;
    return result;
  }

  /// One word of the text, as the words that it expands to.
  std::vector<std::string> words(bool splits = true) {
    std::vector<std::string> result;
    std::string current;
    bool any = false;  // `current` is a word, though perhaps an empty one.
    const auto add_values = [&](const Values& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i > 0) result.push_back(std::exchange(current, {}));
        current += values[i];
        any = true;
      }
    };
    const auto add_split = [&](const std::string& value) {
      std::string part;
      for (const char c : value) {
        if (!is_blank(c) && c != '\n') {
          current += c;
          any = true;
        } else if (any) {
          result.push_back(std::exchange(current, {}));
          any = false;
        }
      }
    };
    while (at_ < text_.size() && !ends_word(peek())) {
      const char c = peek();
      if (c == '\\') {
        next();
        if (at_ >= text_.size()) break;
        const char escaped = next();
        if (escaped == '\n') break;
        current += escaped;
        any = true;
      } else if (c == '\'') {
        const int line = line_;
        next();
        while (at_ < text_.size() && peek() != '\'') current += next();
        if (at_ >= text_.size())
          mistake(line, "expected ' at the end of the text, found the end of the file");
        else
          next();
        any = true;
      } else if (c == '"') {
        any |= quoted(current, add_values);
      } else if (c == '$') {
        const Values values = expansion();
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (i > 0 && any) {
            result.push_back(std::exchange(current, {}));
            any = false;
          }
          if (splits) {
            add_split(values[i]);
          } else {
            current += values[i];
            any = true;
          }
        }
      } else {
        current += next();
        any = true;
      }
    }
    if (any) result.push_back(std::move(current));
    return result;
  }

  template <typename AddValues>
  /// Whether it is a word, perhaps an empty one: "$@" and "${ARGS[@]}" without values are none.
  bool quoted(std::string& current, const AddValues& add_values) {
    const int line = line_;
    next();
    bool word = peek() == '"';
    while (at_ < text_.size() && peek() != '"') {
      if (peek() == '\\' && std::string_view("\"\\$`\n").find(peek(1)) != std::string_view::npos && peek(1) != '\0') {
        next();
        if (const char c = next(); c != '\n') current += c;
      } else if (peek() == '$') {
        const Values values = expansion();
        add_values(values);
        word |= !values.empty();
      } else {
        current += next();
        word = true;
      }
    }
    if (at_ >= text_.size())
      mistake(line, "expected \" at the end of the text, found the end of the file");
    else
      next();
    return word;
  }

  /// Text up to the `close` that belongs to the `open` before it.
  std::string enclosed(char open, char close) {
    const int line = line_;
    std::string inside;
    for (int depth = 1; at_ < text_.size();) {
      const char c = next();
      depth += c == open ? 1 : c == close ? -1 : 0;
      if (depth == 0) return inside;
      inside += c;
    }
    mistake(line, fmt::format("expected {}, found the end of the file", close));
    return inside;
  }

  /// What follows a $.
  Values expansion() {
    Values values = unbounded_expansion();
    if (!affords(values)) values.clear();
    return values;
  }
  Values unbounded_expansion() {
    next();
    if (peek() == '(' && peek(1) == '(') {
      next();
      next();
      const std::string inside = enclosed('(', ')');
      if (peek() == ')') next();
      const auto value = Arithmetic(inside, variables_).value();
      return {value ? fmt::format("{}", *value) : "$((" + inside + "))"};
    }
    if (peek() == '(') {
      next();
      return {"$(" + enclosed('(', ')') + ")"};
    }
    if (peek() == '{') {
      next();
      return braced(enclosed('{', '}'));
    }
    std::string name;
    if (std::isdigit(static_cast<unsigned char>(peek())) != 0 || peek() == '@' || peek() == '*' || peek() == '?')
      name = next();
    else
      while (at_ < text_.size() && is_name(peek())) name += next();
    return name.empty() ? Values{"$"} : value_of(name);
  }

  [[nodiscard]] Values value_of(const std::string& name) const {
    const auto found = variables_.find(name);
    if (name == "@" || name == "*") return {};  // The script's own arguments: none.
    return found == variables_.end() ? Values{"$" + name} : Values{found->second.empty() ? "" : found->second.front()};
  }

  Values braced(const std::string& inside) {
    std::size_t end = 0;
    const bool counts = inside.starts_with('#');
    if (counts) ++end;
    const std::size_t start = end;
    while (end < inside.size() && is_name(inside[end])) ++end;
    const std::string name = inside.substr(start, end - start);
    std::string rest = inside.substr(end);
    const auto found = variables_.find(name);
    const bool set = found != variables_.end();
    const bool filled = set && !found->second.empty() && !(found->second.size() == 1 && found->second.front().empty());
    if (rest.starts_with("[@]") || rest.starts_with("[*]")) {
      if (counts) return {fmt::format("{}", set ? found->second.size() : 0)};
      rest.erase(0, 3);
      if (rest.empty()) return set ? found->second : Values{"${" + inside + "}"};
    }
    if (rest.empty()) return value_of(name);
    const bool colon = rest.front() == ':';
    const char op = rest[colon && rest.size() > 1 ? 1 : 0];
    const std::string word = expanded(rest.substr(std::min<std::size_t>(rest.size(), colon ? 2 : 1)));
    const bool there = colon ? filled : set;
    if (op == '-' || op == '=') {
      if (!there && op == '=' && running()) variables_[name] = {word};
      return there ? found->second : Values{word};
    }
    if (op == '+') return {there ? word : ""};
    if (op == '?') return value_of(name);
    return {"${" + inside + "}"};
  }

  /// A default inside ${NAME:-...}.
  std::string expanded(const std::string& word) {
    if (depth_ == kMaxDepth) {
      refuse(fmt::format("nested more than {} levels deep", kMaxDepth));
      return "";
    }
    Reader inner(word, file_, {}, diagnostics_);
    inner.variables_ = std::move(variables_);
    inner.line_ = line_;
    inner.depth_ = depth_ + 1;
    inner.expanded_ = expanded_;
    std::string result;
    while (inner.at_ < inner.text_.size()) {
      if (ends_word(inner.peek()))
        result += inner.next();
      else
        result += fmt::format("{}", fmt::join(inner.words(/*splits=*/false), " "));
    }
    variables_ = std::move(inner.variables_);
    expanded_ = inner.expanded_;
    if (inner.refused_) {
      refused_ = true;
      at_ = text_.size();
    }
    return result;
  }

  std::string text_;
  std::string file_;
  config::Diagnostics& diagnostics_;
  std::size_t at_ = 0;
  int line_ = 1;
  int depth_ = 0;  ///< Of defaults within defaults.
  std::size_t expanded_ = 0;
  bool refused_ = false;
  std::map<std::string, Values> variables_;
  std::set<std::string> given_, exported_;
  std::vector<Condition> conditions_;
  ShellScript script_;
};

}  // namespace

ShellScript read_shell(const std::string& text, const std::string& file,
                       const std::map<std::string, std::string>& given, config::Diagnostics& diagnostics) {
  return Reader(text, file, given, diagnostics).read();
}

}  // namespace foldwise::planner

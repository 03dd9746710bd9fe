#include "planner/launch/script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "planner/launch/files.h"
#include "planner/launch/launcher_variables.h"
#include "planner/launch/no_command.h"
#include "planner/launch/quote.h"
#include "planner/launch/ranks.h"
#include "planner/launch/script_paths.h"
#include "planner/launch/start_words.h"
#include "planner/launch/usage.h"

namespace foldwise::planner {

using config::Diagnostics;

namespace {

using Words = std::vector<std::string>;

/// Runs a script again and again, supplying what it misses, until it starts something.
class Evaluation {
 public:
  /// `call`: which of the shown calls gives the arguments, if the script gets none and needs some.
  Evaluation(const ScriptQuestion& question, const StartReader& reader, std::size_t call)
      : question_(question), reader_(reader), call_(call) {
    request_.text = with_placeholders(question.text, placeholders_);
    request_.arguments = question.arguments;
    const Words sbatch = sbatch_words(question.text);
    request_.environment = slurm_variables(sbatch);
    if (!sbatch.empty()) request_.around = {"sbatch"};
    request_.around.insert(request_.around.end(), sbatch.begin(), sbatch.end());
    request_.machine = question.machine;
    std::int64_t& gpus = request_.machine.gpus_per_node;
    gpus = std::min(gpus, gpus_asked(sbatch).value_or(gpus));
    if (question.num_gpus) {
      const std::string nodes = *launchers_value("NNODES", question);
      for (const char* name : {"NNODES", "NUM_NODES"}) request_.environment[name] = nodes;
    }
    for (const auto& [name, value] : question.variables) request_.environment[name] = value;
    choose_tree(question, request_);
  }

  ScriptStarts run(Diagnostics& diagnostics) {
    request_.strict = true;
    while (!done()) {
    }
    if (!result_.unavailable.empty()) {
      no_sandbox(result_.unavailable, diagnostics);
      return {};
    }
    ScriptStarts found{.starts = starts_in(result_), .notes = {}, .outgrown = {}};
    if (!unset_.empty()) found = without_unset(found);
    if (found.starts.empty()) no_start(diagnostics);
    for (const NoCommand& line : no_commands(result_)) {
      found.outgrown = told(line, question_.file);
      found.notes.push_back(found.outgrown);
    }
    if (const auto array = job_array(request_.around);
        array && array->tasks > 1 && !question_.variables.contains("SLURM_ARRAY_TASK_ID"))
      found.notes.push_back(
          fmt::format("an array of {} jobs starts: this is that of SLURM_ARRAY_TASK_ID={}; --env "
                      "SLURM_ARRAY_TASK_ID=K names another",
                      array->tasks, array->first));
    if (shown_) {
      Words words;
      for (const auto& [name, value] : shown_->variables) words.push_back(fmt::format("{}={}", name, value));
      words.insert(words.end(), shown_->arguments.begin(), shown_->arguments.end());
      found.notes.push_back(fmt::format("its arguments are those of {}: \"{}\"; others go behind --", shown_->where,
                                        fmt::join(words, " ")));
    }
    for (const std::string& p : placeholders_) found.notes.push_back(p + " is to be replaced: taken as it stands");
    for (const std::string& name : emptied_)
      found.notes.push_back(fmt::format("the script leaves {} empty: taken as given", name));
    for (const MadePath& path : request_.made)
      found.notes.push_back(path.path + (path.target.empty() ? " is not here, and is taken to be there"
                                                             : " is not here: taken is " + path.target));
    return found;
  }

  /// The call whose arguments were used, if any.
  [[nodiscard]] const std::optional<ShownCall>& shown() const { return shown_; }

  void no_sandbox(const std::string& why, Diagnostics& diagnostics) const {
    diagnostics.error(
        {question_.file, 0, ""},
        fmt::format("is a script, which bash evaluates in a sandbox; there is none here ({}). Give its command line "
                    "instead: the arguments, one or more a line; what `ps -ww -o pid,args` prints where it runs; or "
                    "the log with Megatron's arguments",
                    why));
  }

 private:
  static constexpr int kMostRuns = 60;
  // Numbers that occur nowhere else. Where one appears, the value of a variable was used.
  static constexpr const char *kFiller = "7919", *kOther = "7877", *kList = "7877,7877";
  static constexpr std::chrono::seconds kMostTime{40};

  SandboxResult run_once(const SandboxRequest& request) {
    ++runs_;
    return run_in_sandbox(request);
  }
  [[nodiscard]] bool may_run() const {
    return runs_ < kMostRuns && std::chrono::steady_clock::now() < start_ + kMostTime;
  }

  /// Starts of training, each with different arguments or ranks. If none trains, other starts of Megatron's programs.
  [[nodiscard]] std::vector<ScriptStart> starts_in(const SandboxResult& result) const {
    std::vector<ScriptStart> starts;
    const auto same = [](const ScriptStart& a, const ScriptStart& b) {
      return a.ranks == b.ranks && std::ranges::equal(a.arguments, b.arguments, [](const auto& x, const auto& y) {
               return x.flag == y.flag && x.values == y.values;
             });
    };
    for (const Started& started : result.starts) {
      ScriptStart found{.started = started, .ranks = {}, .arguments = reader_.arguments(started)};
      if (found.arguments.empty()) continue;
      found.ranks = reader_.ranks(started);
      if (std::ranges::none_of(starts, [&](const ScriptStart& start) { return same(start, found); }))
        starts.push_back(std::move(found));
    }
    if (std::ranges::any_of(starts, [&](const ScriptStart& start) { return trains(start); }))
      std::erase_if(starts, [&](const ScriptStart& start) { return !trains(start); });
    return starts;
  }

  [[nodiscard]] bool trains(const ScriptStart& start) const { return reader_.trains(start.started, start.arguments); }

  /// Runs once more. True if it started something, or nothing more can be supplied.
  bool done() {
    result_ = run_once(request_);
    if (!result_.unavailable.empty()) return true;
    bool changed = false;
    const std::vector<std::string> missing = missing_paths(result_.output);
    if (std::ranges::any_of(missing, [&](const std::string& path) { return find_beside(path, request_); }))
      return !may_run();
    for (const Unset& unset : unset_in(result_.output)) changed |= take(unset);
    if (const auto starts = starts_in(result_); !changed && !starts.empty() && trains(starts.front())) return true;
    if (!changed) changed = mend_paths(missing, result_, request_);
    if (!changed && result_.killed.empty())
      changed = give_argument() || go_on() || fill_unset() || fill_emptied() || fill_tested(/*present=*/false) ||
                fill_tested(/*present=*/true);
    return !changed || !may_run();
  }

  bool take(const Unset& unset) {
    if (is_shells(unset.name)) return false;
    if (const int position = unset.position(); position > 0) {
      if (take_shown_call()) return true;
      if (position > 20) return false;
      const auto wanted = static_cast<std::size_t>(position);
      if (request_.arguments.size() >= wanted) return false;
      request_.arguments.resize(wanted);
      unset_.push_back(unset);
      return true;
    }
    if (request_.environment.contains(unset.name)) return false;
    const std::optional<std::string> known = launchers_value(unset.name, question_);
    request_.environment[unset.name] = known.value_or("");
    if (!known) unset_.push_back(unset);
    return true;
  }

  /// Uses the arguments of a shown call if the script got none and needs some.
  bool take_shown_call() {
    if (shown_ || !question_.arguments.empty()) return false;
    std::vector<ShownCall> calls = shown_calls(question_.text, question_.folder, base_of(question_.file));
    if (call_ >= calls.size()) return false;
    shown_ = std::move(calls[call_]);
    request_.arguments = shown_->arguments;
    for (const auto& [name, value] : shown_->variables)
      if (!question_.variables.contains(name)) request_.environment[name] = value;
    std::erase_if(unset_, [](const Unset& unset) { return unset.position() > 0; });
    return true;
  }

  /// Gives one more empty argument to a script that tests their number.
  bool give_argument() {
    constexpr std::size_t kMost = 10;
    if (question_.text.find("$#") == std::string::npos || request_.arguments.size() >= kMost) return false;
    request_.arguments.emplace_back();
    unset_.push_back({.name = fmt::format("${}", request_.arguments.size()), .line = 0});
    return true;
  }

  /// Continues after errors, because a check of something missing may have ended the script.
  bool go_on() { return !std::exchange(request_.tolerant, true); }

  /// Fills variables that the script tests for emptiness with a default, so that bash does not report them as unset.
  /// `present`: those of -n, most of which the script can do without.
  bool fill_tested(bool present) {
    static const std::regex empty(
        R"(-z +"?\$\{?([A-Za-z_][A-Za-z_0-9]*|[1-9])(?![A-Za-z_0-9+])|\$\{([A-Za-z_][A-Za-z_0-9]*|[1-9]):?\?)");
    static const std::regex filled(R"(-n +"?\$\{?([A-Za-z_][A-Za-z_0-9]*|[1-9])(?![A-Za-z_0-9+]))");
    bool changed = false;
    for (std::sregex_iterator it(question_.text.begin(), question_.text.end(), present ? filled : empty), end;
         it != end; ++it) {
      const std::string name = present || (*it)[1].matched ? (*it)[1].str() : (*it)[2].str();
      const Unset unset{.name = std::isdigit(static_cast<unsigned char>(name.front())) != 0 ? "$" + name : name};
      if (unset.position() == 0 && (request_.environment.contains(name) || is_shells(name))) continue;
      if (unset.position() > 0 && request_.arguments.size() >= static_cast<std::size_t>(unset.position())) continue;
      if (const auto known = launchers_value(name, question_)) {
        request_.environment[name] = *known;
      } else {
        value_in(request_, unset) = kFiller;
        unset_.push_back(unset);
      }
      changed = true;
    }
    return changed;
  }

  /// Fills variables that the script sets to nothing, for its reader to fill in, and tests: CONTAINER_IMAGE="".
  bool fill_emptied() {
    std::istringstream in(request_.text);
    std::string text;
    bool changed = false;
    for (std::string line; std::getline(in, line); text += line + "\n") {
      static const std::regex empty(R"(^(\s*(export\s+)?)([A-Za-z_]\w*)=(""|'')?\s*(#|$))");
      std::smatch found;
      const std::string begin = line.substr(0, 128);
      if (!std::regex_search(begin, found, empty)) continue;
      const std::string name = found[3];
      if (question_.text.find(fmt::format("-z \"${}\"", name)) == std::string::npos &&
          question_.text.find(fmt::format("-z \"${{{}}}\"", name)) == std::string::npos)
        continue;
      line = fmt::format("{}{}={}-to-be-given", found[1].str(), name, name);
      emptied_.push_back(name);
      changed = true;
    }
    if (changed) request_.text = text;
    return changed;
  }

  /// Gives values to unset variables, for a script that ends where one is empty.
  bool fill_unset() {
    bool changed = false;
    for (const Unset& unset : unset_) {
      std::string& value = value_in(request_, unset);
      changed |= value.empty();
      value = kFiller;
    }
    return changed;
  }

  static std::string& value_in(SandboxRequest& request, const Unset& unset) {
    const auto position = static_cast<std::size_t>(unset.position());
    if (position == 0) return request.environment[unset.name];
    request.arguments.resize(std::max(request.arguments.size(), position));
    return request.arguments[position - 1];
  }

  /// The starts with the unset variables left unset. If the script then ends early, those with empty variables. Values
  /// that depend on such a variable become its name.
  ScriptStarts without_unset(ScriptStarts empty) {
    SandboxRequest request = request_;
    request.strict = false;
    request.arguments = shown_ ? shown_->arguments : question_.arguments;
    for (const Unset& unset : unset_) request.environment.erase(unset.name);
    ScriptStarts found{.starts = starts_in(run_once(request)), .notes = {}, .outgrown = {}};
    const bool filled = found.starts.empty();
    if (filled) {
      found = std::move(empty);
      request = request_;
    }
    // Fill one at a time, so that a default that another variable hides is seen. Then fill all, for values that need
    // several.
    std::vector<bool> hangs(unset_.size()), alike(unset_.size());
    for (std::size_t i = 0; i < unset_.size() && may_run(); ++i) {
      SandboxRequest other = request;
      value_in(other, unset_[i]) = kOther;
      const std::vector<ScriptStart> starts = starts_in(run_once(other));
      alike[i] = same_ranks(starts, found.starts);
      hangs[i] = name_starts({unset_[i]}, starts, filled, found.starts);
      if (name_ranks(unset_[i], starts, filled, found.starts)) hangs[i] = true;
    }
    if (!filled) name_lists(request, alike, found.starts, hangs);
    if (unset_.size() > 1 && may_run()) {
      SandboxRequest other = request;
      for (const Unset& unset : unset_) value_in(other, unset) = kOther;
      name_starts(unset_, starts_in(run_once(other)), filled, found.starts);
    }
    for (std::size_t i = 0; i < unset_.size(); ++i)
      if (!hangs[i])
        found.notes.push_back(fmt::format("{}{} is not set; no argument that is read needs it",
                                          unset_[i].line > 0 ? fmt::format("line {}: ", unset_[i].line) : "",
                                          unset_[i].text()));
    return found;
  }

  /// `filled`: in `starts` too, the variables have a filler instead of nothing.
  static bool name_starts(const std::vector<Unset>& unset, const std::vector<ScriptStart>& others, bool filled,
                          std::vector<ScriptStart>& starts) {
    bool any = false;
    for (const ScriptStart& with : others)
      for (ScriptStart& start : starts)
        if (starts_alike(start, with)) any |= name_values(unset, with, filled, start);
    return any;
  }

  static bool same_ranks(const std::vector<ScriptStart>& a, const std::vector<ScriptStart>& b) {
    return std::ranges::equal(a, b, {}, &ScriptStart::ranks, &ScriptStart::ranks);
  }

  /// Notes that the number of ranks depends on a variable. `others`: starts with another value of it. `changed`: so it
  /// does if their number differs, otherwise only if there is none without a value (otherwise that may be a default).
  static bool name_ranks(const Unset& unset, const std::vector<ScriptStart>& others, bool changed,
                         std::vector<ScriptStart>& starts) {
    bool any = false;
    for (std::size_t i = 0; others.size() == starts.size() && i < starts.size(); ++i) {
      if (others[i].ranks == starts[i].ranks || (starts[i].ranks && !changed)) continue;
      starts[i].ranks_of += (starts[i].ranks_of.empty() ? "" : ", ") + unset.text();
      any = true;
    }
    return any;
  }

  /// Finds variables whose items the script counts to find the number of ranks: GPUS=$(tr , '\n' ... | wc -l).
  /// `alike`: one item gives the same ranks as none.
  void name_lists(const SandboxRequest& request, const std::vector<bool>& alike, std::vector<ScriptStart>& starts,
                  std::vector<bool>& hangs) {
    SandboxRequest lists = request;
    for (std::size_t i = 0; i < unset_.size(); ++i)
      if (alike[i]) value_in(lists, unset_[i]) = kList;
    if (!may_run() || same_ranks(starts_in(run_once(lists)), starts)) return;
    for (std::size_t i = 0; i < unset_.size() && may_run(); ++i) {
      if (!alike[i]) continue;
      SandboxRequest other = request;
      value_in(other, unset_[i]) = kList;
      if (name_ranks(unset_[i], starts_in(run_once(other)), /*changed=*/true, starts)) hangs[i] = true;
    }
  }

  static bool starts_alike(const ScriptStart& a, const ScriptStart& b) {
    const auto program = [](const Started& started) {
      return started.words.size() > started.around ? started.words[started.around] : std::string();
    };
    return program(a.started) == program(b.started);
  }

  /// Replaces values of `start` that the filler changed by the variables' names, unless a default replaced the filler.
  static bool name_values(const std::vector<Unset>& unset, const ScriptStart& with, bool filled, ScriptStart& start) {
    Words names;
    for (const Unset& variable : unset) names.push_back(variable.text());
    bool any = false;
    Words& words = start.started.words;  // Of the launcher and of front ends too.
    for (std::size_t i = 0; filled && i < std::min(words.size(), with.started.words.size()); ++i)
      if (words[i] != with.started.words[i] && words[i].find('$') == std::string::npos) {
        words[i] = fmt::format("{}{}", words[i].substr(0, words[i].find('=') + 1), fmt::join(names, ", "));
        any = true;
      }
    for (Argument& argument : start.arguments) {
      const ArgumentSpec* spec = find_flag(argument.flag);
      if (spec == nullptr || spec->takes_nothing()) continue;
      const auto other = std::ranges::find(with.arguments, argument.flag, &Argument::flag);
      if (other == with.arguments.end() || other->values.empty()) continue;
      const std::string was = argument.values.empty() ? "" : argument.values.front();
      std::string is = other->values.front();
      if (was == is || was.starts_with('$')) continue;
      const std::string filler = kOther;
      for (std::size_t at = is.find(filler); at != std::string::npos; at = is.find(filler, at))
        is.erase(at, filler.size());
      if (was != is && !was.empty() && was != "0" && !filled) continue;
      argument.values = {fmt::format("{}", fmt::join(names, ", "))};
      any = true;
    }
    return any;
  }

  /// The text without the number that stood for what was not given.
  static std::string shown(std::string text) {
    for (auto at = text.find(kFiller); at != std::string::npos; at = text.find(kFiller))
      text.replace(at, std::string_view(kFiller).size(), "<not given>");
    return text;
  }

  void no_start(Diagnostics& diagnostics) const {
    for (const NoCommand& line : no_commands(result_))
      diagnostics.error({question_.file, 0, ""}, told(line, question_.file));
    if (!diagnostics.ok()) return;
    std::string last;
    std::istringstream in(result_.output);
    for (std::string line; std::getline(in, line);)
      if (!line.empty()) last = line.substr(0, 200);
    static const std::regex mistake(R"(([^\s:]*): line (\d+): (unexpected EOF[^\n]{1,200}|syntax error[^\n]{1,200}))");
    if (std::smatch found; std::regex_search(result_.output, found, mistake)) {
      const std::string name = base_of(found[1].str());  // Of a file that the script reads, or of the script.
      const bool other = name.ends_with(".sh") && name != base_of(question_.file);
      return diagnostics.error({other ? name : question_.file, std::atoi(found[2].str().c_str()), ""},
                               shown(fmt::format("bash reports: {}", found[3].str())));
    }
    for (const Started& started : result_.starts)
      if (const std::string other = other_trainer(started); !other.empty())
        return diagnostics.error({question_.file, 0, ""},
                                 fmt::format("expected a training with Megatron, found one with {}", other));
    std::string why = "nothing that starts training with Megatron's arguments";
    if (!result_.starts.empty()) {
      Words programs;
      for (const Started& started : result_.starts) {
        std::string name = started.words.size() > started.around ? base_of(started.words[started.around]) : "";
        const auto module =
            std::find(started.words.begin() + static_cast<std::ptrdiff_t>(started.around), started.words.end(), "-m");
        if (started.words.end() - module > 1) name += " -m " + module[1];
        if (std::ranges::find(programs, name) == programs.end() && programs.size() < 5) programs.push_back(name);
      }
      why += shown(fmt::format(" (it starts {})", fmt::join(programs, ", ")));
    }
    if (!result_.killed.empty())
      why += "; the script was ended: " + result_.killed;
    else if (!last.empty())
      why += shown(fmt::format("; the last that the script printed is \"{}\"", last));
    diagnostics.error({question_.file, 0, ""},
                      "expected a command with Megatron's arguments, its log, or Megatron-Bridge's configuration as "
                      ".yaml; found " +
                          why);
  }

  const ScriptQuestion& question_;
  const StartReader& reader_;
  std::size_t call_;
  std::set<std::string> placeholders_;
  std::vector<std::string> emptied_;  ///< Variables that the script sets to nothing and that were filled.
  SandboxRequest request_;
  SandboxResult result_;
  std::vector<Unset> unset_;
  std::optional<ShownCall> shown_;
  int runs_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

namespace {

/// Whether the first start has all arguments that Megatron's parser requires.
bool is_whole(const ScriptStarts& found) {
  if (found.starts.empty()) return false;
  const std::vector<Argument>& arguments = found.starts.front().arguments;
  if (std::ranges::any_of(arguments, [](const Argument& argument) {
        return !argument.values.empty() && argument.values.front().starts_with('$');
      }))
    return false;
  Diagnostics mistakes;
  std::vector<Argument> unknown;
  (void)parse_arguments(arguments, "", newest_release(), mistakes, unknown);
  return mistakes.ok();
}

}  // namespace

ScriptStarts starts_of(const ScriptQuestion& question, const StartReader& reader, Diagnostics& diagnostics) {
  Evaluation evaluation(question, reader, 0);
  if (!question.sandbox) {
    evaluation.no_sandbox("none was asked for", diagnostics);
    return {};
  }
  ScriptStarts found = evaluation.run(diagnostics);
  if (!evaluation.shown() || is_whole(found)) return found;
  // The call does not fit the script any more. Another shown call may.
  constexpr std::size_t kMostCalls = 4;
  for (std::size_t call = 1; call < kMostCalls; ++call) {
    Evaluation other(question, reader, call);
    Diagnostics mistakes;
    ScriptStarts others = other.run(mistakes);
    if (!other.shown()) break;
    if (!mistakes.ok() || !is_whole(others)) continue;
    diagnostics = {};
    return others;
  }
  if (diagnostics.ok())
    found.outgrown = fmt::format(
        "it was read with the arguments of {} (\"{}\"), which it has outgrown: give others "
        "behind --",
        evaluation.shown()->where, fmt::join(evaluation.shown()->arguments, " "));
  return found;
}

}  // namespace foldwise::planner

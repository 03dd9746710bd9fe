#include "planner/launch/launch_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "costmodel/config/number.h"
#include "hwprofiles/load/profile.h"
#include "planner/launch/dump.h"
#include "planner/launch/files.h"
#include "planner/launch/frontend.h"
#include "planner/launch/machine.h"
#include "planner/launch/script.h"
#include "planner/launch/start_words.h"
#include "planner/run/near_names.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

namespace {

bool begins_flag(const std::string& word) {
  return word.starts_with("--") && word.size() > 2 && word.find_first_of(" \n") == std::string::npos;
}

std::string flag_in(const std::string& word) { return word.substr(0, word.find('=')); }

bool is_megatrons_flag(const std::string& word) { return begins_flag(word) && find_flag(flag_in(word)) != nullptr; }

/// Index of the program's first own argument, after the script or module that Python runs.
std::size_t program_end(const Started& started) {
  const std::vector<std::string>& words = started.words;
  for (std::size_t i = started.around; i < words.size(); ++i) {
    if (words[i].ends_with(".py") && !begins_flag(words[i])) return i + 1;
    if (words[i] == "-m" && i + 1 < words.size() && !words[i + 1].starts_with("torch.distributed")) return i + 2;
  }
  for (std::size_t i = started.around; i < words.size(); ++i)
    if (is_megatrons_flag(words[i])) return i;
  return words.size();
}

/// The script that Python runs: "pretrain_gpt.py"; empty if it runs none, or a module.
std::string program_of(const Started& started) {
  const std::size_t end = program_end(started);
  const std::string word = end > 0 && end <= started.words.size() ? started.words[end - 1] : "";
  return word.ends_with(".py") ? base_of(word) : "";
}

/// Lines of flags that occur once in the text. Words of an array or a variable are not where the command is.
std::map<std::string, int> flag_lines(const std::string& text) {
  std::map<std::string, int> lines;
  std::set<std::string> twice;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    for (std::size_t at = line.find("--"); at != std::string::npos; at = line.find("--", at + 2)) {
      const std::size_t end = std::min(line.find_first_of(" =\t\r\\\"')", at), line.size());
      const std::string flag = line.substr(at, end - at);
      if (!lines.emplace(flag, number).second) twice.insert(flag);
    }
  }
  for (const std::string& flag : twice) lines.erase(flag);
  return lines;
}

/// A start of Primus' command with the words of its experiment inserted before its own words. Other starts are returned
/// unchanged. `folder`: folder of the script.
Started with_experiment(const Started& started, const std::string& folder) {
  const auto text = started.environment.find("EXPERIMENT_TEXT"), file = started.environment.find("EXPERIMENT_FILE");
  if (started.words.size() <= started.around || started.words[started.around] != "primus" ||
      text == started.environment.end() || file == started.environment.end())
    return started;
  Diagnostics diagnostics;
  const auto experiment = read_primus_yaml(text->second, file->second, folder, started.environment, diagnostics);
  diagnostics.throw_if_any();
  if (!experiment) return started;
  Started result = started;
  const std::size_t behind = started.around + 3;  // primus train pretrain
  const auto own = started.words.begin() + static_cast<std::ptrdiff_t>(std::min(behind, started.words.size()));
  result.words.assign(started.words.begin(), started.words.begin() + static_cast<std::ptrdiff_t>(started.around));
  result.words.insert(result.words.end(), experiment->words.begin(), experiment->words.end());
  result.words.insert(result.words.end(), own, started.words.end());
  result.environment.erase("EXPERIMENT_TEXT");
  result.environment.erase("EXPERIMENT_FILE");
  return result;
}

/// The arguments of a start as Megatron's flags; empty if it has none.
std::vector<Argument> arguments_of(const Started& started, const std::map<std::string, int>& lines) {
  if (std::optional<Translated> front_end = translated(started, lines)) return std::move(front_end->arguments);
  if (!other_trainer(started).empty()) return {};
  std::vector<Argument> arguments;
  const std::vector<std::string>& words = started.words;
  for (std::size_t i = program_end(started); i < words.size(); ++i) {
    if (!begins_flag(words[i])) {
      if (!arguments.empty()) arguments.back().values.push_back(words[i]);
      continue;
    }
    const std::string flag = flag_in(words[i]);
    const auto line = lines.find(flag);
    arguments.push_back({.flag = flag, .values = {}, .line = line == lines.end() ? 0 : line->second});
    if (flag.size() < words[i].size()) arguments.back().values.push_back(words[i].substr(flag.size() + 1));
  }
  if (std::ranges::none_of(arguments, [](const Argument& argument) { return find_flag(argument.flag) != nullptr; }))
    return {};
  return arguments;
}

/// The variables of {"env_vars": {...}} in ray's --runtime-env-json.
std::map<std::string, std::string> runtime_environment(const Started& started) {
  std::map<std::string, std::string> environment;
  const std::vector<std::string> around(started.words.begin(),
                                        started.words.begin() + static_cast<std::ptrdiff_t>(started.around));
  const auto text = last_option(around, {"--runtime-env-json"});
  const json parsed = text ? json::parse(*text, nullptr, false) : json();
  if (!parsed.is_object() || !parsed.contains("env_vars") || !parsed.at("env_vars").is_object()) return environment;
  for (const auto& [name, value] : parsed.at("env_vars").items())
    environment[name] = value.is_string() ? value.get<std::string>() : value.dump();
  return environment;
}

/// The command of a start with these arguments, and what its front end adds.
LaunchCommand command_of(const Started& started, std::vector<Argument> arguments,
                         const std::map<std::string, int>& lines, std::int64_t gpus_per_node) {
  LaunchCommand result{.arguments = std::move(arguments),
                       .environment = started.environment,
                       .num_gpus = ranks_of(started, program_end(started), gpus_per_node),
                       .ranks_of = {},
                       .model = {},
                       .model_option = {},
                       .length_of_model = false,
                       .defaults = {},
                       .fields = nlohmann::json::object(),
                       .program = program_of(started),
                       .notes = {},
                       .outgrown = {}};
  for (const auto& [name, value] : runtime_environment(started)) result.environment[name] = value;
  if (std::optional<Translated> front_end = translated(started, lines)) {
    result.environment.insert(front_end->environment.begin(), front_end->environment.end());
    if (front_end->num_gpus) result.num_gpus = front_end->num_gpus;
    result.model = front_end->model;
    result.model_option = front_end->model_option;
    result.length_of_model = front_end->length_of_model;
    result.defaults = front_end->defaults;
    result.fields = std::move(front_end->fields);
    result.notes = std::move(front_end->notes);
  }
  return result;
}

/// Why the text is none that bash could evaluate; empty: it may be one.
std::string no_script(const std::string& text, const std::string& file) {
  const std::string first = text.substr(0, text.find('\n'));
  if (text.find('\0') != std::string::npos)
    return "expected a command with Megatron's arguments, found words that end with NUL bytes and start none";
  if (file.ends_with(".py") || (first.starts_with("#!") && first.find("python") != std::string::npos))
    return "is a Python program, of which nothing is run: give the command that it starts, one argument or more a "
           "line, or what `ps -ww -o pid,args` prints where it runs";
  return "";
}

StartReader reader_of(const ImportRequest& request, const std::map<std::string, int>& lines,
                      std::int64_t gpus_per_node) {
  const auto arguments = [&request, &lines](const Started& started) {
    return arguments_of(with_experiment(started, request.folder), lines);
  };
  const auto ranks = [&lines, gpus_per_node](const Started& started) {
    const std::optional<Translated> front_end = translated(started, lines);
    return front_end && front_end->num_gpus ? front_end->num_gpus
                                            : ranks_of(started, program_end(started), gpus_per_node);
  };
  // Megatron asks every training for a micro-batch; the layers may come from a checkpoint.
  const auto trains = [&lines](const Started& started, const std::vector<Argument>& given) {
    return std::ranges::any_of(given,
                               [](const Argument& argument) {
                                 return argument.flag == "--micro-batch-size" || argument.flag == "--num-layers";
                               }) ||
           translated(started, lines).has_value();
  };
  return {.arguments = arguments, .ranks = ranks, .trains = trains};
}

}  // namespace

LaunchCommand read_launch_command(const std::string& given, const std::string& file, const ImportRequest& request) {
  Diagnostics diagnostics;
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // Byte order mark.
  const std::string text = given.substr(given.starts_with(kMark) ? kMark.size() : 0);
  const std::map<std::string, int> lines = flag_lines(text);
  ScriptQuestion question{.text = text,
                          .file = file,
                          .folder = request.folder,
                          .arguments = request.arguments,
                          .variables = request.variables,
                          .num_gpus = request.num_gpus,
                          .machine = {},
                          .sandbox = request.sandbox};
  if (!request.system.empty())
    question.machine = machine_of(hwprofiles::load_profile(system_meant(request.system)).hardware,
                                  request.release != nullptr ? *request.release : newest_release());
  const StartReader reader = reader_of(request, lines, question.machine.gpus_per_node);
  ScriptStarts found;
  if (const auto command = plain_command(text, file); command && !reader.arguments(*command).empty()) {
    found.starts.push_back({.started = *command, .ranks = {}, .arguments = reader.arguments(*command)});
    if (!request.arguments.empty())
      diagnostics.error({file, 0, "--"}, "is for a launch script, found an argument list");
  } else if (const std::string other = no_script(text, file); !other.empty()) {
    diagnostics.error({file, 0, ""}, other);
  } else {
    found = starts_of(question, reader, diagnostics);
  }
  diagnostics.throw_if_any();
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(1, request.start));
  if (wanted > found.starts.size())
    throw config::ConfigError(
        {{{file, 0, "--start"}, fmt::format("expected 1 to {}, found {}", found.starts.size(), wanted)}});
  if (found.starts.size() > 1)
    found.notes.push_back(fmt::format(
        "it starts {} runs, each with other arguments or ranks; this is the {}. of them: --start N names another",
        found.starts.size(), wanted));
  ScriptStart& start = found.starts[wanted - 1];
  LaunchCommand result = command_of(with_experiment(start.started, request.folder), std::move(start.arguments), lines,
                                    question.machine.gpus_per_node);
  result.outgrown = std::move(found.outgrown);
  result.ranks_of = start.ranks_of;
  if (!start.ranks_of.empty()) result.num_gpus.reset();
  result.notes.insert(result.notes.begin(), found.notes.begin(), found.notes.end());
  for (const auto& [name, value] : request.variables) result.environment[name] = value;
  return result;
}

LaunchCommand read_started(const Started& started, const std::map<std::string, int>& lines) {
  constexpr std::int64_t kGpusPerNode = 8;
  return command_of(started, arguments_of(started, lines), lines, kGpusPerNode);
}

}  // namespace foldwise::planner

#include "planner/launch/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <sstream>
#include <utility>

#include "costmodel/config/number.h"
#include "hwprofiles/load/profile.h"
#include "planner/launch/checks.h"
#include "planner/launch/complete.h"
#include "planner/launch/dump.h"
#include "planner/launch/export.h"
#include "planner/launch/files.h"
#include "planner/launch/frontend.h"
#include "planner/launch/geometry.h"
#include "planner/launch/mapping.h"
#include "planner/launch/script.h"
#include "planner/launch/training_log.h"
#include "planner/models/models.h"
#include "planner/run/near_names.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

namespace {

/// Parses a number of ranks or nodes. The product of two fits 64 bits.
std::optional<std::int64_t> whole(const std::string& text) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto number = config::number_in<std::int64_t>(text);
  return number && *number >= 1 && *number <= kMost ? number : std::nullopt;
}

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

/// The value of an option of torchrun or srun in any of its spellings. The innermost program's wins.
std::optional<std::string> option_of(const std::vector<std::string>& words, std::size_t end,
                                     const std::vector<std::string>& names) {
  std::optional<std::string> value;
  for (std::size_t i = 0; i < end; ++i)
    for (const std::string& name : names) {
      if (words[i] == name && i + 1 < end) value = words[i + 1];
      if (words[i].starts_with(name + "=")) value = words[i].substr(name.size() + 1);
    }
  return value;
}

std::optional<std::int64_t> ranks_of(const Started& started, std::size_t end, std::int64_t gpus_per_node) {
  const auto count = [&](const std::vector<std::string>& names) -> std::optional<std::int64_t> {
    const auto value = option_of(started.words, end, names);
    if (!value) return std::nullopt;
    if (*value == "gpu" || *value == "auto") return gpus_per_node;
    return whole(value->substr(value->find_last_of(':') + 1));  // "gpu:8"; "1:16" for nodes.
  };
  const auto variable = [&](const char* name) -> std::optional<std::int64_t> {
    const auto found = started.environment.find(name);
    return found == started.environment.end() ? std::nullopt : whole(found->second);
  };
  const auto processes = count({"--nproc-per-node", "--nproc_per_node"});
  const auto nodes = count({"--nodes", "-N"});
  if (processes) {
    const auto torch_nodes = count({"--nnodes"});
    if (!torch_nodes && option_of(started.words, end, {"--nnodes"})) return std::nullopt;  // The variable is empty.
    return *processes * (torch_nodes ? *torch_nodes : nodes.value_or(1));
  }
  const auto tasks = count({"--ntasks", "-n", "-np", "--np"});
  const auto on_node = count({"--ntasks-per-node"});
  if (nodes && on_node) return *nodes * *on_node;
  if (tasks) return tasks;
  if (const auto gpus = count({"--gpus-per-node", "--gres"}); nodes && gpus) return *nodes * *gpus;
  return variable("WORLD_SIZE");
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
  const auto text = option_of(started.words, started.around, {"--runtime-env-json"});
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
                       .model = {},
                       .model_option = {},
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
    result.defaults = front_end->defaults;
    result.fields = std::move(front_end->fields);
    result.notes = std::move(front_end->notes);
  }
  return result;
}

/// The contents of a text.
struct Source {
  enum class Kind : std::uint8_t { kScript, kLog, kBridge };
  Kind kind = Kind::kScript;
  Settings settings;
  std::map<std::string, std::string> environment;
  std::optional<std::int64_t> num_gpus;
  std::vector<Argument> unknown, unused;
  std::vector<std::string> notes;
  std::string model;                 ///< A built-in model that a front end names.
  bool own_sizes = false;            ///< The arguments change the named model's sizes.
  std::string defaults;              ///< The front end's set of defaults; empty: Megatron's.
  std::vector<Argument> arguments;   ///< Arguments of a script, from which `settings` are read.
  json fields = json::object();      ///< Fields of the run file that a front end gives.
  std::string program;               ///< The script that Python runs; empty: not known.
  const Release* release = nullptr;  ///< Release for which the arguments were read.
  std::string outgrown;              ///< The shown call that does not fit the script any more.
};

/// The release in the head of a text that foldwise exported; null if it was not.
const Release* exported_for(const std::string& text) {
  const std::size_t end = text.find(", by foldwise export"), begin = text.rfind("Megatron-Core ", end);
  if (end == std::string::npos || begin == std::string::npos) return nullptr;
  const std::string name = text.substr(begin + 14, end - begin - 14);
  return find_release(name.substr(0, name.find(' ')));
}

/// The newest release that knows every flag that any release knows.
const Release& release_of(const std::vector<Argument>& arguments) {
  const auto knows_all = [&](const Release& release) {
    return std::ranges::all_of(arguments, [&](const Argument& argument) {
      const ArgumentSpec* spec = find_flag(argument.flag);
      return spec == nullptr || spec->releases.has(release);
    });
  };
  const Release& newest = newest_release();
  if (knows_all(newest)) return newest;
  const auto found = std::ranges::find_if(releases().rbegin(), releases().rend(), knows_all);
  return found == releases().rend() ? newest : *found;
}

Source read_source(const std::string& text, const std::string& file, const ImportRequest& request,
                   Diagnostics& diagnostics) {
  Source source;
  if (const auto block = read_argument_block(text, file, diagnostics)) {
    source.kind = Source::Kind::kLog;
    source.settings = *block;
    if (const json* world = block->find("world_size"); world != nullptr) {
      const auto ranks = whole(word_of(*world));
      if (!ranks)
        diagnostics.error({file, block->line("world_size"), "world_size"},
                          fmt::format("expected a whole number, found {}", world->dump()));
      source.num_gpus = ranks.value_or(1);
    }
    return source;
  }
  constexpr std::size_t kMostBytes = std::size_t{4}
                                     << 20;  // Each byte can become a hundred. Real files have kilobytes.
  if (text.size() > kMostBytes)
    diagnostics.error({file, 0, ""}, fmt::format("no log with Megatron's arguments, and larger than the {} MiB of a "
                                                 "script or a configuration",
                                                 kMostBytes >> 20U));
  diagnostics.throw_if_any();
  const bool yaml = file.ends_with(".yaml") || file.ends_with(".yml");
  std::optional<TestCase> test;
  std::optional<CommandLine> spelled;  // In another program's words.
  if (yaml) test = read_test_case(text, file, request.variables, diagnostics);
  if (yaml && !test) spelled = read_primus_yaml(text, file, request.folder, request.variables, diagnostics);
  if (test) spelled = command_of_nemo(*test, file);
  diagnostics.throw_if_any();
  if (yaml && !test && !spelled) {
    if (const auto bridge = read_bridge_yaml(text, file, diagnostics)) {
      source.kind = Source::Kind::kBridge;
      source.settings = *bridge;
      return source;
    }
    diagnostics.error({file, 0, ""},
                      "expected the sections of Megatron-Bridge's configuration, MODEL_ARGS of a test of "
                      "Megatron-LM's, or modules of "
                      "an experiment of Primus, found none of them");
    return source;
  }
  LaunchCommand command;
  if (spelled) {
    const Started started{.words = spelled->words, .environment = test ? test->environment : request.variables};
    command = command_of(started, arguments_of(started, spelled->lines), spelled->lines, 8);
  } else if (test) {
    command.arguments = std::move(test->arguments);
    command.environment = std::move(test->environment);
    if (test->inference) command.program = "inference";
  } else {
    command = read_launch_command(text, file, request);
  }
  source.notes = std::move(command.notes);
  source.outgrown = std::move(command.outgrown);
  source.environment = command.environment;
  source.num_gpus = command.num_gpus;
  source.defaults = command.defaults;
  source.program = command.program;
  source.fields = std::move(command.fields);
  source.arguments = std::move(command.arguments);
  if (!request.model.empty()) return source;
  const bool sized = std::ranges::find(source.arguments, "--num-layers", &Argument::flag) != source.arguments.end();
  if (!command.model.empty()) {
    source.model = published_model(command.model);
    if (source.model.empty())
      diagnostics.error({file, 0, "model"},
                        fmt::format("\"{}\" is no built-in model: give --model with its config.json", command.model));
  } else if (!command.model_option.empty() && !sized) {
    diagnostics.error({file, 0, command.model_option},
                      "expected a model, found none: give --model NAME, or its config.json");
  }
  return source;
}

/// Reads a script's arguments for a release.
void read_arguments(Source& source, const Release& release, const std::string& file, Diagnostics& diagnostics) {
  source.release = &release;
  source.settings = parse_arguments(source.arguments, file, release, diagnostics, source.unknown);
  NotModelled left_out = not_modelled(source.arguments, source.program, file, diagnostics);
  source.notes.insert(source.notes.end(), left_out.notes.begin(), left_out.notes.end());
  std::erase_if(source.unknown, [&](const Argument& argument) {
    return std::ranges::find(left_out.flags, argument.flag) != left_out.flags.end();
  });
  complete_pattern(source.settings, file, diagnostics);
  complete_layers(source.settings, source.notes);
  complete_batch(source.settings, source.notes);
  for (const Argument& argument : source.arguments) {
    const ArgumentSpec* spec = find_flag(argument.flag);
    if (spec == nullptr) continue;
    const bool told = spec->dest == "spec" ||  // complete_layers() mentions it.
                      std::ranges::find(left_out.flags, argument.flag) != left_out.flags.end();
    if (!is_read(spec->dest) && !told) source.unused.push_back(argument);
    for (const std::string& word : argument.values)
      if (is_read(spec->dest) && spec->dest != "tokenizer_type" && word.find('$') != std::string::npos)
        diagnostics.error({file, argument.line, argument.flag},
                          fmt::format("the file does not say what {} is: give {}", word,
                                      std::isdigit(static_cast<unsigned char>(word[word.find('$') + 1])) != 0
                                          ? "the script's arguments behind --"
                                          : "--env NAME=VALUE"));
  }
}

/// Location of the flag that caused a mistake in the generated run file.
config::Location blamed(const config::Location& where, const Source& source, const std::string& file) {
  std::string key = where.field.empty() ? "" : where.field.substr(1);
  std::ranges::replace(key, '/', '.');
  const Field* field = find_field(key);
  if (field == nullptr || field->flags.empty()) return {file, 0, key};
  for (const std::string& flag : field->flags)
    if (const ArgumentSpec* spec = find_flag(flag); spec != nullptr && source.settings.line(spec->dest) > 0)
      return {file, source.settings.line(spec->dest), flag};
  return {file, 0, field->flags.front()};
}

Run read_back(const json& json_run, const Source& source, const std::string& file) {
  Diagnostics diagnostics;
  const config::Document document = config::Document::parse(json_run.dump(2), file);
  config::ObjectReader reader(document, diagnostics);
  Run run = read_run(reader, diagnostics);
  run.line = 0;
  Diagnostics placed;
  for (const config::Diagnostic& diagnostic : diagnostics.list())
    placed.error(diagnostic.where.file == file ? blamed(diagnostic.where, source, file) : diagnostic.where,
                 diagnostic.message);
  placed.throw_if_any();
  return run;
}

/// Scripts and logs may hold any bytes. Invalid UTF-8 becomes U+FFFD.
std::string as_utf8(const std::string& bytes) {
  return json::parse(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

/// Without --global-batch-size Megatron uses one micro-batch per data-parallel rank.
void add_global_batch(const Source& source, std::int64_t num_gpus, StatedFields& stated) {
  if (stated.fields.contains("global_batch")) return;
  const Settings& s = source.settings;
  const std::int64_t model_parallel = s.integer("tensor_model_parallel_size", 1) *
                                      s.integer("pipeline_model_parallel_size", 1) *
                                      s.integer("context_parallel_size", 1);
  stated.fields["global_batch"] =
      s.integer("micro_batch_size", 1) * (num_gpus / std::max<std::int64_t>(1, model_parallel));
  stated.inferred.emplace_back("global_batch", "without --global-batch-size it is --micro-batch-size x data parallel");
}

}  // namespace

LaunchCommand read_launch_command(const std::string& text, const std::string& file, const ImportRequest& request) {
  Diagnostics diagnostics;
  const std::map<std::string, int> lines = flag_lines(text);
  const ArgumentsOf arguments = [&](const Started& started) {
    return arguments_of(with_experiment(started, request.folder), lines);
  };
  ScriptQuestion question{.text = text,
                          .file = file,
                          .folder = request.folder,
                          .arguments = request.arguments,
                          .variables = request.variables,
                          .num_gpus = request.num_gpus,
                          .sandbox = request.sandbox};
  if (!request.system.empty()) {
    const costmodel::Hardware hardware = hwprofiles::load_profile(system_meant(request.system)).hardware;
    question.gpus_per_node = gpus_of_node(hardware.network.ranks_per_domain);
    question.gpu = "NVIDIA " + hardware.gpu;
  }
  ScriptStarts found;
  if (const auto command = plain_command(text); command && !arguments(*command).empty())
    found.starts.push_back({.started = *command, .arguments = arguments(*command)});
  else
    found = starts_of(question, arguments, diagnostics);
  diagnostics.throw_if_any();
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(1, request.start));
  if (wanted > found.starts.size())
    throw config::ConfigError(
        {{{file, 0, "--start"}, fmt::format("expected 1 to {}, found {}", found.starts.size(), wanted)}});
  if (found.starts.size() > 1)
    found.notes.push_back(
        fmt::format("it starts {} runs with other arguments each; this is the {}. of them: --start N names another",
                    found.starts.size(), wanted));
  ScriptStart& start = found.starts[wanted - 1];
  LaunchCommand result = command_of(with_experiment(start.started, request.folder), std::move(start.arguments), lines,
                                    question.gpus_per_node);
  result.outgrown = std::move(found.outgrown);
  result.notes.insert(result.notes.begin(), found.notes.begin(), found.notes.end());
  for (const auto& [name, value] : request.variables) result.environment[name] = value;
  return result;
}

namespace {

/// Sets the geometry of the named model. If a front end names it, arguments that differ make another model. If the
/// question names it, they are left out.
void take_model(Source& source, const std::string& named, const Release& release, Diagnostics& diagnostics) {
  Diagnostics unsaid;
  const std::vector<std::string> others = add_geometry(named, release, source.settings, unsaid);
  source.own_sizes = !others.empty() && named == source.model;
  for (const std::string& other : others)
    source.notes.push_back(fmt::format("{}: {}", named, other + (source.own_sizes ? "" : ", is left out")));
  for (const config::Diagnostic& d : unsaid.list())
    if (source.own_sizes)
      diagnostics.error(d.where, d.message);
    else
      source.notes.push_back(d.message);
}

/// Completes what read_source() read, for a release and with the question's values. Reports everything that Megatron
/// would refuse.
Source started(Source source, const Release& release, const std::string& named, std::int64_t num_gpus,
               const costmodel::Hardware& hardware, const std::string& file, Diagnostics& diagnostics) {
  const bool script = source.kind == Source::Kind::kScript;
  if (script) read_arguments(source, release, file, diagnostics);
  if (!diagnostics.ok()) return source;
  source.settings.set("world_size", num_gpus);
  if (script && named.empty()) add_vocabulary(source.settings, source.notes);
  if (script && !named.empty()) take_model(source, named, release, diagnostics);
  const Start start{.settings = source.settings,
                    .environment = source.environment,
                    .world = num_gpus,
                    // MXFP8 needs compute capability 10.
                    .hopper_or_older = !hardware.supports(costmodel::Precision::kMxfp8),
                    .trains = source.program.find("inference") == std::string::npos,
                    .release = release};
  // A run that printed its arguments has passed these checks. Megatron-Bridge makes configurations instead of
  // arguments.
  if (script && source.defaults.empty()) check_arguments(start, file, diagnostics);
  return source;
}

}  // namespace

Imported import_launch(const std::string& bytes, const std::string& file, const ImportRequest& request) {
  const std::string text = as_utf8(bytes);
  Diagnostics diagnostics;
  const Source read = read_source(text, file, request, diagnostics);
  const std::string system = request.system.empty() ? system_in(text) : system_meant(request.system);
  if (system.empty()) diagnostics.error({file, 0, "system"}, "the file names no GPU that we know: give --system NAME");
  const std::optional<std::int64_t> num_gpus = request.num_gpus ? request.num_gpus : read.num_gpus;
  if (!num_gpus) diagnostics.error({file, 0, "num_gpus"}, "the file does not say how many ranks start: give --gpus N");
  const Release& newest = request.release != nullptr ? *request.release : release_of(read.arguments);
  if (Source arguments = read; read.kind == Source::Kind::kScript) read_arguments(arguments, newest, file, diagnostics);
  if (!diagnostics.ok() && !read.outgrown.empty()) diagnostics.error({file, 0, ""}, read.outgrown);
  diagnostics.throw_if_any();

  const std::string named = request.model.empty() ? read.model : model_meant(request.model);
  const costmodel::Hardware hardware = hwprofiles::load_profile(system).hardware;
  const auto as_of = [&](const Release& release, Diagnostics& found) {
    return started(read, release, named, *num_gpus, hardware, file, found);
  };
  Source source = as_of(newest, diagnostics);
  // If no release is named, an older one that accepts the arguments is used.
  const auto takes = [&](const Release& older) {
    if (older.order >= newest.order) return false;
    Diagnostics found;
    Source other = as_of(older, found);
    if (!found.ok()) return false;
    other.notes.push_back(fmt::format("as of Megatron-Core {}: {} says \"{}\"", older.name, newest.name,
                                      diagnostics.list().front().message));
    source = std::move(other);
    return true;
  };
  if (request.release == nullptr && read.kind == Source::Kind::kScript && !diagnostics.ok() &&
      std::any_of(releases().rbegin(), releases().rend(), takes))
    diagnostics = {};
  StatedFields stated = fields_of(source.settings, file, diagnostics);
  const json model = named.empty() || source.own_sizes ? model_of(source.settings, file, diagnostics) : json(named);
  diagnostics.throw_if_any();
  add_global_batch(source, *num_gpus, stated);

  Imported result;
  result.json = stated.fields;
  result.json.update(source.fields);
  result.json["model"] = model;
  result.json["system"] = system;
  result.json["num_gpus"] = *num_gpus;
  result.json["defaults"] = source.defaults.empty() ? "megatron-lm-0.16-arguments" : source.defaults;
  const Release* const release = request.release != nullptr                               ? request.release
                                 : source.release != nullptr && source.release != &newest ? source.release
                                                                                          : exported_for(text);
  if (release != nullptr) result.json["release"] = release->name;
  result.json["source"] = fmt::format("imported from {}", file);
  for (const auto& [key, why] : stated.inferred) result.json["inferred"][key] = why;
  if (source.kind == Source::Kind::kLog) {
    LogIterations iterations = read_iterations(text);
    if (!iterations.measured.is_null()) result.json["measured"] = iterations.measured;
    result.left_out = std::move(iterations.left_out);
    result.steady = iterations.steady;
  }
  result.run = read_back(result.json, source, file);
  result.refused = violations(result.run);
  result.notes = std::move(source.notes);
  result.unknown = std::move(source.unknown);
  result.unused = std::move(source.unused);
  return result;
}

nlohmann::json imported_json(const Imported& imported) {
  nlohmann::json result = {
      {"run", imported.json}, {"left_out", imported.left_out}, {"steady_iterations", imported.steady}};
  result["notes"] = imported.notes;
  const auto list = [](const std::vector<Argument>& arguments) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Argument& argument : arguments)
      rows.push_back({{"flag", argument.flag}, {"values", argument.values}, {"line", argument.line}});
    return rows;
  };
  result["unknown"] = list(imported.unknown);
  result["unused"] = list(imported.unused);
  result["refused"] = rejections_json(imported.refused);
  return result;
}

}  // namespace foldwise::planner

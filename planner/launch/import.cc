#include "planner/launch/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "costmodel/config/plain_text.h"
#include "hwprofiles/load/profile.h"
#include "planner/launch/checks.h"
#include "planner/launch/complete.h"
#include "planner/launch/dump.h"
#include "planner/launch/geometry.h"
#include "planner/launch/log_starts.h"
#include "planner/launch/mapping.h"
#include "planner/launch/model_arguments.h"
#include "planner/launch/older_arguments.h"
#include "planner/launch/script.h"
#include "planner/launch/training_log.h"
#include "planner/models/models.h"
#include "planner/run/near_names.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

namespace {

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
  bool length_of_model = false;      ///< Without a sequence length it is the model's.
  bool own_sizes = false;            ///< The arguments change the named model's sizes.
  std::string defaults;              ///< The front end's set of defaults; empty: Megatron's.
  std::vector<Argument> arguments;   ///< Arguments of a script, from which `settings` are read.
  json fields = json::object();      ///< Fields of the run file that a front end gives.
  std::string program;               ///< The script that Python runs; empty: not known.
  const Release* release = nullptr;  ///< Release for which the arguments were read.
  std::string ranks_of;              ///< Unset variables on which the number of ranks depends.
  std::string outgrown;              ///< Why arguments may be missing.
  LogStart start;                    ///< Of a log: the start that is read.
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

/// Reports what was given for a script and is of no use to this text, which starts none. A log has starts.
void refuse_what_scripts_take(const ImportRequest& request, const std::string& what, const std::string& file,
                              Diagnostics& diagnostics) {
  const auto refuse = [&](bool given, const char* option) {
    if (given) diagnostics.error({file, 0, option}, fmt::format("is for a launch script, found {}", what));
  };
  refuse(!request.variables.empty(), "--env");
  refuse(request.start > 1 && what != "a log", "--start");
  refuse(!request.arguments.empty(), "--");
}

bool is_yaml(const std::string& file) { return file.ends_with(".yaml") || file.ends_with(".yml"); }

/// Reads one of the starts in a log.
Source read_log(const std::vector<LogStart>& starts, const std::string& file, const ImportRequest& request,
                Diagnostics& diagnostics) {
  Source source;
  source.kind = Source::Kind::kLog;
  refuse_what_scripts_take(request, "a log", file, diagnostics);
  const LogStart* start = start_to_read(starts, request.start);
  if (start == nullptr) {
    diagnostics.error({file, 0, "--start"}, fmt::format("expected 1 to {}, found {}", starts.size(), request.start));
    return source;
  }
  source.start = *start;
  if (starts.size() > 1)
    source.notes.push_back(fmt::format(
        "the log has {} starts; this is the {}. of them, at line {}{}: --start N names another", starts.size(),
        start->number, start->line(), request.start == 0 && start->iterations ? ", the last with iterations" : ""));
  Settings& settings = source.settings = read_argument_block(*start, file, diagnostics);
  if (const json* world = settings.find("world_size"); world != nullptr) {
    const auto ranks = rank_count(word_of(*world));
    if (!ranks)
      diagnostics.error({file, settings.line("world_size"), "world_size"},
                        fmt::format("expected a whole number, found {}", world->dump()));
    source.num_gpus = ranks.value_or(1);
  }
  modernize(settings, source.notes);
  if (settings.has("vocab_size") || settings.has("padded_vocab_size") || !request.model.empty()) return source;
  if (const auto size = printed_vocabulary(start->text))
    settings.set("vocab_size", *size);
  else
    add_vocabulary(settings, source.notes);
  return source;
}

Source read_source(const std::string& text, const std::string& file, const ImportRequest& request,
                   Diagnostics& diagnostics) {
  if (const std::vector<LogStart> starts = starts_in(text); !starts.empty())
    return read_log(starts, file, request, diagnostics);
  Source source;
  constexpr std::size_t kMostBytes = std::size_t{4}
                                     << 20;  // Each byte can become a hundred. Real files have kilobytes.
  if (text.size() > kMostBytes)
    diagnostics.error({file, 0, ""}, fmt::format("no log with Megatron's arguments, and larger than the {} MiB of a "
                                                 "script or a configuration",
                                                 kMostBytes >> 20U));
  diagnostics.throw_if_any();
  const bool yaml = is_yaml(file);
  std::optional<TestCase> test;
  std::optional<CommandLine> spelled;  // In another program's words.
  if (yaml) test = read_test_case(text, file, request.variables, diagnostics);
  if (yaml && !test) test = read_flagscale(text, file, request.variables, diagnostics);
  if (yaml && !test) spelled = read_primus_yaml(text, file, request.folder, request.variables, diagnostics);
  if (test) spelled = command_of_nemo(*test, file);
  if (yaml && !test && !spelled && diagnostics.ok())
    spelled = read_bridge_overrides(text, file, request.model, diagnostics);
  diagnostics.throw_if_any();
  if (yaml && !test && !spelled) {
    if (const auto bridge = read_bridge_yaml(text, file, diagnostics)) {
      source.kind = Source::Kind::kBridge;
      source.settings = *bridge;
      modernize(source.settings, source.notes);
      refuse_what_scripts_take(request, "a configuration", file, diagnostics);
      return source;
    }
    diagnostics.error({file, 0, ""},
                      "expected the sections of Megatron-Bridge's configuration, MODEL_ARGS of a test of "
                      "Megatron-LM's, system and model of a FlagScale training, or modules of an experiment of "
                      "Primus, found none of them");
    return source;
  }
  LaunchCommand command;
  if (spelled) {
    const Started started{.words = spelled->words, .environment = test ? test->environment : request.variables};
    command = read_started(started, spelled->lines);
  } else if (test) {
    command.arguments = std::move(test->arguments);
    command.environment = std::move(test->environment);
    if (test->inference) command.program = "inference";
  } else {
    command = read_launch_command(text, file, request);
  }
  source.notes = std::move(command.notes);
  source.outgrown = std::move(command.outgrown);
  source.ranks_of = command.ranks_of;
  source.environment = command.environment;
  source.num_gpus = command.num_gpus;
  source.length_of_model = command.length_of_model;
  source.defaults = command.defaults;
  source.program = command.program;
  source.fields = std::move(command.fields);
  source.arguments = std::move(command.arguments);
  modernize(source.arguments, request.release, source.notes);
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

/// Scripts and logs may hold any bytes. Invalid UTF-8 becomes U+FFFD. A log may have colours, a script Windows' line
/// ends.
std::string as_utf8(const std::string& bytes) {
  return json::parse(json(config::plain_text(bytes)).dump(-1, ' ', false, json::error_handler_t::replace))
      .get<std::string>();
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

/// Sets the geometry of the named model. If a front end names it, arguments that differ make another model. If the
/// question names it, they are left out.
void take_model(Source& source, const std::string& named, const Release& release, Diagnostics& diagnostics) {
  Diagnostics unsaid;
  const std::vector<std::string> others = add_geometry(named, release, source.settings, unsaid);
  source.own_sizes = !others.empty() && named == source.model;
  if (const std::int64_t longest = source.settings.integer("max_position_embeddings", 0);
      source.length_of_model && !source.settings.has("seq_length") && longest > 0) {
    source.settings.set("seq_length", longest);
    source.notes.push_back(
        fmt::format("no length is given: samples of up to {} tokens, the model's longest, are taken "
                    "as of that length; --max_length bounds them",
                    longest));
  }
  for (const std::string& other : others)
    source.notes.push_back(fmt::format("{}: {}", named, other + (source.own_sizes ? "" : ", is left out")));
  for (const config::Diagnostic& d : unsaid.list())
    if (source.own_sizes)
      diagnostics.error(d.where, d.message);
    else
      source.notes.push_back(d.message);
}

/// The sizes in which the model of a log or a configuration is not the named one.
std::vector<std::string> sizes_unlike(const std::string& named, const Release& release, const Settings& stated) {
  Diagnostics unsaid;
  const Settings geometry = settings_of_model(load_model(named), release, unsaid);
  std::vector<std::string> others;
  for (const char* dest : {"num_layers", "hidden_size", "num_attention_heads", "num_experts"})
    if (const std::int64_t own = geometry.integer(dest, 0), other = stated.integer(dest, 0); own != other)
      others.push_back(fmt::format("{} {}, not {}", dest, other, own));
  return others;
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
  Source read = read_source(text, file, request, diagnostics);
  if (read.kind == Source::Kind::kScript && bytes.find("\r\n") != std::string::npos && !is_yaml(file) &&
      !plain_command(text, file))
    read.notes.emplace_back("its lines end as on Windows, which bash refuses: read as after dos2unix");
  const std::string logged = read.kind == Source::Kind::kLog ? system_in(read.start, text) : system_in(text);
  const std::string system = request.system.empty() ? logged : system_meant(request.system);
  if (system.empty()) diagnostics.error({file, 0, "system"}, "the file names no GPU that we know: give --system NAME");
  const std::optional<std::int64_t> num_gpus = request.num_gpus ? request.num_gpus : read.num_gpus;
  if (!num_gpus)
    diagnostics.error({file, 0, "num_gpus"},
                      read.ranks_of.empty()
                          ? "the file does not say how many ranks start: give --gpus N"
                          : fmt::format("how many ranks start depends on {}, which nobody sets: give it by --env "
                                        "NAME=VALUE, or --gpus N",
                                        read.ranks_of));
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
  const bool is_other = source.kind != Source::Kind::kScript && !named.empty();
  const std::vector<std::string> other =
      is_other ? sizes_unlike(named, newest, source.settings) : std::vector<std::string>{};
  if (!other.empty())
    source.notes.push_back(
        fmt::format("the model is {}, as given, and not the file's, which has {}", named, fmt::join(other, ", ")));
  if (source.kind == Source::Kind::kLog) {
    const std::int64_t batch = source.settings.integer("global_batch_size", 0);
    LogIterations iterations =
        read_iterations(std::string(source.start.text), batch > 0 ? std::optional(batch) : std::nullopt);
    const bool as_run = (!source.num_gpus || *source.num_gpus == *num_gpus) && (logged.empty() || logged == system);
    if (!as_run || !other.empty())
      source.notes.push_back(fmt::format("what the log measured is of {}: left out",
                                         as_run ? "another model" : "other GPUs than those that are given"));
    else if (!iterations.measured.is_null()) {
      result.json["measured"] = iterations.measured;
      if (router_decides_loads(source.settings))
        source.notes.emplace_back(
            "loads of the log's EP ranks are those of its router, uneven while that is untrained; predictions assume "
            "even loads unless expert_load says otherwise");
    } else if (!iterations.unmeasured.empty())
      source.notes.push_back("no step is measured: " + iterations.unmeasured);
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

#include "planner/cli/import.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "costmodel/config/input_file.h"
#include "planner/cli/commands.h"
#include "planner/launch/import.h"
#include "planner/report/screen.h"
#include "planner/run/names.h"

namespace foldwise::cli {
namespace {

struct ImportOptions {
  std::string file, system, model, release, format = "text";
  std::int64_t gpus = 0, start = 0;
  std::vector<std::string> variables, arguments;
};

planner::ImportRequest request_of(const ImportOptions& options) {
  planner::ImportRequest request;
  request.system = options.system;
  request.model = options.model;
  request.release = planner::find_release(options.release);
  if (options.gpus > 0) request.num_gpus = options.gpus;
  request.folder = std::filesystem::absolute(options.file).parent_path().string();
  request.arguments = options.arguments;
  request.start = options.start;
  for (const std::string& variable : options.variables) {
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0)
      throw config::ConfigError(
          {{{"command line", 0, "--env"}, fmt::format("expected NAME=VALUE, found \"{}\"", variable)}});
    request.variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return request;
}

/// Prints to stderr what was read, then what was not, in groups.
void print_notes(const planner::Imported& imported) {
  const planner::Screen screen;
  const auto line = [&](const char* name, const std::vector<std::string>& pieces) {
    std::string text = planner::line_of(screen, name, pieces);
    text.pop_back();
    print_note(text);
  };
  const planner::Run& run = imported.run;
  const costmodel::Layout l = run.options.layout();
  line("Read",
       {fmt::format("{} on {} x {},", run.model_name, run.num_gpus, run.system_name),
        fmt::format("seq {}, batch {}, {}:", run.options.layer.seq_len, run.options.pipeline.global_batch,
                    planner::name_of(run.options.layer.precision)),
        fmt::format("TP {} CP {} PP {} VPP {} DP {} EP {} ETP {}", l.tp, l.cp, l.pp, l.vpp, l.dp, l.ep, l.etp)});
  if (imported.steady > 0) line("Measured", {fmt::format("{} steady iterations", imported.steady)});
  for (const std::string& note : imported.notes) line("Note", {note});
  const auto list = [&](const char* name, const std::vector<planner::Argument>& arguments, const char* what) {
    if (arguments.empty()) return;
    std::vector<std::string> pieces;
    pieces.reserve(arguments.size() + 1);
    for (const planner::Argument& argument : arguments)
      pieces.push_back(argument.line > 0 ? fmt::format("{} (line {})", argument.flag, argument.line) : argument.flag);
    pieces.emplace_back(what);
    line(name, pieces);
  };
  list("Unused", imported.unused, "change nothing that is modelled");
  list("Unknown", imported.unknown, "are no arguments of Megatron's");
  for (const std::string& iteration : imported.left_out) line("Left out", {iteration});
  for (const planner::Rejection& rejection : imported.refused) line("Refused", {rejection.text()});
}

int import_file(const ImportOptions& options) {
  const planner::Imported imported =
      planner::import_launch(config::read_input_file(options.file), options.file, request_of(options));
  if (options.format == "json") {
    print_result(planner::imported_json(imported));
  } else {
    print_notes(imported);
    print_result(json_text(imported.json));  // A run file.
  }
  return kDone;
}

}  // namespace

planner::Run run_from(const std::string& path, const std::string& system) {
  if (path.ends_with(".json")) {
    if (!system.empty())
      throw config::ConfigError({{{"command line", 0, "--system"}, path + " states its system; change it there"}});
    return planner::load_run(path);
  }
  ImportOptions options;
  options.file = path;
  options.system = system;
  return planner::import_launch(config::read_input_file(path), path, request_of(options)).run;
}

void add_import(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = app.add_subcommand("import", "Make a run file of a launch script, a log or a configuration");
  command->add_option("file", options->file, "Script, argument list, log with Megatron's arguments, or Bridge's .yaml")
      ->required()
      ->check(readable_file());
  command->add_option("--system", options->system, "Built-in system or profile; default: the GPU that a log names");
  command->add_option("--model", options->model, "Built-in model or config.json; default: the arguments' geometry");
  command->add_option("--gpus", options->gpus, "Ranks; default: torchrun's, srun's or the log's")
      ->transform(counts())
      ->check(CLI::PositiveNumber);
  command->add_option("--env", options->variables, "A variable that the script takes from its environment: NAME=VALUE");
  command
      ->add_option("--start", options->start,
                   "Which of the starts of a script or a log, counted from 1; default: a script's first, a log's last")
      ->check(CLI::Range(1, 1'000));
  command->add_option("arguments", options->arguments, "Behind --: what the script is given")->type_name("ARG");
  add_release(*command, options->release, "the newest that knows every flag");
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return import_file(*options); }; });
}

}  // namespace foldwise::cli

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>

#include "planner/cli/commands.h"
#include "planner/cli/html.h"

namespace foldwise::cli {
namespace {

/// The command line asks for JSON; needed when parsing it fails.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--format=json") return true;
    if (argument == "--format" && i + 1 < argc && std::string_view(argv[i + 1]) == "json") return true;
  }
  return false;
}

/// The end of each command's help.
const std::map<std::string, std::string> examples = {
    {"plan",
     "foldwise plan --model qwen3-235b-a22b --system h100 --gpus 256 --precision bf16 --set cp=1 --html plan.html"},
    {"predict", "foldwise predict docs/examples/deepseek-v3-gb200.json --tokens 14.8T --price 2.35"},
    {"sweep", "foldwise sweep run.json --set num_gpus=256,512,1024 --set ep=8,32,64 --out rows.csv --svg rows.svg"},
    {"compare", "foldwise compare a.json b.json --html compare.html"},
    {"validate", "foldwise validate hwprofiles/data/runs/h200x4_runs.json --format json"},
    {"calibrate", "foldwise calibrate --device cuda --out my-gpus"},
    {"models", "foldwise models deepseek-v3"},
    {"systems", "foldwise systems gb200-nvl72"},
    {"fields", "foldwise fields --format json"},
    {"completion", "foldwise completion bash > ~/.local/share/bash-completion/completions/foldwise"},
    {"man", "foldwise man > foldwise.1 && man ./foldwise.1"}};

void add_examples(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (const auto example = examples.find(command->get_name()); example != examples.end())
      command->footer("Example: " + example->second);
}

int run(int argc, char** argv) {
  const bool as_json = wants_json(argc, argv);
  remember_command(argc, argv);
  CLI::App app("Plans and predicts how to train transformers with Megatron-Core on a GPU cluster.", "foldwise");
  Command chosen;
  add_plan(app, chosen);
  add_predict(app, chosen);
  add_sweep(app, chosen);
  add_compare(app, chosen);
  add_diagnose(app, chosen);
  add_validate(app, chosen);
  add_calibrate(app, chosen);
  add_export(app, chosen);
  add_import(app, chosen);
  add_models(app, chosen);
  add_systems(app, chosen);
  add_fields(app, chosen);
  add_shell(app, chosen);
  add_examples(app);
  app.require_subcommand(1);
  app.set_version_flag("--version", version());
  app.footer("Exit codes: 0 done, 1 a bug of foldwise, 2 bad input, 3 nothing fits.");
  try {
    app.parse(argc, argv);
    return chosen();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    print_errors(config::ConfigError({{{"command line", 0, ""}, error.what()}}), as_json);
    return kBadInput;
  } catch (const config::ConfigError& error) {
    print_errors(error, as_json);
    return kBadInput;
  }
}

}  // namespace
}  // namespace foldwise::cli

int main(int argc, char** argv) {
  try {
    return foldwise::cli::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foldwise: this is a bug of ours, please report it: {}\n", error.what());
  } catch (...) {
    fmt::print(stderr, "foldwise: this is a bug of ours, please report it\n");
  }
  return foldwise::cli::kOurBug;
}

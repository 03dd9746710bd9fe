#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "planner/cli/commands.h"

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

int run(int argc, char** argv) {
  const bool as_json = wants_json(argc, argv);
  CLI::App app("Plans and predicts how to train transformers with Megatron-Core on a GPU cluster.", "foldwise");
  Command chosen;
  add_plan(app, chosen);
  add_predict(app, chosen);
  add_sweep(app, chosen);
  add_compare(app, chosen);
  add_validate(app, chosen);
  add_calibrate(app, chosen);
  add_models(app, chosen);
  add_systems(app, chosen);
  add_fields(app, chosen);
  app.require_subcommand(1);
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

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/outputs.h"
#include "planner/cli/terminal.h"

namespace foldwise::cli {
namespace {

/// Whether the command line asks for JSON. Needed if parsing it fails.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--format=json") return true;
    if (argument == "--format" && i + 1 < argc && std::string_view(argv[i + 1]) == "json") return true;
  }
  return false;
}

struct Shown {
  const char* group;  ///< In the list of commands.
  std::vector<std::string> examples;
};

/// Group and examples of each command.
const std::map<std::string, Shown> shown = {
    {"plan",
     {"Ask",
      {"plan --model qwen3-235b-a22b --system h100 --gpus 256 --global-batch 1024 --out plans",
       "plan --from train.log --explain alternatives", "plan --gpus 256 --why-not tp=4,pp=8"}}},
    {"predict",
     {"Ask",
      {"predict docs/examples/deepseek-v3-gb200.json --explain memory",
       "predict docs/examples/deepseek-v3-gb200.json --tokens 14.8T --price 2.35"}}},
    {"compare", {"Ask", {"compare a.json b.json --explain ops"}}},
    {"serve", {"Ask", {"serve", "serve --port 8888"}}},
    {"sweep", {"Ask", {"sweep run.json --set num_gpus=256,512,1024 --set ep=8,32,64 --out rows.csv --svg rows.svg"}}},
    {"export",
     {"Run", {"export run.json --to slurm > job.sbatch", "export run.json --to torchrun --trial > trial.sh"}}},
    {"import", {"Run", {"import launch.sh --system h100-sxm-80gb > run.json"}}},
    {"diagnose", {"Run", {"diagnose run.json --trace rank0.json.gz --trace rank1.json.gz"}}},
    {"validate", {"Trust", {"validate benchmarks/accuracy/runs/h200x4_runs.json", "validate records.jsonl"}}},
    {"calibrate", {"Trust", {"calibrate --device cuda --out my-gpus", "calibrate --runs mine.json --out my-site"}}},
    {"models", {"Look up", {"models deepseek-v3"}}},
    {"systems", {"Look up", {"systems gb200-nvl72"}}},
    {"fields", {"Look up", {"fields --format json"}}},
    {"rules", {"Look up", {"rules epov.cg_impl"}}},
    {"completion", {"Shell", {"completion bash > ~/.local/share/bash-completion/completions/foldwise"}}},
    {"man", {"Shell", {"man > foldwise.1 && man ./foldwise.1"}}}};

/// Help text of at most 80 columns.
class NarrowHelp : public CLI::Formatter {
 public:
  NarrowHelp() { column_width(kNames); }
  std::string make_description(const CLI::App* app) const override {
    return planner::wrapped(app->get_description(), planner::kNarrow, 0) + '\n';
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return beside(command->get_display_name(true), command->get_description());
  }
  /// A long list of values gets a line of its own.
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return beside(make_option_name(option, is_positional) + make_option_opts(option),
                  CLI::Formatter::make_option_desc(option));
  }

 private:
  static constexpr std::size_t kNames = 26;

  /// Names with the description to their right, or below if the names are long.
  static std::string beside(const std::string& names, const std::string& description) {
    const std::string room(kNames, ' ');
    std::string text = "  " + planner::wrapped(names, planner::kNarrow - 2, 6);
    std::string words = planner::wrapped(description, planner::kNarrow - kNames, 0);
    for (std::size_t at = words.find('\n'); at != std::string::npos; at = words.find('\n', at + 1))
      words.insert(at + 1, room);
    const std::size_t last = text.size() - (text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
    text += last + 1 < kNames ? std::string(kNames - last, ' ') : '\n' + room;
    return text + words + '\n';
  }
};

/// Adds examples and groups of commands; moves -h to the output options.
void add_help(CLI::App& app) {
  app.formatter(std::make_shared<NarrowHelp>());
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    command->formatter(app.get_formatter());
    for (CLI::Option* option : command->get_options())
      if (option->get_group() == "Options") option->group(kQuestion);
    command->set_help_flag();
    command->set_help_flag("-h,--help", "Print this help and exit")->group(kOutput);
    const auto found = shown.find(command->get_name());
    if (found == shown.end()) continue;
    command->group(found->second.group);
    std::string footer = found->second.examples.size() > 1 ? "Examples:" : "Example:";
    for (const std::string& example : found->second.examples)
      footer += (found->second.examples.size() > 1 ? "\n  foldwise " : " foldwise ") + example;
    command->footer(footer);
  }
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

/// Refuses a number without digits, which CLI11 reads as 0.
void check_numbers(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* option : command->get_options()) {
      const std::string type = option->get_type_name();
      if (type != "INT" && type != "UINT" && type != "FLOAT") continue;
      for (const std::string& word : option->results())
        if (word.empty())
          throw config::ConfigError({{{"command line", 0, option->get_name()}, "expected a number, found nothing"}});
    }
}

/// Suggests names for typos such as "plna" and "--modle", which CLI11 does not.
void check_names(const CLI::App& app, int argc, char** argv) {
  if (argc < 2) return;
  const std::string word = argv[1];
  const CLI::App* command = word.starts_with('-') ? &app : nullptr;
  std::vector<std::string> known;
  for (const CLI::App* its : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(its->get_name());
    if (its->get_name() == word) command = its;
  }
  config::Diagnostics diagnostics;
  if (command == nullptr) {
    diagnostics.error({"command line", 0, word}, "no command" + config::nearest_hint(word, known));
    diagnostics.throw_if_any();
  }
  known.clear();
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (int i = 2; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string option = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (!option.starts_with("--") || std::find(known.begin(), known.end(), option) != known.end()) continue;
    diagnostics.error({"command line", 0, option},
                      fmt::format("no option of {}{}", word, config::nearest_hint(option, known)));
  }
  diagnostics.throw_if_any();
}

/// Parses the command line into `app`. Returns the text of --help or --version, if asked for. Throws ConfigError.
std::optional<std::string> parse(CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (!is_utf8(argv[i])) throw config::ConfigError({{{"command line", 0, argv[i]}, "expected UTF-8"}});
  check_names(app, argc, argv);
  try {
    std::vector<std::string> words = with_explained(app, argc, argv);
    std::reverse(words.begin(), words.end());  // CLI11 takes arguments from the back.
    app.parse(words);
    check_numbers(app);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw config::ConfigError({{{"command line", 0, ""}, error.what()}});
    std::ostringstream text;
    app.exit(error, text, text);
    return text.str();
  }
}

int run(int argc, char** argv) {
  const bool as_json = wants_json(argc, argv);
  end_without_memory_as(as_json);
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
  add_rules(app, chosen);
  add_serve(app, chosen);
  add_shell(app, chosen);
  add_help(app);
  app.require_subcommand(1);
  app.set_version_flag("--version", version());
  app.footer("Exit codes: 0 done, 1 a bug of foldwise, 2 bad input, 3 nothing fits.");
  try {
    if (const std::optional<std::string> asked = parse(app, argc, argv)) {
      print_result(*asked);
      return kDone;
    }
    for (const CLI::App* command : app.get_subcommands()) check_outputs(*command);
    return chosen();
  } catch (const config::ConfigError& error) {
    print_errors(error, as_json);
    return kBadInput;
  } catch (const std::range_error& error) {  // Overflow of times (costmodel/pipeline/limits.h).
    print_errors(config::ConfigError({{{"command line", 0, ""}, error.what()}}), as_json);
    return kBadInput;
  } catch (const std::system_error& error) {  // From files, disks or threads.
    print_errors(config::ConfigError({{{"system", 0, ""}, error.what()}}), as_json);
    return kBadInput;
  } catch (const std::bad_alloc&) {
    end_without_memory();
  } catch (const StdoutClosed&) {
    return kBadInput;
  }
}

/// Opens /dev/null on closed standard streams, so that no file that we open later becomes stdout or stderr. Writes to
/// them still fail, as they should.
void occupy_closed_streams() {
  int opened = 0;
  do opened = ::open("/dev/null", O_RDONLY);
  while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened >= 0) ::close(opened);
}

/// Whether TBB threw because the system refused a thread.
bool is_of_threads(const std::exception& error) { return std::string_view(error.what()).starts_with("pthread_"); }

}  // namespace
}  // namespace foldwise::cli

int main(int argc, char** argv) {
  using foldwise::cli::print_note;
  foldwise::cli::occupy_closed_streams();
  foldwise::cli::end_without_memory_as(false);
  try {
    return foldwise::cli::run(argc, argv);
  } catch (const std::exception& error) {
    if (foldwise::cli::is_of_threads(error)) foldwise::cli::end_without_memory();
    print_note(std::string("foldwise: this is a bug of ours, please report it: ") + error.what());
  } catch (...) {
    print_note("foldwise: this is a bug of ours, please report it");
  }
  return foldwise::cli::kOurBug;
}

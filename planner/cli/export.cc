#include "planner/launch/export.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/foldwise.h"
#include "planner/launch/verdict.h"

namespace foldwise::cli {
namespace {

struct ExportOptions {
  std::string file, to = "megatron-lm", release, format = "text";
  bool trial = false, untrained_router = false;
  std::string check, python = "python3";  ///< check: folder of Megatron-LM; empty: no check.
};

int export_run(const ExportOptions& options) {
  const planner::Run run = foldwise::load_run(options.file, planner::find_release(options.release));
  const planner::Trial trial = !options.trial             ? planner::Trial::kNone
                               : options.untrained_router ? planner::Trial::kNatural
                                                          : planner::Trial::kBalanced;
  for (const auto& [name, target] : planner::launch_targets()) {
    if (name != options.to) continue;
    const planner::Launch launch = planner::launch_of(run, target, trial);
    if (!options.check.empty()) {
      const planner::Verdict verdict = planner::verdict_of(launch, run, options.check, options.python);
      if (options.format == "json")
        print_result(planner::verdict_json(verdict));
      else
        print_result(planner::verdict_text(verdict, options.check));
      return verdict.holds() ? kDone : kBadInput;
    }
    if (options.format == "json")
      print_result(planner::launch_json(launch, target));
    else
      print_result(planner::launch_text(launch, target));
  }
  return kDone;
}

}  // namespace

void add_export(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand("export", "Write what starts a run: arguments, a script, a Slurm job");
  command->add_option("run", options->file, "Run file (JSON)")->required();
  std::vector<std::string> targets;
  for (const auto& entry : planner::launch_targets()) targets.push_back(entry.first);
  command->add_option("--to", options->to, "What is written")->check(CLI::IsMember(targets))->capture_default_str();
  add_release(*command, options->release, "the run file's, or the newest with a number");
  CLI::Option* trial = command->add_flag("--trial", options->trial,
                                         "A short run on made-up data that starts as it is: does it train and fit?");
  command
      ->add_flag("--no-balanced", options->untrained_router,
                 "Of a trial: an untrained router spreads the tokens, not evenly as predictions have it")
      ->needs(trial);
  // Is the default. Scripts of earlier versions give it.
  command->add_flag("--balanced")->needs(trial)->excludes("--no-balanced")->group("");
  CLI::Option* check =
      command->add_option("--check", options->check,
                          "Instead: ask the Megatron-LM in this folder whether it takes the arguments, without a GPU");
  command->add_option("--python", options->python, "Of --check: the Python that has its libraries")
      ->capture_default_str()
      ->needs(check);
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return export_run(*options); }; });
}

}  // namespace foldwise::cli

#include "planner/launch/export.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/foldwise.h"

namespace foldwise::cli {
namespace {

struct ExportOptions {
  std::string file, to = "megatron-lm", release = std::string(planner::kRelease), format = "text";
};

int export_run(const ExportOptions& options) {
  const planner::Run run = foldwise::load_run(options.file);
  for (const auto& [name, target] : planner::launch_targets()) {
    if (name != options.to) continue;
    const planner::Launch launch = planner::launch_of(run, options.release, target);
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
  command->add_option("--release", options->release, "Of Megatron-Core; main is its development branch")
      ->check(CLI::IsMember(planner::releases()))
      ->capture_default_str();
  add_format(*command, options->format);
  command->footer("Example: foldwise export run.json --to slurm > job.sbatch");
  command->callback([options, &chosen] { chosen = [options] { return export_run(*options); }; });
}

}  // namespace foldwise::cli

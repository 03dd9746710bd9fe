#include <memory>
#include <string>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/cli/import.h"
#include "planner/diagnose/diagnosis.h"
#include "planner/run/run_file.h"

namespace foldwise::cli {
namespace {

struct DiagnoseOptions {
  std::string run, from, system, format = "text";
  std::vector<std::string> traces;
};

planner::Run run_of(const DiagnoseOptions& options) {
  if (options.run.empty() == options.from.empty())
    throw config::ConfigError({{{"command line", 0, "diagnose"}, "expected a run file or --from, one of them"}});
  return options.from.empty() ? planner::load_run(options.run) : run_from(options.from, options.system);
}

int diagnose(const DiagnoseOptions& options) {
  const planner::Run run = run_of(options);
  const planner::Diagnosis diagnosis = planner::diagnose(run, planner::read_traces(options.traces));
  if (options.format == "json")
    print_result(planner::diagnosis_json(run, diagnosis));
  else
    print_result(planner::diagnosis_text(run, diagnosis));
  return kDone;
}

}  // namespace

void add_diagnose(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command =
      app.add_subcommand("diagnose", "Lay a profiled step beside its prediction: what is slow, and why");
  command->add_option("run", options->run, "Run file (JSON) of what was profiled");
  command->add_option("--from", options->from, "Instead: Megatron's log or launch script, as import reads it")
      ->check(CLI::ExistingFile);
  command->add_option("--system", options->system, "System, where --from does not name its GPU");
  command
      ->add_option("--trace", options->traces,
                   "Trace of PyTorch's profiler, .json or .json.gz; of more ranks, more of them")
      ->required();
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return diagnose(*options); }; });
}

}  // namespace foldwise::cli

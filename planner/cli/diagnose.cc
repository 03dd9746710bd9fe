#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/output_file.h"
#include "planner/answer/diagnose_answer.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/import.h"
#include "planner/cli/outputs.h"
#include "planner/cli/terminal.h"
#include "planner/diagnose/kernel_profiles.h"
#include "planner/diagnose/side_by_side.h"
#include "planner/run/run_file.h"

namespace foldwise::cli {
namespace {

struct DiagnoseOptions {
  std::string run, from, log, system, profiles, format = "text";
  std::string timeline, html;  ///< Paths; empty: none.
  std::vector<std::string> traces, explain;
};

planner::Run run_of(const DiagnoseOptions& options) {
  if (options.run.empty() == options.from.empty())
    throw config::ConfigError({{{"command line", 0, "diagnose"}, "expected a run file or --from, one of them"}});
  planner::Run run = options.from.empty() ? planner::load_run(options.run) : run_from(options.from, options.system);
  return options.log.empty() ? run : planner::with_logged_time(std::move(run), options.log);
}

int diagnose_profiles(const DiagnoseOptions& options) {
  const auto runs = planner::profiled_runs(planner::load_runs(options.profiles));
  if (options.format == "json")
    print_result(planner::profiled_runs_json(runs));
  else
    print_result(planner::profiled_runs_text(runs));
  return kDone;
}

int diagnose(const DiagnoseOptions& options) {
  if (!options.profiles.empty()) return diagnose_profiles(options);
  if (options.traces.empty())
    throw config::ConfigError({{{"command line", 0, "diagnose"}, "expected a run and --trace, or --profiles alone"}});
  const planner::Run run = run_of(options);
  const std::vector<planner::Trace> traces = planner::read_traces(options.traces);
  const planner::Diagnosis diagnosis = planner::diagnose_answer(run, traces);
  const nlohmann::json whole = planner::diagnosis_json(run, diagnosis);
  print_and_write(
      [&] {
        options.format == "json"
            ? print_result(whole)
            : print_result(planner::diagnosis_text(screen_of_stdout(), run, diagnosis, options.explain));
      },
      [&] {
        if (!options.timeline.empty())
          config::write_output_file(options.timeline, planner::side_by_side(run, traces[0], diagnosis).dump() + '\n');
        write_page(options.html, "diagnose", whole);
      });
  return kDone;
}

}  // namespace

void add_diagnose(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command =
      app.add_subcommand("diagnose", "Lay a profiled step beside its prediction: what is slow, and why");
  command->add_option("run", options->run, "Run file (JSON) of what was profiled");
  command->add_option("--from", options->from, "Instead: Megatron's log or launch script, as import reads it")
      ->check(readable_file());
  command->get_option("--from")->excludes(command->get_option("run"));
  command->add_option("--system", options->system, "System, where --from does not name its GPU")
      ->needs(command->get_option("--from"));
  CLI::Option* traces = command->add_option("--trace", options->traces,
                                            "Trace of PyTorch's profiler, .json or .json.gz, or what `nsys export "
                                            "--type sqlite` writes; of more ranks, more");
  command
      ->add_option("--log", options->log,
                   "Megatron's log of the run: what its steps take without a profiler; --from a log knows")
      ->check(readable_file())
      ->needs(traces);
  CLI::Option* profiles =
      command
          ->add_option("--profiles", options->profiles,
                       "Instead of all that: list of measured runs with sums of their kernels by name, to lay beside "
                       "predictions by kind")
          ->check(readable_file());
  add_output_file(*command, "--timeline", options->timeline,
                  "Write the predicted and the measured step for ui.perfetto.dev or chrome://tracing (JSON)");
  add_explain(*command, options->explain, planner::diagnosis_explanations());
  add_html(*command, options->html);
  for (const char* of_trace : {"run", "--from", "--trace", "--timeline", "--explain", "--html"})
    profiles->excludes(command->get_option(of_trace));
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return diagnose(*options); }; });
}

}  // namespace foldwise::cli

#include <fmt/format.h>

#include <memory>
#include <string>

#include "hwprofiles/load/profile.h"
#include "planner/cli/commands.h"
#include "planner/cli/run_prediction.h"
#include "planner/report/communication_report.h"
#include "planner/report/fitting_report.h"
#include "planner/report/prediction_report.h"
#include "planner/rules/rules.h"
#include "planner/search/fitting.h"

namespace foldwise::cli {
namespace {

struct PredictOptions {
  std::string file;
  std::string format = "text";
};

planner::ProvenanceCounts provenance_of(const std::string& system) {
  planner::ProvenanceCounts counts;
  for (const auto& [pointer, provenance] : hwprofiles::load_profile(system).provenance) ++counts[provenance.kind];
  return counts;
}

int predict(const PredictOptions& options) {
  const planner::Run run = planner::load_run(options.file);
  const costmodel::Prediction prediction = checked_prediction(run);
  const auto interval =
      planner::step_time_interval(planner::built_in_residuals(), run.hardware.generation, prediction.step_time);
  const auto fitting = planner::fitting({run.model, run.hardware, run.num_gpus}, run.options);
  const planner::ProvenanceCounts provenance = provenance_of(run.system_name);
  const costmodel::CommunicationReport communication = costmodel::communication_report(
      run.model, run.options, run.hardware, static_cast<std::int64_t>(prediction.critical_stage));
  if (options.format == "json") {
    nlohmann::json result = planner::prediction_json(run, prediction, interval);
    result["fitting"] = fitting ? planner::fitting_json(run, *fitting) : nlohmann::json(nullptr);
    result["communication"] = planner::communication_json(communication);
    result["run"] = planner::write_run(run);
    result["provenance"] = provenance;
    print_result(result);
  } else {
    print_result(planner::prediction_text(run, prediction, interval, provenance) +
                 (communication.entries.empty() ? "" : '\n' + planner::communication_text(communication)) +
                 (fitting ? '\n' + planner::fitting_text(*fitting) : ""));
  }
  return kDone;
}

}  // namespace

costmodel::Prediction checked_prediction(const planner::Run& run) {
  config::Diagnostics diagnostics;
  for (const planner::Rejection& rejection : planner::violations({run.model, run.hardware, run.num_gpus}, run.options))
    diagnostics.error({run.file, run.line, ""}, fmt::format("{}: {}", rejection.rule, rejection.reason));
  diagnostics.throw_if_any();
  return costmodel::predict(run.model, run.options, run.hardware);
}

void add_predict(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PredictOptions>();  // Shared with the callback, which outlives this call.
  CLI::App* command = app.add_subcommand("predict", "Predict time and memory of one run");
  command->add_option("run", options->file, "Run file (JSON)")->required();
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return predict(*options); }; });
}

}  // namespace foldwise::cli

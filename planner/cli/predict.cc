#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "costmodel/config/output_file.h"
#include "costmodel/step/reserved_memory.h"
#include "hwprofiles/load/profile.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/foldwise.h"
#include "planner/report/beyond_fit.h"
#include "planner/report/communication_report.h"
#include "planner/report/fitting_report.h"
#include "planner/report/insight_report.h"
#include "planner/report/prediction_report.h"
#include "planner/report/trace.h"
#include "planner/report/training_cost.h"
#include "planner/run/names.h"
#include "planner/search/fitting.h"
#include "planner/search/sensitivity.h"

namespace foldwise::cli {
namespace {

struct PredictOptions {
  std::string file;
  std::string trace, svg, html;  ///< Paths; empty: not asked for.
  CostArguments cost;
  std::string format = "text";
};

planner::ProvenanceCounts provenance_of(const hwprofiles::Profile& profile) {
  planner::ProvenanceCounts counts;
  for (const auto& [pointer, provenance] : profile.provenance) ++counts[provenance.kind];
  return counts;
}

void write_pictures(const PredictOptions& options, const planner::Run& run, const costmodel::Step& step,
                    const costmodel::Prediction& prediction) {
  if (options.trace.empty() && options.svg.empty()) return;
  const costmodel::StepTimeline timeline = costmodel::step_timeline(step, prediction);
  const std::string title = fmt::format("{}: {}", run.id.empty() ? options.file : run.id, picture_title(run));
  if (!options.trace.empty())
    config::write_output_file(options.trace, planner::trace_json(timeline, title).dump() + '\n');
  if (!options.svg.empty()) config::write_output_file(options.svg, planner::schedule_svg(timeline, title));
}

std::string beyond_fit_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "  " + line + '\n';
  return text.empty() ? "" : "\nOps beyond what their curves were fitted to\n" + text;
}

int predict(const PredictOptions& options) {
  config::Diagnostics diagnostics;
  const std::optional<planner::LongRun> question = long_run(options.cost, diagnostics);
  diagnostics.throw_if_any();
  const planner::Run run = planner::load_run(options.file);
  const costmodel::Step step = foldwise::compose(run);
  costmodel::Prediction prediction = costmodel::predict(step);
  if (!costmodel::add_reserved(step, prediction))
    print_note("what torch's allocator reserves is left out: this run allocates too often for that");
  const auto interval =
      planner::step_time_interval(planner::built_in_residuals(), run.hardware.traits.generation, prediction.step_time);
  const auto fitting = planner::fitting({run.model, run.hardware, run.num_gpus}, run.options);
  const planner::Insight insight = planner::insight({run.model, run.hardware, run.num_gpus}, run.options, prediction,
                                                    foldwise::PlanRequest{}.headroom);
  const hwprofiles::Profile profile =
      hwprofiles::load_profile(run.system_name, run.json.value("system_overrides", nlohmann::json()));
  const planner::ProvenanceCounts provenance = provenance_of(profile);
  const std::vector<std::string> beyond_fit = planner::beyond_fit(step, profile);
  const costmodel::CommunicationReport communication = costmodel::communication_report(step, prediction);
  std::optional<costmodel::Imbalance> imbalance;
  if (run.model.has_moe()) imbalance = costmodel::imbalance(run.model, run.options, run.hardware);
  std::optional<planner::TrainingCost> training;
  if (question) training = planner::training_cost(*question, run, prediction);
  write_pictures(options, run, step, prediction);
  const auto answer = [&] {
    nlohmann::json result = planner::prediction_json(run, prediction, interval);
    if (imbalance)
      result["imbalance"] = {{"p99_load", imbalance->p99_load}, {"p99_memory_gib", in_gib(imbalance->p99_memory)}};
    result["fitting"] = fitting ? planner::fitting_json(run, *fitting) : nlohmann::json(nullptr);
    result["explain"] = planner::insight_json(prediction, insight);
    result["communication"] = planner::communication_json(communication);
    if (training) result["training"] = planner::training_cost_json(*question, *training);
    result["run"] = planner::write_run(run);
    result["provenance"] = provenance;
    result["beyond_fit"] = beyond_fit;
    return result;
  };
  if (!options.html.empty()) write_page(options.html, "predict", answer(), {schedule_picture(run, step, prediction)});
  if (options.format == "json") {
    print_result(answer());
  } else {
    print_result(planner::prediction_text(run, prediction, interval, provenance, imbalance) +
                 beyond_fit_text(beyond_fit) + '\n' + planner::insight_text(prediction, insight) +
                 (communication.entries.empty() ? "" : '\n' + planner::communication_text(communication)) +
                 (training ? '\n' + planner::training_cost_text(*question, *training) : "") +
                 (fitting ? '\n' + planner::fitting_text(*fitting) : ""));
  }
  return kDone;
}

}  // namespace

void add_predict(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PredictOptions>();  // Shared with the callback, which outlives this call.
  CLI::App* command = app.add_subcommand("predict", "Predict time and memory of one run");
  command->add_option("run", options->file, "Run file (JSON)")->required();
  add_output_file(*command, "--trace", options->trace,
                  "Write a timeline for ui.perfetto.dev or chrome://tracing (JSON)");
  add_output_file(*command, "--svg", options->svg, "Write a drawing of the schedule for a browser");
  add_html(*command, options->html);
  add_cost_arguments(*command, options->cost);
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return predict(*options); }; });
}

}  // namespace foldwise::cli

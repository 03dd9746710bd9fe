#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/config/output_file.h"
#include "planner/answer/run_answer.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/cli/terminal.h"
#include "planner/foldwise.h"
#include "planner/report/trace.h"

namespace foldwise::cli {
namespace {

struct PredictOptions {
  std::string file, release;
  std::string trace, svg, html;  ///< Paths; empty: none.
  CostArguments cost;
  std::vector<std::string> explain;
  std::string format = "text";
};

void write_pictures(const PredictOptions& options, const planner::Run& run, const costmodel::Step& step,
                    const costmodel::Prediction& prediction) {
  if (options.trace.empty() && options.svg.empty()) return;
  const costmodel::StepTimeline timeline = costmodel::step_timeline(step, prediction);
  const std::string title = fmt::format("{}: {}", run.id.empty() ? options.file : run.id, planner::picture_title(run));
  if (!options.trace.empty())
    config::write_output_file(options.trace, planner::trace_json(timeline, title).dump() + '\n');
  if (!options.svg.empty()) config::write_output_file(options.svg, planner::schedule_svg(timeline, title));
}

int predict(const PredictOptions& options) {
  config::Diagnostics diagnostics;
  const std::optional<planner::LongRun> question = long_run(options.cost, diagnostics);
  diagnostics.throw_if_any();
  const planner::Run run = planner::load_run(options.file, planner::find_release(options.release));
  const costmodel::Step step = foldwise::compose(run);
  const bool has_page = !options.html.empty(), in_json = options.format == "json";
  const bool screen_alone = !has_page && !in_json && options.explain.empty();
  const planner::RunAnswer answer =
      planner::run_answer(run, step, question, screen_alone ? planner::AnswerPart::kScreen : planner::AnswerPart::kAll);
  if (!answer.has_reserved)
    print_note("what torch's allocator reserves is left out: this run allocates too often for that");
  const nlohmann::json whole = has_page || in_json ? planner::run_answer_json(run, answer) : nlohmann::json();
  const auto text = [&] { return planner::run_answer_text(run, answer, screen_of_stdout(), options.explain); };
  print_and_write([&] { in_json ? print_result(whole) : print_result(text()); },
                  [&] {
                    write_pictures(options, run, step, answer.prediction);
                    if (has_page)
                      write_page(options.html, "predict", whole,
                                 {planner::schedule_picture(run, step, answer.prediction)});
                  });
  return kDone;
}

}  // namespace

void add_predict(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PredictOptions>();  // Shared with the callback, which outlives this function.
  CLI::App* command = app.add_subcommand("predict", "Predict time and memory of one run");
  command->add_option("run", options->file, "Run file (JSON)")->required();
  add_release(*command, options->release, "the run file's");
  add_explain(*command, options->explain, planner::run_explanations());
  add_output_file(*command, "--trace", options->trace,
                  "Write a timeline for ui.perfetto.dev or chrome://tracing (JSON)");
  add_output_file(*command, "--svg", options->svg, "Write a drawing of the schedule for a browser");
  add_html(*command, options->html);
  add_format(*command, options->format);
  add_cost_arguments(*command, options->cost);
  command->callback([options, &chosen] { chosen = [options] { return predict(*options); }; });
}

}  // namespace foldwise::cli

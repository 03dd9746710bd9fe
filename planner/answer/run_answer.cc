#include "planner/answer/run_answer.h"

#include <fmt/format.h>

#include <utility>

#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/step_timeline.h"
#include "hwprofiles/load/profile.h"
#include "planner/report/beyond_fit.h"
#include "planner/report/communication_report.h"
#include "planner/report/fitting_report.h"
#include "planner/report/insight_report.h"
#include "planner/report/run_screen.h"
#include "planner/report/trace.h"
#include "planner/run/names.h"
#include "planner/search/threads.h"
#include "planner/uncertainty/error_model.h"

namespace foldwise::planner {
namespace {

constexpr std::size_t kMostTasks = 2500;  ///< Tasks of a schedule in a page: 1 MB of SVG.

ProvenanceCounts provenance_of(const hwprofiles::Profile& profile) {
  ProvenanceCounts counts;
  for (const auto& [pointer, provenance] : profile.provenance) ++counts[provenance.kind];
  return counts;
}

std::string beyond_fit_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "  " + line + '\n';
  return text.empty() ? "" : "\nOps beyond what their curves were fitted to\n" + text;
}

}  // namespace

RunAnswer run_answer(const Run& run, const Step& step, const std::optional<LongRun>& question, AnswerPart part) {
  RunAnswer answer;
  answer.prediction = foldwise::predict(run, step);
  answer.has_reserved =
      costmodel::add_reserved(step, answer.prediction, {.segments = part == AnswerPart::kAll, .each = side_by_side});
  answer.interval = step_time_interval(built_in_errors(), run, answer.prediction.step_time);
  if (run.model.has_moe()) answer.imbalance = costmodel::imbalance(run.model, run.options, run.hardware);
  const Problem problem{.model = run.model, .hardware = run.hardware, .num_gpus = run.num_gpus, .release = run.release};
  answer.fitting = fitting(problem, run.options, answer.prediction);
  answer.insight = insight(problem, run.options, answer.prediction, foldwise::PlanRequest{}.headroom);
  answer.communication = costmodel::communication_report(step, answer.prediction);
  const hwprofiles::Profile profile = profile_of(run);
  answer.provenance = provenance_of(profile);
  answer.beyond_fit = beyond_fit(step, profile);
  answer.question = question;
  if (question) answer.training = training_cost(*question, run, answer.prediction);
  return answer;
}

nlohmann::json run_answer_json(const Run& run, const RunAnswer& answer) {
  nlohmann::json result = prediction_json(run, answer.prediction, answer.interval);
  if (answer.imbalance)
    result["imbalance"] = {{"p99_load", answer.imbalance->p99_load},
                           {"p99_memory_gib", in_gib(answer.imbalance->p99_memory)}};
  result["fitting"] = answer.fitting ? fitting_json(run, *answer.fitting) : nlohmann::json(nullptr);
  result["explain"] = insight_json(run.options, answer.prediction, answer.insight);
  result["communication"] = communication_json(answer.communication);
  if (answer.training) result["training"] = training_cost_json(*answer.question, *answer.training);
  result["run"] = write_run(run);
  result["provenance"] = answer.provenance;
  result["beyond_fit"] = answer.beyond_fit;
  return result;
}

std::string picture_title(const Run& run) {
  return fmt::format("{} on {} {}, schedule {}, {} pipeline ranks, {} micro-batches", run.model_name, run.num_gpus,
                     run.system_name, name_of(run.options.pipeline.schedule), run.options.pipeline.pp,
                     run.options.num_microbatches());
}

Picture schedule_picture(const Run& run, const costmodel::Step& step, const costmodel::Prediction& prediction) {
  const std::string title = picture_title(run);
  return {title, schedule_svg(costmodel::step_timeline(step, prediction), title, kMostTasks)};
}

const Explanations& run_explanations() {
  static const Explanations list = {{"memory", "memory by pipeline stage, what torch reserves, uneven routing"},
                                    {"time", "the step by pipeline stage and by op"},
                                    {"sure", "how far the step may be off"},
                                    {"limits", "what the step is spent on, and what more hardware would give"},
                                    {"communication", "bytes and seconds by collective, and the busiest links"},
                                    {"assumptions", "what the run file leaves open, and what the numbers rest on"}};
  return list;
}

std::string run_answer_text(const Run& run, const RunAnswer& answer, const Screen& screen,
                            const std::vector<std::string>& explain) {
  std::string text = run_screen(screen, run, answer.prediction, answer.interval, answer.imbalance, answer.insight);
  if (answer.fitting) text += fitting_text(*answer.fitting, screen);
  if (!run.assumed.empty() && !is_asked(explain, "assumptions"))
    text += one_line_of(screen, "Assumed", {fmt::format("{} values: --explain assumptions", run.assumed.size())});
  const auto add = [&](const std::string& name, const std::string& section) {
    if (is_asked(explain, name) && !section.empty()) text += '\n' + section;
  };
  if (!explain.empty()) {
    add("memory", memory_text(run, answer.prediction, answer.imbalance));
    add("time", time_text(run, answer.prediction));
    add("sure", interval_text(screen, answer.interval));
    add("limits", insight_text(answer.prediction, answer.insight, screen));
    if (!answer.communication.entries.empty()) add("communication", communication_text(answer.communication));
    add("assumptions", assumptions_text(screen, run, answer.provenance) + beyond_fit_text(answer.beyond_fit));
  }
  if (answer.training) text += '\n' + training_cost_text(*answer.question, *answer.training);
  return text;
}

ComparedRun compared(Run run) {
  const costmodel::Step step = foldwise::compose(run);
  Prediction prediction = foldwise::predict(run, step);
  if (prediction.fits) {
    Prediction replayed = prediction;
    costmodel::add_reserved(step, replayed, {.segments = false, .only_whether_it_fits = true, .each = side_by_side});
    prediction.fits = replayed.fits;
  }
  return {std::move(run), std::move(prediction)};
}

std::vector<ComparedRun> predict_all(const std::vector<std::function<Run()>>& readers) {
  std::vector<ComparedRun> runs;
  config::Diagnostics diagnostics;
  for (const auto& read : readers) {
    try {
      runs.push_back(compared(read()));
    } catch (const ConfigError& error) {
      diagnostics.add(error);
    }
  }
  diagnostics.throw_if_any();
  return runs;
}

}  // namespace foldwise::planner

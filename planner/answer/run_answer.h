#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/communication.h"
#include "planner/foldwise.h"
#include "planner/report/comparison.h"
#include "planner/report/html.h"
#include "planner/report/prediction_report.h"
#include "planner/report/training_cost.h"
#include "planner/search/fitting.h"
#include "planner/search/sensitivity.h"

namespace foldwise::planner {

/// Answer of `predict`: docs/output.md#predict.
struct RunAnswer {
  Prediction prediction;
  bool has_reserved = false;  ///< Whether reserved memory was computed. Runs with too many allocations have none.
  std::optional<Interval> interval;
  std::optional<costmodel::Imbalance> imbalance;  ///< MoE models only.
  std::optional<Fitting> fitting;                 ///< Only for a run that does not fit.
  Insight insight;
  costmodel::CommunicationReport communication;
  ProvenanceCounts provenance;
  std::vector<std::string> beyond_fit;
  std::optional<LongRun> question;
  std::optional<TrainingCost> training;  ///< Set if there is a question.
};

/// What of an answer is asked for: the screen does not tell what torch reserves without expandable segments.
enum class AnswerPart { kScreen, kAll };
/// `step` must be compose(run).
[[nodiscard]] RunAnswer run_answer(const Run& run, const Step& step, const std::optional<LongRun>& question = {},
                                   AnswerPart part = AnswerPart::kAll);
[[nodiscard]] nlohmann::json run_answer_json(const Run& run, const RunAnswer& answer);
/// "deepseek-v3 on 256 gb200-nvl72, schedule 1f1b, 4 pipeline ranks, 64 micro-batches"
[[nodiscard]] std::string picture_title(const Run& run);
/// The schedule, for a page.
[[nodiscard]] Picture schedule_picture(const Run& run, const Step& step, const Prediction& prediction);
/// Names that `--explain` takes, each with the section that it shows.
[[nodiscard]] const Explanations& run_explanations();
/// The screen, then the sections that `explain` names ("all": every one).
[[nodiscard]] std::string run_answer_text(const Run& run, const RunAnswer& answer, const Screen& screen,
                                          const std::vector<std::string>& explain = {});

/// The run with its prediction, whose `fits` is what `predict` says: also false where torch's allocator runs out of
/// memory.
[[nodiscard]] ComparedRun compared(Run run);
/// Runs for `compare`. Reads every run before failing: throws ConfigError with the mistakes of all of them.
[[nodiscard]] std::vector<ComparedRun> predict_all(const std::vector<std::function<Run()>>& readers);

}  // namespace foldwise::planner

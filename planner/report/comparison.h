#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/report/screen.h"
#include "planner/run/run_file.h"
#include "planner/search/changes.h"
#include "planner/uncertainty/error_model.h"

// Output of `compare`: the differences between runs, the cost of each, the ops behind it, and the change that brings
// one run closest to another.
namespace foldwise::planner {

struct ComparedRun {
  Run run;
  costmodel::Prediction prediction;
};

/// One field that differs between the runs. Values as on a command line; "-" for a run without this field.
struct Difference {
  std::string field;  ///< "recompute.modules"
  std::vector<std::string> values;
};

/// Distance of a run from the first run, and the differences that cause it.
struct Distance {
  /// Percent of the first run's step time. Of its time per token if the steps hold different numbers of tokens.
  double slower_pct = 0.0;
  bool per_token = false;  ///< Whether they do.
  /// Distance below which the model cannot tell the two runs apart: kIndistinguishable; if the runs differ in more than
  /// `plan` chooses, at least the 80 % interval of the difference of their errors.
  double error_pct = 0.0;
  bool exceeds_error = false;
  std::vector<LoneDifference> alone;  ///< Largest effect first; then the changes that a rule refuses on their own.
  /// The single change that brings the first run's time nearest to the other's; nullptr: none brings it nearer.
  [[nodiscard]] const LoneDifference* nearest(Seconds first, Seconds other) const;
};

[[nodiscard]] std::vector<Difference> differences(const std::vector<ComparedRun>& runs);

/// `with_alone`: also predict each difference on its own, one prediction each.
[[nodiscard]] Distance distance(const ComparedRun& first, const ComparedRun& other, const ErrorModel& errors,
                                bool with_alone = true);

[[nodiscard]] nlohmann::json comparison_json(const std::vector<ComparedRun>& runs, const ErrorModel& errors);
/// Names that `--explain` takes, each with the section that it shows.
[[nodiscard]] const Explanations& comparison_explanations();
/// The verdict, one line per run, and its gains and losses; then the sections that `explain` names ("all": every one).
[[nodiscard]] std::string comparison_text(const std::vector<ComparedRun>& runs, const ErrorModel& errors,
                                          const Screen& screen = {}, const std::vector<std::string>& explain = {});

}  // namespace foldwise::planner

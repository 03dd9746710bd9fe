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

// What `compare` prints: where runs differ, what each costs, which ops explain it, and which change brings one to
// the other.
namespace foldwise::planner {

struct ComparedRun {
  Run run;
  costmodel::Prediction prediction;
};

/// One field that is not the same in all runs. Values as a command line has them; "-" where a run has no such field.
struct Difference {
  std::string field;  ///< "recompute.modules"
  std::vector<std::string> values;
};

/// How far a run is from the first one, and which of its differences bring it there.
struct Distance {
  double slower_pct = 0.0;  ///< Of the first run's step.
  /// Within which the model cannot tell such runs apart: kIndistinguishable where they differ in nothing but what
  /// `plan` chooses, else what four of five differences of their errors lie in, if that is more.
  double error_pct = 0.0;
  bool exceeds_error = false;
  std::vector<LoneDifference> alone;  ///< Those that bring most first, then those that rules refuse alone.
  /// The one with which the first run comes nearest to the other's time; nullptr: none comes nearer than the first run.
  [[nodiscard]] const LoneDifference* nearest(Seconds first, Seconds other) const;
};

[[nodiscard]] std::vector<Difference> differences(const std::vector<ComparedRun>& runs);

/// `with_alone`: with the differences one by one, a prediction each.
[[nodiscard]] Distance distance(const ComparedRun& first, const ComparedRun& other, const ErrorModel& errors,
                                bool with_alone = true);

[[nodiscard]] nlohmann::json comparison_json(const std::vector<ComparedRun>& runs, const ErrorModel& errors);
/// What `--explain` may name, and what it then shows.
[[nodiscard]] const Explanations& comparison_explanations();
/// The verdict, a line a run, what each gains and loses; then the sections that `explain` names ("all": every one).
[[nodiscard]] std::string comparison_text(const std::vector<ComparedRun>& runs, const ErrorModel& errors,
                                          const Screen& screen = {}, const std::vector<std::string>& explain = {});

}  // namespace foldwise::planner

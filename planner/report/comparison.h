#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/report/residuals.h"
#include "planner/run/run_file.h"

// What `compare` prints: where runs differ, what each costs, and which ops explain it.
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

/// Seconds of one (cause, kind, module, group) in every run.
struct ExplainedTime {
  std::string cause, kind, module, group;
  std::vector<double> seconds;
  /// Largest distance from the first run.
  [[nodiscard]] double spread() const;
};

[[nodiscard]] std::vector<Difference> differences(const std::vector<ComparedRun>& runs);

/// Every line of the runs' details and the bubble, the one that differs most first.
[[nodiscard]] std::vector<ExplainedTime> explanation(const std::vector<ComparedRun>& runs);

[[nodiscard]] nlohmann::json comparison_json(const std::vector<ComparedRun>& runs, const Residuals& residuals);
[[nodiscard]] std::string comparison_text(const std::vector<ComparedRun>& runs);

}  // namespace foldwise::planner

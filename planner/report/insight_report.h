#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/screen.h"
#include "planner/search/search.h"
#include "planner/search/sensitivity.h"
#include "planner/search/why_not.h"

// Insight into a run, for `predict` and `plan`: where the time goes, what limits it, what would help, and why another
// run is not among the plans.
namespace foldwise::planner {

/// `options` are those of the prediction.
[[nodiscard]] nlohmann::json insight_json(const costmodel::TrainingOptions& options,
                                          const costmodel::Prediction& prediction, const Insight& insight);
[[nodiscard]] std::string insight_text(const costmodel::Prediction& prediction, const Insight& insight,
                                       const Screen& screen);

/// Compares with the first plan of the result, if there is one.
[[nodiscard]] nlohmann::json why_not_json(const PlanProblem& problem, const PlanResult& result, const WhyNot& why);
[[nodiscard]] std::string why_not_text(const PlanProblem& problem, const PlanResult& result, const WhyNot& why,
                                       const Screen& screen = {});

}  // namespace foldwise::planner

#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/screen.h"
#include "planner/search/search.h"
#include "planner/search/sensitivity.h"
#include "planner/search/why_not.h"

// What `predict` and `plan` say about a run beyond its numbers: what it is spent on, what binds it, what would help,
// and why another is no plan.
namespace foldwise::planner {

[[nodiscard]] nlohmann::json insight_json(const costmodel::Prediction& prediction, const Insight& insight);
[[nodiscard]] std::string insight_text(const costmodel::Prediction& prediction, const Insight& insight,
                                       const Screen& screen);

/// Against the first plan of the result, where it has one.
[[nodiscard]] nlohmann::json why_not_json(const PlanProblem& problem, const PlanResult& result, const WhyNot& why);
[[nodiscard]] std::string why_not_text(const PlanProblem& problem, const PlanResult& result, const WhyNot& why,
                                       const Screen& screen = {});

}  // namespace foldwise::planner

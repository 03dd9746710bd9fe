#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/residuals.h"
#include "planner/search/search.h"

// What `plan` prints.
namespace foldwise::planner {

[[nodiscard]] nlohmann::json plan_json(const PlanProblem& problem, const PlanResult& result,
                                       const Residuals& residuals);
[[nodiscard]] std::string plan_text(const PlanProblem& problem, const PlanResult& result);

/// Of each plan its layout, times, memory of the fullest stage and what that leaves of the device's, and what the step
/// waits for; below it how it saves memory, and its precision where there was a choice. 100 columns, and one or two
/// more where names are long.
[[nodiscard]] std::string plan_table(const PlanProblem& problem, const std::vector<Plan>& plans);

}  // namespace foldwise::planner

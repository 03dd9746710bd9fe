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

/// One line per plan, 100 columns: layouts, times, memory of the fullest stage against capacity, what the step waits
/// for.
[[nodiscard]] std::string plan_table(const std::vector<Plan>& plans, const costmodel::Hardware& hardware);

}  // namespace foldwise::planner

#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/report/decision.h"
#include "planner/report/error_model.h"
#include "planner/search/objective.h"
#include "planner/search/search.h"

// What `plan` prints.
namespace foldwise::planner {

[[nodiscard]] nlohmann::json plan_json(const PlanProblem& problem, const PlanResult& result, const ErrorModel& errors);
/// `about`: lines that say what the plans answer, instead of whether the first one is proven to be the fastest.
[[nodiscard]] std::string plan_text(const PlanProblem& problem, const PlanResult& result,
                                    const std::optional<Decision>& decision = {}, const std::string& about = "");

/// The same with the searches behind the answer. `objective`: as `--objective` names it.
[[nodiscard]] nlohmann::json answer_json(const Answered& answer, const std::string& objective,
                                         const ErrorModel& errors);
[[nodiscard]] std::string answer_text(const Answered& answer, const std::string& objective,
                                      const std::optional<Decision>& decision);

/// [{run, step_time_s, gain_pct, evidence}]: PlanResult::unproven.
[[nodiscard]] nlohmann::json unproven_json(const PlanProblem& problem, const PlanResult& result);

/// Of each plan its layout, times, memory of the fullest stage and what that leaves of the device's, and what the step
/// waits for; below it how it saves memory, and its precision where there was a choice. 100 columns, and one or two
/// more where names are long.
[[nodiscard]] std::string plan_table(const PlanProblem& problem, const std::vector<Plan>& plans);

}  // namespace foldwise::planner

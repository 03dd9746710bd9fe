#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/decision.h"
#include "planner/report/screen.h"
#include "planner/search/objective.h"
#include "planner/search/search.h"
#include "planner/uncertainty/error_model.h"

// Output of `plan`: JSON, and the sections that --explain names.
namespace foldwise::planner {

[[nodiscard]] nlohmann::json plan_json(const PlanProblem& problem, const PlanResult& result, const ErrorModel& errors);

/// The JSON with the searches behind the answer. `objective`: its name on the command line.
[[nodiscard]] nlohmann::json answer_json(const Answered& answer, const std::string& objective,
                                         const ErrorModel& errors);
/// Explains the plans of an objective other than "time"; else empty.
[[nodiscard]] std::string objective_text(const Answered& answer, const std::string& objective);
/// Where no plan is fast enough, the search that found the fastest one; else null, and where none found any.
[[nodiscard]] const Tried* fastest_too_slow(const Answered& answer);

/// [{run, step_time_s, gain_pct, evidence}]: PlanResult::unproven.
[[nodiscard]] nlohmann::json unproven_json(const PlanProblem& problem, const PlanResult& result);

/// One row per plan: number, layout, times, memory of the fullest stage, and what the step waits for; below each row
/// its other choices. `plans` are some of the result's plans.
[[nodiscard]] std::string plan_table(const Screen& screen, const PlanProblem& problem, const PlanResult& result,
                                     const std::vector<Plan>& plans);
/// Sections of `plan --explain`: why plan 1 is first and what limits it; the Pareto front of time and memory; the
/// assumptions; and how the space was searched.
[[nodiscard]] std::string why_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result);
[[nodiscard]] std::string pareto_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result);
[[nodiscard]] std::string assumptions_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result);
[[nodiscard]] std::string search_text(const Screen& screen, const Answered& answer);

}  // namespace foldwise::planner

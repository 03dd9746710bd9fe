#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/decision.h"
#include "planner/report/screen.h"
#include "planner/search/objective.h"
#include "planner/search/search.h"
#include "planner/uncertainty/error_model.h"

// What `plan` says of its plans: as JSON, and in sections that --explain names.
namespace foldwise::planner {

[[nodiscard]] nlohmann::json plan_json(const PlanProblem& problem, const PlanResult& result, const ErrorModel& errors);

/// The same with the searches behind the answer. `objective`: as `--objective` names it.
[[nodiscard]] nlohmann::json answer_json(const Answered& answer, const std::string& objective,
                                         const ErrorModel& errors);
/// What plans of another objective than "time" answer; else empty.
[[nodiscard]] std::string objective_text(const Answered& answer, const std::string& objective);

/// [{run, step_time_s, gain_pct, evidence}]: PlanResult::unproven.
[[nodiscard]] nlohmann::json unproven_json(const PlanProblem& problem, const PlanResult& result);

/// Of each plan its number, layout, times, memory of the fullest stage, and what the step waits for; below it what it
/// does besides. `plans` are some of the result's.
[[nodiscard]] std::string plan_table(const Screen& screen, const PlanProblem& problem, const PlanResult& result,
                                     const std::vector<Plan>& plans);
/// What `plan --explain` says besides: why plan 1 is the first and what limits it; plans that no other beats in both
/// time and memory; what is taken as given; and how it was searched.
[[nodiscard]] std::string why_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result);
[[nodiscard]] std::string pareto_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result);
[[nodiscard]] std::string assumptions_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result);
[[nodiscard]] std::string search_text(const Screen& screen, const Answered& answer);

}  // namespace foldwise::planner

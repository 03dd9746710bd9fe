#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "planner/report/screen.h"
#include "planner/search/search.h"

// Explanations of plans: those that the model cannot tell apart, the gain of each choice, or why there is no plan.
namespace foldwise::planner {

/// Relative difference of step times below which the model cannot tell which plan is faster. Of the measured pairs that
/// are farther apart, 102 of 108 are ordered correctly; of closer pairs, 13 of 14 (docs/accuracy.md#pairs).
inline constexpr double kIndistinguishable = 0.03;

/// Groups [first, last] of plans, fastest first, within kIndistinguishable of the group's first.
[[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> groups_of(const std::vector<Plan>& plans);
/// "1-4 are within ...": a line per group of several plans.
[[nodiscard]] std::string groups_text(const std::vector<Plan>& plans, const Screen& screen = {});

[[nodiscard]] nlohmann::json alternatives_json(const PlanProblem& problem, const PlanResult& result);
/// Empty if there are no alternatives.
[[nodiscard]] std::string alternatives_text(const PlanProblem& problem, const PlanResult& result, const Screen& screen);

/// One paragraph: the memory that is missing, the stage and moment, and what fills the memory there.
[[nodiscard]] std::string near_miss_text(const PlanProblem& problem, const NearMiss& miss, const Screen& screen);
[[nodiscard]] nlohmann::json shortage_json(const PlanProblem& problem, const Shortage& shortage);
[[nodiscard]] std::string shortage_text(const PlanProblem& problem, const Shortage& shortage,
                                        const Screen& screen = {});

}  // namespace foldwise::planner

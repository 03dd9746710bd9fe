#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "planner/report/screen.h"
#include "planner/search/search.h"

// What `plan` says about its plans: which of them are the same to the model, what their choices earn, or why there are
// none.
namespace foldwise::planner {

/// Share by which step times of two plans may differ and the model still cannot tell which is faster: of measured pairs
/// that are farther apart 101 of 107 are in the right order, of closer ones 14 of 15 (docs/accuracy.md#pairs).
inline constexpr double kIndistinguishable = 0.03;

/// Plans, fastest first, in groups [first, last] whose members are that close to their first.
[[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> groups_of(const std::vector<Plan>& plans);
/// "1-4 are within ...": a line per group of several plans.
[[nodiscard]] std::string groups_text(const std::vector<Plan>& plans, const Screen& screen = {});

[[nodiscard]] nlohmann::json alternatives_json(const PlanProblem& problem, const PlanResult& result);
/// Empty where there are none.
[[nodiscard]] std::string alternatives_text(const PlanProblem& problem, const PlanResult& result, const Screen& screen);

/// What it lacks, on which stage at which moment, and what fills that: a paragraph.
[[nodiscard]] std::string near_miss_text(const PlanProblem& problem, const NearMiss& miss, const Screen& screen);
[[nodiscard]] nlohmann::json shortage_json(const PlanProblem& problem, const Shortage& shortage);
[[nodiscard]] std::string shortage_text(const PlanProblem& problem, const Shortage& shortage,
                                        const Screen& screen = {});

}  // namespace foldwise::planner

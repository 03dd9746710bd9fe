#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "planner/report/decision.h"
#include "planner/report/screen.h"
#include "planner/search/search.h"
#include "planner/search/sensitivity.h"

// Output of `plan` without --explain: the answer on one screen.
namespace foldwise::planner {

/// Context of the answer.
struct PlanScreen {
  Screen screen;
  std::string about;                  ///< The objective, if it is not the fastest plan.
  bool too_slow = false;              ///< No plan is listed, but some fit: they take longer than the question allows.
  std::vector<std::string> defaults;  ///< Values of the question that the user did not give: "256 GPUs".
  std::vector<std::string> next;      ///< Commands for the user to copy.
  std::string not_exported;           ///< Why plan 1 cannot be exported; empty if it can.
  /// Upper bound of lines of the answer. At least five plans are listed; 0: all plans.
  std::size_t most_lines = 35;
};

[[nodiscard]] std::string plan_screen(const PlanProblem& problem, const PlanResult& result,
                                      const std::optional<Decision>& decision, const std::optional<Insight>& insight,
                                      const ErrorModel& errors, const PlanScreen& how);

/// One line per plan: number, seconds, difference from plan 1, free GiB, parallel sizes, and its choices that differ
/// from plan 1.
[[nodiscard]] std::string plan_lines(const Screen& screen, const PlanProblem& problem, const std::vector<Plan>& plans,
                                     std::size_t most);

}  // namespace foldwise::planner

#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "planner/report/decision.h"
#include "planner/report/screen.h"
#include "planner/search/search.h"
#include "planner/search/sensitivity.h"

// What `plan` prints first: the answer on one screen.
namespace foldwise::planner {

/// What the answer rests on, and what follows it.
struct PlanScreen {
  Screen screen;
  std::string about;                  ///< What is asked for, of another objective than the fastest plan.
  std::vector<std::string> defaults;  ///< Values of the question that nobody gave: "256 GPUs".
  std::vector<std::string> next;      ///< Commands to be copied.
  /// Plans are listed while the answer has fewer lines, five at least; 0: all are.
  std::size_t most_lines = 35;
};

[[nodiscard]] std::string plan_screen(const PlanProblem& problem, const PlanResult& result,
                                      const std::optional<Decision>& decision, const std::optional<Insight>& insight,
                                      const ErrorModel& errors, const PlanScreen& how);

/// A line a plan: its number, seconds, what that is more than plan 1 takes, GiB left, sizes, and what it does otherwise
/// than plan 1.
[[nodiscard]] std::string plan_lines(const Screen& screen, const PlanProblem& problem, const std::vector<Plan>& plans,
                                     std::size_t most);

}  // namespace foldwise::planner

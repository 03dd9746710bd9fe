#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/answer/question.h"
#include "planner/foldwise.h"
#include "planner/report/comparison.h"
#include "planner/report/decision.h"
#include "planner/report/plan_screen.h"
#include "planner/search/objective.h"
#include "planner/search/sensitivity.h"

namespace foldwise::planner {

/// Arguments of `plan`.
struct PlanAsked : PlanArguments {
  using Values = std::map<std::string, std::vector<std::string>>;
  Values set;                     ///< As PlanRequest::set, in addition to the pins.
  std::vector<Values> why_not{};  ///< As read_question() takes them.
  std::string objective = "time";
  std::optional<double> max_step_time;  ///< Seconds.
  std::optional<double> slack_pct;      ///< Nullopt: kSlackPct.
  CostArguments cost;
  DecisionAsked decision;
  std::optional<Run> from;  ///< Ask the question of this run instead of the one of the other arguments.
};
inline constexpr double kSlackPct = 5.0;

/// Answer of `plan`: docs/output.md#plan.
struct PlanAnswer {
  std::string objective;
  Answered answered;  ///< `tried` is empty for objective "time".
  std::optional<Decision> decision;
  std::optional<Insight> insight;  ///< About the first plan.
  std::vector<WhyNot> why_not;
  std::optional<LongRun> training;
  std::vector<ComparedRun> from;  ///< PlanAsked::from and the first plan; empty if there is no `from` or no plan.
};

/// Throws ConfigError with all mistakes, including those in `diagnostics`. `progress`: see plan().
[[nodiscard]] PlanAnswer plan_answer(const PlanAsked& asked, config::Diagnostics diagnostics = {},
                                     const Report& progress = {});
[[nodiscard]] nlohmann::json plan_answer_json(const PlanAnswer& answer);

[[nodiscard]] const Explanations& plan_explanations();
/// The screen, then the sections that `explain` names ("all": every one), then the answers to additional questions.
[[nodiscard]] std::string plan_answer_text(const PlanAnswer& answer, PlanScreen how,
                                           const std::vector<std::string>& explain = {});

}  // namespace foldwise::planner

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

/// All that `plan` is asked with.
struct PlanAsked : PlanArguments {
  using Values = std::map<std::string, std::vector<std::string>>;
  Values set;                     ///< As PlanRequest::set, besides the pins.
  std::vector<Values> why_not{};  ///< As read_question() takes them.
  std::string objective = "time";
  std::optional<double> max_step_time;  ///< Seconds.
  std::optional<double> slack_pct;      ///< Not given: kSlackPct.
  CostArguments cost;
  DecisionAsked decision;
  std::optional<Run> from;  ///< Its question is asked, instead of the arguments' one.
};
inline constexpr double kSlackPct = 5.0;

/// All that `plan` says: docs/output.md#plan.
struct PlanAnswer {
  std::string objective;
  Answered answered;  ///< Without `tried` of objective "time".
  std::optional<Decision> decision;
  std::optional<Insight> insight;  ///< Of the first plan.
  std::vector<WhyNot> why_not;
  std::optional<LongRun> training;
  std::vector<ComparedRun> from;  ///< PlanAsked::from and the first plan; empty: not asked, or there is none.
};

/// Throws ConfigError with all mistakes, those in `diagnostics` among them. `progress` as plan() takes it.
[[nodiscard]] PlanAnswer plan_answer(const PlanAsked& asked, config::Diagnostics diagnostics = {},
                                     const Report& progress = {});
[[nodiscard]] nlohmann::json plan_answer_json(const PlanAnswer& answer);

[[nodiscard]] const Explanations& plan_explanations();
/// The screen, then the sections that `explain` names ("all": every one), then what was asked besides.
[[nodiscard]] std::string plan_answer_text(const PlanAnswer& answer, PlanScreen how,
                                           const std::vector<std::string>& explain = {});

}  // namespace foldwise::planner

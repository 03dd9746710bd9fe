#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"
#include "planner/uncertainty/error_model.h"

// Chooses a plan to run, and runs to measure first, by random draws of prediction errors.
namespace foldwise::planner {

/// Inputs of a decision besides predictions.
struct DecisionAsked {
  std::vector<Run> measured;    ///< Runs on the plans' system with a measured step time.
  std::int64_t suggest = 0;     ///< Number of runs to suggest.
  std::int64_t suggest_gpus{};  ///< Most GPUs of a suggested run; 0: as many as the plans have.
};

/// The contenders: the plans of an answer, and the plainer alternatives to plan 1.
struct Decision {
  struct Choice {
    std::string name;                        ///< "plan 1", "no CUDA graphs", "plan 4: no FSDP".
    std::optional<std::size_t> plan;         ///< Index among PlanResult::plans.
    std::optional<std::size_t> alternative;  ///< Index among PlanResult::alternatives. At least one of the two is set.
    Odds odds;
    Seconds expected{};  ///< Approximate median of the step time, after measured runs are taken into account.
    std::vector<std::string> unmeasured;  ///< ErrorModel::unmeasured().
  };
  struct Suggestion {
    std::string name;  ///< "plan 2", "plan 2 on 64 GPUs with 15 layers".
    Run run;
    Seconds step_time{};         ///< Predicted.
    double expected_loss = 0.0;  ///< Same as Informative::expected_loss.
  };
  std::vector<Choice> choices;
  std::size_t answer = 0;  ///< The choice with the lowest expected loss.
  std::vector<std::string> measured;
  std::optional<std::vector<Suggestion>> suggestions;  ///< Nullopt: not requested.
};
/// Throws ConfigError if a run is of another system, breaks a rule or has no measured step time.
void check_measured(const std::vector<Run>& runs, const std::string& system);

/// Nullopt if there are no plans. Requires that check_measured() accepts asked.measured.
[[nodiscard]] std::optional<Decision> decide(const PlanProblem& problem, const PlanResult& result,
                                             const ErrorModel& errors, const DecisionAsked& asked = {});

[[nodiscard]] nlohmann::json decision_json(const Decision& decision);
[[nodiscard]] std::string decision_text(const Decision& decision);
/// The runs to measure first; empty if not requested.
[[nodiscard]] std::string suggestions_text(const Decision& decision);

}  // namespace foldwise::planner

#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"
#include "planner/uncertainty/error_model.h"

// Which plan to run when predictions err, and which runs to measure first, by draws of their errors.
namespace foldwise::planner {

/// What a decision may stand on, and should name, beside predictions.
struct DecisionAsked {
  std::vector<Run> measured;    ///< Runs of the plans' system with a measured step time.
  std::int64_t suggest = 0;     ///< Runs to name.
  std::int64_t suggest_gpus{};  ///< Most GPUs of one of them; 0: as many as the plans have.
};

/// The plans of an answer, and the plainer alternatives to the first that it names, as contenders.
struct Decision {
  struct Choice {
    std::string name;                        ///< "plan 1", "no CUDA graphs", "plan 4: no FSDP".
    std::optional<std::size_t> plan;         ///< Index among PlanResult::plans.
    std::optional<std::size_t> alternative;  ///< Index among PlanResult::alternatives. One of both at least.
    Odds odds;
    Seconds expected{};                   ///< About the median of what its step may take, after what was measured.
    std::vector<std::string> unmeasured;  ///< ErrorModel::unmeasured().
  };
  struct Suggestion {
    std::string name;  ///< "plan 2", "plan 2 on 64 GPUs with 15 layers".
    Run run;
    Seconds step_time{};         ///< Predicted.
    double expected_loss = 0.0;  ///< As Informative::.
  };
  std::vector<Choice> choices;
  std::size_t answer = 0;  ///< The choice of least expected loss.
  std::vector<std::string> measured;
  std::optional<std::vector<Suggestion>> suggestions;  ///< None: not asked.
};
/// Throws ConfigError where one is of another system, breaks a rule, or has no measured step time.
void check_measured(const std::vector<Run>& runs, const std::string& system);

/// None without plans. Requires measured runs that check_measured() takes.
[[nodiscard]] std::optional<Decision> decide(const PlanProblem& problem, const PlanResult& result,
                                             const ErrorModel& errors, const DecisionAsked& asked = {});

[[nodiscard]] nlohmann::json decision_json(const Decision& decision);
[[nodiscard]] std::string decision_text(const Decision& decision);
/// The runs to measure first, where that was asked.
[[nodiscard]] std::string suggestions_text(const Decision& decision);

}  // namespace foldwise::planner

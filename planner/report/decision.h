#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/report/error_model.h"
#include "planner/search/search.h"

// Which plan to run when predictions err: the errors of all plans are drawn together, so that what they share cancels
// and a choice that only some of them make weighs on those alone.
namespace foldwise::planner {

/// What may be run.
struct Contender {
  Seconds step_time{};  ///< Predicted.
  Exposure causes;
};

struct Odds {
  double best = 0.0;        ///< Probability of being the fastest of all contenders.
  Seconds expected_loss{};  ///< Mean of what its step takes longer than that of the fastest one.
};

/// Of each contender, from kDraws joint draws of all errors. The same for equal arguments.
inline constexpr int kDraws = 20'000;
[[nodiscard]] std::vector<Odds> odds(const std::vector<Contender>& contenders, const ErrorModel& errors);

/// The plans of an answer, and the plainer alternatives to the first that it names, as contenders.
struct Decision {
  struct Choice {
    std::string name;                        ///< "plan 1", "no CUDA graphs".
    std::optional<std::size_t> plan;         ///< Index among PlanResult::plans; none: an alternative.
    std::optional<std::size_t> alternative;  ///< Index among PlanResult::alternatives.
    Odds odds;
    std::vector<std::string> unmeasured;  ///< ErrorModel::unmeasured().
  };
  std::vector<Choice> choices;
  std::size_t answer = 0;  ///< The choice of least expected loss.
};
/// None without plans.
[[nodiscard]] std::optional<Decision> decide(const PlanProblem& problem, const PlanResult& result,
                                             const ErrorModel& errors);

[[nodiscard]] nlohmann::json decision_json(const Decision& decision);
[[nodiscard]] std::string decision_text(const Decision& decision, const PlanResult& result);

}  // namespace foldwise::planner

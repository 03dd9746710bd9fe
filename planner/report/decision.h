#pragma once
#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/report/error_model.h"
#include "planner/search/search.h"

// Which plan to run when predictions err, and which runs to measure first: the errors of all are drawn together, so
// that what they share cancels and a choice that only some of them make weighs on those alone.
namespace foldwise::planner {

/// What may be run.
struct Contender {
  Seconds step_time{};  ///< Predicted.
  Exposure causes;
  /// Of causes that are about resources, what a straight line leaves: with `z` more of one, ln(step time) moves by
  /// causes * z + bends * |z|. Communication that is just hidden costs nothing more with a faster network, but much
  /// with a slower one.
  Exposure bends{};
  double on_virtual_machine = 0.0;  ///< more_on_virtual_machine().
};

/// With the lines through what the run is predicted to take with one deviation less and more of each of kSiteResources.
/// Makes three predictions for each. On a system of which runs were looked at they are straight.
[[nodiscard]] Contender contender(const Run& run, Seconds step_time, const ErrorModel& errors);

inline constexpr int kDraws = 20'000;

/// What is known of the errors of several runs of one site, ln(measured / predicted): mean and covariance, and draws.
/// They are normal but for bends, and for which of two kinds of host the site has.
struct Beliefs {
  Eigen::VectorXd mean;
  Eigen::MatrixXd covariance;
  Eigen::MatrixXd draws;  ///< A row per draw, a column per run.

  /// kDraws of them, the same for equal arguments.
  Beliefs(const std::vector<Contender>& runs, const ErrorModel& errors);
  /// After a run was measured, with ln(measured / predicted).
  void learn(std::size_t run, double error);
};

struct Odds {
  double best = 0.0;           ///< Probability of being the fastest of all contenders.
  double expected_loss = 0.0;  ///< Mean of what its step takes longer than that of the fastest one, as a share of that.
};
/// Of each contender: the first runs of `beliefs`.
[[nodiscard]] std::vector<Odds> odds(const std::vector<Contender>& contenders, const Beliefs& beliefs);

/// A run to measure before one decides.
struct Informative {
  std::size_t run = 0;         ///< Of `beliefs`.
  double expected_loss = 0.0;  ///< Mean of what is still lost by the contender that then seems the fastest, as Odds::.
};
/// Up to `count` of the runs of `beliefs` at indices `among`: those that leave least to lose when all of them are
/// measured, by backward elimination, and of those the one first that leaves least alone. Runs that tell nothing beside
/// those before them are left out at the end.
[[nodiscard]] std::vector<Informative> most_informative(const std::vector<Contender>& contenders,
                                                        const Beliefs& beliefs, const std::vector<std::size_t>& among,
                                                        std::size_t count);

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

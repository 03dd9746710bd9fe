#pragma once
#include <Eigen/Core>
#include <cstddef>
#include <vector>

#include "planner/uncertainty/error_model.h"

// The errors of several runs of one site are drawn together, so that what they share cancels and a choice that only
// some of them make weighs on those alone.
namespace foldwise::planner {

/// [run x cause]: by how much a standard normal of each cause moves ln(measured / predicted) of each run.
[[nodiscard]] Eigen::MatrixXd loadings(const ErrorModel& errors, const std::vector<Exposure>& runs);

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

}  // namespace foldwise::planner

#pragma once
#include <Eigen/Core>
#include <cstddef>
#include <vector>

#include "planner/uncertainty/error_model.h"

// Draws the errors of several runs of one site jointly. Errors that all runs share cancel in a comparison; an error of
// a choice counts only for the runs that make it.
namespace foldwise::planner {

/// [run x cause]: change of ln(measured / predicted) of each run per standard deviation of each cause.
[[nodiscard]] Eigen::MatrixXd loadings(const ErrorModel& errors, const std::vector<Exposure>& runs);

/// A run that may be chosen or measured.
struct Contender {
  Seconds step_time{};  ///< Predicted.
  Exposure causes;
  /// Curvature for causes that are resources: with `z` more of one, ln(step time) moves by causes * z + bends * |z|.
  /// Communication that is just hidden gains nothing from a faster network, but costs much with a slower one.
  Exposure bends{};
  double on_virtual_machine = 0.0;  ///< more_on_virtual_machine().
};

/// `causes` and `bends` come from the step times predicted with one standard deviation less and more of each of
/// kSiteResources. Makes three predictions for each. Without bends on a measured site (Hardware::site).
[[nodiscard]] Contender contender(const Run& run, Seconds step_time, const ErrorModel& errors);

inline constexpr int kDraws = 20'000;

/// Joint distribution of the errors ln(measured / predicted) of several runs of one site: mean, covariance and draws.
/// Normal except for bends, and for the kind of host, of which there are two.
struct Beliefs {
  Eigen::VectorXd mean;
  Eigen::MatrixXd covariance;
  Eigen::MatrixXd draws;  ///< One row per draw, one column per run.

  /// Makes kDraws draws, the same ones for equal arguments.
  Beliefs(const std::vector<Contender>& runs, const ErrorModel& errors);
  /// Conditions on a measured run. `error`: its ln(measured / predicted).
  void learn(std::size_t run, double error);
};

/// The contenders are the first runs of `beliefs`.
[[nodiscard]] std::vector<Odds> odds(const std::vector<Contender>& contenders, const Beliefs& beliefs);

/// A run to measure before choosing.
struct Informative {
  std::size_t run = 0;         ///< Index in `beliefs`.
  double expected_loss = 0.0;  ///< Once it and those before it are measured; see Odds.
};
/// Up to `count` runs among the indices `among` of `beliefs`, in the order in which to measure them. Backward
/// elimination picks them by the expected loss that remains once they are measured. Runs at the end that add nothing
/// are left out.
[[nodiscard]] std::vector<Informative> most_informative(const std::vector<Contender>& contenders,
                                                        const Beliefs& beliefs, const std::vector<std::size_t>& among,
                                                        std::size_t count);

}  // namespace foldwise::planner

#pragma once
#include <Eigen/Core>
#include <functional>

namespace foldwise::hwprofiles {

/// Values between `low` and `high` that minimise the sum of Huber losses of `residuals(values)`: Levenberg-Marquardt
/// with weights that lower the pull of residuals beyond 1.5 times their median, and numeric derivatives. Deterministic.
/// Requires low <= start <= high.
[[nodiscard]] Eigen::VectorXd robust_least_squares(
    const std::function<Eigen::VectorXd(const Eigen::VectorXd&)>& residuals, Eigen::VectorXd start,
    const Eigen::VectorXd& low, const Eigen::VectorXd& high);
/// The loss that it minimises: r^2 / 2 up to `bend`, then linear.
[[nodiscard]] double huber_loss(const Eigen::VectorXd& residuals, double bend);

}  // namespace foldwise::hwprofiles

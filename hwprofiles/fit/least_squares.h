#pragma once
#include <Eigen/Core>
#include <functional>

namespace foldwise::hwprofiles {

/// Minimises the sum of Huber losses of `residuals(values)` for values between `low` and `high`: Levenberg-Marquardt
/// with numeric derivatives, and smaller weights for residuals beyond 1.5 times the median. Deterministic. Requires low
/// <= start <= high.
[[nodiscard]] Eigen::VectorXd robust_least_squares(
    const std::function<Eigen::VectorXd(const Eigen::VectorXd&)>& residuals, Eigen::VectorXd start,
    const Eigen::VectorXd& low, const Eigen::VectorXd& high);
/// The minimised loss: r^2 / 2 up to `bend`, then linear.
[[nodiscard]] double huber_loss(const Eigen::VectorXd& residuals, double bend);

}  // namespace foldwise::hwprofiles

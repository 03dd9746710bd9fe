#include "hwprofiles/fit/least_squares.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace foldwise::hwprofiles {
namespace {

constexpr int kIterations = 60;
constexpr double kDerivativeStep = 1e-5;
/// Smaller residuals are noise. Keeps the bend of the loss positive for a perfect fit.
constexpr double kLeastBend = 1e-3;

/// 1.5 times the median absolute residual.
double bend_of(const Eigen::VectorXd& residuals) {
  std::vector<double> sorted(residuals.data(), residuals.data() + residuals.size());
  for (double& value : sorted) value = std::abs(value);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(kLeastBend, 1.5 * *middle);
}

}  // namespace

double huber_loss(const Eigen::VectorXd& residuals, double bend) {
  return residuals
      .unaryExpr([bend](double r) {
        const double size = std::abs(r);
        return size <= bend ? 0.5 * r * r : bend * (size - 0.5 * bend);
      })
      .sum();
}

Eigen::VectorXd robust_least_squares(const std::function<Eigen::VectorXd(const Eigen::VectorXd&)>& residuals,
                                     Eigen::VectorXd start, const Eigen::VectorXd& low, const Eigen::VectorXd& high) {
  Eigen::VectorXd values = std::move(start);
  Eigen::VectorXd at = residuals(values);
  double damping = 1e-2;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const double bend = bend_of(at);
    Eigen::MatrixXd jacobian(at.size(), values.size());
    for (Eigen::Index c = 0; c < values.size(); ++c) {
      Eigen::VectorXd moved = values;
      const double step = values(c) + kDerivativeStep <= high(c) ? kDerivativeStep : -kDerivativeStep;
      moved(c) += step;
      jacobian.col(c) = (residuals(moved) - at) / step;
    }
    const Eigen::VectorXd weights =
        at.unaryExpr([bend](double r) { return std::abs(r) <= bend ? 1.0 : bend / std::abs(r); });
    const Eigen::MatrixXd normal = jacobian.transpose() * weights.asDiagonal() * jacobian;
    const Eigen::VectorXd gradient = jacobian.transpose() * weights.cwiseProduct(at);
    bool better = false;
    double moved_by = 0.0;
    for (int attempt = 0; attempt < 8 && !better; ++attempt) {
      Eigen::MatrixXd damped = normal;
      damped.diagonal() += damping * normal.diagonal() + Eigen::VectorXd::Constant(values.size(), 1e-12);
      const Eigen::VectorXd next = (values - damped.ldlt().solve(gradient)).cwiseMax(low).cwiseMin(high);
      const Eigen::VectorXd there = residuals(next);
      better = huber_loss(there, bend) < huber_loss(at, bend);
      damping = better ? std::max(1e-9, damping / 5.0) : damping * 5.0;
      if (!better) continue;
      moved_by = (next - values).cwiseAbs().maxCoeff();
      values = next;
      at = there;
    }
    if (!better || moved_by < 1e-7) break;
  }
  return values;
}

}  // namespace foldwise::hwprofiles

#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "kernels/host/settings.h"

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;

enum class Phase { kForward, kDgrad, kWgrad };

template <typename Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Rows of the result per task, about the size of Eigen's blocks.
constexpr std::int64_t kRowsPerTask = 64;

/// m x n x k as executed. Forward multiplies by a transposed weight. wgrad transposes the output gradient and
/// accumulates.
template <typename Real>
void run(Phase phase, std::int64_t m, std::int64_t n, std::int64_t k, const Effort& effort, Measurement& measurement) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<Real> uniform(-1, 1);
  const auto filled = [&](std::int64_t rows, std::int64_t columns) {
    return Matrix<Real>(Matrix<Real>::NullaryExpr(rows, columns, [&] { return uniform(random); }));
  };
  const Matrix<Real> a = phase == Phase::kWgrad ? filled(k, m) : filled(m, k);
  const Matrix<Real> b = phase == Phase::kForward ? filled(n, k) : filled(k, n);
  Matrix<Real> c = Matrix<Real>::Constant(m, n, Real{1});
  const auto product = [&] {
    tbb::parallel_for(std::int64_t{0}, (m + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task) {
      const std::int64_t first = task * kRowsPerTask, rows = std::min(kRowsPerTask, m - first);
      auto block = c.middleRows(first, rows);
      switch (phase) {
        case Phase::kForward:
          block.noalias() = a.middleRows(first, rows) * b.transpose();
          break;
        case Phase::kDgrad:
          block.noalias() = a.middleRows(first, rows) * b;
          break;
        case Phase::kWgrad:
          block.noalias() += a.middleCols(first, rows).transpose() * b;
          break;
      }
    });
  };
  product();
  for (const std::int64_t row : {std::int64_t{0}, m / 2, m - 1}) {
    const std::int64_t column = n - 1;
    double sum = phase == Phase::kWgrad ? 1.0 : 0.0, size = 1.0;
    for (std::int64_t i = 0; i < k; ++i) {
      const double left = phase == Phase::kWgrad ? a(i, row) : a(row, i);
      const double right = phase == Phase::kForward ? b(column, i) : b(i, column);
      sum += left * right;
      size += std::abs(left * right);
    }
    measurement.max_relative_error =
        std::max(measurement.max_relative_error, std::abs(sum - static_cast<double>(c(row, column))) / size);
  }
  // Rounding error of k additions in any order, relative to the sum of absolute values.
  measurement.correct = measurement.max_relative_error <= static_cast<double>(k) * std::numeric_limits<Real>::epsilon();
  if (measurement.correct) time(measurement, effort, product);
}

}  // namespace

std::vector<Setting> gemm_settings(const Effort& effort) {
  constexpr std::array<std::pair<Phase, const char*>, 3> kPhases{
      {{Phase::kForward, "forward"}, {Phase::kDgrad, "dgrad"}, {Phase::kWgrad, "wgrad"}}};
  constexpr std::array<std::pair<std::int64_t, std::int64_t>, 7> kLinears{
      // out, in
      {{512, 512}, {1536, 768}, {1024, 512}, {384, 1024}, {768, 768}, {2048, 256}, {640, 1280}}};
  constexpr std::array<std::int64_t, 4> kTokens{128, 256, 512, 1024};
  std::vector<Setting> settings;
  const auto add = [&](bool wide, Phase phase, const char* name, std::int64_t m, std::int64_t n, std::int64_t k) {
    const double count =
        static_cast<double>(m) * static_cast<double>(k) + static_cast<double>(k) * static_cast<double>(n);
    const double written = static_cast<double>(m) * static_cast<double>(n) * (phase == Phase::kWgrad ? 2.0 : 1.0);
    settings.push_back(
        {.measurement = {.kernel = "gemm",
                         .of = {{"format", wide ? "fp64" : "fp32"}, {"phase", name}},
                         .shape = {{"m", m}, {"n", n}, {"k", k}},
                         .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
                         .bytes = (wide ? 8.0 : 4.0) * (count + written)},
         .run = [=](Measurement& measurement) {
           wide ? run<double>(phase, m, n, k, effort, measurement) : run<float>(phase, m, n, k, effort, measurement);
         }});
  };
  for (std::size_t i = 0; i < kLinears.size(); i += effort.quick ? 2 : 1) {
    const auto [out, in] = kLinears[i];
    for (const auto& [phase, name] : kPhases) {
      // Two of the token counts, which vary with weight and phase.
      const std::size_t first = (i + static_cast<std::size_t>(phase)) % 2;
      for (const std::size_t t : {first, first + 2}) {
        const std::int64_t tokens = kTokens.at(t);
        if (phase == Phase::kForward) add(false, phase, name, tokens, out, in);
        if (phase == Phase::kDgrad) add(false, phase, name, tokens, in, out);
        if (phase == Phase::kWgrad) add(false, phase, name, out, in, tokens);
      }
    }
    if (!effort.quick) add(true, Phase::kForward, "forward", kTokens.at(i % 3), out, in);
  }
  return settings;
}

}  // namespace foldwise::kernels

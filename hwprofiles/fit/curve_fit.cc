#include "hwprofiles/fit/curve_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::Hardware;
using costmodel::MathFormat;

/// Samples whose fold is (keep) or is not (leave) `fold`.
template <typename Sample>
std::pair<std::vector<Sample>, std::vector<Sample>> split(const std::vector<Sample>& samples,
                                                          const std::vector<int>& fold_of, int fold) {
  std::pair<std::vector<Sample>, std::vector<Sample>> parts;
  for (std::size_t i = 0; i < samples.size(); ++i)
    (fold_of[i] == fold ? parts.second : parts.first).push_back(samples[i]);
  return parts;
}

/// `fit` on all samples, its training error, and the errors of samples predicted without their fold.
template <typename Fit, typename Sample, typename FitOne, typename Predict>
Fit validate(const std::vector<Sample>& samples, const std::vector<int>& fold_of, int folds, const FitOne& fit_one,
             const Predict& predict) {
  const auto errors = [&](const Fit& fit, const std::vector<Sample>& of, std::vector<double>& out) {
    for (const Sample& sample : of)
      out.push_back(std::abs(predict(fit, sample) - sample.time.template to<double>()) /
                    sample.time.template to<double>());
  };
  Fit result = fit_one(samples);
  std::vector<double> training, validated;
  errors(result, samples, training);
  for (int fold = 0; fold < folds; ++fold) {
    const auto [rest, left_out] = split(samples, fold_of, fold);
    if (left_out.empty() || rest.empty()) continue;
    errors(fit_one(rest), left_out, validated);
  }
  result.training = error_of(training);
  result.validated = error_of(validated);
  return result;
}

std::vector<int> dealt_out(std::size_t count, int folds) {
  std::vector<int> fold_of(count);
  for (std::size_t i = 0; i < count; ++i) fold_of[i] = static_cast<int>(i % static_cast<std::size_t>(folds));
  return fold_of;
}

double gemm_prediction(const Hardware& hw, MathFormat format, const QuantiseModel& quantise, const GemmSample& sample) {
  auto time = costmodel::gemm_time(hw, format, sample.m, sample.n, sample.k, 1, false).to<double>();
  if (quantise.bytes_per_element > 0.0)
    time += quantise.launch.to<double>() + quantise.bytes_per_element * static_cast<double>(sample.m) *
                                               static_cast<double>(sample.k) / quantise.rate.to<double>();
  return time;
}

GemmFit fit_gemm_once(Hardware hw, MathFormat format, const std::vector<GemmSample>& samples,
                      const QuantiseModel& quantise, std::optional<Seconds> known_launch) {
  const auto index = static_cast<std::size_t>(format);
  hw.gemm.at(index).peak = hw.peak.at(index);
  const bool quantises = quantise.bytes_per_element > 0.0;

  // Logarithms of: sustained, wave overhead, launch unless known, quantise launch and rate if any. Rounding up to tiles
  // and waves makes the cost bumpy, so several starts are tried.
  const auto start_at = [&](double sustained, double wave_overhead) {
    std::vector<double> start{std::log(sustained), std::log(wave_overhead)};
    if (!known_launch) start.push_back(std::log(3e-6));
    if (quantises) {
      start.push_back(std::log(3e-6));
      start.push_back(std::log(0.5 * hw.hbm_bandwidth.to<double>()));
    }
    return start;
  };
  const auto unpack = [&](const std::vector<double>& point) {
    std::size_t at = 0;
    GemmFit fit{.curve = {}, .quantise = quantise, .training = {}, .validated = {}};
    fit.curve.peak = hw.peak.at(index);
    fit.curve.sustained = std::min(1.0, std::exp(point.at(at++)));
    fit.curve.wave_overhead = Seconds{std::exp(point.at(at++))};
    fit.curve.launch = known_launch ? *known_launch : Seconds{std::exp(point.at(at++))};
    if (quantises) {
      fit.quantise.launch = Seconds{std::exp(point.at(at++))};
      fit.quantise.rate = Bandwidth{std::min(hw.hbm_bandwidth.to<double>(), std::exp(point.at(at)))};
    }
    return fit;
  };
  const auto cost = [&](const std::vector<double>& point) {
    const GemmFit fit = unpack(point);
    hw.gemm.at(index) = fit.curve;
    double sum = 0.0;  // a share above 1 costs, or the search could not find its way back
    for (const GemmSample& sample : samples)
      sum += std::abs(std::log(gemm_prediction(hw, format, fit.quantise, sample) / sample.time.to<double>()));
    return sum / static_cast<double>(samples.size()) + std::max(0.0, point.front());
  };
  std::vector<double> best;
  for (const double sustained : {0.6, 0.75, 0.85}) {
    for (const double wave_overhead : {0.5e-6, 2e-6, 4e-6}) {
      // The second search starts from the result of the first: a collapsed simplex gets a new one.
      std::vector<double> found = minimise(cost, minimise(cost, start_at(sustained, wave_overhead), 0.2, 100), 0.1, 60);
      if (best.empty() || cost(found) < cost(best)) best = std::move(found);
    }
  }
  return unpack(best);
}

}  // namespace

FitError error_of(const std::vector<double>& relative_errors) {
  if (relative_errors.empty()) return {};
  std::vector<double> sorted = relative_errors;
  std::sort(sorted.begin(), sorted.end());
  return {.median = sorted.at(sorted.size() / 2),
          .mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size()),
          .samples = sorted.size()};
}

std::vector<double> minimise(const std::function<double(const std::vector<double>&)>& cost, std::vector<double> start,
                             double step, int iterations) {
  const std::size_t dimensions = start.size();
  std::vector<std::pair<double, std::vector<double>>> simplex{{cost(start), start}};
  for (std::size_t i = 0; i < dimensions; ++i) {
    std::vector<double> point = start;
    point[i] += step;
    simplex.emplace_back(cost(point), std::move(point));
  }
  const auto along = [&](const std::vector<double>& from, const std::vector<double>& to, double factor) {
    std::vector<double> point(dimensions);
    for (std::size_t i = 0; i < dimensions; ++i) point[i] = from[i] + factor * (to[i] - from[i]);
    return point;
  };
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::stable_sort(simplex.begin(), simplex.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<double> centre(dimensions, 0.0);
    for (std::size_t p = 0; p < dimensions; ++p)
      for (std::size_t i = 0; i < dimensions; ++i) centre[i] += simplex[p].second[i] / static_cast<double>(dimensions);
    auto& worst = simplex.back();
    const auto attempt = [&](double factor) {
      std::vector<double> point = along(centre, worst.second, factor);
      const double value = cost(point);
      return std::pair{value, std::move(point)};
    };
    const auto reflected = attempt(-1.0);
    if (reflected.first < simplex.front().first) {
      const auto expanded = attempt(-2.0);
      worst = expanded.first < reflected.first ? expanded : reflected;
    } else if (reflected.first < simplex[dimensions - 1].first) {
      worst = reflected;
    } else {
      const auto contracted = attempt(reflected.first < worst.first ? -0.5 : 0.5);
      if (contracted.first < std::min(reflected.first, worst.first)) {
        worst = contracted;
      } else {
        for (std::size_t p = 1; p < simplex.size(); ++p) {
          simplex[p].second = along(simplex.front().second, simplex[p].second, 0.5);
          simplex[p].first = cost(simplex[p].second);
        }
      }
    }
  }
  return std::min_element(simplex.begin(), simplex.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

std::vector<double> relative_least_squares(const std::vector<std::vector<double>>& rows,
                                           const std::vector<double>& times) {
  FW_CHECK(!rows.empty() && rows.size() == times.size());
  const std::size_t columns = rows.front().size();
  std::vector<std::size_t> used(columns);
  std::iota(used.begin(), used.end(), std::size_t{0});
  std::vector<double> weights(columns, 0.0);
  while (!used.empty()) {
    Eigen::MatrixXd matrix(static_cast<Eigen::Index>(rows.size()), static_cast<Eigen::Index>(used.size()));
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::size_t c = 0; c < used.size(); ++c)
        matrix(static_cast<Eigen::Index>(r), static_cast<Eigen::Index>(c)) = rows[r][used[c]] / times[r];
    const Eigen::VectorXd scale = matrix.colwise().norm().transpose().cwiseMax(1e-300);
    matrix = matrix * scale.cwiseInverse().asDiagonal();
    const Eigen::VectorXd ones = Eigen::VectorXd::Ones(matrix.rows());
    const Eigen::VectorXd solution = matrix.colPivHouseholderQr().solve(ones).cwiseQuotient(scale);
    Eigen::Index lowest = 0;
    if (solution.minCoeff(&lowest) >= 0.0) {
      for (std::size_t c = 0; c < used.size(); ++c) weights[used[c]] = solution(static_cast<Eigen::Index>(c));
      break;
    }
    used.erase(used.begin() + lowest);
  }
  return weights;
}

GemmFit fit_gemm(const Hardware& hw, MathFormat format, const std::vector<GemmSample>& samples,
                 const QuantiseModel& quantise, std::optional<Seconds> known_launch, int folds) {
  // All rows m of one weight stay together, so that a validated error is that of weights never seen.
  std::map<std::pair<std::int64_t, std::int64_t>, int> fold_of_weight;
  for (const GemmSample& sample : samples) fold_of_weight.try_emplace({sample.n, sample.k}, 0);
  int next = 0;
  for (auto& entry : fold_of_weight) entry.second = next++ % folds;
  std::vector<int> fold_of;
  fold_of.reserve(samples.size());
  for (const GemmSample& sample : samples) fold_of.push_back(fold_of_weight.at({sample.n, sample.k}));

  Hardware scratch = hw;
  return validate<GemmFit>(
      samples, fold_of, folds,
      [&](const std::vector<GemmSample>& part) { return fit_gemm_once(hw, format, part, quantise, known_launch); },
      [&](const GemmFit& fit, const GemmSample& sample) {
        scratch.gemm.at(static_cast<std::size_t>(format)) = fit.curve;
        return gemm_prediction(scratch, format, fit.quantise, sample);
      });
}

AttentionFit fit_attention(const std::vector<AttentionSample>& samples) {
  const auto folds = static_cast<int>(samples.size());
  return validate<AttentionFit>(
      samples, dealt_out(samples.size(), folds), folds,
      [](const std::vector<AttentionSample>& part) {
        std::vector<std::vector<double>> rows;
        std::vector<double> times;
        for (const AttentionSample& sample : part) {
          rows.push_back({1.0, sample.flops.to<double>()});
          times.push_back(sample.time.to<double>());
        }
        const std::vector<double> w = relative_least_squares(rows, times);
        return AttentionFit{.launch = Seconds{w[0]}, .rate = FlopRate{1.0 / w[1]}, .training = {}, .validated = {}};
      },
      [](const AttentionFit& fit, const AttentionSample& sample) {
        return (fit.launch + sample.flops / fit.rate).to<double>();
      });
}

}  // namespace foldwise::hwprofiles

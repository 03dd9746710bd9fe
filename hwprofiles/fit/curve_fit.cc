#include "hwprofiles/fit/curve_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "costmodel/check.h"
#include "hwprofiles/fit/least_squares.h"
#include "hwprofiles/load/range.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::Hardware;

/// Size of a parameter's unit, in base units.
double unit_size(const std::string& unit) {
  if (unit == "us") return 1e-6;
  if (unit == "pJ/FLOP") return 1e-12;
  if (unit == "TFLOPS") return 1e12;
  if (unit == "GB/s") return 1e9;
  FW_CHECK(unit == "1" || unit == "SM", "no parameter has the unit " + unit);
  return 1.0;
}

/// A sample with its predictor, built once.
struct PreparedSample {
  Predictor time;
  double measured = 0.0;
  bool loaded = false;
};

using Selection = std::vector<std::size_t>;  ///< Indices of samples.

Predictor by_ops(const Measurement& measurement) {
  std::vector<costmodel::Op> ops = ops_of(measurement);
  FW_CHECK(!ops.empty(), setting_of(measurement) + " has no op");
  return [ops = std::move(ops)](const Hardware& hw) { return predicted_time(ops, hw); };
}

class Problem {
 public:
  Problem(const Hardware& hw, const nlohmann::json& profile, const CurveSamples& curve)
      : alone_(measured_alone(hw, false)), parameters_(curve.parameters) {
    for (const Parameter& parameter : parameters_) setters_.push_back(quantity_setter(profile, parameter.pointer));
    FW_CHECK(curve.predictors.empty() || curve.predictors.size() == curve.samples.size());
    for (std::size_t i = 0; i < curve.samples.size(); ++i) {
      const Measurement& measurement = curve.samples[i];
      samples_.push_back({curve.predictors.empty() ? by_ops(measurement) : curve.predictors[i],
                          measured_time(measurement).to<double>(), under_load(measurement)});
    }
  }

  [[nodiscard]] Eigen::VectorXd fit(const Selection& selection) {
    const auto logarithms = [&](double Parameter::*member) {
      Eigen::VectorXd result(static_cast<Eigen::Index>(parameters_.size()));
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        result(static_cast<Eigen::Index>(i)) = std::log(parameters_[i].*member * unit_size(parameters_[i].unit));
      return result;
    };
    const Eigen::VectorXd low = logarithms(&Parameter::low), high = logarithms(&Parameter::high),
                          start = logarithms(&Parameter::start);
    const auto residuals = [&](const Eigen::VectorXd& values) { return errors(values, selection); };
    // The cost is not smooth, because the best tile and the memory bound change along the way. Tries several starts.
    Eigen::VectorXd best;
    double least = 0.0;
    for (const double shift : {0.0, -0.4, 0.4}) {
      const Eigen::VectorXd from = (start.array() + shift).matrix().cwiseMax(low).cwiseMin(high);
      const Eigen::VectorXd found = robust_least_squares(residuals, from, low, high);
      const double loss = residuals(found).cwiseAbs().mean();
      if (best.size() > 0 && loss >= least) continue;
      best = found;
      least = loss;
    }
    return best;
  }

  [[nodiscard]] Seconds predict(const Eigen::VectorXd& values, std::size_t sample) {
    set(values);
    return predict(samples_[sample]);
  }
  [[nodiscard]] std::vector<double> in_units(const Eigen::VectorXd& values) const {
    std::vector<double> result;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      result.push_back(std::exp(values(static_cast<Eigen::Index>(i))) / unit_size(parameters_[i].unit));
    return result;
  }
  void apply(Hardware& hw, const std::vector<double>& values) const {
    for (std::size_t i = 0; i < setters_.size(); ++i) setters_[i](hw, values[i] * unit_size(parameters_[i].unit));
  }
  [[nodiscard]] const std::vector<PreparedSample>& samples() const { return samples_; }

 private:
  void set(const Eigen::VectorXd& values) {
    for (std::size_t i = 0; i < setters_.size(); ++i) {
      setters_[i](alone_, std::exp(values(static_cast<Eigen::Index>(i))));
    }
  }
  [[nodiscard]] Seconds predict(const PreparedSample& sample) const {
    return sample.time(sample.loaded ? measured_alone(alone_, true) : alone_);
  }
  Eigen::VectorXd errors(const Eigen::VectorXd& values, const Selection& selection) {
    set(values);
    Eigen::VectorXd result(static_cast<Eigen::Index>(selection.size()));
    for (std::size_t i = 0; i < selection.size(); ++i) {
      const PreparedSample& sample = samples_[selection[i]];
      const auto time = predict(sample).to<double>();
      result(static_cast<Eigen::Index>(i)) = std::log(time / sample.measured);
    }
    return result;
  }

  Hardware alone_;  ///< Hardware for kernels without sustained load.
  std::vector<Parameter> parameters_;
  std::vector<QuantitySetter> setters_;
  std::vector<PreparedSample> samples_;
};

/// Settings that validation keeps in one fold: all rows of a weight; for other kernels all with the same sizes.
std::string family(const Measurement& measurement) {
  nlohmann::json key = measurement.shape;
  if (measurement.kernel == "gemm") key.erase("m");
  return key.dump();
}

std::vector<int> dealt_by_family(const std::vector<Measurement>& samples, std::uint64_t seed) {
  std::set<std::string> distinct;
  for (const Measurement& sample : samples) distinct.insert(family(sample));
  std::vector<std::string> order(distinct.begin(), distinct.end());
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  std::map<std::string, int> fold_of;
  for (std::size_t i = 0; i < order.size(); ++i) fold_of[order[i]] = static_cast<int>(i % kFolds);
  std::vector<int> folds;
  folds.reserve(samples.size());
  for (const Measurement& sample : samples) folds.push_back(fold_of.at(family(sample)));
  return folds;
}

/// Properties that a measurement's time depends on: those of its first op, or its shape.
std::map<std::string, double> properties(const Measurement& measurement) {
  const std::vector<costmodel::Op> ops = ops_of(measurement);
  if (!ops.empty()) return properties_of(ops.front());
  return {measurement.shape.begin(), measurement.shape.end()};
}

FitError point_error(const std::vector<FittedPoint>& points, Seconds FittedPoint::*predicted) {
  std::vector<double> errors;
  for (const FittedPoint& point : points)
    if (point.*predicted > Seconds{})
      errors.push_back(std::abs((point.*predicted / point.measured).to<double>() - 1.0));
  return error_of(errors);
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2.0;
}

FittedCurve fit_curve(Hardware& hw, const nlohmann::json& profile, const CurveSamples& curve, std::uint64_t seed) {
  FW_CHECK(!curve.samples.empty() && !curve.parameters.empty());
  FittedCurve result{.name = curve.name, .pointer = curve.pointer, .parameters = curve.parameters};
  Problem problem(hw, profile, curve);
  Selection all(curve.samples.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const Eigen::VectorXd fitted = problem.fit(all);
  for (const std::size_t i : all) {
    const PreparedSample& sample = problem.samples()[i];
    result.points.push_back({curve.samples[i], Seconds{sample.measured}, problem.predict(fitted, i), Seconds{}});
    for (const auto& [property, value] : properties(curve.samples[i])) {
      const auto [place, added] = result.range.try_emplace(property, value, value);
      if (!added) place->second = {std::min(place->second.first, value), std::max(place->second.second, value)};
    }
  }
  const std::vector<int> fold_of = dealt_by_family(curve.samples, seed);
  for (int fold = 0; fold < kFolds; ++fold) {
    Selection rest, left_out;
    for (const std::size_t i : all) (fold_of[i] == fold ? left_out : rest).push_back(i);
    if (left_out.empty() || rest.size() < curve.parameters.size()) continue;
    const Eigen::VectorXd values = problem.fit(rest);
    for (const std::size_t i : left_out) result.points[i].validated = problem.predict(values, i);
  }
  result.training = point_error(result.points, &FittedPoint::predicted);
  result.validated = point_error(result.points, &FittedPoint::validated);
  result.values = problem.in_units(fitted);
  problem.apply(hw, result.values);
  return result;
}

}  // namespace foldwise::hwprofiles

#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "hwprofiles/records/record.h"

// Fits the curves of costmodel/hardware to measured times. Pure functions of their samples. Data and errors:
// docs/measuring.md.
namespace foldwise::hwprofiles {

/// |predicted - measured| / measured over samples.
struct FitError {
  double median = 0.0, mean = 0.0;
  std::size_t samples = 0;
};
[[nodiscard]] FitError error_of(const std::vector<double>& relative_errors);
/// For an even number of values: mean of the middle two. Requires at least one value.
[[nodiscard]] double median(std::vector<double> values);

/// Errors of a fit on all samples, and of fits that leave out the sample that they predict.
struct LeftOutErrors {
  FitError training{}, validated{};
};
/// `fit(samples)` returns the first argument of `error(fitted, sample)`. A single sample is not validated.
template <typename Sample, typename Fit, typename Error>
[[nodiscard]] LeftOutErrors leave_one_out(const std::vector<Sample>& samples, const Fit& fit, const Error& error) {
  const auto all = fit(samples);
  std::vector<double> training, validated;
  for (std::size_t out = 0; out < samples.size(); ++out) {
    training.push_back(error(all, samples[out]));
    std::vector<Sample> rest = samples;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(out));
    if (!rest.empty()) validated.push_back(error(fit(rest), samples[out]));
  }
  return {error_of(training), error_of(validated)};
}

/// A number of a profile that a fit may change.
struct Parameter {
  std::string pointer;           ///< "/gemm/bf16/launch"
  std::string unit;              ///< Unit in the profile: "1", "us", "TFLOPS", "GB/s", "pJ/FLOP".
  double start = 0.0;            ///< In `unit`, like `low` and `high`.
  double low = 0.0, high = 0.0;  ///< Positive: the logarithm is fitted.
  bool kept = true;              ///< False: used to explain the samples, but not written to the profile.
};

/// Time of a measurement that is not a sum of ops.
using Predictor = std::function<Seconds(const costmodel::Hardware&)>;

/// A curve and its samples.
struct CurveSamples {
  std::string name;     ///< "gemm bf16"
  std::string pointer;  ///< Curve in the profile, "/gemm/bf16", for its CurveFit. Empty: none is stored.
  std::vector<Parameter> parameters;
  std::vector<Measurement> samples;
  std::vector<Predictor> predictors{};  ///< By sample; empty: each sample is predicted from its ops.
};

/// A measured setting, with the predictions of the fit on all samples and of the fit without this setting.
struct FittedPoint {
  Measurement measurement;
  Seconds measured{}, predicted{}, validated{};
};

struct FittedCurve {
  std::string name, pointer;
  std::vector<Parameter> parameters;
  std::vector<double> values{};  ///< By parameter, in the parameter's unit.
  FitError training{}, validated{};
  std::map<std::string, std::pair<double, double>> range{};  ///< By property of the samples' ops or shapes.
  std::vector<FittedPoint> points{};
};

/// Number of folds in validation. Each is predicted by a fit on the others, which thus leaves out a third of the
/// records.
inline constexpr int kFolds = 3;

/// Fits the parameters to log(predicted / measured) of the samples by robust least squares on the logarithms of the
/// parameters, and sets them in `hw`. Samples are predicted by their predictor or ops
/// (hwprofiles/records/record_ops.h). `profile`: the JSON that `hw` was loaded from. Validation keeps settings of one
/// weight shape in one fold; `seed` assigns the folds. Requires samples with ops or predictors.
[[nodiscard]] FittedCurve fit_curve(costmodel::Hardware& hw, const nlohmann::json& profile, const CurveSamples& curve,
                                    std::uint64_t seed);

}  // namespace foldwise::hwprofiles

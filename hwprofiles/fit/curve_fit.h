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

// Fitting of the curves of costmodel/hardware to measured times. Pure functions of their samples; what they are fed
// with and how well they do is in docs/measuring.md.
namespace foldwise::hwprofiles {

/// |predicted - measured| / measured over samples.
struct FitError {
  double median = 0.0, mean = 0.0;
  std::size_t samples = 0;
};
[[nodiscard]] FitError error_of(const std::vector<double>& relative_errors);
/// The mean of the two middle ones of an even number. Requires values.
[[nodiscard]] double median(std::vector<double> values);

/// Errors of a fit to all samples, and of fits that left out the sample that they predict.
struct LeftOutErrors {
  FitError training{}, validated{};
};
/// `fit(samples)` gives what `error(fitted, sample)` takes. Of a single sample none is validated.
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

/// One number of a profile that a fit may change.
struct Parameter {
  std::string pointer;           ///< "/gemm/bf16/launch"
  std::string unit;              ///< It is written in: "1", "us", "TFLOPS", "GB/s", "pJ/FLOP".
  double start = 0.0;            ///< In `unit`, as `low` and `high`.
  double low = 0.0, high = 0.0;  ///< Above 0: logarithms are fitted.
  bool kept = true;              ///< False: explains the samples, but is not part of the profile.
};

/// Time of a measurement on a device, where its ops do not say.
using Predictor = std::function<Seconds(const costmodel::Hardware&)>;

/// One curve and what it is fitted to.
struct CurveSamples {
  std::string name;     ///< "gemm bf16"
  std::string pointer;  ///< Of the curve in the profile, "/gemm/bf16"; where its CurveFit is stored. Empty: nowhere.
  std::vector<Parameter> parameters;
  std::vector<Measurement> samples;
  std::vector<Predictor> predictors{};  ///< By sample; empty: each is predicted by its ops.
};

/// A measured setting with the prediction of the fit on all samples and of the fit that left the setting out.
struct FittedPoint {
  Measurement measurement;
  Seconds measured{}, predicted{}, validated{};
};

struct FittedCurve {
  std::string name, pointer;
  std::vector<Parameter> parameters;
  std::vector<double> values{};  ///< By parameter, in its unit.
  FitError training{}, validated{};
  std::map<std::string, std::pair<double, double>> range{};  ///< Of properties_of the samples' ops, or of shapes.
  std::vector<FittedPoint> points{};
};

/// Parts into which settings are dealt for validation: each is predicted by a fit on the others, so that a third of the
/// records is left out.
inline constexpr int kFolds = 3;

/// Fits the parameters to log(predicted / measured) of the samples by robust least squares on the logarithms of the
/// parameters, predicting each by its predictor or ops (hwprofiles/records/record_ops.h), and sets them in `hw`.
/// `profile` is the JSON that `hw` was loaded from. Settings of one weight shape stay together in validation, and
/// `seed` decides which part they are dealt to. Requires samples with ops or predictors.
[[nodiscard]] FittedCurve fit_curve(costmodel::Hardware& hw, const nlohmann::json& profile, const CurveSamples& curve,
                                    std::uint64_t seed);

}  // namespace foldwise::hwprofiles

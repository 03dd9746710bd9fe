#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/hardware/hardware.h"

// Fitting of the curves of costmodel/hardware to measured times. Pure functions of their samples; what they are fed
// with and how well they do is in docs/measuring.md.
namespace foldwise::hwprofiles {

/// |predicted - measured| / measured over samples.
struct FitError {
  double median = 0.0, mean = 0.0;
  std::size_t samples = 0;
};
[[nodiscard]] FitError error_of(const std::vector<double>& relative_errors);

/// One linear layer [m, k] x [k, n]: the GEMM alone, or with the quantisation of its activation.
struct GemmSample {
  std::int64_t m = 0, n = 0, k = 0;
  Seconds time{};
};

/// What a sample contains beside the GEMM: t += launch + bytes_per_element * m * k / rate. Rate and launch are fitted
/// along.
struct QuantiseModel {
  double bytes_per_element = 0.0;  ///< Read and written to quantise one activation element; 0: GEMM alone.
  Seconds launch{};
  Bandwidth rate{};
};

struct GemmFit {
  costmodel::GemmCurve curve;
  QuantiseModel quantise;
  FitError training, validated;
};

/// Fits sustained, launch, wave_overhead of `format` on `hw` (its sms, HBM bandwidth and peak are used): least mean
/// |log(predicted / measured)|, by Nelder-Mead on the logarithms. With a quantise model the GEMM's launch cannot be
/// told from the quantiser's: pass it as `known_launch`. Validation: `folds` parts by weight shape (n, k), each
/// predicted by the rest.
[[nodiscard]] GemmFit fit_gemm(const costmodel::Hardware& hw, costmodel::MathFormat format,
                               const std::vector<GemmSample>& samples, const QuantiseModel& quantise,
                               std::optional<Seconds> known_launch, int folds = 5);

struct AttentionSample {
  Flops flops{};
  Seconds time{};
};
struct AttentionFit {
  Seconds launch{};
  FlopRate rate{};
  FitError training, validated;
};
/// Fits t = launch + FLOPs / rate by least squares of relative errors, none negative. Validation: leave one out.
[[nodiscard]] AttentionFit fit_attention(const std::vector<AttentionSample>& samples);

/// Weights w >= 0 that minimise sum(((rows[i] . w) - times[i]) / times[i])^2. Columns that would be negative are left
/// out.
[[nodiscard]] std::vector<double> relative_least_squares(const std::vector<std::vector<double>>& rows,
                                                         const std::vector<double>& times);

/// Nelder-Mead from `start` with a first simplex of `step`; deterministic.
[[nodiscard]] std::vector<double> minimise(const std::function<double(const std::vector<double>&)>& cost,
                                           std::vector<double> start, double step, int iterations);

}  // namespace foldwise::hwprofiles

// Attention rows, fitted to forward and backward times by shape from the benchmarks of cuDNN and FlashAttention-2.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/fit/fitting.h"

namespace foldwise::hwprofiles {
namespace {

using config::ObjectReader;
using Json = nlohmann::ordered_json;

Measurement attention_sample(const std::string& format, bool backward, std::int64_t batch, std::int64_t heads,
                             std::int64_t kv_heads, std::int64_t seq, std::int64_t qk, std::int64_t v, Seconds time) {
  Measurement sample;
  sample.kernel = "attention";
  sample.of = {{"format", format}, {"phase", backward ? "backward" : "forward"}, {"mask", "causal"}};
  sample.shape = {{"batch", batch}, {"heads", heads}, {"kv_heads", kv_heads},
                  {"seq", seq},     {"head_dim", qk}, {"head_dim_v", v}};
  sample.samples_us = {time.to<double>() * 1e6};
  return sample;
}

/// Forward FLOPs of causal attention with a window of keys; 0: no window.
double causal_flops(double batch, double heads, double seq, double qk, double v, double window = 0.0) {
  const double keys = window > 0.0 ? window - window * window / (2.0 * seq) : seq / 2.0;
  return 2.0 * batch * heads * seq * keys * (qk + v);
}

/// Samples from cuDNN's benchmark, which counts a backward as 2.5 times the forward for every head dimension. Uses its
/// nondeterministic backward kernels. `windowed`: rows with a window, else rows without.
std::vector<Measurement> cudnn_samples(const Json& cudnn, const std::string& gpu, std::int64_t qk,
                                       bool windowed = false) {
  std::vector<Measurement> samples;
  for (const auto& row : cudnn.at("rows")) {
    const std::string dtype = row.at("dtype"), format = dtype == "bfloat16" ? "bf16" : dtype;
    if (row.contains("window") != windowed || row.at("gpu") != gpu || row.at("dqk") != qk ||
        (format != "bf16" && format != "fp8"))
      continue;
    const bool backward = row.at("pass") == "bwd";
    if (backward && row.at("deterministic_bwd").get<bool>()) continue;
    const std::int64_t batch = row.at("batch"), heads = row.at("q_heads"), seq = row.at("seq"), v = row.at("dv");
    const std::int64_t window = row.value("window", std::int64_t{0});
    const double counted =
        causal_flops(static_cast<double>(batch), static_cast<double>(heads), static_cast<double>(seq),
                     static_cast<double>(qk), static_cast<double>(v), static_cast<double>(window)) *
        (backward ? 2.5 : 1.0);
    samples.push_back(attention_sample(format, backward, batch, heads, row.at("kv_heads"), seq, qk, v,
                                       Seconds{counted / (row.at("tflops").get<double>() * 1e12)}));
    if (windowed) samples.back().shape["window"] = window;
  }
  return samples;
}

/// Samples from FlashAttention's benchmark: 16384 tokens per batch, hidden size 2048, causal FLOPs halved. Its combined
/// times of forward and backward count 3.5 forwards: the forward is taken to be 1 / 3.5 of the time, as of the FLOPs.
std::vector<Measurement> flash_samples(const Json& seq, const Json& rates, std::int64_t head_dim, bool backward) {
  std::vector<Measurement> samples;
  for (std::size_t i = 0; i < seq.size(); ++i) {
    const std::int64_t s = seq[i], batch = 16384 / s, heads = 2048 / head_dim;
    const double flops = causal_flops(static_cast<double>(batch), static_cast<double>(heads), static_cast<double>(s),
                                      static_cast<double>(head_dim), static_cast<double>(head_dim));
    samples.push_back(attention_sample("bf16", backward, batch, heads, heads, s, head_dim, head_dim,
                                       Seconds{flops * (backward ? 2.5 : 1.0) / (rates[i].get<double>() * 1e12)}));
  }
  return samples;
}

/// Times of one head dimension by `benchmark` on `gpu`, in the spelling of the benchmark's file.
std::vector<Measurement> benchmark_samples(Fitting& fitting, const std::string& benchmark, const std::string& gpu,
                                           std::int64_t head_dim) {
  if (benchmark == "cudnn") return cudnn_samples(fitting.measurements("cudnn_attention.json"), gpu, head_dim);
  const Json& file = fitting.measurements("flash_attention_2.json");
  const Json& rates = file.at(gpu).at(fmt::format("d{}_causal", head_dim));
  std::vector<Measurement> samples = flash_samples(file.at("seq"), rates, head_dim, false);
  for (Measurement& sample : flash_samples(file.at("seq"), rates, head_dim, true)) samples.push_back(std::move(sample));
  return samples;
}

}  // namespace

/// {"curves": "attention", "benchmark": "cudnn" or "flash2", "gpu": as in the benchmark's file, "head_dims": rows,
///  "measured_on": profile of that GPU if it is another one, "only": numbers to keep; without it all}
/// With "measured_on", rates and times per tile are scaled by the ratio of BF16 peaks, and all numbers are assumed.
void fit_attention(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  const std::vector<std::pair<std::string, std::string>> sources{{"cudnn", "cuDNN"}, {"flash2", "FA"}};
  const std::string source = entry.choice("benchmark", sources).value_or("");
  const std::string benchmark = entry.required_string("benchmark"), gpu = entry.required_string("gpu");
  const auto head_dims = entry.integers("head_dims", 1, 65536).value_or(std::vector<std::int64_t>{});
  const auto only = entry.strings("only");
  const auto measured_on = entry.string("measured_on");
  if (source.empty()) return;
  double share = 1.0;
  std::string elsewhere;
  if (measured_on) {
    const Profile other = fitting.profile(*measured_on);
    share = fit.profile.json.at("peak").at("bf16").at("value").get<double>() /
            other.json.at("peak").at("bf16").at("value").get<double>();
    elsewhere = "as " + *measured_on;
    if (share != 1.0) elsewhere += fmt::format(" x {:.3f}, the ratio of BF16 peaks", share);
    elsewhere += ": ";
  }
  for (const std::int64_t head_dim : head_dims) {
    const std::string at = fmt::format("/attention/{}", head_dim);
    std::vector<Measurement> samples = benchmark_samples(fitting, benchmark, gpu, head_dim);
    const std::vector<Parameter> parameters = attention_parameters(at, samples);
    const FittedCurve curve =
        fit_curve(fit.hardware, fit.profile.json,
                  {fmt::format("attention {}", head_dim), at, parameters, std::move(samples)}, kFitSeed);
    print_fit(fit.name, curve);
    const Origin origin{measured_on ? "assumed" : "fitted", source,
                        elsewhere + note(curve.training, curve.validated) +
                            (benchmark == "flash2" ? "; forward and backward were timed together" : "")};
    for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
      const std::string& pointer = curve.parameters[i].pointer;
      if (only && std::find(only->begin(), only->end(), pointer.substr(at.size() + 1)) == only->end()) continue;
      double value = curve.values[i];
      if (pointer.ends_with("_rate")) value *= share;
      if (pointer.ends_with("_tile")) value /= share;
      fit.sheet.put(pointer, value, curve.parameters[i].unit, origin);
    }
  }
}

/// Cost of a sliding window beyond its own keys, from cuDNN's windowed rows (all of head dimension 64), on top of the
/// curve without a window. {"curves": "attention_window", "gpu": as in cudnn_attention.json}
void fit_attention_window(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  constexpr double kTileKeys = 128.0;
  CurveSamples curve{
      "attention window",
      "",
      {},
      cudnn_samples(fitting.measurements("cudnn_attention.json"), entry.required_string("gpu"), 64, true)};
  for (const char* key : {"forward_window_keys", "backward_window_keys"})
    curve.parameters.push_back({fmt::format("/attention/64/{}", key), "1", kTileKeys, 1.0, 1e4});
  const FittedCurve fitted = fit_curve(fit.hardware, fit.profile.json, curve, kFitSeed);
  print_fit(fit.name, fitted);
  for (std::size_t i = 0; i < fitted.parameters.size(); ++i)
    fit.sheet.put(fitted.parameters[i].pointer, fitted.values[i], "1",
                  {"fitted", "cuDNN", note(fitted.training, fitted.validated)});
}

}  // namespace foldwise::hwprofiles

#include "hwprofiles/fit/record_fit.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "hwprofiles/load/range.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::Hardware;

/// Smallest host copy of a fit: offloaded activations are tens of MiB, and the curve has no latency.
constexpr double kSmallestCopy = 4.0 * 1048576.0;

using Samples = std::vector<Measurement>;

bool is(const Measurement& sample, const char* key, const std::string& value) {
  const auto found = sample.of.find(key);
  return found != sample.of.end() && found->second == value;
}

bool any(const Samples& samples, const char* key, const std::string& value) {
  return std::any_of(samples.begin(), samples.end(), [&](const Measurement& sample) { return is(sample, key, value); });
}

Samples chosen(const Samples& records, const std::function<bool(const Measurement&)>& choose) {
  Samples result;
  for (const Measurement& record : records)
    if (choose(record) && !ops_of(record).empty()) result.push_back(record);
  return result;
}

/// The curve holds where its GEMMs or its grouped GEMMs were measured.
void widen_gemm_range(std::vector<FittedCurve>& fits, const std::string& format) {
  const auto named = [&](const std::string& name) {
    return std::find_if(fits.begin(), fits.end(), [&](const FittedCurve& fit) { return fit.name == name; });
  };
  const auto gemm = named("gemm " + format), grouped = named("grouped gemm " + format);
  if (gemm == fits.end() || grouped == fits.end()) return;
  for (const auto& [property, ends] : grouped->range) {
    auto& both = gemm->range.try_emplace(property, ends).first->second;
    both = {std::min(both.first, ends.first), std::max(both.second, ends.second)};
  }
}

}  // namespace

std::vector<Parameter> gemm_parameters(const std::string& format, const Samples& samples) {
  const std::string at = "/gemm/" + format;
  std::vector<Parameter> parameters;
  for (const char* phase : {"forward", "dgrad", "wgrad"})
    if (any(samples, "phase", phase)) parameters.push_back({at + "/sustained/" + phase, "1", 0.75, 0.02, 1.0});
  parameters.push_back({at + "/launch", "us", 3.0, 0.01, 100.0});
  parameters.push_back({at + "/wave_overhead", "us", 2.0, 0.01, 100.0});
  if (any(samples, "phase", "wgrad")) parameters.push_back({at + "/accumulate_share", "1", 1.5, 0.2, 10.0});
  return parameters;
}

std::vector<Parameter> attention_parameters(const std::string& row, const Samples& samples) {
  std::vector<Parameter> parameters;
  for (const char* direction : {"forward", "backward"}) {
    const Samples same = chosen(samples, [&](const Measurement& sample) { return is(sample, "phase", direction); });
    if (same.empty()) continue;
    const std::string at = row + "/" + direction;
    parameters.push_back({at + "_rate", "TFLOPS", 500.0, 0.001, 1e5});
    parameters.push_back({at + "_launch", "us", 10.0, 0.01, 500.0});
    parameters.push_back({at + "_tile", "us", 2.0, 0.001, 500.0});
    if (any(same, "format", "fp8") && any(same, "format", "bf16"))
      parameters.push_back({row + "/fp8_" + direction + "_speedup", "1", 1.0, 0.2, 4.0});
  }
  return parameters;
}

std::vector<FittedCurve> fit_records(Hardware& hw, const nlohmann::json& profile, const Samples& records,
                                     std::uint64_t seed) {
  std::vector<FittedCurve> fits;
  const auto fit = [&](CurveSamples curve) {
    if (curve.samples.size() > curve.parameters.size()) fits.push_back(fit_curve(hw, profile, curve, seed));
  };
  for (const auto& entry : memory_op_names()) {
    const std::string& name = entry.first;
    Samples samples = chosen(records, [&](const Measurement& r) { return r.kernel == "memory" && is(r, "op", name); });
    const std::string at = "/memory/" + name;
    fit({"memory " + name,
         at,
         {{at + "/share", "1", 0.7, 1e-5, 1.0}, {at + "/launch", "us", 3.0, 0.01, 1000.0}},
         std::move(samples)});
  }
  for (const auto& entry : math_format_names()) {
    const std::string& name = entry.first;
    const auto of_kernel = [&](const char* kernel) {
      return chosen(records, [&](const Measurement& r) {
        return r.kernel == kernel && is(r, "format", name) && !under_load(r) && !r.of.contains("includes") &&
               hw.peak.at(static_cast<std::size_t>(entry.second)) > FlopRate{};
      });
    };
    Samples samples = of_kernel("gemm");
    std::vector<Parameter> parameters = gemm_parameters(name, samples);
    fit({"gemm " + name, "/gemm/" + name, std::move(parameters), std::move(samples)});
    fit({"grouped gemm " + name,
         "",
         {{"/gemm/" + name + "/per_group", "us", 1.0, 0.001, 1000.0},
          {"/gemm/" + name + "/group_memory_share", "1", 0.8, 0.05, 1.0}},
         of_kernel("grouped_gemm")});
    widen_gemm_range(fits, name);
  }
  for (const auto& [name, format] : math_format_names()) {
    if (hw.power.limit <= hw.power.base) break;
    const std::string& of = name;
    fit({"power " + of,
         "",
         {{"/power/per_flop/" + of, "pJ/FLOP", 0.5, 0.01, 100.0}},
         chosen(records,
                [&of](const Measurement& r) { return r.kernel == "gemm" && is(r, "format", of) && under_load(r); })});
  }
  for (const costmodel::AttentionCurve& row : std::vector(hw.attention)) {
    const std::string at = "/attention/" + std::to_string(row.head_dim);
    Samples samples = chosen(records, [&](const Measurement& r) {
      return r.kernel == "attention" && is(r, "mask", "causal") && curve_of(ops_of(r).front(), hw) == at;
    });
    std::vector<Parameter> parameters = attention_parameters(at, samples);
    fit({"attention " + std::to_string(row.head_dim), at, std::move(parameters), std::move(samples)});
  }
  const std::vector<std::pair<std::string, std::string>> links{{"d2h", "/host/link_to_host"},
                                                               {"h2d", "/host/link_from_host"}};
  for (const auto& [direction, pointer] : links)
    fit({"copy " + direction, "", {{pointer, "GB/s", 50.0, 0.1, 10000.0}}, chosen(records, [&](const Measurement& r) {
           return r.kernel == "copy" && is(r, "direction", direction) &&
                  static_cast<double>(r.shape.at("bytes")) >= kSmallestCopy;
         })});
  return fits;
}

}  // namespace foldwise::hwprofiles

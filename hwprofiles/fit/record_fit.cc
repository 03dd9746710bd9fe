#include "hwprofiles/fit/record_fit.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "hwprofiles/fit/collective_fit.h"
#include "hwprofiles/load/range.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::Hardware;

using Samples = std::vector<Measurement>;

/// Kernels that last longer are slowed down by the power limit, which holds on average over about a tenth of a second
/// (benchmarks/accuracy/journal.md#power).
constexpr Seconds kUnlimited{0.04};

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

/// Extends the curve's range to the GEMMs and grouped GEMMs that were measured.
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

/// A copy in one direction is predicted by its op, two copies at once of `bytes` each by the slower one.
CurveSamples host_copies(const Samples& records) {
  CurveSamples curve{.name = "host copies", .pointer = "", .parameters = {}, .samples = {}};
  constexpr std::int64_t kLatencyCounts = 1 << 20;
  bool latency = false;
  for (const Measurement& record : records) {
    if (record.kernel != "copy" || is(record, "direction", "d2d")) continue;
    const Bytes bytes{static_cast<double>(record.shape.at("bytes"))};
    latency = latency || record.shape.at("bytes") < kLatencyCounts;
    curve.samples.push_back(record);
    if (is(record, "direction", "both"))
      curve.predictors.emplace_back([bytes](const Hardware& hw) {
        return hw.host.link_latency +
               bytes / (hw.host.link_both_share * std::min(hw.host.link_to_host, hw.host.link_from_host));
      });
    else
      curve.predictors.emplace_back([ops = ops_of(record)](const Hardware& hw) { return predicted_time(ops, hw); });
  }
  const bool both = any(curve.samples, "direction", "both");
  if (both || any(curve.samples, "direction", "d2h"))
    curve.parameters.push_back({"/host/link_to_host", "GB/s", 50.0, 0.1, 10000.0});
  if (both || any(curve.samples, "direction", "h2d"))
    curve.parameters.push_back({"/host/link_from_host", "GB/s", 50.0, 0.1, 10000.0});
  if (both) curve.parameters.push_back({"/host/link_both_share", "1", 0.8, 0.1, 1.0});
  if (latency) curve.parameters.push_back({"/host/link_latency", "us", 2.0, 0.01, 1000.0});
  return curve;
}

/// Many small kernels, launched one by one or as one graph, then one synchronisation.
CurveSamples launches(const Samples& records, const std::string& mode, const std::string& pointer,
                      Seconds costmodel::HostSpec::*each) {
  CurveSamples curve{.name = "launch " + mode,
                     .pointer = "",
                     .parameters = {{pointer, "us", 3.0, 0.01, 1000.0}, {"/host/sync", "us", 5.0, 0.01, 1000.0, false}},
                     .samples = {}};
  for (const Measurement& record : records) {
    if (record.kernel != "launch" || !is(record, "mode", mode)) continue;
    curve.samples.push_back(record);
    curve.predictors.emplace_back([count = static_cast<double>(record.shape.at("kernels")), each](const Hardware& hw) {
      return count * (hw.host.*each) + hw.host.sync;
    });
  }
  return curve;
}

/// Time of a compute kernel (or a collective) when both run back to back beside each other:
/// benchmarks/accuracy/journal.md#contention.
Seconds time_beside(const Hardware& hw, bool gemm, bool of_collective, Seconds compute, Seconds collective,
                    double most_sms) {
  const costmodel::SharedRates& rates = gemm ? hw.contention.gemm : hw.contention.memory;
  const Seconds busy = collective / rates.collective, period = hw.contention.start_wait * compute + busy;
  if (of_collective) return period;
  const double full = hw.network.collective_sms;
  const double lost = (1.0 - rates.compute) * (most_sms > 0.0 ? std::min(1.0, most_sms / full) : 1.0);
  return compute / (1.0 - lost * (busy / period).to<double>());
}

/// Overlap records: time of each beside the other, predicted from the time of each alone.
CurveSamples contention(const Samples& records) {
  CurveSamples curve{.name = "contention",
                     .pointer = "/contention",
                     .parameters = {{"/contention/start_wait", "1", 0.5, 0.001, 10.0}},
                     .samples = {}};
  std::map<std::string, Seconds> alone;
  const auto setting = [](Measurement record, const char* measured) {
    record.of["beside"] = "no";
    record.of["measured"] = measured;
    return setting_of(record);
  };
  for (const Measurement& record : records)
    if (record.kernel == "overlap" && is(record, "beside", "no")) alone[setting_of(record)] = measured_time(record);
  for (const Measurement& record : records) {
    if (record.kernel != "overlap" || !is(record, "beside", "yes")) continue;
    const auto compute = alone.find(setting(record, "compute")), collective = alone.find(setting(record, "collective"));
    if (compute == alone.end() || collective == alone.end()) continue;
    const auto ctas = record.shape.find("ctas");
    curve.samples.push_back(record);
    curve.predictors.emplace_back(
        [gemm = is(record, "compute", "gemm"), of_collective = is(record, "measured", "collective"),
         compute = compute->second, collective = collective->second,
         sms = ctas == record.shape.end() ? 0.0 : static_cast<double>(ctas->second)](const Hardware& hw) {
          return time_beside(hw, gemm, of_collective, compute, collective, sms);
        });
  }
  for (const char* kind : {"gemm", "memory"}) {
    if (!any(curve.samples, "compute", kind)) continue;
    const std::string at = std::string("/contention/") + kind;
    curve.parameters.push_back({at + "/compute_rate", "1", 0.8, 0.05, 1.0});
    curve.parameters.push_back({at + "/collective_rate", "1", 0.7, 0.05, 1.0});
  }
  if (std::any_of(curve.samples.begin(), curve.samples.end(),
                  [](const Measurement& record) { return record.shape.contains("ctas"); }))
    curve.parameters.push_back({"/network/collective_sms", "SM", 16.0, 1.0, 200.0});
  return curve;
}

/// Collectives of these kinds between NVLink domains.
Samples between_domains(const Samples& records, const std::vector<std::string>& kinds) {
  return chosen(records, [&](const Measurement& record) {
    return record.kernel == "collective" && record.shape.contains("ranks_per_domain") &&
           std::find(kinds.begin(), kinds.end(), record.of.at("collective")) != kinds.end();
  });
}

/// Fewest settings of a collective that determine all of its numbers: two of three protocols, and own_share.
constexpr std::size_t kFewestOfAll = 12;

Samples inside_domain(const Samples& records, const std::string& name) {
  return chosen(records, [&](const Measurement& r) {
    return r.kernel == "collective" && is(r, "collective", name) && !r.shape.contains("ranks_per_domain");
  });
}

/// Adds a number of the profile to the fitted numbers of a curve.
void put(FittedCurve& fit, const std::string& pointer, const char* unit, double value) {
  fit.parameters.push_back({pointer, unit});
  fit.values.push_back(value);
}

/// Fits a collective with too few settings for all numbers: the bandwidth of messages of at least 1 MiB, and their base
/// if some are short. Other protocols keep the base profile's ratios to the one that takes such messages.
std::optional<FittedCurve> fit_few_collectives(Hardware& hw, const nlohmann::json& profile, const std::string& name,
                                               costmodel::CollectiveKind kind, const Samples& records,
                                               std::uint64_t seed) {
  using costmodel::CollectiveCurve;
  const auto at_kind = static_cast<std::size_t>(kind);
  CurveSamples curve{.name = name + " of few sizes", .pointer = "", .parameters = {}, .samples = {}};
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max(), most_ranks = 0;
  const Samples all = inside_domain(records, name);
  if (all.size() >= kFewestOfAll) return std::nullopt;
  for (const Measurement& record : all) {
    if (static_cast<double>(record.shape.at("bytes")) < kLargeMessage) continue;
    curve.samples.push_back(record);
    shortest = std::min(shortest, record.shape.at("bytes"));
    most_ranks = std::max(most_ranks, record.shape.at("ranks"));
  }
  constexpr std::int64_t kShort = std::int64_t{16} << 20;  // Takes tens of microseconds, as much as the base.
  const bool tells_base = shortest <= kShort;
  const CollectiveCurve before = hw.network.nvlink.at(at_kind);
  const bool in_switch = before.in_switch_ranks > 0 && before.in_switch_ranks <= most_ranks;
  const auto main = in_switch ? &CollectiveCurve::in_switch : &CollectiveCurve::bulk;
  const std::string of = "/network/nvlink/" + name, at = of + (in_switch ? "/in_switch" : "");
  curve.parameters.push_back({at + "/bandwidth", "GB/s", 400.0, 0.1, 100000.0});
  if (tells_base) curve.parameters.push_back({at + "/base", "us", 20.0, 0.01, 100000.0});
  if (curve.samples.size() <= curve.parameters.size()) return std::nullopt;

  const auto in_proportion = [=](const Hardware& fitted) {
    const costmodel::ProtocolCurve& now = fitted.network.nvlink.at(at_kind).*main;
    const double rate = (now.bandwidth / (before.*main).bandwidth).to<double>(),
                 start = (now.base / (before.*main).base).to<double>();
    CollectiveCurve result = before;
    for (costmodel::ProtocolCurve* protocol : {&result.low_latency, &result.bulk, &result.in_switch}) {
      protocol->bandwidth = rate * protocol->bandwidth;
      protocol->base = start * protocol->base;
    }
    result.own_share = rate * result.own_share;
    return result;
  };
  for (const Measurement& record : curve.samples)
    curve.predictors.emplace_back([=, bytes = Bytes{static_cast<double>(record.shape.at("bytes"))},
                                   ranks = record.shape.at("ranks")](const Hardware& fitted) {
      costmodel::Network network = fitted.network;
      network.nvlink.at(at_kind) = in_proportion(fitted);
      return collective_time(network, kind, bytes, {.ranks = ranks, .ranks_per_domain = ranks});
    });
  FittedCurve fitted = fit_curve(hw, profile, curve, seed);
  const CollectiveCurve now = hw.network.nvlink.at(at_kind) = in_proportion(hw);
  const auto protocol = [&](const std::string& pointer, const costmodel::ProtocolCurve& p) {
    if (pointer == at) return;  // Number of the fit itself.
    put(fitted, pointer + "/bandwidth", "GB/s", p.bandwidth.to<double>() / 1e9);
    if (tells_base) put(fitted, pointer + "/base", "us", p.base.to<double>() * 1e6);
  };
  protocol(of, now.bulk);
  protocol(of + "/low_latency", now.low_latency);
  if (now.in_switch_ranks > 0) protocol(of + "/in_switch", now.in_switch);
  put(fitted, of + "/own_share", "GB/s", now.own_share.to<double>() / 1e9);
  return fitted;
}

/// Fits a collective inside an NVLink domain. Returns the messages from 1 MiB on, with the parameters, and the smaller
/// ones.
std::vector<FittedCurve> fit_collectives(Hardware& hw, const std::string& name, costmodel::CollectiveKind kind,
                                         const Samples& records) {
  const std::string at = "/network/nvlink/" + name;
  costmodel::CollectiveCurve& curve = hw.network.nvlink.at(static_cast<std::size_t>(kind));
  const Samples chosen_records = inside_domain(records, name);
  std::vector<CollectiveSample> samples;
  std::int64_t most_ranks = 0;
  for (const Measurement& record : chosen_records) {
    samples.push_back(
        {record.shape.at("ranks"), Bytes{static_cast<double>(record.shape.at("bytes"))}, measured_time(record)});
    most_ranks = std::max(most_ranks, record.shape.at("ranks"));
  }
  if (samples.size() < kFewestOfAll) return {};
  const std::int64_t in_switch = curve.in_switch_ranks <= most_ranks ? curve.in_switch_ranks : 0;
  const CollectiveFit fitted = fit_collective(kind, samples, in_switch);
  FittedCurve large{.name = name, .pointer = at, .parameters = {}},
      small{.name = name + " < 1 MiB", .pointer = "", .parameters = {}};
  const auto protocol = [&](const std::string& key, const costmodel::ProtocolCurve& p) {
    put(large, at + key + "/base", "us", p.base.to<double>() * 1e6);
    put(large, at + key + "/per_rank", "us", p.per_rank.to<double>() * 1e6);
    put(large, at + key + "/bandwidth", "GB/s", p.bandwidth.to<double>() / 1e9);
  };
  protocol("", fitted.curve.bulk);
  protocol("/low_latency", fitted.curve.low_latency);
  put(large, at + "/own_share", "GB/s", fitted.curve.own_share.to<double>() / 1e9);
  if (in_switch > 0) protocol("/in_switch", fitted.curve.in_switch);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    (samples[i].bytes.to<double>() >= kLargeMessage ? large : small)
        .points.push_back({chosen_records[i], samples[i].time, fitted.predicted[i], fitted.left_out[i]});
    for (const auto& [property, value] : properties_of(ops_of(chosen_records[i]).front())) {
      auto& ends = large.range.try_emplace(property, value, value).first->second;
      ends = {std::min(ends.first, value), std::max(ends.second, value)};
    }
  }
  large.training = fitted.training;
  large.validated = fitted.validated;
  small.training = fitted.training_small;
  small.validated = fitted.validated_small;
  const costmodel::CollectiveCurve before = curve;
  curve = fitted.curve;
  if (in_switch == 0) {
    curve.in_switch = before.in_switch;
    curve.in_switch_ranks = before.in_switch_ranks;
  }
  if (small.points.empty()) return {large};
  if (large.points.empty()) return {};
  return {large, small};
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
  const auto fit = [&](const CurveSamples& curve) {
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
          {"/gemm/" + name + "/accumulate_per_group", "us", 1.0, 0.001, 1000.0},
          {"/gemm/" + name + "/group_rate_share", "1", 0.95, 0.3, 1.0},
          {"/gemm/" + name + "/group_memory_share", "1", 0.8, 0.05, 1.0},
          {"/gemm/" + name + "/group_accumulate_share", "1", 0.6, 0.05, 1.0}},
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
      return r.kernel == "attention" && is(r, "mask", "causal") && curve_of(ops_of(r).front(), hw) == at &&
             measured_time(r) < kUnlimited;
    });
    std::vector<Parameter> parameters = attention_parameters(at, samples);
    fit({"attention " + std::to_string(row.head_dim), at, std::move(parameters), std::move(samples)});
  }
  fit(host_copies(records));
  fit(launches(records, "stream", "/host/launch", &costmodel::HostSpec::launch));
  fit(launches(records, "graph", "/host/graph_node", &costmodel::HostSpec::graph_node));
  fit(contention(records));
  for (const auto& [name, kind] : collective_kind_names()) {
    for (FittedCurve& curve : fit_collectives(hw, name, kind, records)) fits.push_back(std::move(curve));
    if (auto curve = fit_few_collectives(hw, profile, name, kind, records, seed)) fits.push_back(std::move(*curve));
  }
  fit({"rings between domains",
       "",
       {{"/network/nic_efficiency", "1", 0.9, 0.01, 1.0},
        {"/network/nic_latency", "us", 10.0, 0.01, 1000.0},
        {"/network/nic_low_latency", "us", 5.0, 0.01, 1000.0}},
       between_domains(records, {"all_reduce", "all_gather", "reduce_scatter"})});
  fit({"exchanges between domains",
       "",
       {{"/network/nic_all_to_all_efficiency", "1", 0.9, 0.01, 1.0}},
       between_domains(records, {"all_to_all", "send_recv"})});
  return fits;
}

}  // namespace foldwise::hwprofiles

// foldwise-fit: fits the efficiency curves of the built-in profiles to the kernel measurements in
// hwprofiles/data/kernels and our own in hwprofiles/data/records, and prints how well they fit; with --write it puts
// them into the profiles. docs/measuring.md explains what is fitted from what.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/fit/collective_fit.h"
#include "hwprofiles/fit/curve_fit.h"
#include "hwprofiles/fit/nelder_mead.h"
#include "hwprofiles/fit/published_exchanges.h"
#include "hwprofiles/fit/record_fit.h"
#include "hwprofiles/fit/sheet.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/records/import.h"
#include "hwprofiles/records/reader.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::Hardware;
using costmodel::MathFormat;
using Json = nlohmann::ordered_json;

/// A profile and the GPU of the kernel files whose measurements stand for it.
struct Target {
  std::string profile;
  std::string gpu;         ///< Key of aiconfigurator_kernels.json.
  std::string attention;   ///< Key of cudnn_attention.json; empty: FlashAttention-2 of A100, or Hopper's step profiles.
  std::string borrowed;    ///< "as H100": nothing was measured on this GPU itself. Empty: measured.
  double nvlink_share;     ///< NVLink rate relative to the GPU that was measured.
  double attention_share;  ///< BF16 peak relative to the GPU whose attention was measured.
};

const std::vector<Target> all_targets{
    {"a100-sxm-80gb", "A100-SXM4-80GB", "", "", 1.0, 1.0},
    {"h100-sxm-80gb", "H100-SXM5-80GB", "H200", "", 1.0, 1.0},
    {"h200", "H200-SXM-141GB", "H200", "", 1.0, 1.0},
    {"h800", "H100-SXM5-80GB", "H200", "as H100", 200.0 / 450.0, 1.0},
    {"b200", "B200-SXM", "GB200", "", 1.0, 2250.0 / 2450.0},
    {"b300", "B300-SXM", "GB300", "", 1.0, 2250.0 / 2450.0},
    {"gb200-nvl72", "GB200-NVL72", "GB200", "", 1.0, 1.0},
    {"gb300-nvl72", "GB300-NVL72", "GB300", "", 1.0, 1.0},
};

/// Rows below this are inference; a step's GEMMs have thousands.
constexpr std::int64_t kFewestRows = 512;

Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path.string() + ": cannot be read");
  return Json::parse(in);
}

std::string errors(const FitError& training, const FitError& validated) {
  if (training.samples + validated.samples == 0)
    return fmt::format("{:>5} {:>6} {:>6} {:>8} {:>6}", "-", "-", "-", "-", "-");
  return fmt::format("{:5} {:6.1f} {:6.1f} {:8.1f} {:6.1f}", training.samples, 100 * training.median,
                     100 * training.mean, 100 * validated.median, 100 * validated.mean);
}
std::string note(const FitError& training, const FitError& validated) {
  return "foldwise-fit: " + errors_text(training, validated);
}
void print_row(const std::string& profile, const std::string& curve, const FitError& training,
               const FitError& validated, const std::string& values) {
  fmt::print("{:14} {:22} {}   {}\n", profile, curve, errors(training, validated), values);
}

double us(Seconds time) { return time.to<double>() * 1e6; }

/// Curves of the H200 fitted to our own records, from which other GPUs take what nobody measured on them.
struct OwnFit {
  std::vector<FittedCurve> curves;
  Hardware hardware;
  std::string citation, date;
  /// FP8's for the formats that an H200 has not.
  [[nodiscard]] const costmodel::GemmCurve& curve(const std::string& format) const {
    for (const auto& [name, value] : math_format_names())
      if (name == format && hardware.peak.at(static_cast<std::size_t>(value)) > FlopRate{})
        return hardware.gemm.at(static_cast<std::size_t>(value));
    return hardware.gemm.at(static_cast<std::size_t>(MathFormat::kFp8));
  }
  [[nodiscard]] double joule_per_flop(const std::string& format) const {
    for (const auto& [name, value] : math_format_names())
      if (name == format) return hardware.power.joule_per_flop.at(static_cast<std::size_t>(value));
    return 0.0;
  }
};

/// Reads every h200-*.jsonl of `directory`.
OwnFit fit_own(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("h200-")) paths.push_back(entry.path());
  if (paths.empty()) throw std::runtime_error(directory.string() + " has no h200-*.jsonl");
  std::sort(paths.begin(), paths.end());
  const Profile profile = load_profile("h200");
  OwnFit own{{}, profile.hardware, "", ""};
  std::vector<Measurement> measurements;
  for (const std::filesystem::path& path : paths) {
    const Records records = read_records(path.string());
    // The profile's collectives rest on nccl-tests of up to eight GPUs; our own check them (profiles_test).
    for (const Measurement& measurement : records.measurements)
      if (measurement.kernel != "collective") measurements.push_back(measurement);
    const Session& session = records.sessions.back();
    own.citation += fmt::format("{}hwprofiles/data/records/{} ({}, driver {})", own.citation.empty() ? "" : ", ",
                                path.filename().string(), session.device, session.driver);
    own.date = session.started.substr(0, 7);
  }
  own.curves = fit_records(own.hardware, profile.json, measurements, kFitSeed);
  return own;
}

void print_fit(const Target& target, const FittedCurve& curve) {
  std::string values;
  for (std::size_t i = 0; i < curve.values.size(); ++i) {
    const Parameter& parameter = curve.parameters[i];
    const bool inside = !curve.pointer.empty() && parameter.pointer.starts_with(curve.pointer + "/");
    const std::string name = parameter.pointer.substr(inside ? curve.pointer.size() + 1 : 0);
    values += fmt::format("{}{} {:.4g}{}", values.empty() ? "" : ", ", name, rounded(curve.values[i]),
                          parameter.unit == "1" ? "" : " " + parameter.unit);
  }
  print_row(target.profile, curve.name, curve.training, curve.validated, values);
}

/// Rate of the dgrad and wgrad GEMMs over the forward one, measured on another GPU.
struct PhaseRatio {
  double dgrad = 1.0, wgrad = 1.0;
  Origin origin;
};

PhaseRatio phase_ratio(const Hardware& hw, const std::string& format, const Json& te, const OwnFit& own) {
  if (hw.generation == costmodel::GpuGeneration::kBlackwell) {
    const std::string name = format == "fp8" || format == "fp8_block" ? "fp8_current" : format;
    const auto& rates = te.at("B300_prequantised_tflops").at(name);
    const double forward = rates[0].get<double>();
    return {rates[1].get<double>() / forward,
            rates[2].get<double>() / forward,
            {"assumed", "TE", "forward's x the ratio that TransformerEngine measured on B300"}};
  }
  const auto& sustained = own.curve(format).sustained;
  return {sustained[1] / sustained[0],
          sustained[2] / sustained[0],
          {"assumed", "records", "forward's x the ratio measured on H200", own.date}};
}

/// What the forward sweep does not show.
void put_other_phases(const std::string& format, double forward, const PhaseRatio& ratio, const OwnFit& own,
                      Sheet& sheet) {
  const std::string at = "/gemm/" + format;
  sheet.put(at + "/sustained/dgrad", std::min(1.0, forward * ratio.dgrad), "1", ratio.origin);
  sheet.put(at + "/sustained/wgrad", std::min(1.0, forward * ratio.wgrad), "1", ratio.origin);
  const costmodel::GemmCurve& measured = own.curve(format);
  const Origin origin{"assumed", "records", "as H200", own.date};
  sheet.put(at + "/per_group", measured.per_group.to<double>() * 1e6, "us", origin);
  sheet.put(at + "/group_memory_share", measured.group_memory_share, "1", origin);
  sheet.put(at + "/accumulate_share", measured.accumulate_share, "1", origin);
}

void fit_gemms(const Target& target, const Json& kernels, const Json& te, const OwnFit& own, Hardware& hw,
               const nlohmann::json& profile, Sheet& sheet) {
  const std::vector<Measurement> sweep = import_linear_layers(kernels, target.gpu);
  double fp8 = 0.0, launch = 0.0;
  for (const auto& entry : math_format_names()) {
    const std::string& name = entry.first;
    std::vector<Measurement> samples;
    for (const Measurement& sample : sweep)
      if (sample.of.at("format") == name && sample.shape.at("m") >= kFewestRows) samples.push_back(sample);
    if (samples.empty()) continue;
    std::vector<Parameter> parameters = gemm_parameters(name, samples);
    if (name != "bf16") {  // The quantiser's launch cannot be told from the GEMM's.
      std::erase_if(parameters, [](const Parameter& p) { return p.pointer.ends_with("/launch"); });
      quantity_setter(profile, "/gemm/" + name + "/launch")(hw, launch * 1e-6);
      sheet.put("/gemm/" + name + "/launch", launch, "us", {"fitted", "AIC", "as bf16"});
      parameters.push_back({"/memory/quantize/share", "1", 0.5, 0.01, 1.0, false});
      parameters.push_back({"/memory/quantize/launch", "us", 3.0, 0.01, 100.0, false});
    }
    const FittedCurve fit = fit_curve(hw, profile, {"gemm " + name, "/gemm/" + name, parameters, samples}, kFitSeed);
    print_fit(target, fit);
    sheet.put(fit, {"fitted", "AIC", "foldwise-fit"});
    if (name == "bf16") launch = fit.values.at(1);
    if (name == "fp8") fp8 = fit.values.front();
    put_other_phases(name, fit.values.front(), phase_ratio(hw, name, te, own), own, sheet);
  }
  if (!sheet.json().at("peak").contains("mxfp8")) return;
  // No MXFP8 sweep: FP8's curve, slowed down by what TransformerEngine measured on B300 with operands ready.
  const auto& rates = te.at("B300_prequantised_tflops");
  const double ratio = rates.at("mxfp8")[0].get<double>() / rates.at("fp8_current")[0].get<double>();
  fmt::print("{:14} {:22} sustained {:.4g} (FP8's x {:.3f})\n", target.profile, "gemm mxfp8", rounded(fp8 * ratio),
             ratio);
  const std::string how =
      fmt::format("the FP8 curve; MXFP8 forward reaches {:.3f} of the FP8 rate on B300 with operands ready", ratio);
  sheet.put("/gemm/mxfp8/sustained/forward", fp8 * ratio, "1", {"assumed", "TE", how});
  put_other_phases("mxfp8", fp8 * ratio, phase_ratio(hw, "mxfp8", te, own), own, sheet);
  sheet.put("/gemm/mxfp8/launch", launch, "us", {"assumed", "AIC", "as bf16"});
  sheet.put("/gemm/mxfp8/wave_overhead",
            hw.gemm.at(static_cast<std::size_t>(MathFormat::kFp8)).wave_overhead.to<double>() * 1e6, "us",
            {"assumed", "AIC", "as FP8"});
}

const Json& entry(const Json& published, const std::string& id) {
  for (const Json& candidate : published)
    if (candidate.at("id") == id) return candidate;
  throw std::runtime_error("published_kernels.json has no " + id);
}

double gb_per_second(Bandwidth bandwidth) { return bandwidth.to<double>() / 1e9; }

void put_protocol(Sheet& sheet, const std::string& at, const costmodel::ProtocolCurve& curve, double share,
                  const Origin& origin) {
  sheet.put(at + "/base", us(curve.base), "us", origin);
  sheet.put(at + "/per_rank", us(curve.per_rank), "us", origin);
  sheet.put(at + "/bandwidth", gb_per_second(curve.bandwidth) * share, "GB/s", origin);
}
std::string values_of(const costmodel::ProtocolCurve& curve, double share) {
  return fmt::format("{:.4g} us + {:.3g} us/rank, {:.4g} GB/s", rounded(us(curve.base)), rounded(us(curve.per_rank)),
                     rounded(gb_per_second(curve.bandwidth) * share));
}

/// Fewest GPUs of an all-reduce that the NVSwitch reduces; 0: never. Source: NVLS sweeps on H200 and B200 in
/// published_kernels.json; A100's switch cannot.
std::int64_t in_switch_ranks(costmodel::GpuGeneration generation) {
  switch (generation) {
    case costmodel::GpuGeneration::kAmpere:
      return 0;
    case costmodel::GpuGeneration::kHopper:
      return 5;
    case costmodel::GpuGeneration::kBlackwell:
      return 6;
  }
  return 0;
}

void fit_nccl(const Target& target, const Json& kernels, const Hardware& hw, Sheet& sheet) {
  using costmodel::CollectiveKind;
  const auto& data = kernels.at("nccl").at("data").at(target.gpu);
  struct Kind {
    std::string name, key;
    CollectiveKind kind;
  };
  for (const Kind& collective : {Kind{"all_reduce", "all_reduce", CollectiveKind::kAllReduce},
                                 Kind{"all_gather", "all_gather", CollectiveKind::kAllGather},
                                 Kind{"reduce_scatter", "reduce_scatter", CollectiveKind::kReduceScatter},
                                 Kind{"all_to_all", "alltoall", CollectiveKind::kAllToAll}}) {
    std::vector<CollectiveSample> samples;
    std::int64_t largest = 0;
    for (const auto& item : data.at(collective.key).items()) {
      const std::int64_t ranks = std::stoll(item.key());
      largest = std::max(largest, ranks);
      for (const auto& row : item.value())
        samples.push_back({ranks, Bytes{row[0].get<double>()}, Seconds{row[1].get<double>() * 1e-6}});
    }
    std::int64_t in_switch = collective.kind == CollectiveKind::kAllReduce ? in_switch_ranks(hw.generation) : 0;
    if (in_switch > largest) in_switch = 0;
    const CollectiveFit fit = fit_collective(collective.kind, samples, in_switch);
    Origin origin{"fitted", "AIC",
                  note(fit.training, fit.validated) +
                      fmt::format(" from 1 MiB on, {:.1f} and {:.1f} % below; nccl-tests of 2 to {} GPUs",
                                  100 * fit.training_small.median, 100 * fit.validated_small.median, largest)};
    if (target.nvlink_share != 1.0)
      origin.note += fmt::format("; bandwidth x {:.3f} for the slower NVLink", target.nvlink_share);
    const std::string at = "/network/nvlink/" + collective.name;
    put_protocol(sheet, at, fit.curve.bulk, target.nvlink_share, origin);
    put_protocol(sheet, at + "/low_latency", fit.curve.low_latency, target.nvlink_share, origin);
    sheet.put(at + "/own_share", gb_per_second(fit.curve.own_share), "GB/s", origin);
    std::string values =
        fmt::format("bulk {}; low latency {}; own share {:.4g} GB/s", values_of(fit.curve.bulk, target.nvlink_share),
                    values_of(fit.curve.low_latency, target.nvlink_share), rounded(gb_per_second(fit.curve.own_share)));
    if (in_switch > 0) {
      put_protocol(sheet, at + "/in_switch", fit.curve.in_switch, target.nvlink_share, origin);
      sheet.put(at + "/in_switch/ranks", static_cast<double>(in_switch), "GPU",
                {"measured", "MLE-net", "fewest GPUs at which NCCL uses NVLS"});
      values += "; in switch " + values_of(fit.curve.in_switch, target.nvlink_share);
    }
    if (collective.kind == CollectiveKind::kAllToAll)
      sheet.put("/network/nvlink/send_recv/base", us(fit.curve.bulk.base), "us", {"assumed", "AIC", "as all_to_all"});
    print_row(target.profile, collective.name, fit.training, fit.validated, values);
    print_row(target.profile, collective.name + " < 1 MiB", fit.training_small, fit.validated_small, "");
  }
}

/// The dispatchers of both generations: Blackwell's rows give the kernels, Hopper's the NIC.
struct Exchanges {
  ExchangeFit blackwell, hopper;
};

std::vector<ExchangeSample> of_generation(const std::vector<PublishedExchange>& all, bool blackwell) {
  std::vector<ExchangeSample> samples;
  for (const PublishedExchange& exchange : all)
    if (exchange.blackwell == blackwell) samples.push_back(exchange.sample);
  return samples;
}

Exchanges fit_exchanges(const Json& published) {
  const std::vector<PublishedExchange> all = published_exchanges(published);
  Exchanges fits;
  const costmodel::Network rack = load_profile("gb200-nvl72").hardware.network;
  fits.blackwell = fit_exchange(rack, of_generation(all, true), false);
  costmodel::Network node = load_profile("h100-sxm-80gb").hardware.network;
  node.deep_ep = fits.blackwell.network.deep_ep;
  node.hybrid_ep = fits.blackwell.network.hybrid_ep;
  fits.hopper = fit_exchange(node, of_generation(all, false), true);

  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> errors;  // Fitted to, held out.
  for (const PublishedExchange& exchange : all) {
    const ExchangeFit& fit = exchange.blackwell ? fits.blackwell : fits.hopper;
    const auto measured = exchange.sample.time.to<double>();
    auto& [training, held_out] = errors[exchange.table];
    (exchange.sample.held_out ? held_out : training)
        .push_back(std::abs(exchange_prediction(fit.network, exchange.sample).to<double>() - measured) / measured);
  }
  for (const auto& [table, lists] : errors)
    print_row("exchange", table, error_of(lists.first), error_of(lists.second), "");
  std::vector<double> every;
  for (const auto& [table, lists] : errors)
    for (const auto* list : {&lists.first, &lists.second}) every.insert(every.end(), list->begin(), list->end());
  print_row("exchange", "all", error_of(every), {}, "");
  return fits;
}

void put_exchange(const Target& target, const Exchanges& fits, const Hardware& hw, Sheet& sheet) {
  const bool blackwell = hw.generation == costmodel::GpuGeneration::kBlackwell;
  const ExchangeFit& fit = blackwell ? fits.blackwell : fits.hopper;
  const bool own = target.profile == "gb200-nvl72" || target.profile == "h100-sxm-80gb";
  const std::string where = blackwell ? "GB200 and B200" : "H100 and H800";
  Origin origin{
      own ? "fitted" : "assumed", "HEP",
      note(fit.training, fit.held_out) + " (held out), DeepEP, HybridEP and Megatron Core's report on " + where};
  double share = target.nvlink_share;
  if (hw.generation == costmodel::GpuGeneration::kAmpere) share = 300.0 / 450.0;
  if (share != 1.0) origin.note += fmt::format("; bandwidth x {:.3f} for the slower NVLink", share);
  for (const auto& [name, kind] : {std::pair{"dispatch", costmodel::CollectiveKind::kDispatch},
                                   std::pair{"combine", costmodel::CollectiveKind::kCombine}}) {
    const costmodel::ProtocolCurve& curve = fit.network.nvlink.at(static_cast<std::size_t>(kind)).bulk;
    put_protocol(sheet, std::string("/network/nvlink/") + name, curve, share, origin);
    print_row(target.profile, name, fit.training, fit.held_out, values_of(curve, share));
  }
  // Between domains only Hopper was measured, and the kernels' SMs only where nothing else limits: on Blackwell.
  const double nic = fits.hopper.network.nic_exchange_efficiency;
  const Origin hopper{target.profile == "h100-sxm-80gb" ? "fitted" : "assumed", "HEP",
                      note(fits.hopper.training, fits.hopper.held_out) + " (held out), 400 Gb/s NICs of H100 and H800"};
  sheet.put("/network/nic_exchange_efficiency", nic, "1", hopper);
  const Origin kernels{target.profile == "gb200-nvl72" ? "fitted" : "assumed", "HEP",
                       note(fits.blackwell.training, fits.blackwell.held_out) + " (held out), on GB200 and B200"};
  for (const auto& [name, kernel] : {std::pair{"deep_ep", fits.blackwell.network.deep_ep},
                                     std::pair{"hybrid_ep", fits.blackwell.network.hybrid_ep}}) {
    const std::string at = std::string("/network/") + name;
    sheet.put(at + "/rate_per_sm", gb_per_second(kernel.rate_per_sm), "GB/s", kernels);
    sheet.put(at + "/row_overhead", us(kernel.row_overhead), "us", kernels);
    if (own)
      fmt::print("{:14} {:22} {:.4g} GB/s and {:.3g} us a row on each SM, NIC {:.3g}\n", target.profile, name,
                 gb_per_second(kernel.rate_per_sm), us(kernel.row_overhead), nic);
  }
}

/// All-to-all between nodes: Megatron Core's report on H100, fitted to its dispatch rows, its combine rows held out.
double fit_nic_all_to_all(const Json& published) {
  costmodel::Network network = load_profile("h100-sxm-80gb").hardware.network;
  std::vector<PublishedAllToAll> rows;
  for (const PublishedAllToAll& row : published_all_to_alls(published))
    if (!row.blackwell && row.ranks > 8) rows.push_back(row);
  const auto errors = [&](bool combine) {
    std::vector<double> list;
    for (const PublishedAllToAll& row : rows)
      if (row.combine == combine)
        list.push_back(std::abs(collective_time(network, costmodel::CollectiveKind::kAllToAll, row.bytes,
                                                {.ranks = row.ranks, .ranks_per_domain = 8})
                                        .to<double>() /
                                    row.time.to<double>() -
                                1.0));
    return list;
  };
  const auto cost = [&](const std::vector<double>& logs) {
    network.nic_all_to_all_efficiency = std::min(1.0, std::exp(logs.front()));
    return error_of(errors(false)).mean;
  };
  network.nic_all_to_all_efficiency = std::exp(minimise(cost, {std::log(0.85)}, 0.05, 60).front());
  print_row("h100-sxm-80gb", "NIC all_to_all", error_of(errors(false)), error_of(errors(true)),
            fmt::format("{:.3g} of the line rate", network.nic_all_to_all_efficiency));
  return network.nic_all_to_all_efficiency;
}

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

/// Forward FLOPs of causal attention, under a window of keys unless that is 0.
double causal_flops(double batch, double heads, double seq, double qk, double v, double window = 0.0) {
  const double keys = window > 0.0 ? window - window * window / (2.0 * seq) : seq / 2.0;
  return 2.0 * batch * heads * seq * keys * (qk + v);
}

/// cuDNN's benchmark, which counts the backward as 2.5 times the forward for every head dimension. Of the backward
/// kernels the one that adds in any order. Rows under a window or rows without.
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

/// FlashAttention's benchmark: 16384 tokens a batch, hidden 2048; causal FLOPs halved. `passes` is 3.5 where forward
/// and backward were timed together: the forward is then taken to be 1 / 3.5 of the time, as of the FLOPs.
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

/// One attention row: its numbers by name.
struct AttentionRow {
  std::map<std::string, double> numbers;
  Origin origin, fp8_origin{"assumed", "reasoning", "as BF16: not measured"};
};

AttentionRow row_of(const FittedCurve& fit) {
  AttentionRow row;
  for (std::size_t i = 0; i < fit.parameters.size(); ++i)
    row.numbers[fit.parameters[i].pointer.substr(fit.pointer.size() + 1)] = fit.values[i];
  row.origin = {"fitted", "", note(fit.training, fit.validated)};
  return row;
}

/// The row with its rates times `share`; what a tile costs beside its products is scaled alike.
AttentionRow scaled(AttentionRow row, double share, Origin origin) {
  for (auto& [name, value] : row.numbers) {
    if (name.ends_with("_rate")) value *= share;
    if (name.ends_with("_tile")) value /= share;
  }
  row.origin = std::move(origin);
  if (row.fp8_origin.kind != "assumed") row.fp8_origin.kind = "assumed";
  return row;
}

void put_attention(int head_dim, const AttentionRow& row, Sheet& sheet) {
  const std::string at = fmt::format("/attention/{}", head_dim);
  for (const char* direction : {"forward", "backward"}) {
    const auto number = [&](const std::string& what, double otherwise) {
      const auto found = row.numbers.find(what);
      return found == row.numbers.end() ? otherwise : found->second;
    };
    const auto put = [&](std::string_view what, double otherwise, const char* unit, const Origin& origin) {
      const std::string key = fmt::format(fmt::runtime(what), direction);
      sheet.put(fmt::format("{}/{}", at, key), number(key, otherwise), unit, origin);
    };
    put("{}_rate", 0.0, "TFLOPS", row.origin);
    put("{}_launch", 0.0, "us", row.origin);
    put("{}_tile", 0.0, "us", row.origin);
    put("fp8_{}_speedup", 1.0, "1", row.fp8_origin);
  }
}

struct AttentionData {
  Json cudnn, flash2, published;
};

/// Rate of cuDNN's forward at `head_dim` over 128 on H100: the bars of the FlashAttention-3 figure at 16384 tokens.
double forward_rate_share(const Json& published, int head_dim) {
  const auto rate = [&](int wanted) {
    for (const auto& row : entry(published, "fa3-h100-fwd").at("rows"))
      if (row.at("impl") == "cudnn" && row.at("head_dim") == wanted && row.at("causal").get<bool>() &&
          row.at("seq_len") == 16384)
        return row.at("fwd_tflops").get<double>();
    throw std::runtime_error("fa3-h100-fwd has no such row");
  };
  return rate(head_dim) / rate(128);
}

FittedCurve fit_attention(const Target& target, int head_dim, std::vector<Measurement> samples, Hardware& hw,
                          const nlohmann::json& profile) {
  const std::string at = fmt::format("/attention/{}", head_dim);
  const std::vector<Parameter> parameters = attention_parameters(at, samples);
  FittedCurve fit =
      fit_curve(hw, profile, {fmt::format("attention {}", head_dim), at, parameters, std::move(samples)}, kFitSeed);
  print_fit(target, fit);
  return fit;
}

/// Hopper's rows: our records of H200. FP8 by cuDNN's benchmark on H200.
std::map<int, AttentionRow> hopper_rows(const Target& target, const AttentionData& data, const OwnFit& own,
                                        Hardware& hw, const nlohmann::json& profile) {
  const AttentionRow benchmark =
      row_of(fit_attention(target, 128, cudnn_samples(data.cudnn, "H200", 128), hw, profile));
  const bool measured = target.profile == "h200";
  std::map<int, AttentionRow> rows;
  for (const FittedCurve& curve : own.curves) {
    if (!curve.pointer.starts_with("/attention/")) continue;
    AttentionRow& row = rows[std::stoi(curve.pointer.substr(std::string("/attention/").size()))];
    row = row_of(curve);
    row.origin = {measured ? "fitted" : "assumed", "records", (measured ? "" : "as H200: ") + row.origin.note,
                  own.date};
  }
  AttentionRow& row = rows.at(128);
  row.fp8_origin = {measured ? "fitted" : "assumed", "cuDNN", benchmark.origin.note};
  for (const char* speedup : {"fp8_forward_speedup", "fp8_backward_speedup"})
    row.numbers[speedup] = benchmark.numbers.at(speedup);
  return rows;
}

constexpr std::array<const char*, 2> kWindowKeys{"forward_window_keys", "backward_window_keys"};
constexpr double kTileKeys = 128.0;

/// What a sliding window costs beyond its own keys, by key of cudnn_attention.json: its windowed rows, all of head
/// dimension 64, on top of that GPU's curve without a window.
std::map<std::string, FittedCurve> fit_windows(const Json& cudnn) {
  std::map<std::string, FittedCurve> fits;
  for (const Target& target : all_targets) {
    if (!target.gpu.starts_with(target.attention) || target.attention.empty()) continue;
    const Profile profile = load_profile(target.profile);
    Hardware hw = profile.hardware;
    CurveSamples curve{"attention window", "", {}, cudnn_samples(cudnn, target.attention, 64, true)};
    for (const char* key : kWindowKeys)
      curve.parameters.push_back({fmt::format("/attention/64/{}", key), "1", kTileKeys, 1.0, 1e4});
    FittedCurve fit = fit_curve(hw, profile.json, curve, kFitSeed);
    print_fit(target, fit);
    fits.emplace(target.attention, std::move(fit));
  }
  return fits;
}

/// Nobody has measured A100: a tile of keys is assumed there.
void put_windows(const Target& target, const std::map<std::string, FittedCurve>& fits, Sheet& sheet) {
  const auto fit = fits.find(target.attention);
  for (const int head_dim : {64, 128, 192, 256})
    for (std::size_t i = 0; i < kWindowKeys.size(); ++i) {
      double keys = kTileKeys;
      Origin origin{"assumed", "reasoning", "a tile of keys"};
      if (fit != fits.end()) {
        const bool measured = target.gpu.starts_with(target.attention) && head_dim == 64;
        keys = fit->second.values[i];
        origin = {measured ? "fitted" : "assumed", "cuDNN",
                  (measured ? "" : fmt::format("as {}, head_dim 64: ", target.attention)) +
                      note(fit->second.training, fit->second.validated)};
      }
      sheet.put(fmt::format("/attention/{}/{}", head_dim, kWindowKeys.at(i)), keys, "1", origin);
    }
}

void fit_attention_rows(const Target& target, const AttentionData& data, const OwnFit& own, Hardware& hw,
                        const nlohmann::json& profile, Sheet& sheet) {
  if (hw.generation == costmodel::GpuGeneration::kAmpere) {
    for (const int head_dim : {64, 128}) {
      const Json& rates = data.flash2.at("A100").at(fmt::format("d{}_causal", head_dim));
      std::vector<Measurement> samples = flash_samples(data.flash2.at("seq"), rates, head_dim, false);
      for (Measurement& sample : flash_samples(data.flash2.at("seq"), rates, head_dim, true))
        samples.push_back(std::move(sample));
      AttentionRow row = row_of(fit_attention(target, head_dim, std::move(samples), hw, profile));
      row.origin.source = "FA";
      row.origin.note += "; forward and backward were timed together";
      put_attention(head_dim, row, sheet);
      if (head_dim != 128) continue;
      for (const int wide : {192, 256})
        put_attention(wide, scaled(row, 1.0, {"assumed", "FA", "as head_dim 128: " + row.origin.note}), sheet);
    }
    return;
  }

  std::map<int, AttentionRow> rows;
  if (hw.generation == costmodel::GpuGeneration::kHopper) {
    rows = hopper_rows(target, data, own, hw, profile);
  } else {
    const auto fitted_row = [&](int head_dim) {
      AttentionRow row =
          row_of(fit_attention(target, head_dim, cudnn_samples(data.cudnn, target.attention, head_dim), hw, profile));
      row.origin.source = "cuDNN";
      row.fp8_origin = {"fitted", "cuDNN", row.origin.note};
      if (target.attention_share == 1.0) return row;
      return scaled(row, target.attention_share,
                    {"assumed", "cuDNN",
                     fmt::format("as {} x {:.3f}, the ratio of BF16 peaks: {}", target.attention,
                                 target.attention_share, row.origin.note)});
    };
    rows[128] = fitted_row(128);
    rows[192] = fitted_row(192);
  }
  for (const int head_dim : {64, 128, 192, 256}) {
    if (rows.contains(head_dim)) {
      put_attention(head_dim, rows.at(head_dim), sheet);
      continue;
    }
    const double share = forward_rate_share(data.published, head_dim);
    put_attention(
        head_dim,
        scaled(rows.at(128), share,
               {"assumed", "FA", fmt::format("head_dim 128 x {:.3f}: ratio of cuDNN's forward rates on H100", share)}),
        sheet);
  }
}

/// What only own records say: of the H200 every curve, of other Hopper GPUs the energy of their products, of all what
/// kernels side by side cost each other.
void put_own(const Target& target, const OwnFit& own, const Hardware& hw, Sheet& sheet) {
  sheet.cite("records", own.citation);
  if (target.profile != "h200") {
    // Shares, and SMs of much the same GPU: nobody has measured them elsewhere.
    for (const FittedCurve& curve : own.curves)
      if (curve.name == "contention")
        for (std::size_t i = 0; i < curve.parameters.size(); ++i)
          sheet.put(curve.parameters[i].pointer, curve.values[i], curve.parameters[i].unit,
                    {"assumed", "records", "as H200", own.date});
    for (const char* format : {"bf16", "fp8", "fp8_block"})
      if (hw.generation == costmodel::GpuGeneration::kHopper)
        sheet.put(fmt::format("/power/per_flop/{}", format), own.joule_per_flop(format) * 1e12, "pJ/FLOP",
                  {"assumed", "records", "as H200", own.date});
    return;
  }
  for (const FittedCurve& curve : own.curves) {
    print_fit(target, curve);
    sheet.put(curve, {"fitted", "records", "foldwise-fit", own.date});
  }
  // cuBLASLt has no FP8-block product in the streams of the grouped records.
  const costmodel::GemmCurve& fp8 = own.curve("fp8");
  const Origin as_fp8{"assumed", "records", "as FP8", own.date};
  sheet.put("/gemm/fp8_block/per_group", fp8.per_group.to<double>() * 1e6, "us", as_fp8);
  sheet.put("/gemm/fp8_block/group_memory_share", fp8.group_memory_share, "1", as_fp8);
}

/// Memory-bound kernels of steps, measured on H200 alone. A byte takes its time in HBM and its time in the SMs; the
/// second follows from H200's share and shrinks with the number of SMs. Source: docs/measuring.md#memory-bound.
void put_memory(const Target& target, const Hardware& hw, const Profile& h200, Sheet& sheet) {
  if (target.profile == "h200" || hw.generation == costmodel::GpuGeneration::kAmpere) return;
  constexpr double kHopper = 0.92, kBlackwell = 0.80;  // Of the HBM bandwidth: fills on H200, RMSNorm on GB200.
  const double ceiling = hw.generation == costmodel::GpuGeneration::kBlackwell ? kBlackwell : kHopper;
  const double per_sm = hw.hbm_bandwidth / h200.hardware.hbm_bandwidth *
                        (static_cast<double>(h200.hardware.sms) / static_cast<double>(hw.sms));
  for (const auto& [op, curve] : h200.json.at("memory").items()) {
    const std::string at = "/memory/" + op + "/share";
    if (sheet.json().at(Json::json_pointer(at)).at("source") != "steps") continue;  // Measured on this one or its twin.
    const double share = curve.at(curve.contains("step_share") ? "step_share" : "share").at("value").get<double>();
    const double sm_time = std::max(0.0, 1.0 / share - 1.0 / kHopper) * per_sm;
    sheet.put(at, 1.0 / (1.0 / ceiling + sm_time), "1",
              {"assumed", "steps", fmt::format("from {:.3g} on H200 by its SMs and HBM", share)});
  }
}

int run(const std::string& kernels_dir, const std::string& records_dir, const std::string& systems_dir) {
  const OwnFit own = fit_own(records_dir);
  const std::filesystem::path from(kernels_dir);
  const Json kernels = read_json(from / "aiconfigurator_kernels.json");
  const Json te = read_json(from / "te_linear.json");
  const AttentionData attention{read_json(from / "cudnn_attention.json"), read_json(from / "flash_attention_2.json"),
                                read_json(from / "published_kernels.json")};
  fmt::print("errors in % of the measured time; training: all samples, validated: samples left out of the fit\n\n");
  fmt::print("{:14} {:22} {:>5} {:>6} {:>6} {:>8} {:>6}\n", "", "", "", "train", "", "valid", "");
  fmt::print("{:14} {:22} {:>5} {:>6} {:>6} {:>8} {:>6}   fitted\n", "profile", "curve", "count", "median", "mean",
             "median", "mean");
  const Exchanges exchanges = fit_exchanges(attention.published);
  const double nic_all_to_all = fit_nic_all_to_all(attention.published);
  const std::map<std::string, FittedCurve> windows = fit_windows(attention.cudnn);
  const Profile h200 = load_profile("h200");
  for (const Target& target : all_targets) {
    const Profile profile = load_profile(target.profile);
    Hardware hw = profile.hardware;
    const std::filesystem::path path =
        std::filesystem::path(systems_dir.empty() ? FW_DATA_DIR "/systems" : systems_dir) / (target.profile + ".json");
    Sheet sheet(read_json(path), target.borrowed);
    if (target.profile != "h200") fit_gemms(target, kernels, te, own, hw, profile.json, sheet);
    fit_nccl(target, kernels, hw, sheet);
    put_exchange(target, exchanges, hw, sheet);
    sheet.put("/network/nic_all_to_all_efficiency", nic_all_to_all, "1",
              {target.profile == "h100-sxm-80gb" ? "fitted" : "assumed", "MCR",
               "foldwise-fit: dispatch latencies of EP16 to EP64 on H100"});
    fit_attention_rows(target, attention, own, hw, profile.json, sheet);
    put_windows(target, windows, sheet);
    put_own(target, own, hw, sheet);
    put_memory(target, hw, h200, sheet);
    if (!systems_dir.empty()) replace_file(path, sheet.text());
  }
  return 0;
}

}  // namespace
}  // namespace foldwise::hwprofiles

int main(int argc, char** argv) {
  CLI::App app{"Fits the efficiency curves of the built-in profiles to kernel measurements and prints the errors."};
  std::string kernels = FW_DATA_DIR "/kernels", records = FW_DATA_DIR "/records", write;
  app.add_option("--kernels", kernels, "Directory of the kernel measurements")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
  app.add_option("--records", records, "Directory of our own records, h200-*.jsonl")->capture_default_str();
  app.add_option("--write", write, "Directory of system profiles whose fitted fields are replaced")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  try {
    return foldwise::hwprofiles::run(kernels, records, write);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foldwise-fit: {}\n", error.what());
    return 1;
  }
}

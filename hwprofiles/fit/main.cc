// foldwise-fit: fits the efficiency curves of the built-in profiles to the kernel measurements in
// hwprofiles/data/kernels and prints how well they fit; with --write it puts them into the profiles. docs/measuring.md
// explains what is fitted from what.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
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
#include "hwprofiles/fit/published_exchanges.h"
#include "hwprofiles/load/profile.h"

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

/// Number formats of the linear-layer sweep, and what one activation element costs to quantise there: bytes read and
/// written (FP8: an amax pass and a cast; others: a cast).
struct SweepFormat {
  std::string profile_name, sweep_name;
  MathFormat format;
  double quantise_bytes;
};
const std::vector<SweepFormat> sweep_formats{
    {"bf16", "bfloat16", MathFormat::kBf16, 0.0},
    {"fp8", "fp8", MathFormat::kFp8, 2.0 + 2.0 + 1.0},
    {"fp8_block", "fp8_block", MathFormat::kFp8Block, 2.0 + 1.0 + 4.0 / 128.0},
    {"nvfp4", "nvfp4", MathFormat::kNvfp4, 2.0 + 0.5 + 1.0 / 16.0},
};

/// Rows below this are inference; a step's GEMMs have thousands.
constexpr std::int64_t kFewestRows = 512;

Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path.string() + ": cannot be read");
  return Json::parse(in);
}

/// A fitted number, rounded to the four digits that are written; printed and written are the same.
double rounded(double value) {
  if (value == 0.0) return 0.0;
  const double scale = std::pow(10.0, 3.0 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

struct Origin {
  std::string kind, source, note;
};

/// One profile being rewritten.
class Sheet {
 public:
  Sheet(Json json, std::string borrowed) : json_(std::move(json)), borrowed_(std::move(borrowed)) {}

  void put(const std::string& pointer, double value, const char* unit, Origin origin) {
    if (!borrowed_.empty() && origin.kind != "assumed") {
      origin.kind = "assumed";
      origin.note = borrowed_ + ": " + origin.note;
    }
    Json quantity = {{"value", rounded(value)}, {"unit", unit},      {"kind", origin.kind},
                     {"source", origin.source}, {"date", "2026-08"}, {"note", origin.note}};
    json_[Json::json_pointer(pointer)] = std::move(quantity);
  }
  [[nodiscard]] const Json& json() const { return json_; }

 private:
  Json json_;
  std::string borrowed_;
};

std::string text_of(const Json& node, int depth = 0) {
  const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
  if (!node.is_object()) return node.dump();
  std::string text;
  if (node.contains("value")) {  // a quantity takes one line
    for (const auto& item : node.items())
      text += (text.empty() ? "{" : ", ") + Json(item.key()).dump() + ": " + item.value().dump();
    return text + "}";
  }
  for (const auto& item : node.items())
    text +=
        (text.empty() ? "" : ",\n") + indent + "  " + Json(item.key()).dump() + ": " + text_of(item.value(), depth + 1);
  return "{\n" + text + "\n" + indent + "}";
}

/// Beside the file, then renamed: a reader never sees half a profile.
void replace_file(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path beside = path.string() + ".new";
  std::ofstream out(beside);
  out << text;
  out.close();
  if (!out) throw std::runtime_error(beside.string() + ": cannot be written");
  std::filesystem::rename(beside, path);
}

std::string errors(const FitError& training, const FitError& validated) {
  if (training.samples + validated.samples == 0)
    return fmt::format("{:>5} {:>6} {:>6} {:>8} {:>6}", "-", "-", "-", "-", "-");
  return fmt::format("{:5} {:6.1f} {:6.1f} {:8.1f} {:6.1f}", training.samples, 100 * training.median,
                     100 * training.mean, 100 * validated.median, 100 * validated.mean);
}
std::string note(const FitError& training, const FitError& validated) {
  return fmt::format("foldwise-fit: {} samples, median error {:.1f} %, cross-validated {:.1f} %", training.samples,
                     100 * training.median, 100 * validated.median);
}
void print_row(const std::string& profile, const std::string& curve, const FitError& training,
               const FitError& validated, const std::string& values) {
  fmt::print("{:14} {:22} {}   {}\n", profile, curve, errors(training, validated), values);
}

double us(Seconds time) { return time.to<double>() * 1e6; }

std::vector<GemmSample> gemm_samples(const Json& sweep, const std::string& gpu, const std::string& format) {
  std::vector<GemmSample> samples;
  const auto& table = sweep.at("tflops_by_NxK").at(gpu);
  if (!table.contains(format)) return samples;
  for (const auto& item : table.at(format).items()) {
    const std::size_t times = item.key().find('x');
    const std::int64_t n = std::stoll(item.key().substr(0, times)), k = std::stoll(item.key().substr(times + 1));
    for (std::size_t i = 0; i < sweep.at("M").size(); ++i) {
      const std::int64_t m = sweep.at("M")[i];
      if (m < kFewestRows || item.value()[i].is_null()) continue;
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
      samples.push_back({m, n, k, Seconds{flops / (item.value()[i].get<double>() * 1e12)}});
    }
  }
  return samples;
}

void fit_gemms(const Target& target, const Json& kernels, const Json& te, const Hardware& hw, Sheet& sheet) {
  Seconds launch{};
  GemmFit fp8;
  for (const SweepFormat& entry : sweep_formats) {
    const std::vector<GemmSample> samples = gemm_samples(kernels.at("gemm"), target.gpu, entry.sweep_name);
    if (samples.empty()) continue;
    QuantiseModel quantise;
    quantise.bytes_per_element = entry.quantise_bytes;
    const bool alone = entry.quantise_bytes == 0.0;
    const GemmFit fit =
        fit_gemm(hw, entry.format, samples, quantise, alone ? std::nullopt : std::optional<Seconds>(launch));
    if (alone) launch = fit.curve.launch;
    if (entry.format == MathFormat::kFp8) fp8 = fit;
    std::string values = fmt::format("sustained {:.4g}, launch {:.4g} us, wave {:.4g} us", rounded(fit.curve.sustained),
                                     rounded(us(fit.curve.launch)), rounded(us(fit.curve.wave_overhead)));
    if (!alone)
      values += fmt::format("; quantise {:.0f} GB/s + {:.1f} us", fit.quantise.rate.to<double>() / 1e9,
                            us(fit.quantise.launch));
    print_row(target.profile, "gemm " + entry.profile_name, fit.training, fit.validated, values);
    const std::string at = "/gemm/" + entry.profile_name, how = note(fit.training, fit.validated);
    sheet.put(at + "/sustained", fit.curve.sustained, "1", {"fitted", "AIC", how});
    sheet.put(at + "/launch", us(fit.curve.launch), "us", {"fitted", "AIC", alone ? how : "as bf16"});
    sheet.put(at + "/wave_overhead", us(fit.curve.wave_overhead), "us", {"fitted", "AIC", how});
  }
  if (!sheet.json().at("peak").contains("mxfp8")) return;
  // No MXFP8 sweep: FP8's curve, slowed down by what TransformerEngine measured on B300 with operands ready.
  const auto& rates = te.at("B300_prequantised_tflops");
  double ratio = 0.0;
  for (std::size_t pass = 0; pass < 3; ++pass)
    ratio += rates.at("mxfp8")[pass].get<double>() / rates.at("fp8_current")[pass].get<double>() / 3.0;
  fmt::print("{:14} {:22} sustained {:.4g} (FP8's x {:.3f})\n", target.profile, "gemm mxfp8",
             rounded(fp8.curve.sustained * ratio), ratio);
  const std::string how =
      fmt::format("the FP8 curve; MXFP8 reaches {:.3f} of the FP8 rate on B300 with operands ready", ratio);
  sheet.put("/gemm/mxfp8/sustained", fp8.curve.sustained * ratio, "1", {"assumed", "TE", how});
  sheet.put("/gemm/mxfp8/launch", us(launch), "us", {"assumed", "AIC", "as bf16"});
  sheet.put("/gemm/mxfp8/wave_overhead", us(fp8.curve.wave_overhead), "us", {"assumed", "AIC", "as FP8"});
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

/// Forward FLOPs per unit of A are 2 (dqk + dv), backward 2 (3 dqk + 2 dv); benchmarks count backward as 2.5 forward.
double forward_flops(double area, double dqk, double dv) { return 2.0 * area * (dqk + dv); }
double backward_flops(double area, double dqk, double dv) { return 2.0 * area * (3.0 * dqk + 2.0 * dv); }

std::vector<AttentionSample> cudnn_samples(const Json& cudnn, const std::string& gpu, const std::string& dtype, int dqk,
                                           bool backward) {
  std::vector<AttentionSample> any, random_order;
  for (const auto& row : cudnn.at("rows")) {
    if (row.at("gpu") != gpu || row.at("dtype") != dtype || row.at("dqk") != dqk) continue;
    if (row.at("pass") != (backward ? "bwd" : "fwd")) continue;
    const double seq = row.at("seq"), dv = row.at("dv");
    const double area = row.at("batch").get<double>() * row.at("q_heads").get<double>() * seq * seq / 2.0;
    const double counted = forward_flops(area, dqk, dv) * (backward ? 2.5 : 1.0);
    const Seconds time{counted / (row.at("tflops").get<double>() * 1e12)};
    const AttentionSample sample{Flops{backward ? backward_flops(area, dqk, dv) : forward_flops(area, dqk, dv)}, time};
    any.push_back(sample);
    if (!row.at("deterministic_bwd").get<bool>()) random_order.push_back(sample);
  }
  return random_order.empty() ? any : random_order;  // H200 at head_dim 192 has the deterministic backward only
}

/// FlashAttention's benchmark: 16384 tokens a batch, hidden 2048; causal FLOPs halved.
std::vector<AttentionSample> flash_samples(const Json& seq, const Json& rates, double head_dim, double passes) {
  std::vector<AttentionSample> samples;
  for (std::size_t i = 0; i < seq.size(); ++i) {
    const double s = seq[i], area = 16384.0 / s * (2048.0 / head_dim) * s * s / 2.0;
    const double flops = forward_flops(area, head_dim, head_dim) * passes;
    samples.push_back({Flops{flops}, Seconds{flops / (rates[i].get<double>() * 1e12)}});
  }
  return samples;
}

struct AttentionRow {
  AttentionFit forward, backward;
  double fp8_forward = 1.0, fp8_backward = 1.0;
  Origin forward_origin, backward_origin, fp8_origin{"assumed", "reasoning", "as BF16: not measured"};
};

AttentionFit scaled(AttentionFit fit, double share) {
  fit.rate = fit.rate * share;
  return fit;
}

void put_attention(const Target& target, int head_dim, const AttentionRow& row, Sheet& sheet) {
  const std::string at = fmt::format("/attention/{}", head_dim);
  sheet.put(at + "/forward_rate", row.forward.rate.to<double>() / 1e12, "TFLOPS", row.forward_origin);
  sheet.put(at + "/backward_rate", row.backward.rate.to<double>() / 1e12, "TFLOPS", row.backward_origin);
  sheet.put(at + "/forward_launch", us(row.forward.launch), "us", row.forward_origin);
  sheet.put(at + "/backward_launch", us(row.backward.launch), "us", row.backward_origin);
  sheet.put(at + "/fp8_forward_speedup", row.fp8_forward, "1", row.fp8_origin);
  sheet.put(at + "/fp8_backward_speedup", row.fp8_backward, "1", row.fp8_origin);
  const auto print = [&](const char* pass, const AttentionFit& fit, double fp8, const Origin& origin) {
    const std::string values =
        fmt::format("{:.4g} us + FLOPs / {:.4g} TFLOPS, FP8 x {:.4g} ({})", rounded(us(fit.launch)),
                    rounded(fit.rate.to<double>() / 1e12), rounded(fp8), origin.kind);
    print_row(target.profile, fmt::format("attention {} {}", head_dim, pass), fit.training, fit.validated, values);
  };
  print("fwd", row.forward, row.fp8_forward, row.forward_origin);
  print("bwd", row.backward, row.fp8_backward, row.backward_origin);
}

/// Rate of FP8 over BF16: median over the shapes that both have.
double fp8_speedup(const Json& cudnn, const std::string& gpu, int dqk, bool backward) {
  const auto bf16 = cudnn_samples(cudnn, gpu, "bfloat16", dqk, backward);
  const auto fp8 = cudnn_samples(cudnn, gpu, "fp8", dqk, backward);
  std::vector<double> ratios;
  for (const AttentionSample& a : bf16)
    for (const AttentionSample& b : fp8)
      if (a.flops == b.flops) ratios.push_back(a.time / b.time);
  if (ratios.empty()) return 1.0;
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
}

struct AttentionData {
  Json cudnn, flash2, published;
};

AttentionFit fixed(double launch_us, double rate_tflops) {
  return {.launch = microseconds(launch_us), .rate = tflops(rate_tflops), .training = {}, .validated = {}};
}

/// Hopper's forward by the FlashAttention-3 figure's cuDNN bars; used for the head dimensions that no step had.
AttentionFit hopper_figure(const Json& published, int head_dim) {
  Json seq = Json::array(), rates = Json::array();
  for (const auto& row : entry(published, "fa3-h100-fwd").at("rows")) {
    if (row.at("impl") != "cudnn" || row.at("head_dim") != head_dim || !row.at("causal").get<bool>()) continue;
    seq.push_back(row.at("seq_len"));
    rates.push_back(row.at("fwd_tflops"));
  }
  return fit_attention(flash_samples(seq, rates, head_dim, 1.0));
}

void fit_attention_rows(const Target& target, const AttentionData& data, const Hardware& hw, Sheet& sheet) {
  const auto d128 = hopper_figure(data.published, 128).rate.to<double>();
  const double d64_share = hopper_figure(data.published, 64).rate.to<double>() / d128;
  const double d256_share = hopper_figure(data.published, 256).rate.to<double>() / d128;

  if (hw.generation == costmodel::GpuGeneration::kAmpere) {
    for (const int head_dim : {64, 128, 192, 256}) {
      const int measured = std::min(head_dim, 128);
      const auto samples = flash_samples(data.flash2.at("seq"),
                                         data.flash2.at("A100").at(fmt::format("d{}_causal", measured)), measured, 3.5);
      const AttentionFit both = fit_attention(samples);  // forward and backward together
      AttentionRow row;
      row.forward = row.backward = both;
      row.forward.launch = both.launch * (1.0 / 3.5);
      row.backward.launch = both.launch * (2.5 / 3.5);
      const bool exact = measured == head_dim;
      row.forward_origin = {exact ? "fitted" : "assumed", "FA",
                            (exact ? "" : "as head_dim 128: ") + note(both.training, both.validated) +
                                "; forward and backward were timed together"};
      row.backward_origin = row.forward_origin;
      put_attention(target, head_dim, row, sheet);
    }
    return;
  }

  const auto fitted_row = [&](int head_dim) {
    AttentionRow row;
    const auto pass = [&](bool backward, AttentionFit& fit, Origin& origin) {
      const AttentionFit measured =
          fit_attention(cudnn_samples(data.cudnn, target.attention, "bfloat16", head_dim, backward));
      fit = scaled(measured, target.attention_share);
      origin = {"fitted", "cuDNN", note(measured.training, measured.validated)};
      if (target.attention_share != 1.0) {
        origin.kind = "assumed";
        origin.note =
            fmt::format("as {} x {:.3f}, the ratio of BF16 peaks: ", target.attention, target.attention_share) +
            origin.note;
      }
    };
    pass(false, row.forward, row.forward_origin);
    pass(true, row.backward, row.backward_origin);
    row.fp8_forward = fp8_speedup(data.cudnn, target.attention, head_dim, false);
    row.fp8_backward = fp8_speedup(data.cudnn, target.attention, head_dim, true);
    row.fp8_origin = {target.attention_share == 1.0 ? "measured" : "assumed", "cuDNN",
                      "median ratio of the FP8 and BF16 rates on " + target.attention};
    return row;
  };

  AttentionRow row128, row192;
  if (hw.generation == costmodel::GpuGeneration::kHopper) {
    // As they run inside training steps: docs/measuring.md#attention.
    const std::string kind = target.profile == "h200" ? "measured" : "assumed",
                      as = kind == "measured" ? "" : "as H200: ";
    row128 = fitted_row(128);
    row128.forward = fixed(35.0, 590.0);
    row128.backward = fixed(60.0, 490.0);
    row128.forward_origin = row128.backward_origin = {
        kind, "steps", as + "cuDNN in training steps, 435 to 596 (forward) and 403 to 522 TFLOPS (backward)"};
    row192.forward = fixed(0.0, 527.0);
    row192.backward = fixed(0.0, 420.0);
    row192.forward_origin = row192.backward_origin = {
        kind, "steps", as + "query and key 192 wide, value 128: 527 forward, 408 to 438 backward, launch included"};
    if (kind == "assumed") row128.fp8_origin.kind = "assumed";
  } else {
    row128 = fitted_row(128);
    row192 = fitted_row(192);
  }
  const auto derived = [&](double share, const std::string& why) {
    AttentionRow row = row128;
    row.forward = scaled(row.forward, share);
    row.backward = scaled(row.backward, share);
    row.forward_origin = row.backward_origin = {"assumed", "FA", fmt::format("head_dim 128 x {:.3f}: {}", share, why)};
    row.fp8_origin.kind = "assumed";
    return row;
  };
  const std::string figure = "ratio of cuDNN's forward rates on H100";
  put_attention(target, 64, derived(d64_share, figure), sheet);
  put_attention(target, 128, row128, sheet);
  put_attention(target, 192, row192, sheet);
  put_attention(target, 256, derived(d256_share, figure), sheet);
}

int run(const std::string& kernels_dir, const std::string& systems_dir) {
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
  for (const Target& target : all_targets) {
    const Hardware hw = load_profile(target.profile).hardware;
    const std::filesystem::path path =
        std::filesystem::path(systems_dir.empty() ? FW_DATA_DIR "/systems" : systems_dir) / (target.profile + ".json");
    Sheet sheet(read_json(path), target.borrowed);
    fit_gemms(target, kernels, te, hw, sheet);
    fit_nccl(target, kernels, hw, sheet);
    put_exchange(target, exchanges, hw, sheet);
    sheet.put("/network/nic_all_to_all_efficiency", nic_all_to_all, "1",
              {target.profile == "h100-sxm-80gb" ? "fitted" : "assumed", "MCR",
               "foldwise-fit: dispatch latencies of EP16 to EP64 on H100"});
    fit_attention_rows(target, attention, hw, sheet);
    if (!systems_dir.empty()) replace_file(path, text_of(sheet.json()) + "\n");
  }
  return 0;
}

}  // namespace
}  // namespace foldwise::hwprofiles

int main(int argc, char** argv) {
  CLI::App app{"Fits the efficiency curves of the built-in profiles to kernel measurements and prints the errors."};
  std::string kernels = FW_DATA_DIR "/kernels", write;
  app.add_option("--kernels", kernels, "Directory of the kernel measurements")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
  app.add_option("--write", write, "Directory of system profiles whose fitted fields are replaced")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  try {
    return foldwise::hwprofiles::run(kernels, write);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foldwise-fit: {}\n", error.what());
    return 1;
  }
}

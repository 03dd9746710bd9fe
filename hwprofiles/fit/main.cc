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

#include "hwprofiles/fit/curve_fit.h"
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
/// Smallest message of a collective fit: gradients, parameters and tokens come in tens of MiB. Below it NCCL uses other
/// protocols, whose latency is about 10 us less than the fitted one.
constexpr double kSmallestMessage = 4194304.0;
/// Fewest GPUs of an all-to-all: two GPUs reach a fifth less than four, and an expert group of two is rare.
constexpr std::int64_t kFewestAllToAllRanks = 4;

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
  if (training.samples == 0) return fmt::format("{:>5} {:>6} {:>6} {:>8} {:>6}", "-", "-", "-", "-", "-");
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

void put_collective(Sheet& sheet, const std::string& name, const CollectiveFit& fit, double share,
                    const Origin& origin) {
  const std::string at = "/network/nvlink/" + name;
  sheet.put(at + "/base", us(fit.curve.base), "us", origin);
  sheet.put(at + "/per_rank", us(fit.curve.per_rank), "us", origin);
  sheet.put(at + "/bandwidth", fit.curve.bandwidth.to<double>() / 1e9 * share, "GB/s", origin);
}
std::string values_of(const CollectiveFit& fit, double share) {
  return fmt::format("base {:.4g} us, per rank {:.4g} us, {:.4g} GB/s", rounded(us(fit.curve.base)),
                     rounded(us(fit.curve.per_rank)), rounded(fit.curve.bandwidth.to<double>() / 1e9 * share));
}

const Json& entry(const Json& published, const std::string& id) {
  for (const Json& candidate : published)
    if (candidate.at("id") == id) return candidate;
  throw std::runtime_error("published_kernels.json has no " + id);
}

/// All-to-all dispatch and combine inside an NVL72 rack, EP 8 to 64 (Megatron Core's report): each rank sends 4096
/// tokens of 7168 BF16 elements to 8 experts each.
std::vector<CollectiveSample> rack_all_to_all(const Json& published) {
  std::vector<CollectiveSample> samples;
  for (const auto& row : entry(published, "mcore-report-ep-latency").at("rows")) {
    if (row.at("system") != "gb200-nvl72" || row.at("dispatcher") != "alltoall") continue;
    const std::int64_t ranks = row.at("ep");
    const double away = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    samples.push_back(
        {ranks, Bytes{4096.0 * 7168.0 * 2.0 * 8.0 * away}, microseconds(row.at("latency_us").get<double>())});
  }
  return samples;
}

void fit_nccl(const Target& target, const Json& kernels, const Json& published, const Hardware& hw, Sheet& sheet) {
  const auto& data = kernels.at("nccl").at("data").at(target.gpu);
  const std::vector<std::pair<std::string, std::string>> names{{"all_reduce", "all_reduce"},
                                                               {"all_gather", "all_gather"},
                                                               {"reduce_scatter", "reduce_scatter"},
                                                               {"all_to_all", "alltoall"}};
  for (const auto& [name, key] : names) {
    std::vector<CollectiveSample> samples;
    std::int64_t largest = 0;
    for (const auto& item : data.at(key).items()) {
      const std::int64_t ranks = std::stoll(item.key());
      if (name == "all_to_all" && ranks < kFewestAllToAllRanks) continue;
      largest = std::max(largest, ranks);
      const double n = static_cast<double>(ranks), factor = (name == "all_reduce" ? 2.0 : 1.0) * (n - 1.0) / n;
      for (const auto& row : item.value())
        if (row[0].get<double>() >= kSmallestMessage)
          samples.push_back({ranks, Bytes{factor * row[0].get<double>()}, Seconds{row[1].get<double>() * 1e-6}});
    }
    Origin origin{"fitted", "AIC", ""};
    if (name == "all_to_all" && hw.network.nvlink_domain > 8) {
      for (const CollectiveSample& sample : rack_all_to_all(published)) samples.push_back(sample);
      origin.source = "MCR";
      origin.note = "; with the GB200 all-to-all of Megatron Core's report at EP 8 to 64";
    }
    const CollectiveFit fit = fit_collective(samples);
    std::string how =
        note(fit.training, fit.validated) +
        fmt::format(", nccl-tests of {} to {} GPUs", name == "all_to_all" ? kFewestAllToAllRanks : 2, largest) +
        origin.note;
    if (target.nvlink_share != 1.0)
      how += fmt::format("; bandwidth x {:.3f} for the slower NVLink", target.nvlink_share);
    origin.note = how;
    put_collective(sheet, name, fit, target.nvlink_share, origin);
    if (name == "all_to_all")
      sheet.put("/network/nvlink/send_recv/base", us(fit.curve.base), "us", {"assumed", "AIC", "as all_to_all"});
    print_row(target.profile, name, fit.training, fit.validated, values_of(fit, target.nvlink_share));
  }
}

/// Bytes that a rank sends when each of its 4096 tokens of 7168 elements goes to 8 random experts of `8 * ranks`, once
/// per rank:
///   4096 * 7168 * bytes * ranks * (1 - C(8 ranks - 8, 8) / C(8 ranks, 8))
/// FP8 elements carry 4 bytes of scale per 128. This is what the benchmark divides by its time.
double dispatched_bytes(std::int64_t ranks, double element_bytes) {
  const auto experts = static_cast<double>(8 * ranks);
  double missed = 1.0;  // probability that none of 8 experts lies on a given rank
  for (int i = 0; i < 8; ++i) missed *= (experts - 8.0 - i) / (experts - i);
  return 4096.0 * 7168.0 * element_bytes * static_cast<double>(ranks) * (1.0 - missed);
}

/// HybridEP on GB200 with 32 SMs, timed through its framework interface; other GPUs are scaled from it.
void fit_exchange(const Target& target, const Json& published, const Hardware& hw, Sheet& sheet) {
  std::vector<CollectiveSample> dispatch, combine;
  for (const auto& row : entry(published, "hybridep-gb200").at("rows")) {
    if (row.at("sms") != 32) continue;
    const std::int64_t ranks = row.at("ranks");
    const auto add = [&](std::vector<CollectiveSample>& to, const char* key, double element_bytes) {
      const double bytes = dispatched_bytes(ranks, element_bytes);
      to.push_back({ranks, Bytes{bytes}, Seconds{bytes / (row.at("torch_api").at(key).get<double>() * 1e9)}});
    };
    add(dispatch, "dispatch_bf16_gbs", 2.0);
    add(dispatch, "dispatch_fp8_gbs", 1.0 + 4.0 / 128.0);
    add(combine, "combine_gbs", 2.0);
  }
  const CollectiveFit there = fit_collective(dispatch);
  const CollectiveFit back = fit_collective_bandwidth(combine, there.curve.base, there.curve.per_rank);

  Origin to{"fitted", "HEP", note(there.training, there.validated) + ", 8 to 36 ranks, 32 SMs"};
  Origin from{"fitted", "HEP", note(back.training, back.validated) + ", base and per_rank as dispatch"};
  double to_share = 1.0, from_share = 1.0;
  const auto borrow = [&](double dispatch_share, double combine_share, const std::string& source,
                          const std::string& why) {
    to_share = dispatch_share;
    from_share = combine_share;
    to = {"assumed", source, "HybridEP on GB200, bandwidth " + why};
    from = to;
  };
  if (hw.generation == costmodel::GpuGeneration::kHopper) {
    // Megatron Core's report, 4096 tokens at EP8: dispatch 391 us on GB200 and 661 us on H100, combine 353 and 624 us.
    const double link = target.nvlink_share;
    borrow(391.0 / 661.0 * link, 353.0 / 624.0 * link, "MCR",
           fmt::format("x 391/661 (dispatch) and 353/624 (combine): EP8 latencies on GB200 and H100{}",
                       link == 1.0 ? "" : fmt::format(", x {:.3f} for the slower NVLink", link)));
  } else if (hw.generation == costmodel::GpuGeneration::kAmpere) {
    borrow(300.0 / 900.0, 300.0 / 900.0, "HEP", "x 300/900 for the slower NVLink");
  } else if (target.profile != "gb200-nvl72") {
    borrow(1.0, 1.0, "HEP", "unchanged: B200 and GB200 differ by 3 % at EP8 with 16 SMs");
  }
  put_collective(sheet, "dispatch", there, to_share, to);
  put_collective(sheet, "combine", back, from_share, from);
  print_row(target.profile, "dispatch", there.training, there.validated, values_of(there, to_share));
  print_row(target.profile, "combine", back.training, back.validated, values_of(back, from_share));
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
  for (const Target& target : all_targets) {
    const Hardware hw = load_profile(target.profile).hardware;
    const std::filesystem::path path =
        std::filesystem::path(systems_dir.empty() ? FW_DATA_DIR "/systems" : systems_dir) / (target.profile + ".json");
    Sheet sheet(read_json(path), target.borrowed);
    fit_gemms(target, kernels, te, hw, sheet);
    fit_nccl(target, kernels, attention.published, hw, sheet);
    fit_exchange(target, attention.published, hw, sheet);
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

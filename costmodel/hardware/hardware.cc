#include "costmodel/hardware/hardware.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <span>

#include "costmodel/check.h"
#include "costmodel/hardware/precision.h"
#include "costmodel/units/integers.h"

namespace foldwise::costmodel {
namespace {

struct Tile {
  std::int64_t m, n;
};

/// Output tiles that a library chooses from: the shapes in cuBLAS kernel names on Hopper. On Blackwell a pair of SMs
/// works on 256 x 256, which is 128 x 256 per SM. Source: benchmarks/accuracy/journal.md#gemm.
constexpr std::array<Tile, 11> kTiles{{{128, 256},
                                       {256, 128},
                                       {192, 192},
                                       {320, 128},
                                       {128, 320},
                                       {128, 192},
                                       {192, 128},
                                       {128, 128},
                                       {64, 256},
                                       {128, 64},
                                       {64, 128}}};

/// Without tensor cores (FP32) tiles are smaller. If SMs would idle, the depth is split among them: cuBLAS's
/// sm80_xmma_gemm_f32f32 and sgemm_largek kernels for a router's products. Source: benchmarks/accuracy/journal.md#gemm.
constexpr std::array<Tile, 10> kSimtTiles{
    {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {128, 32}, {32, 128}, {64, 32}, {32, 64}}};
constexpr double kLeastDepth = 256.0;  ///< Least depth of a part.

/// Mean number of tiles down a group whose number of rows varies around `rows`.
double tiles_of_varying_rows(std::int64_t rows, std::int64_t tile_rows) {
  return std::max(1.0, static_cast<double>(rows) / static_cast<double>(tile_rows) + 0.25);
}

/// Query rows of one thread block of cuDNN's and FlashAttention-3's kernels on Hopper.
constexpr double kAttentionTileRows = 128.0;

}  // namespace

std::optional<HostSpec> HostSpec::of_virtual_machine() const {
  if (virtual_machine <= 1.0) return std::nullopt;
  HostSpec host = *this;
  for (const HostPrice& price : kHostPrices)
    if (price.on_virtual_machine) host.*price.price *= virtual_machine;
  host.node = virtual_machine_node;
  host.virtual_machine = 1.0;
  return host;
}

Bandwidth HostSpec::link(bool to_host, std::int64_t gpus) const {
  const Bandwidth alone = to_host ? link_to_host : link_from_host, all = to_host ? links_to_host : links_from_host;
  if (all == Bandwidth{}) return alone;
  return std::min(alone, all / static_cast<double>(std::clamp<std::int64_t>(gpus, 1, links)));
}

bool Hardware::supports(Precision precision) const {
  return peak.at(static_cast<std::size_t>(precision_recipe(precision).format(GemmPhase::kForward))) > FlopRate{0.0};
}

FlopRate Hardware::mfu_peak(Precision precision) const {
  return peak.at(static_cast<std::size_t>(precision_recipe(precision).format(GemmPhase::kForward)));
}

Seconds gemm_time(const Hardware& hw, MathFormat format, GemmPhase phase, std::int64_t m, std::int64_t n,
                  std::int64_t k, std::int64_t groups, bool accumulate_fp32, bool one_kernel) {
  if (m <= 0 || n <= 0 || k <= 0 || groups <= 0) return Seconds{};
  const GemmCurve& curve = hw.gemm.at(static_cast<std::size_t>(format));
  FW_CHECK(curve.peak > FlopRate{0.0}, hw.name + " has no curve for this format");

  const auto sms = static_cast<double>(hw.sms), count = static_cast<double>(groups);
  const bool one = one_kernel && curve.one_kernel_memory_share > 0.0;
  const bool rows_vary = groups > 1 && phase != GemmPhase::kWgrad;
  const double kept = rows_vary && !one && curve.group_rate_share > 0.0 ? curve.group_rate_share : 1.0;
  const double rate_per_sm = kept * curve.sustained.at(static_cast<std::size_t>(phase)) * curve.peak.to<double>() / sms;
  const auto wave_overhead = curve.wave_overhead.to<double>();
  const auto hbm = hw.hbm_bandwidth.to<double>();
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n), depth = static_cast<double>(k);
  const double outputs = count * rows * columns;
  const bool simt = format == MathFormat::kFp32;
  double best = 0.0;
  for (const Tile& tile : simt ? std::span<const Tile>(kSimtTiles) : std::span<const Tile>(kTiles)) {
    const double down = rows_vary ? tiles_of_varying_rows(m, tile.m) : static_cast<double>(ceil_div(m, tile.m));
    const double tiles = count * down * static_cast<double>(ceil_div(n, tile.n));
    const double parts =
        simt && groups == 1 ? std::max(1.0, std::min(std::floor(sms / tiles), depth / kLeastDepth)) : 1.0;
    const double waves = groups == 1 ? std::ceil(tiles * parts / sms) : std::max(1.0, tiles / sms);
    const double tile_flops = 2.0 * static_cast<double>(tile.m) * static_cast<double>(tile.n) * (depth / parts);
    double time = waves * (tile_flops / rate_per_sm + wave_overhead);
    // Partial sums of all parts but the last are written and read.
    if (parts > 1.0) time += 8.0 * sms * static_cast<double>(tile.m * tile.n) * (1.0 - 1.0 / parts) / hbm;
    if (best == 0.0 || time < best) best = time;
  }

  const double in = format_bytes(format).total();
  const double output_bytes = accumulate_fp32 ? 8.0 : 2.0;  // FP32 read and write, or a BF16 write
  const double bytes = count * in * (rows * depth + depth * columns) + output_bytes * outputs;
  if (accumulate_fp32) best += 8.0 * outputs / (curve.accumulate_share * hbm);
  const bool adds_slower = accumulate_fp32 && curve.group_accumulate_share > 0.0;
  const bool adds_per_group = accumulate_fp32 && curve.accumulate_per_group > Seconds{};
  const Seconds per_group = one              ? curve.one_kernel_per_group
                            : adds_per_group ? curve.accumulate_per_group
                                             : curve.per_group;
  const double share = one           ? curve.one_kernel_memory_share
                       : adds_slower ? curve.group_accumulate_share
                                     : curve.group_memory_share;
  best += (count - 1.0) * per_group.to<double>();
  return curve.launch + Seconds{std::max(best, bytes / (share * hbm))};
}

Seconds memory_time(const Hardware& hw, MemoryOp op, Bytes bytes) {
  if (bytes <= Bytes{0.0}) return Seconds{};
  const MemoryCurve& curve = hw.memory.at(static_cast<std::size_t>(op));
  const double share = curve.step_share > 0.0 ? curve.step_share : curve.share;
  return curve.launch + bytes / (share * hw.hbm_bandwidth);
}

Seconds software_time(const Hardware& hw, SoftwareKernel kernel, double elements, std::int64_t groups) {
  if (elements <= 0.0) return Seconds{};
  const SoftwareCurve& curve = hw.software.at(static_cast<std::size_t>(kernel));
  return curve.launch + static_cast<double>(groups) * curve.per_group + elements * curve.per_element;
}

double expected_largest(std::int64_t count) {
  if (count < 2) return 0.0;
  // The quantile of Blom's 1 - 0.625 / (n + 0.25), by Abramowitz and Stegun 26.2.22.
  const double t = std::sqrt(-2.0 * std::log(0.625 / (static_cast<double>(count) + 0.25)));
  return t - (2.30753 + 0.27061 * t) / (1.0 + 0.99229 * t + 0.04481 * t * t);
}

double sustained_clock(const Hardware& hw, MathFormat format, std::int64_t gpus) {
  const auto i = static_cast<std::size_t>(format);
  const double energy = hw.power.joule_per_flop.at(i);
  if (hw.power.limit <= hw.power.base || energy <= 0.0) return 1.0;
  const GemmCurve& curve = hw.gemm.at(i);
  const double full =
      energy * curve.sustained.at(static_cast<std::size_t>(GemmPhase::kForward)) * curve.peak.to<double>();
  const double slowest = std::exp(-hw.power.spread * expected_largest(gpus));
  return std::min(1.0, slowest * (hw.power.limit - hw.power.base).to<double>() / full);
}

bool cudnn_norms(const Hardware& hw) {
  return hw.software.at(static_cast<std::size_t>(SoftwareKernel::kGeneralNormForward)).per_element <= Seconds{};
}

double sustained_attention(const Hardware& hw, std::int64_t gpus) {
  const double clock = sustained_clock(hw, MathFormat::kBf16, gpus);
  return clock < 1.0 ? std::min(1.0, clock / hw.power.attention) : 1.0;
}

Seconds limited_products(Seconds products, double lost, Seconds others) {
  const auto alone = products.to<double>(), beside = others.to<double>();
  const double a = 1.0 - lost, b = beside - alone, c = -alone * beside;
  return Seconds{(-b + std::sqrt(b * b - 4.0 * a * c)) / (2.0 * a)};
}

Seconds attention_time(const Hardware& hw, std::int64_t head_dim, Flops flops, double query_rows, bool backward,
                       bool fp8, double window) {
  if (flops <= Flops{0.0}) return Seconds{};
  FW_CHECK(!hw.attention.empty(), hw.name + " has no attention curve");
  const auto nearest = std::min_element(hw.attention.begin(), hw.attention.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.head_dim - head_dim) < std::abs(b.head_dim - head_dim);
  });
  const double speedup = !fp8 ? 1.0 : backward ? nearest->fp8_backward_speedup : nearest->fp8_forward_speedup;
  const FlopRate rate = (backward ? nearest->backward_rate : nearest->forward_rate) * speedup;
  const double tiles = query_rows / kAttentionTileRows, sms = static_cast<double>(hw.sms);
  const double waves = tiles > 0.0 ? std::max(1.0, tiles / sms) : 0.0;
  if (window > 0.0) flops *= 1.0 + (backward ? nearest->backward_window_keys : nearest->forward_window_keys) / window;
  return (backward ? nearest->backward_launch : nearest->forward_launch) + flops / rate +
         waves * (backward ? nearest->backward_tile : nearest->forward_tile);
}

}  // namespace foldwise::costmodel

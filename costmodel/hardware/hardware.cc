#include "costmodel/hardware/hardware.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

struct Tile {
  std::int64_t m, n;
};

/// Output tiles that a library chooses from: the shapes in cuBLAS kernel names on Hopper. On Blackwell a pair of SMs
/// works on 256 x 256, which is 128 x 256 for each. Source: docs/measuring.md#gemm.
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

/// Rate at which a GEMM reads and writes an FP32 output in its epilogue, relative to the HBM bandwidth. Above 1 because
/// other tiles compute meanwhile. Source: 14e12 B/s on H200 (4.8e12 B/s), docs/measuring.md#gemm.
constexpr double kEpilogueRateOverHbm = 14.0 / 4.8;

/// Bytes of an operand element, scales included: 4/128 per element for FP8 blocks, 1/32 for MXFP8, 1/16 for NVFP4.
/// Source: TransformerEngine, docs/features/low_precision_training.
constexpr double operand_bytes(MathFormat format) {
  switch (format) {
    case MathFormat::kBf16:
      return 2.0;
    case MathFormat::kFp8:
      return 1.0;
    case MathFormat::kFp8Block:
      return 1.0 + 4.0 / 128.0;
    case MathFormat::kMxfp8:
      return 1.0 + 1.0 / 32.0;
    case MathFormat::kNvfp4:
      return 0.5 + 1.0 / 16.0;
    case MathFormat::kFp32:
      return 4.0;
  }
  return 4.0;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

MathFormat math_format(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return MathFormat::kBf16;
    case Precision::kFp8Delayed:
    case Precision::kFp8Current:
      return MathFormat::kFp8;
    case Precision::kFp8Blockwise:
      return MathFormat::kFp8Block;
    case Precision::kMxfp8:
      return MathFormat::kMxfp8;
    case Precision::kNvfp4:
      return MathFormat::kNvfp4;
  }
  return MathFormat::kBf16;
}

bool Hardware::supports(Precision precision) const {
  return peak.at(static_cast<std::size_t>(math_format(precision))) > FlopRate{0.0};
}

FlopRate Hardware::mfu_peak(Precision precision) const {
  return peak.at(static_cast<std::size_t>(math_format(precision)));
}

Seconds gemm_time(const Hardware& hw, MathFormat format, std::int64_t m, std::int64_t n, std::int64_t k,
                  std::int64_t groups, bool accumulate_fp32) {
  if (m <= 0 || n <= 0 || k <= 0 || groups <= 0) return Seconds{};
  const GemmCurve& curve = hw.gemm.at(static_cast<std::size_t>(format));
  FW_CHECK(curve.peak > FlopRate{0.0}, hw.name + " has no curve for this format");

  const auto sms = static_cast<double>(hw.sms);
  const double rate_per_sm = curve.sustained * curve.peak.to<double>() / sms;
  const auto wave_overhead = curve.wave_overhead.to<double>();
  double best = 0.0;
  for (const Tile& tile : kTiles) {
    const auto tiles = static_cast<double>(groups * ceil_div(m, tile.m) * ceil_div(n, tile.n));
    const double waves = groups == 1 ? std::ceil(tiles / sms) : std::max(1.0, tiles / sms);
    const double tile_flops = 2.0 * static_cast<double>(tile.m) * static_cast<double>(tile.n) * static_cast<double>(k);
    const double time = waves * (tile_flops / rate_per_sm + wave_overhead);
    if (best == 0.0 || time < best) best = time;
  }

  const double in = operand_bytes(format), count = static_cast<double>(groups);
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n), depth = static_cast<double>(k);
  const double outputs = count * rows * columns;
  const double output_bytes = accumulate_fp32 ? 8.0 : 2.0;  // FP32 read and write, or a BF16 write
  const double bytes = count * in * (rows * depth + depth * columns) + output_bytes * outputs;
  const auto hbm = hw.hbm_bandwidth.to<double>();
  if (accumulate_fp32) best += 8.0 * outputs / (kEpilogueRateOverHbm * hbm);
  return curve.launch + Seconds{std::max(best, bytes / hbm)};
}

Seconds memory_time(const Hardware& hw, MemoryOp op, Bytes bytes) {
  if (bytes <= Bytes{0.0}) return Seconds{};
  const MemoryCurve& curve = hw.memory.at(static_cast<std::size_t>(op));
  return curve.launch + bytes / (curve.share * hw.hbm_bandwidth);
}

Seconds attention_time(const Hardware& hw, std::int64_t head_dim, Flops flops, bool backward, bool fp8) {
  if (flops <= Flops{0.0}) return Seconds{};
  FW_CHECK(!hw.attention.empty(), hw.name + " has no attention curve");
  const auto nearest = std::min_element(hw.attention.begin(), hw.attention.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.head_dim - head_dim) < std::abs(b.head_dim - head_dim);
  });
  const double speedup = !fp8 ? 1.0 : backward ? nearest->fp8_backward_speedup : nearest->fp8_forward_speedup;
  return backward ? nearest->backward_launch + flops / (nearest->backward_rate * speedup)
                  : nearest->forward_launch + flops / (nearest->forward_rate * speedup);
}

}  // namespace foldwise::costmodel

#include "costmodel/hardware/hardware.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "costmodel/hardware/precision.h"

namespace foldwise::costmodel::hardware_test {
namespace {

constexpr std::size_t index_of(MathFormat format) { return static_cast<std::size_t>(format); }

/// Round numbers: 100 SMs of 10 TFLOPS, of which half is sustained; 8 TB/s.
Hardware round_numbers() {
  Hardware hw;
  hw.name = "round";
  hw.sms = 100;
  hw.hbm_bandwidth = gb_per_s(8000);
  for (const MathFormat format : {MathFormat::kBf16, MathFormat::kFp32}) {
    hw.peak.at(index_of(format)) = tflops(1000);
    GemmCurve curve;
    curve.peak = tflops(1000);
    curve.sustained = {0.5, 0.5, 0.25};
    curve.launch = microseconds(1);
    curve.wave_overhead = microseconds(2);
    curve.accumulate_share = 14.0 / 4.8;
    hw.gemm.at(index_of(format)) = curve;
  }
  for (MemoryCurve& curve : hw.memory) curve = {.share = 0.5, .launch = microseconds(3)};
  AttentionCurve narrow, wide;
  narrow.head_dim = 64;
  narrow.forward_rate = narrow.backward_rate = tflops(100);
  wide.head_dim = 128;
  wide.forward_rate = tflops(500);
  wide.backward_rate = tflops(400);
  wide.forward_launch = microseconds(35);
  wide.backward_launch = microseconds(60);
  wide.forward_tile = microseconds(7);
  wide.forward_window_keys = 128.0;
  wide.fp8_forward_speedup = 1.25;
  hw.attention = {narrow, wide};
  return hw;
}

double in_us(Seconds time) { return time.to<double>() * 1e6; }

// Does a GEMM take the time that its tiles and waves say?
TEST(GemmTime, AFullWaveOfTheBestTile) {
  // 1280 x 2560 in tiles of 128 x 256 is 10 * 10 = 100 tiles on 100 SMs: one wave.
  // A tile of depth 1000 is 2*128*256*1000 = 65.536 MFLOP; an SM sustains 0.5 * 1000 / 100 = 5 TFLOPS: 13.1072 us.
  // 1 us launch + 13.1072 + 2 us wave overhead = 16.1072 us. (128 x 128: two waves of 6.5536 + 2 = 17.1 us, worse.)
  EXPECT_NEAR(in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kForward, 1280, 2560, 1000, 1, false)),
              16.1072, 1e-9);
}
TEST(GemmTime, OneTileMoreThanAWaveCostsAWave) {
  const Hardware hw = round_numbers();
  // One more row of output: 128 x 256 would need 11 * 10 = 110 tiles, two waves, 30.2 us.
  // 192 x 192: ceil(1281/192) * ceil(2560/192) = 7 * 14 = 98, one wave of 73.728 MFLOP: 14.7456 + 2 + 1 = 17.7456 us.
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 1281, 2560, 1000, 1, false)), 17.7456, 1e-9);
}
TEST(GemmTime, GroupsShareTheirWaves) {
  // 15 groups of about 128 x 2560 in tiles of 128 x 320. Each group loses a quarter tile at its end: 15 * 1.25 * 8 =
  // 150 tiles are 1.5 waves, not 2, of 81.92 MFLOP / 5 TFLOPS + 2 us = 18.384 us: 27.576 us, and 1 us launch.
  EXPECT_NEAR(in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kForward, 128, 2560, 1000, 15, false)),
              28.576, 1e-9);
  // In wgrad the rows are the reduced dimension: no tile is lost. 15 * 8 = 120 tiles at a quarter of the peak, half the
  // forward's rate: 1.2 * (32.768 + 2) = 41.7216 us, and 1 us launch.
  EXPECT_NEAR(in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kWgrad, 128, 2560, 1000, 15, false)),
              42.7216, 1e-9);
}
TEST(GemmTime, GroupsInOneKernelHaveCostsOfTheirOwnWhereMeasured) {
  Hardware hw = round_numbers();
  GemmCurve& curve = hw.gemm.at(index_of(MathFormat::kBf16));
  curve.per_group = microseconds(2);
  const auto time = [&](bool one_kernel) {
    return in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 128, 2560, 1000, 15, false, one_kernel));
  };
  EXPECT_EQ(time(true), time(false));
  curve.one_kernel_per_group = microseconds(1);
  curve.one_kernel_memory_share = 1.0;
  EXPECT_NEAR(time(true), 28.576 + 14 * 1, 1e-9);
  EXPECT_NEAR(time(false), 28.576 + 14 * 2, 1e-9);
}
TEST(GemmTime, EachFurtherGroupHasItsFixedCost) {
  Hardware hw = round_numbers();
  hw.gemm.at(index_of(MathFormat::kBf16)).per_group = microseconds(2);
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 128, 2560, 1000, 15, false)), 28.576 + 14 * 2,
              1e-9);
}
TEST(GemmTime, GroupsKeepTheirShareOfTheRate) {
  // As above at 0.8 of the rate: 1.5 waves of 20.48 + 2 us, and 1 us launch. wgrad keeps the full rate.
  Hardware hw = round_numbers();
  hw.gemm.at(index_of(MathFormat::kBf16)).group_rate_share = 0.8;
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 128, 2560, 1000, 15, false)), 34.72, 1e-9);
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kWgrad, 128, 2560, 1000, 15, false)), 42.7216, 1e-9);
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 1281, 2560, 1000, 1, false)), 17.7456, 1e-9);
}
TEST(GemmTime, WithoutTensorCoresIdleSmsShareTheDepth) {
  // 32 x 1280 in tiles of 32 x 64 is 20 tiles: five parts each for 100 SMs, of depth 25600 / 5. 20.97152 MFLOP at
  // 5 TFLOPS are 4.194304 us; 2 us of the wave, 1 us launch, and 8 bytes of the sums of four of five parts at
  // 800 TB/s.
  Hardware hw = round_numbers();
  hw.gemm.at(index_of(MathFormat::kFp32)) = hw.gemm.at(index_of(MathFormat::kBf16));
  hw.hbm_bandwidth = gb_per_s(800e3);
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kFp32, GemmPhase::kForward, 32, 1280, 25600, 1, false)), 7.1959424, 1e-9);
}
TEST(GemmTime, GroupsThatAddToFp32HaveAFixedCostOfTheirOwn) {
  Hardware hw = round_numbers();
  const auto time = [&](bool adds) {
    return in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kWgrad, 128, 2560, 1000, 15, adds));
  };
  const double adding = time(true);
  GemmCurve& curve = hw.gemm.at(index_of(MathFormat::kBf16));
  curve.per_group = microseconds(2);
  EXPECT_NEAR(time(true), adding + 14 * 2, 1e-9);
  curve.accumulate_per_group = microseconds(1);
  EXPECT_NEAR(time(true), adding + 14 * 1, 1e-9);
  EXPECT_NEAR(time(false), 42.7216 + 14 * 2, 1e-9);
}
TEST(SustainedClock, IsWhatTheLimitLeavesForProducts) {
  Hardware hw = round_numbers();
  const GemmCurve& curve = hw.gemm.at(index_of(MathFormat::kBf16));
  const double rate = curve.sustained.at(0) * curve.peak.to<double>();
  hw.power = {.limit = Watts{1000}, .base = Watts{400}, .joule_per_flop = {1000.0 / rate}};  // 600 of 1000 W
  EXPECT_NEAR(sustained_clock(hw, MathFormat::kBf16), 0.6, 1e-12);
  hw.power.spread = 0.02;  // Of eight GPUs the slowest is 1.42 standard deviations below the mean.
  EXPECT_NEAR(sustained_clock(hw, MathFormat::kBf16, 8), 0.6 * (1.0 - 0.02 * 1.42), 0.6 * 0.02 * 0.03);
  hw.power.limit = Watts{2000};
  EXPECT_EQ(sustained_clock(hw, MathFormat::kBf16, 8), 1.0);
}
// Expected largest of n values of a standard normal distribution, as tables of order statistics have it (Harter, 1961).
TEST(ExpectedLargest, IsThatOfTheTables) {
  EXPECT_EQ(expected_largest(1), 0.0);
  for (const auto& [count, value] : {std::pair(2, 0.56419), {4, 1.02938}, {8, 1.42360}, {100, 2.50759}, {400, 2.96818}})
    EXPECT_NEAR(expected_largest(count), value, 0.03) << count;
}
TEST(GemmTime, AccumulatingInFp32ReadsAndWritesTheOutput) {
  // 8 bytes for each of 1280 * 2560 outputs at 14/4.8 of 8 TB/s: 26.2144 MB / 23.3333 TB/s = 1.12347 us on top
  // of 16.1072.
  EXPECT_NEAR(in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kForward, 1280, 2560, 1000, 1, true)),
              17.23067, 1e-4);
}
TEST(GemmTime, AThinGemmIsBoundByItsWeights) {
  // 1 x 16384 x 16384 in BF16 reads 2 * 16384^2 = 536.87 MB of weights: 67.11 us at 8 TB/s, and 1 us launch. Input and
  // output are 64 KiB: 0.008 us. (As tiles: 128 of 64 x 128 in 2 waves of 55.7 us would take 111 us.)
  const double tiles =
      in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kForward, 1, 16384, 16384, 1, false));
  Hardware fast = round_numbers();
  fast.gemm.at(index_of(MathFormat::kBf16)).peak = tflops(1e6);
  fast.gemm.at(index_of(MathFormat::kBf16)).wave_overhead = Seconds{};
  EXPECT_NEAR(in_us(gemm_time(fast, MathFormat::kBf16, GemmPhase::kForward, 1, 16384, 16384, 1, false)), 68.117, 1e-2);
  EXPECT_GT(tiles, 68.117);
}
TEST(GemmTime, NothingToMultiplyIsFree) {
  EXPECT_EQ(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kForward, 0, 128, 128, 1, false), Seconds{});
}
TEST(GemmTime, AFormatThatTheGpuLacksIsABugOfTheCaller) {
  EXPECT_THROW((void)gemm_time(round_numbers(), MathFormat::kNvfp4, GemmPhase::kForward, 128, 128, 128, 1, false),
               std::logic_error);
}

// Do the memory-bound and attention curves read the row that they should?
TEST(MemoryTime, LaunchPlusBytesOverTheShareOfHbm) {
  // 4 GB at half of 8 TB/s is 1000 us, and 3 us.
  EXPECT_NEAR(in_us(memory_time(round_numbers(), MemoryOp::kRope, Bytes{4e9})), 1003.0, 1e-9);
  EXPECT_EQ(memory_time(round_numbers(), MemoryOp::kRope, Bytes{0.0}), Seconds{});
}

// Is a software kernel's time its launch, groups and elements? 5 us + 4 x 2 us + 1e6 x 3 ps.
TEST(SoftwareTime, AddsLaunchGroupsAndElements) {
  Hardware hw = round_numbers();
  hw.software.at(static_cast<std::size_t>(SoftwareKernel::kExpertBiasForward)) = {
      .per_element = Seconds{3e-12}, .per_group = microseconds(2), .launch = microseconds(5)};
  EXPECT_NEAR(in_us(software_time(hw, SoftwareKernel::kExpertBiasForward, 1e6, 4)), 16.0, 1e-9);
  EXPECT_EQ(software_time(hw, SoftwareKernel::kExpertBiasForward, 0.0, 4), Seconds{});
}
TEST(AttentionTime, TheNearestHeadDimensionCounts) {
  const Hardware hw = round_numbers();
  // 500 GFLOP at 500 TFLOPS is 1000 us, and 35 us. 192 is nearer to 128 than to 64.
  EXPECT_NEAR(in_us(attention_time(hw, 192, Flops{500e9}, 0.0, false, false)), 1035.0, 1e-9);
  // Backward at 400 TFLOPS: 1250 + 60 us.
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 0.0, true, false)), 1310.0, 1e-9);
  // FP8 forward 1.25 times as fast: 800 + 35 us; backward has no gain here.
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 0.0, false, true)), 835.0, 1e-9);
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 0.0, true, true)), 1310.0, 1e-9);
  // 25600 query rows are 200 tiles, two waves on 100 SMs, of 7 us.
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 25600.0, false, false)), 1049.0, 1e-9);
  // Fewer tiles than SMs still take one.
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 1280.0, false, false)), 1042.0, 1e-9);
  // 64: 5000 us.
  EXPECT_NEAR(in_us(attention_time(hw, 80, Flops{500e9}, 0.0, false, false)), 5000.0, 1e-9);
  // A window of 512 keys, and 128 more in its tiles: 1.25 times 1000 us, and 35 us. Backward has no more in this test.
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 0.0, false, false, 512.0)), 1285.0, 1e-9);
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 0.0, true, false, 512.0)), 1310.0, 1e-9);
}

// Does a precision map to the format whose peak counts?
TEST(Precision, IsSupportedWhereItsFormatHasAPeak) {
  Hardware hw = round_numbers();
  EXPECT_TRUE(hw.supports(Precision::kBf16));
  EXPECT_FALSE(hw.supports(Precision::kMxfp8));
  EXPECT_EQ(precision_recipe(Precision::kFp8Delayed).format(GemmPhase::kForward), MathFormat::kFp8);
  EXPECT_EQ(precision_recipe(Precision::kFp8Current).format(GemmPhase::kForward), MathFormat::kFp8);
  EXPECT_EQ(precision_recipe(Precision::kFp8Blockwise).format(GemmPhase::kForward), MathFormat::kFp8Block);
  EXPECT_EQ(hw.mfu_peak(Precision::kBf16), tflops(1000));
}

// Are the bytes of an element those of Transformer Engine's documentation (docs/formulas.md#precision)? Saved input of
// a linear; weight beside a bf16 primary and in place of it, on a GPU that wants FP8's transpose and on one that does
// not.
TEST(PrecisionRecipe, HasTheBytesOfTransformerEngine) {
  struct Row {
    Precision precision;
    double saved, beside, instead, beside_one_layout, instead_one_layout;
  };
  const double blocks = 2.0 + 8.0 / 16384.0;
  Hardware two = round_numbers(), one = round_numbers();
  one.traits.fp8_layouts = 1;
  for (const Row& row : {Row{Precision::kBf16, 2.0, 2.0, 2.0, 2.0, 2.0}, Row{Precision::kFp8Delayed, 1, 4, 2, 3, 1},
                         Row{Precision::kFp8Current, 1, 4, 2, 3, 1},
                         Row{Precision::kFp8Blockwise, 1.03125, 2.0 + blocks, blocks, 2.0 + blocks, blocks},
                         Row{Precision::kMxfp8, 1.03125, 4.0625, 2.0625, 4.0625, 2.0625},
                         Row{Precision::kNvfp4, 0.5625, 3.125, 1.125, 3.125, 1.125}}) {
    const PrecisionRecipe& recipe = precision_recipe(row.precision);
    EXPECT_DOUBLE_EQ(recipe.saved_input_bytes(), row.saved);
    EXPECT_DOUBLE_EQ(recipe.weight_bytes(false, two), row.beside);
    EXPECT_DOUBLE_EQ(recipe.weight_bytes(true, two), row.instead);
    EXPECT_DOUBLE_EQ(recipe.weight_bytes(false, one), row.beside_one_layout);
    EXPECT_DOUBLE_EQ(recipe.weight_bytes(true, one), row.instead_one_layout);
  }
}

// Do the costs keep their order and bounds for any size?
std::int64_t size_in(std::int64_t low, std::int64_t high) { return *rc::gen::inRange<std::int64_t>(low, high); }

// Does no product take less than its FLOPs at the peak, nor than its bytes at the HBM's bandwidth?
RC_GTEST_PROP(GemmTime, IsAtLeastTheRoofline, ()) {
  const Hardware hw = round_numbers();
  const std::int64_t m = size_in(1, 20000), n = size_in(1, 20000), k = size_in(1, 20000), groups = size_in(1, 64);
  const auto count = static_cast<double>(groups), rows = static_cast<double>(m), columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  const auto time = gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, m, n, k, groups, false).to<double>();
  RC_ASSERT(time >= 2.0 * count * rows * columns * depth / 1000e12);
  RC_ASSERT(time >= 2.0 * count * (rows * depth + depth * columns + rows * columns) / 8000e9);
}

// Does a product of more rows, columns, depth or groups never take less?
RC_GTEST_PROP(GemmTime, NeverFallsWhenAnyDimensionGrows, ()) {
  const Hardware hw = round_numbers();
  const std::int64_t m = size_in(1, 20000), n = size_in(1, 20000), k = size_in(1, 20000), groups = size_in(1, 64);
  const std::int64_t more = size_in(0, 5000);
  const bool accumulate = *rc::gen::arbitrary<bool>();
  const auto format = *rc::gen::element(MathFormat::kBf16, MathFormat::kFp32);
  const auto time = [&](std::int64_t dm, std::int64_t dn, std::int64_t dk, std::int64_t dg) {
    return gemm_time(hw, format, GemmPhase::kForward, m + dm, n + dn, k + dk, groups + dg, accumulate).to<double>();
  };
  const double base = time(0, 0, 0, 0) * (1.0 - 1e-12);  // the last bit may differ
  RC_ASSERT(base <= time(more, 0, 0, 0));
  RC_ASSERT(base <= time(0, more, 0, 0));
  RC_ASSERT(base <= time(0, 0, more, 0));
  if (groups > 1) RC_ASSERT(base <= time(0, 0, 0, size_in(0, 64)));  // a single GEMM has no rows that vary
  RC_ASSERT(base <= gemm_time(hw, format, GemmPhase::kForward, m, n, k, groups, true).to<double>());
}

}  // namespace
}  // namespace foldwise::costmodel::hardware_test

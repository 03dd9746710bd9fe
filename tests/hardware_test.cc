#include "costmodel/hardware/hardware.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <stdexcept>

namespace foldwise::costmodel {
namespace {

constexpr std::size_t index_of(MathFormat format) { return static_cast<std::size_t>(format); }

/// Round numbers: 100 SMs of 10 TFLOPS, of which half is sustained; 8 TB/s; NVLink 100 GB/s; NIC 10 GB/s.
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
  wide.fp8_forward_speedup = 1.25;
  hw.attention = {narrow, wide};
  for (CollectiveCurve& curve : hw.network.nvlink)
    curve = {.base = microseconds(10), .per_rank = microseconds(1), .bandwidth = gb_per_s(100)};
  hw.network.nic_bandwidth = gb_per_s(10);
  hw.network.nic_efficiency = 0.5;
  hw.network.nic_all_to_all_efficiency = 0.8;
  hw.network.nic_latency = microseconds(5);
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
  // 15 groups of about 128 x 2560 in tiles of 128 x 320: a quarter tile is lost at the end of each, 15 * 1.25 * 8 = 150
  // tiles are 1.5 waves, not 2, of 81.92 MFLOP / 5 TFLOPS + 2 us = 18.384 us: 27.576 us, and 1 us launch.
  EXPECT_NEAR(in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kForward, 128, 2560, 1000, 15, false)),
              28.576, 1e-9);
  // In wgrad the rows are the depth: no tile is lost. 15 * 8 = 120 tiles at a quarter of the peak, half the forward's
  // rate: 1.2 * (32.768 + 2) = 41.7216 us, and 1 us launch.
  EXPECT_NEAR(in_us(gemm_time(round_numbers(), MathFormat::kBf16, GemmPhase::kWgrad, 128, 2560, 1000, 15, false)),
              42.7216, 1e-9);
}
TEST(GemmTime, EachFurtherGroupHasItsFixedCost) {
  Hardware hw = round_numbers();
  hw.gemm.at(index_of(MathFormat::kBf16)).per_group = microseconds(2);
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 128, 2560, 1000, 15, false)), 28.576 + 14 * 2,
              1e-9);
}
TEST(GemmTime, ALowerClockSlowsTheProductsOnly) {
  Hardware hw = round_numbers();
  hw.sustained_clock_share = 0.6;
  hw.product_duty = 0.5;  // of the time: 1 - 0.4 * 0.5 = 0.8 of the clock
  // 13.1072 us of the full wave become 16.384; launch and wave overhead stay: 1 + 16.384 + 2.
  EXPECT_NEAR(in_us(gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, 1280, 2560, 1000, 1, false)), 19.384, 1e-9);
  // 500 GFLOP at 400 instead of 500 TFLOPS, and 35 us.
  EXPECT_NEAR(in_us(attention_time(hw, 128, Flops{500e9}, 0.0, false, false)), 1285.0, 1e-9);
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
}

// Does a collective take the time worked out by hand, inside a domain and between domains?
TEST(CollectiveTime, InsideADomain) {
  const Hardware hw = round_numbers();
  const GroupShape eight{.ranks = 8, .ranks_per_domain = 8};
  // 1 GB over 8 ranks at 100 GB/s: 10 us + 7 * 1 us + 7/8 * 10 ms.
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kAllGather, Bytes{1e9}, eight)), 8767.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kReduceScatter, Bytes{1e9}, eight)), 8767.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kAllToAll, Bytes{1e9}, eight)), 8767.0, 1e-6);
  // All-reduce moves it twice: 17 us + 17.5 ms.
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kAllReduce, Bytes{1e9}, eight)), 17517.0, 1e-6);
  // Dispatch: the whole payload at the fused kernels' rate, the sender's own share included: 17 us + 10 ms.
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kDispatch, Bytes{1e9}, eight)), 10017.0, 1e-6);
}
TEST(CollectiveTime, RingsBetweenDomainsAreBoundByTheNics) {
  const Hardware hw = round_numbers();
  const GroupShape group{.ranks = 32, .ranks_per_domain = 8};
  // 8 NICs of 10 GB/s at 0.5 are 40 GB/s, below NVLink's 100. All-gather of 1 GB: 31/32 GB / 40 GB/s = 24218.75 us;
  // 10 us, 32 - 4 NVLink steps of 1 us, 3 network steps of 5 us: 53 us.
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kAllGather, Bytes{1e9}, group)), 24271.75, 1e-6);
  // All-reduce: twice the bytes, 48437.5 us; 10 us, 7 steps in the domain, tree of 2 * log2(4) = 4 network steps: 37
  // us.
  EXPECT_NEAR(in_us(collective_time(hw, CollectiveKind::kAllReduce, Bytes{1e9}, group)), 48474.5, 1e-6);
}
TEST(CollectiveTime, AnAllToAllUsesBothNetworksAtOnce) {
  // 160 MB from each of 16 ranks, 8 to a domain. NIC: 8/16 * 160 MB / (10 GB/s * 0.8) = 10 ms; NVLink: 7/16 * 160 MB /
  // 100 GB/s = 0.7 ms meanwhile. 10 + 15 + 5 us.
  const Seconds time = collective_time(round_numbers(), CollectiveKind::kAllToAll, Bytes{160e6}, {16, 8});
  EXPECT_NEAR(in_us(time), 10030.0, 1e-6);
}
TEST(CollectiveTime, SendBetweenDomainsGoesOverOneNic) {
  // 80 MB / 8 GB/s = 10 ms, 10 + 5 us.
  const Seconds time = collective_time(round_numbers(), CollectiveKind::kSendRecv, Bytes{80e6}, {2, 1});
  EXPECT_NEAR(in_us(time), 10015.0, 1e-6);
}
TEST(CollectiveTime, DispatchTakesTheSlowerOfNvlinkAndNic) {
  // 16 ranks in 2 domains. NVLink: 100 MB / 100 GB/s = 1 ms. NIC: half of 40 MB / 8 GB/s = 2.5 ms. 10 + 15 + 5 us.
  const Seconds time =
      expert_exchange_time(round_numbers(), CollectiveKind::kDispatch, Bytes{100e6}, Bytes{40e6}, {16, 8});
  EXPECT_NEAR(in_us(time), 2530.0, 1e-6);
}
TEST(CollectiveTime, OneRankIsFree) {
  for (std::size_t kind = 0; kind < kCollectiveKinds; ++kind)
    EXPECT_EQ(collective_time(round_numbers(), static_cast<CollectiveKind>(kind), Bytes{1e9}, {1, 1}), Seconds{});
}

// Does a precision map to the format whose peak counts?
TEST(Precision, IsSupportedWhereItsFormatHasAPeak) {
  Hardware hw = round_numbers();
  EXPECT_TRUE(hw.supports(Precision::kBf16));
  EXPECT_FALSE(hw.supports(Precision::kMxfp8));
  EXPECT_EQ(math_format(Precision::kFp8Delayed), MathFormat::kFp8);
  EXPECT_EQ(math_format(Precision::kFp8Current), MathFormat::kFp8);
  EXPECT_EQ(math_format(Precision::kFp8Blockwise), MathFormat::kFp8Block);
  EXPECT_EQ(hw.mfu_peak(Precision::kBf16), tflops(1000));
}

// Do the costs keep their order and their bounds for any size?
std::int64_t size_in(std::int64_t low, std::int64_t high) { return *rc::gen::inRange<std::int64_t>(low, high); }
GroupShape any_group() {
  const std::int64_t per_domain = size_in(1, 9), domains = size_in(1, 9);
  return {.ranks = per_domain * domains, .ranks_per_domain = per_domain};
}

RC_GTEST_PROP(GemmTime, IsAtLeastTheRoofline, ()) {
  const Hardware hw = round_numbers();
  const std::int64_t m = size_in(1, 20000), n = size_in(1, 20000), k = size_in(1, 20000), groups = size_in(1, 64);
  const auto count = static_cast<double>(groups), rows = static_cast<double>(m), columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  const auto time = gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, m, n, k, groups, false).to<double>();
  RC_ASSERT(time >= 2.0 * count * rows * columns * depth / 1000e12);
  RC_ASSERT(time >= 2.0 * count * (rows * depth + depth * columns + rows * columns) / 8000e9);
}
RC_GTEST_PROP(GemmTime, NeverFallsWhenAnyDimensionGrows, ()) {
  const Hardware hw = round_numbers();
  const std::int64_t m = size_in(1, 20000), n = size_in(1, 20000), k = size_in(1, 20000), groups = size_in(1, 64);
  const std::int64_t more = size_in(0, 5000);
  const bool accumulate = *rc::gen::arbitrary<bool>();
  const auto time = [&](std::int64_t dm, std::int64_t dn, std::int64_t dk, std::int64_t dg) {
    return gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, m + dm, n + dn, k + dk, groups + dg, accumulate)
        .to<double>();
  };
  const double base = time(0, 0, 0, 0) * (1.0 - 1e-12);  // the last bit may differ
  RC_ASSERT(base <= time(more, 0, 0, 0));
  RC_ASSERT(base <= time(0, more, 0, 0));
  RC_ASSERT(base <= time(0, 0, more, 0));
  if (groups > 1) RC_ASSERT(base <= time(0, 0, 0, size_in(0, 64)));  // one GEMM has no rows that vary
  RC_ASSERT(base <= gemm_time(hw, MathFormat::kBf16, GemmPhase::kForward, m, n, k, groups, true).to<double>());
}
RC_GTEST_PROP(CollectiveTime, NeverFallsWhenTheMessageGrows, ()) {
  const Hardware hw = round_numbers();
  const auto kind = static_cast<CollectiveKind>(size_in(0, kCollectiveKinds));
  const GroupShape group = any_group();
  const auto bytes = static_cast<double>(size_in(1, 1 << 30)), more = static_cast<double>(size_in(0, 1 << 30));
  RC_ASSERT(collective_time(hw, kind, Bytes{bytes}, group) <= collective_time(hw, kind, Bytes{bytes + more}, group));
}
RC_GTEST_PROP(CollectiveTime, IsAtLeastTheWireTimeOfTheBusiestLink, ()) {
  const Hardware hw = round_numbers();
  const GroupShape group = any_group();
  const auto bytes = static_cast<double>(size_in(1, 1 << 30)), n = static_cast<double>(group.ranks);
  const auto m = static_cast<double>(group.ranks_per_domain);
  if (group.ranks == 1) return;
  // What leaves a domain in an all-to-all, over all of its NICs at line rate.
  const auto all_to_all = collective_time(hw, CollectiveKind::kAllToAll, Bytes{bytes}, group).to<double>();
  RC_ASSERT(all_to_all >= bytes * (n - m) / n / 10e9);
  // Every rank must receive what it lacks: a domain lacks (n - m)/n of the tensor, over m NICs.
  const auto gather = collective_time(hw, CollectiveKind::kAllGather, Bytes{bytes}, group).to<double>();
  RC_ASSERT(gather >= bytes * (n - m) / n / (m * 10e9));
}
RC_GTEST_PROP(CollectiveTime, HalvesWhenEveryRateDoublesAndLatencyHalves, ()) {
  const Hardware slow = round_numbers();
  Hardware fast = slow;
  for (CollectiveCurve& curve : fast.network.nvlink) {
    curve.bandwidth = curve.bandwidth * 2.0;
    curve.base = curve.base / 2.0;
    curve.per_rank = curve.per_rank / 2.0;
  }
  fast.network.nic_bandwidth = fast.network.nic_bandwidth * 2.0;
  fast.network.nic_latency = fast.network.nic_latency / 2.0;
  const auto kind = static_cast<CollectiveKind>(size_in(0, kCollectiveKinds));
  const GroupShape group = any_group();
  const Bytes bytes{static_cast<double>(size_in(1, 1 << 30))};
  const auto before = collective_time(slow, kind, bytes, group).to<double>();
  const auto after = collective_time(fast, kind, bytes, group).to<double>();
  RC_ASSERT(std::abs(before - 2.0 * after) <= 1e-12 + 1e-9 * before);
}

}  // namespace
}  // namespace foldwise::costmodel

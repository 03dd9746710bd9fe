#include "costmodel/network/network.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <stdexcept>

namespace foldwise::costmodel::network_test {
namespace {

/// All kinds but dispatch and combine.
constexpr std::size_t kPlainKinds = 5;

/// NVLink 100 GB/s, NIC 10 GB/s; bulk protocol only.
Network round_numbers() {
  Network network;
  for (CollectiveCurve& curve : network.nvlink)
    curve.bulk = {.base = microseconds(10), .per_rank = microseconds(1), .bandwidth = gb_per_s(100)};
  network.nic_bandwidth = gb_per_s(10);
  network.nic_efficiency = 0.5;
  network.nic_all_to_all_efficiency = 0.8;
  network.nic_exchange_efficiency = 0.8;
  network.nic_latency = microseconds(5);
  return network;
}

double in_us(Seconds time) { return time.to<double>() * 1e6; }

// Does a collective take the time worked out by hand, inside a domain and between domains?
TEST(CollectiveTime, InsideADomain) {
  const Network network = round_numbers();
  const GroupShape eight{.ranks = 8, .ranks_per_domain = 8};
  // 1 GB over 8 ranks at 100 GB/s: 10 us + 7 * 1 us + 7/8 * 10 ms.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{1e9}, eight)), 8767.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kReduceScatter, Bytes{1e9}, eight)), 8767.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllToAll, Bytes{1e9}, eight)), 8767.0, 1e-6);
  // All-reduce moves it twice: 17 us + 17.5 ms.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{1e9}, eight)), 17517.0, 1e-6);
}
TEST(CollectiveTime, RingsBetweenDomainsAreBoundByTheNics) {
  const Network network = round_numbers();
  const GroupShape group{.ranks = 32, .ranks_per_domain = 8};
  // 8 NICs of 10 GB/s at 0.5 are 40 GB/s, below NVLink's 100. All-gather of 1 GB: 31/32 GB / 40 GB/s = 24218.75 us;
  // 10 us, 32 - 4 NVLink steps of 1 us, 3 network steps of 5 us: 53 us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{1e9}, group)), 24271.75, 1e-6);
  // All-reduce: twice the bytes, 48437.5 us; 10 us, 7 steps in the domain, tree of 2 * log2(4) = 4 network steps: 37
  // us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{1e9}, group)), 48474.5, 1e-6);
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
TEST(CollectiveTime, OneRankIsFree) {
  for (std::size_t kind = 0; kind < kPlainKinds; ++kind)
    EXPECT_EQ(collective_time(round_numbers(), static_cast<CollectiveKind>(kind), Bytes{1e9}, {1, 1}), Seconds{});
  EXPECT_EQ(exchange_time(round_numbers(), {}, CollectiveKind::kDispatch, {Bytes{1e9}, Bytes{1e9}, 1}, {1, 1}),
            Seconds{});
}

// Does the fastest protocol that exists count?
TEST(Protocols, LowLatencyWinsWhileMessagesAreSmall) {
  Network network = round_numbers();
  CollectiveCurve& curve = network.nvlink.at(static_cast<std::size_t>(CollectiveKind::kAllGather));
  curve.low_latency = {.base = microseconds(2), .per_rank = microseconds(0.5), .bandwidth = gb_per_s(20)};
  const GroupShape eight{.ranks = 8, .ranks_per_domain = 8};
  // 80 kB: 70 kB at 20 GB/s = 3.5 us, 2 + 3.5 us. Bulk would take 17.7 us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{80e3}, eight)), 9.0, 1e-9);
  // 8 MB: 7 MB at 100 GB/s = 70 us, 17 us. Low latency would take 355.5 us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{8e6}, eight)), 87.0, 1e-9);
}
TEST(Protocols, ABulkMessageAlsoMovesTheRanksOwnShare) {
  Network network = round_numbers();
  network.nvlink.at(static_cast<std::size_t>(CollectiveKind::kAllGather)).own_share = gb_per_s(1000);
  // As in InsideADomain, plus an eighth of 1 GB at 1 TB/s: 125 us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{1e9}, {8, 8})), 8892.0, 1e-6);
}
TEST(Protocols, TheSwitchReducesWhereEnoughRanksAre) {
  Network network = round_numbers();
  CollectiveCurve& curve = network.nvlink.at(static_cast<std::size_t>(CollectiveKind::kAllReduce));
  curve.in_switch = {.base = microseconds(20), .per_rank = {}, .bandwidth = gb_per_s(200)};
  curve.in_switch_ranks = 6;
  // 2 * 7/8 GB at 200 GB/s = 8750 us, 20 us; four ranks ring: 13 us and 15 ms.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{1e9}, {8, 8})), 8770.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{1e9}, {4, 4})), 15013.0, 1e-6);
}
// NCCL's rules: NVLSTree if the switch reduces, PAT with one rank per domain.
TEST(Protocols, NvlsTreeReducesInTheSwitchesAndClimbsATreeBetweenThem) {
  Network network = round_numbers();
  CollectiveCurve& curve = network.nvlink.at(static_cast<std::size_t>(CollectiveKind::kAllReduce));
  curve.in_switch = {.base = microseconds(20), .per_rank = {}, .bandwidth = gb_per_s(200)};
  curve.in_switch_ranks = 6;
  // 3.2 MB over 32 domains of 8: 2 * 255/256 of it at 40 GB/s = 159.375 us, 20 us, 2 * log2(32) steps of 5 us. The ring
  // tree takes 10 us, 7 steps of 1 us and as many of 5, and is faster unless the switch's base is below 17 us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{3.2e6}, {256, 8})), 226.375, 1e-6);
  curve.in_switch.base = microseconds(2);
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{3.2e6}, {256, 8})), 211.375, 1e-6);
  // Five ranks per domain are too few for the switch: 10 us, 4 steps of 1 us and 10 of 5, five NICs of 5 GB/s.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllReduce, Bytes{3.2e6}, {160, 5})),
              10.0 + 4.0 + 50.0 + 2.0 * 159.0 / 160.0 * 3.2e6 / 25e9 * 1e6, 1e-6);
}
TEST(Protocols, PatShortensTheRingOfSingleRanks) {
  const Network network = round_numbers();
  // 64 domains of one rank, 64 kB at 5 GB/s: the ring takes 10 + 63 * 5 + 12.6 us; PAT 10 us, log2(64) = 6 steps of
  // 5/3.5 us, 2.8 us a rank, 63 kB at 3/4 of 5 GB/s = 16.8 us.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{64e3}, {64, 1})),
              10.0 + 30.0 / 3.5 + 64.0 * 2.8 + 16.8, 1e-6);
  // 6.4 GB: limited by the ring's bandwidth.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kReduceScatter, Bytes{6.4e9}, {64, 1})),
              10.0 + 315.0 + 1.26e6, 1e-3);
  // Two ranks per domain: only rings.
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{64e3}, {64, 2})),
              10.0 + 32.0 + 31.0 * 5.0 + 6.3, 1e-6);
}
// 80 MB at 100 GB/s in a domain of eight, 10 + 7 us; over four domains at 40 GB/s, 10 + 28 us and 3 steps of 5.
TEST(CollectiveTime, ABroadcastPassesEverythingAlongARing) {
  EXPECT_NEAR(in_us(collective_time(round_numbers(), CollectiveKind::kBroadcast, Bytes{80e6}, {8, 8})), 817.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(round_numbers(), CollectiveKind::kBroadcast, Bytes{80e6}, {32, 8})), 2053.0, 1e-6);
}

// Do oversubscribed leaf switches cost what leaves them?
TEST(Leaves, AnAllToAllPaysForTheSharedUplinks) {
  Network network = round_numbers();
  network.oversubscription = 4.0;
  // 32 ranks, 4 domains, 2 leaves; 320 MB: 24/32 over the NIC at 8 GB/s = 30 ms; half of all over uplinks of 2 GB/s a
  // GPU = 80 ms. 10 + 31 + 5 us.
  const GroupShape two_leaves{.ranks = 32, .ranks_per_domain = 8, .leaves = 2};
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllToAll, Bytes{320e6}, two_leaves)), 80046.0, 1e-6);
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllToAll, Bytes{320e6}, {32, 8})), 30046.0, 1e-6);
}
TEST(Leaves, ARingLeavesALeafOnce) {
  Network network = round_numbers();
  network.oversubscription = 4.0;
  // 8 domains on 2 leaves: the ring leaves a leaf once in four domains, so uplinks for a quarter of them are enough.
  const GroupShape wide{.ranks = 64, .ranks_per_domain = 8, .leaves = 2};
  EXPECT_EQ(collective_time(network, CollectiveKind::kAllGather, Bytes{1e9}, wide),
            collective_time(network, CollectiveKind::kAllGather, Bytes{1e9}, {64, 8}));
  // 2 domains on 2 leaves: the ring has a quarter of the NICs' rate, 10 GB/s. 15/16 GB = 93750 us; 10 + 14 + 5 us.
  const GroupShape narrow{.ranks = 16, .ranks_per_domain = 8, .leaves = 2};
  EXPECT_NEAR(in_us(collective_time(network, CollectiveKind::kAllGather, Bytes{1e9}, narrow)), 93779.0, 1e-6);
}

// Does a fused exchange take as long as the slowest of NVLink, NIC and its own SMs?
TEST(ExchangeTime, IsBoundByTheSlowestOfItsParts) {
  const Network network = round_numbers();
  const GroupShape group{.ranks = 16, .ranks_per_domain = 8};
  const ExchangeVolume volume{.to_ranks = Bytes{160e6}, .to_domains = Bytes{40e6}, .rows = 10000};
  // NVLink: 150 of 160 MB at 100 GB/s = 1.5 ms. NIC: half of 40 MB at 8 GB/s = 2.5 ms. 10 + 15 + 5 us.
  EXPECT_NEAR(in_us(exchange_time(network, {}, CollectiveKind::kDispatch, volume, group)), 2530.0, 1e-6);
  // 10 SMs of 4 GB/s: 160 MB at 40 GB/s = 4 ms, and 10000 rows of 2 us on 10 SMs = 2 ms.
  const ExchangeKernel kernel{.sms = 10, .rate_per_sm = gb_per_s(4), .row_overhead = microseconds(2)};
  EXPECT_NEAR(in_us(exchange_time(network, kernel, CollectiveKind::kDispatch, volume, group)), 6030.0, 1e-6);
}
TEST(ExchangeTime, IsNoPlainCollective) {
  EXPECT_THROW((void)collective_time(round_numbers(), CollectiveKind::kCombine, Bytes{1.0}, {2, 2}), std::logic_error);
  EXPECT_THROW((void)exchange_time(round_numbers(), {}, CollectiveKind::kAllToAll, {}, {2, 2}), std::logic_error);
}

// Do the times keep their order and bounds for any size?
std::int64_t size_in(std::int64_t low, std::int64_t high) { return *rc::gen::inRange<std::int64_t>(low, high); }
GroupShape any_group() {
  const std::int64_t per_domain = size_in(1, 9), domains = size_in(1, 9);
  return {.ranks = per_domain * domains, .ranks_per_domain = per_domain};
}

// Does a larger message never take less?
RC_GTEST_PROP(CollectiveTime, NeverFallsWhenTheMessageGrows, ()) {
  const Network network = round_numbers();
  const auto kind = static_cast<CollectiveKind>(size_in(0, kPlainKinds));
  const GroupShape group = any_group();
  const auto bytes = static_cast<double>(size_in(1, 1 << 30)), more = static_cast<double>(size_in(0, 1 << 30));
  RC_ASSERT(collective_time(network, kind, Bytes{bytes}, group) <=
            collective_time(network, kind, Bytes{bytes + more}, group));
}

// Does no collective take less than its bytes on the busiest link?
RC_GTEST_PROP(CollectiveTime, IsAtLeastTheWireTimeOfTheBusiestLink, ()) {
  const Network network = round_numbers();
  const GroupShape group = any_group();
  const auto bytes = static_cast<double>(size_in(1, 1 << 30)), n = static_cast<double>(group.ranks);
  const auto m = static_cast<double>(group.ranks_per_domain);
  if (group.ranks == 1) return;
  // Bytes that leave a domain in an all-to-all, over all of its NICs at line rate.
  const auto all_to_all = collective_time(network, CollectiveKind::kAllToAll, Bytes{bytes}, group).to<double>();
  RC_ASSERT(all_to_all >= bytes * (n - m) / n / 10e9);
  // Every rank must receive what it lacks: a domain lacks (n - m)/n of the tensor, and has m NICs.
  const auto gather = collective_time(network, CollectiveKind::kAllGather, Bytes{bytes}, group).to<double>();
  RC_ASSERT(gather >= bytes * (n - m) / n / (m * 10e9));
}

// Do all collectives take half where every rate is doubled and every latency halved?
RC_GTEST_PROP(CollectiveTime, HalvesWhenEveryRateDoublesAndLatencyHalves, ()) {
  const Network slow = round_numbers();
  Network fast = slow;
  for (CollectiveCurve& curve : fast.nvlink) {
    curve.bulk.bandwidth = curve.bulk.bandwidth * 2.0;
    curve.bulk.base = curve.bulk.base / 2.0;
    curve.bulk.per_rank = curve.bulk.per_rank / 2.0;
  }
  fast.nic_bandwidth = fast.nic_bandwidth * 2.0;
  fast.nic_latency = fast.nic_latency / 2.0;
  const auto kind = static_cast<CollectiveKind>(size_in(0, kPlainKinds));
  const GroupShape group = any_group();
  const Bytes bytes{static_cast<double>(size_in(1, 1 << 30))};
  const auto before = collective_time(slow, kind, bytes, group).to<double>();
  const auto after = collective_time(fast, kind, bytes, group).to<double>();
  RC_ASSERT(std::abs(before - 2.0 * after) <= 1e-12 + 1e-9 * before);
}

}  // namespace
}  // namespace foldwise::costmodel::network_test

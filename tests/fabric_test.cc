#include "costmodel/network/fabric.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/parallel/process_groups.h"
#include "costmodel/parallel/stage_traffic.h"

namespace foldwise::costmodel::fabric_test {
namespace {

using Ranks = std::vector<std::int64_t>;

Network nodes(std::int64_t gpus_per_domain) {
  Network network;
  network.nvlink_domain = network.ranks_per_domain = gpus_per_domain;
  for (CollectiveCurve& curve : network.nvlink) curve.bulk.bandwidth = gb_per_s(400);
  network.nic_bandwidth = gb_per_s(50);
  return network;
}
Ranks first(std::int64_t n) {
  Ranks ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return ranks;
}
double megabytes(Bytes bytes) { return bytes.to<double>() / 1e6; }

// Does a message take the links that it should?
TEST(Route, StaysOnTheSwitchInsideADomain) {
  Fabric fabric(nodes(8), gb_per_s(50), 16);
  fabric.send(1, 6, Bytes{8e6});
  const std::vector<LinkLoad> links = fabric.loads();
  ASSERT_EQ(links.size(), 2U);
  EXPECT_EQ(links.front().name, "gpu 1 -> nvswitch 0");
  EXPECT_EQ(links.back().name, "nvswitch 0 -> gpu 6");
  EXPECT_NEAR(links.front().busy().to<double>(), 8e6 / 400e9, 1e-12);
}
TEST(Route, GoesOutOfTheNicOnTheReceiversRail) {
  Fabric fabric(nodes(8), gb_per_s(50), 16);
  fabric.send(1, 8 + 6, Bytes{8e6}, first(16));  // Via GPU 6 of the sender's node.
  EXPECT_NEAR(megabytes(fabric.sent(1).nvlink), 8.0, 1e-9);
  EXPECT_NEAR(megabytes(fabric.sent(6).nic), 8.0, 1e-9);
  EXPECT_EQ(fabric.sent(1).nic, Bytes{});
  EXPECT_EQ(fabric.loads().front().tier, "pcie");  // NIC and its slot are equally busy.
}
TEST(Route, CrossesTheSpineWhereNoMemberOfTheCommunicatorIsOnTheReceiversRail) {
  Fabric fabric(nodes(8), gb_per_s(50), 12);
  fabric.send(9, 6, Bytes{8e6}, {6, 9});  // The last node has no GPU on rail 6.
  EXPECT_NEAR(megabytes(fabric.sent(9).nic), 8.0, 1e-9);
  EXPECT_NEAR(megabytes(fabric.sent(9).spine), 8.0, 1e-9);
  EXPECT_EQ(fabric.sent(9).nvlink, Bytes{});
}
TEST(Route, CrossesTheSpineBetweenLeaves) {
  Network network = nodes(8);
  network.domains_per_leaf = 2;
  network.oversubscription = 2.0;
  Fabric fabric(network, gb_per_s(50), 64);
  fabric.send(0, 8, Bytes{1e6});  // Second node of the same leaf.
  EXPECT_EQ(fabric.sent(0).spine, Bytes{});
  fabric.send(0, 16, Bytes{1e6});  // First node of the next leaf.
  EXPECT_NEAR(megabytes(fabric.sent(0).spine), 1.0, 1e-9);
  EXPECT_NEAR(megabytes(fabric.sent(0).nic), 2.0, 1e-9);
  EXPECT_EQ(fabric.place(16).leaf, 1);
}
TEST(Route, SharesANicThatHasFewerThanGpus) {
  Network network = nodes(4);
  network.gpus_per_nic = 2;
  Fabric fabric(network, gb_per_s(50), 8);
  fabric.send(0, 4, Bytes{1e6});
  fabric.send(1, 5, Bytes{1e6});
  EXPECT_NEAR(megabytes(fabric.sent(0).nic), 2.0, 1e-9);
  for (const LinkLoad& link : fabric.loads()) {
    if (link.tier == "infiniband") {
      EXPECT_EQ(link.bandwidth, gb_per_s(100)) << link.name;
    }
  }
}

// Does the routed traffic of a group equal the closed form that times are computed from?
TEST(Traffic, OfOneNvl72RackStaysInIt) {
  Network network = nodes(72);
  network.ranks_per_domain = 64;
  Fabric fabric(network, gb_per_s(180), 128);
  fabric.collective(CollectiveKind::kAllToAll, first(64), Bytes{64e6});
  EXPECT_NEAR(megabytes(fabric.sent(5).nvlink), 63.0, 1e-9);
  EXPECT_EQ(fabric.sent(5).nic, Bytes{});
  EXPECT_EQ(fabric.place(64).domain, 1);
}

// Does every GPU send over its NIC and its NVLinks what the closed form says of an all-to-all?
RC_GTEST_PROP(Traffic, OfAnAllToAllEqualsTheClosedForm, ()) {
  const std::int64_t m = *rc::gen::element<std::int64_t>(1, 2, 4, 8), d = *rc::gen::inRange<std::int64_t>(1, 6);
  const std::int64_t n = m * d;
  if (n == 1) return;
  Fabric fabric(nodes(m), gb_per_s(50), n);
  fabric.collective(CollectiveKind::kAllToAll, first(n), Bytes{1e6});
  const LinkBytes expected = link_bytes(CollectiveKind::kAllToAll, Bytes{1e6}, {.ranks = n, .ranks_per_domain = m});
  for (std::int64_t gpu = 0; gpu < n; ++gpu) {
    RC_ASSERT(std::abs(fabric.sent(gpu).nic.to<double>() - expected.nic.to<double>()) < 1.0);
    RC_ASSERT(std::abs(fabric.sent(gpu).nvlink.to<double>() - expected.nvlink.to<double>()) < 1.0);
  }
}

// And over its NIC, of rings across domains?
RC_GTEST_PROP(Traffic, OfARingEqualsTheClosedFormOnEveryNic, ()) {
  const std::int64_t m = *rc::gen::element<std::int64_t>(1, 2, 4, 8), d = *rc::gen::inRange<std::int64_t>(2, 6);
  const auto kind = *rc::gen::element(CollectiveKind::kAllReduce, CollectiveKind::kAllGather);
  Fabric fabric(nodes(m), gb_per_s(50), m * d);
  fabric.collective(kind, first(m * d), Bytes{1e6});
  const LinkBytes expected = link_bytes(kind, Bytes{1e6}, {.ranks = m * d, .ranks_per_domain = m});
  for (std::int64_t gpu = 0; gpu < m * d; ++gpu)
    RC_ASSERT(std::abs(fabric.sent(gpu).nic.to<double>() - expected.nic.to<double>()) < 1.0);
}

// And of a fused exchange, which sends a token once to each domain?
RC_GTEST_PROP(Traffic, OfAFusedExchangeEqualsTheClosedFormOnEveryNic, ()) {
  const std::int64_t m = *rc::gen::element<std::int64_t>(2, 4, 8), d = *rc::gen::inRange<std::int64_t>(2, 6);
  Fabric fabric(nodes(m), gb_per_s(50), m * d);
  const ExchangeVolume volume{.to_ranks = Bytes{6e6}, .to_domains = Bytes{3e6}, .rows = 1};
  fabric.exchange(first(m * d), volume);
  const LinkBytes expected = link_bytes(volume, {.ranks = m * d, .ranks_per_domain = m});
  for (std::int64_t gpu = 0; gpu < m * d; ++gpu)
    RC_ASSERT(std::abs(fabric.sent(gpu).nic.to<double>() - expected.nic.to<double>()) < 1.0);
}

// Shape of a group on `fabric`, by counting.
GroupShape counted(const Fabric& fabric, const Ranks& ranks) {
  std::map<std::int64_t, std::int64_t> domains, leaves;
  for (const std::int64_t rank : ranks) {
    ++domains[fabric.place(rank).domain];
    ++leaves[fabric.place(rank).leaf];
  }
  const auto size = static_cast<std::int64_t>(ranks.size());
  GroupShape shape{.ranks = size, .ranks_per_domain = size, .leaves = static_cast<std::int64_t>(leaves.size())};
  for (const auto& [domain, members] : domains) shape.ranks_per_domain = std::min(shape.ranks_per_domain, members);
  const auto spanned = static_cast<std::int64_t>(domains.size());
  if (shape.ranks_per_domain * spanned != size) shape.uneven_domains = spanned;
  return shape;
}

constexpr std::array<std::pair<Group, const char*>, 9> kGroups{{{Group::kTp, "tp"},
                                                                {Group::kCp, "cp"},
                                                                {Group::kEp, "ep"},
                                                                {Group::kEtp, "etp"},
                                                                {Group::kDp, "dp"},
                                                                {Group::kEtpEp, "etp_ep"},
                                                                {Group::kDpCp, "dp_cp"},
                                                                {Group::kEdp, "edp"},
                                                                {Group::kPp, "pp"}}};

// Any combination of sizes with a partial last domain and groups that straddle domains.
Layout any_layout() {
  const auto small = rc::gen::element<std::int64_t>(1, 2, 3, 4, 6);
  Layout layout{.tp = *small, .cp = *small, .dp = *small, .pp = *rc::gen::inRange<std::int64_t>(1, 5)};
  const std::int64_t stage = layout.tp * layout.cp * layout.dp;
  layout.etp = *rc::gen::element<std::int64_t>(1, layout.tp);
  layout.ep = std::gcd(stage / layout.etp, *rc::gen::element<std::int64_t>(1, 2, 3, 6, 8, 12));
  if (*rc::gen::arbitrary<bool>()) {
    layout.tp_pp_dp = true;
    layout.cp = 1;
    layout.ep = layout.tp / layout.etp;
  }
  return layout;
}

// Can every group of any job be routed, and is its busiest NIC that of the closed form, however its members lie? Of an
// all-to-all the busiest domain's NICs on average: PXN does not spread evenly where rails have unequal members.
RC_GTEST_PROP(Traffic, OfEveryGroupEqualsTheClosedFormOnTheBusiestNic, ()) {
  const Layout layout = any_layout();
  const Network network = nodes(*rc::gen::element<std::int64_t>(2, 3, 4, 5, 8, 18, 72));
  const Fabric idle(network, gb_per_s(50), layout.world());
  const auto near = [](double bytes, Bytes expected) { return std::abs(bytes - expected.to<double>()) < 1.0; };
  for (const auto& [group, name] : kGroups) {
    const std::vector<RankGroup> groups = process_groups(layout, name);
    if (groups.front().size() < 2) continue;
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                      CollectiveKind::kBroadcast, CollectiveKind::kSendRecv}) {
      Fabric fabric(network, gb_per_s(50), layout.world());
      for (const RankGroup& members : groups) fabric.collective(kind, members, Bytes{1e6});
      for (const RankGroup& members : groups) {
        double nic = 0.0;
        for (const std::int64_t member : members) nic = std::max(nic, fabric.sent(member).nic.to<double>());
        RC_ASSERT(near(nic, link_bytes(kind, Bytes{1e6}, counted(idle, members)).nic));
      }
    }
    const ExchangeVolume volume{.to_ranks = Bytes{6e6}, .to_domains = Bytes{3e6}, .rows = 1};
    Fabric all_to_all(network, gb_per_s(50), layout.world()), exchange(network, gb_per_s(50), layout.world());
    for (const RankGroup& members : groups) {
      all_to_all.collective(CollectiveKind::kAllToAll, members, Bytes{1e6});
      exchange.exchange(members, volume);
    }
    for (const RankGroup& members : groups) {
      std::map<std::int64_t, std::pair<double, double>> domains;  // Bytes and NICs.
      for (const std::int64_t member : members) {
        RC_ASSERT(near(exchange.sent(member).nic.to<double>(), link_bytes(volume, counted(idle, members)).nic));
        auto& [bytes, nics] = domains[idle.place(member).domain];
        bytes += all_to_all.sent(member).nic.to<double>();
        nics += 1.0;
      }
      double nic = 0.0;
      for (const auto& [domain, sums] : domains) nic = std::max(nic, sums.first / sums.second);
      RC_ASSERT(near(nic, link_bytes(CollectiveKind::kAllToAll, Bytes{1e6}, counted(idle, members)).nic));
    }
  }
}

// Is the shape that the search uses the worst that the fabric gives, for every kind of group?
RC_GTEST_PROP(Placement, EqualsTheCachedShape, ()) {
  const Layout layout = any_layout();
  Network network = nodes(*rc::gen::element<std::int64_t>(3, 4, 8, 18, 64));
  network.domains_per_leaf = *rc::gen::inRange<std::int64_t>(1, 5);
  const Fabric fabric(network, gb_per_s(50), layout.world());
  for (const auto& [group, name] : kGroups) {
    GroupShape worst{.ranks = 1, .ranks_per_domain = layout.world()};
    std::int64_t domains = 1;
    for (const RankGroup& members : process_groups(layout, name)) {
      const GroupShape shape = counted(fabric, members);
      worst.ranks = shape.ranks;
      worst.ranks_per_domain = std::min(worst.ranks_per_domain, shape.ranks_per_domain);
      worst.leaves = std::max(worst.leaves, shape.leaves);
      domains = std::max(domains, shape.domains());
    }
    const GroupShape shape = group_shape(layout, group, network);
    RC_ASSERT(shape.ranks == worst.ranks);
    RC_ASSERT(shape.ranks_per_domain == worst.ranks_per_domain);
    RC_ASSERT(shape.leaves == worst.leaves);
    RC_ASSERT(shape.domains() == domains);
  }
}

// Does a job of which only the ends are routed have the links of the whole one, with their names and loads, and the
// same busiest ones? In rail-wired domains of any size, below leaf switches with and without a limit, also where they
// straddle pipeline ranks and groups.
RC_GTEST_PROP(ShortJob, HasTheLinksOfTheWholeOne, ()) {
  Layout layout = any_layout();
  Network network = nodes(*rc::gen::element<std::int64_t>(1, 2, 3, 4, 5, 8));
  network.gpus_per_nic = *rc::gen::element<std::int64_t>(1, 1, 2, 3);
  network.domains_per_leaf = *rc::gen::inRange<std::int64_t>(0, 4);
  network.oversubscription = 2.0;
  const std::int64_t dp = layout.dp;  // Enough data parallelism to shorten the job, and some more.
  while (short_job(layout, network).repeats.empty()) layout.dp += dp;
  layout.dp += dp * *rc::gen::inRange<std::int64_t>(0, 6 * layout.dp / dp);
  RC_PRE(layout.world() <= 12'000);

  const auto megabytes = [] { return Bytes{1e6 * *rc::gen::inRange(0, 4)}; };
  StageTraffic traffic;
  traffic.rank = *rc::gen::inRange<std::int64_t>(0, layout.pp);
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kBroadcast, CollectiveKind::kSendRecv})
    if (const Bytes bytes = megabytes(); bytes > Bytes{})
      traffic.collectives[{kind, (*rc::gen::elementOf(kGroups)).first}] = bytes;
  traffic.collectives[{CollectiveKind::kAllToAll, *rc::gen::element(Group::kEp, Group::kCp)}] = megabytes();
  traffic.exchanges[Group::kEtpEp] = {.to_ranks = 2.0 * megabytes(), .to_domains = megabytes(), .rows = 1};
  traffic.sent[*rc::gen::inRange<std::int64_t>(0, layout.pp)] = megabytes();
  traffic.to_host = megabytes();

  const Fabric all = routed(traffic, layout, {layout, {}}, network, gb_per_s(50));
  const Fabric ends = routed(traffic, layout, short_job(layout, network), network, gb_per_s(50));
  std::map<std::string, LinkLoad> links;
  for (const LinkLoad& link : all.loads()) links[link.name] = link;
  const auto same = [](const LinkLoad& a, const LinkLoad& b) {
    const double ratio = a.bytes / b.bytes;
    return a.name == b.name && a.tier == b.tier && a.bandwidth == b.bandwidth && std::abs(ratio - 1.0) < 1e-9;
  };
  for (const LinkLoad& link : ends.loads()) RC_ASSERT(same(link, links[link.name]));
  RC_ASSERT(ends.loads().size() < links.size() || links.empty());
  RC_ASSERT(std::ranges::equal(ends.busiest(), all.busiest(), same));
}
// Are the busiest links the first of every tier, for a job too small to be shortened too?
TEST(ShortJob, LeavesASmallJobWhole) {
  const Layout layout{.tp = 2, .cp = 1, .dp = 8, .pp = 2, .ep = 8};
  const ShortJob job = short_job(layout, nodes(8));
  EXPECT_EQ(job.layout, layout);
  EXPECT_TRUE(job.repeats.empty());
  StageTraffic traffic;
  traffic.rank = 1;
  traffic.collectives[{CollectiveKind::kAllReduce, Group::kDp}] = Bytes{1e6};
  const Fabric fabric = routed(traffic, layout, job, nodes(8), gb_per_s(50));
  const std::vector<LinkLoad> links = fabric.busiest();
  ASSERT_EQ(links.size(), 3U);
  EXPECT_EQ(links.front().name, "gpu 16 -> nic 16");
  EXPECT_EQ(links.front().name, fabric.loads().front().name);
}
// Is a job of a million GPUs as short as one of ten thousand?
TEST(ShortJob, DoesNotGrowWithTheJob) {
  Network network = nodes(8);
  network.domains_per_leaf = 32;
  const auto kept = [&](std::int64_t dp) {
    return short_job({.tp = 1, .cp = 1, .dp = dp, .pp = 2, .ep = 64}, network).layout.dp;
  };
  EXPECT_EQ(kept(500'000), kept(500'000 % 256 + 256 * 20));
  EXPECT_LT(kept(500'000), 2'000);
}

}  // namespace
}  // namespace foldwise::costmodel::fabric_test

// What do compute and a communication beside it take? Two fluids with worked numbers and bounds, and what a transfer's
// link, SMs and bytes make of a system's measured rates.
#include "costmodel/ops/contention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "hwprofiles/load/profile.h"

namespace foldwise::costmodel {
namespace {

constexpr Seconds kThree{3.0}, kTwo{2.0};

// 3 s of compute at 3/4 and 2 s of communication at 1/2 both take 4 s. After 1 s of waiting 2 s of compute are left:
// they take 8/3 s, in which 4/3 s of the communication pass.
TEST(SideBySide, GivesTheNumbersWorkedOut) {
  const SideBySide both = side_by_side(kThree, kTwo, SharedPace{.compute = 0.75, .communication = 0.5});
  EXPECT_NEAR(both.compute.to<double>(), 4.0, 1e-12);
  EXPECT_NEAR(both.exposed.to<double>(), 0.0, 1e-12);
  const SideBySide late =
      side_by_side(kThree, kTwo, SharedPace{.compute = 0.75, .communication = 0.5, .wait = Seconds{1.0}});
  EXPECT_NEAR(late.compute.to<double>(), 3.0 + 2.0 / 3.0, 1e-12);
  EXPECT_NEAR(late.exposed.to<double>(), 2.0 / 3.0, 1e-12);
}

TEST(SideBySide, OfTwoThatDoNotDisturbEachOtherTakesTheLonger) {
  EXPECT_NEAR(side_by_side(kThree, kTwo, SharedPace{}).elapsed().to<double>(), 3.0, 1e-12);
  EXPECT_NEAR(side_by_side(kTwo, kThree, SharedPace{}).elapsed().to<double>(), 3.0, 1e-12);
}

RC_GTEST_PROP(SideBySide, LastsNoLessThanTheLongerAndNoMoreThanBoth, ()) {
  const auto share = [](int low) { return *rc::gen::inRange(low, 101) / 100.0; };
  const Seconds compute{*rc::gen::inRange(0, 1000) * 1e-3}, communication{*rc::gen::inRange(0, 1000) * 1e-3};
  const double own = share(1), other = std::max(0.01, share(static_cast<int>(100.0 * (1.0 - own))));
  RC_PRE(own + other >= 1.0);
  const SharedPace pace{.compute = own, .communication = other, .wait = Seconds{*rc::gen::inRange(0, 1500) * 1e-3}};
  const SideBySide both = side_by_side(compute, communication, pace);
  RC_ASSERT(both.elapsed() >= std::max(compute, communication) - Seconds{1e-9});
  RC_ASSERT(both.elapsed() <= compute + communication + Seconds{1e-9});
  RC_ASSERT(both.exposed >= Seconds{-1e-9} && both.compute >= compute - Seconds{1e-9});
}

/// Rates of a GPU, made up: products keep 0.7 and the collective all of its rate; memory-bound kernels 0.8 and 0.5.
Hardware made_up() {
  Hardware hardware;
  hardware.sms = 100;
  hardware.contention = {.gemm = {0.7, 1.0}, .memory = {0.8, 0.5}, .start_wait = 0.9};
  for (CollectiveCurve& curve : hardware.network.nvlink) curve.bulk.bandwidth = Bandwidth{100e9};
  hardware.network.deep_ep.sms = 20;
  return hardware;
}

ComputeSum mix(double products, double memory) {
  return {.time = Seconds{products + memory}, .products = Seconds{products}, .squares = 0.0};
}

Op collective(double gigabytes, GroupShape shape) {
  Op op;
  op.work = CollectiveWork{CollectiveKind::kSendRecv, Group::kPp, Bytes{gigabytes * 1e9}, shape};
  return op;
}

// A transfer that moves NVLink's 100 GB/s takes the measured price, each kind of kernel its own: of 1 s of products and
// 1 s of memory-bound work become 1/0.7 and 1/0.8 s; the transfer keeps everything in the former, half in the latter.
TEST(SharedPace, TakesTheMeasuredRatesAtFullRate) {
  CommunicationSum full;
  full.add(collective(100.0, {.ranks = 2, .ranks_per_domain = 2}), Seconds{1.0}, made_up());
  const double products = 1.0 / 0.7, memory = 1.0 / 0.8;
  const SharedPace pace = shared_pace(mix(1.0, 1.0), full, 0.0, made_up());
  EXPECT_NEAR(pace.compute, 2.0 / (products + memory), 1e-12);
  EXPECT_NEAR(pace.communication, (products + 0.5 * memory) / (products + memory), 1e-12);
}

// A NIC of 10 GB/s needs a tenth of the SMs (3 of 100) and of the bytes: 0.97 and 0.98 are left, and the transfer is
// not slowed, because 10 GB/s are less than the 50 that a transfer beside memory-bound kernels still moves.
TEST(SharedPace, PricesATransferByWhatItsLinkMoves) {
  CommunicationSum slow;
  slow.add(collective(10.0, {.ranks = 2, .ranks_per_domain = 1}), Seconds{1.0}, made_up());
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), slow, 0.0, made_up()).compute, 0.97, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), slow, 0.0, made_up()).compute, 0.98, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), slow, 0.0, made_up()).communication, 1.0, 1e-12);
}

// A fused dispatch takes its 20 of 100 SMs from products, whatever it moves.
TEST(SharedPace, ChargesFusedExchangesTheirSms) {
  Op op;
  op.work = ExchangeWork{.kind = CollectiveKind::kDispatch,
                         .group = Group::kEp,
                         .dispatcher = Dispatcher::kDeepEp,
                         .volume = {.to_ranks = Bytes{2e9}, .to_domains = Bytes{}, .rows = 1},
                         .shape = {.ranks = 2, .ranks_per_domain = 2}};
  CommunicationSum exchange;
  exchange.add(op, Seconds{1.0}, made_up());
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), exchange, 0.0, made_up()).compute, 0.8, 1e-12);
}

// Ten kernels of 0.1 s: a collective that finds one running waits 0.9 of it, two collectives twice that.
TEST(SharedPace, WaitsForTheKernelThatRuns) {
  CommunicationSum full;
  full.add(collective(100.0, {.ranks = 2, .ranks_per_domain = 2}), Seconds{1.0}, made_up());
  ComputeSum compute = mix(1.0, 0.0);
  compute.squares = 10 * 0.1 * 0.1;
  EXPECT_NEAR(shared_pace(compute, full, 1.0, made_up()).wait.to<double>(), 0.09, 1e-12);
  EXPECT_NEAR(shared_pace(compute, full, 2.0, made_up()).wait.to<double>(), 0.18, 1e-12);
}

// Do built-in systems price a collective within the bounds of the two fluids?
TEST(SharedPace, OfBuiltInSystemsNeverMakesOverlapWorseThanWaiting) {
  for (const std::string& name : hwprofiles::built_in_systems()) {
    const Hardware hardware = hwprofiles::load_profile(name).hardware;
    CommunicationSum full;
    const Bandwidth rate = hardware.network.nvlink[static_cast<std::size_t>(CollectiveKind::kAllGather)].bulk.bandwidth;
    full.add(collective(rate.to<double>() / 1e9, {.ranks = 2, .ranks_per_domain = 2}), Seconds{1.0}, hardware);
    for (const double products : {0.0, 0.5, 1.0}) {
      const SharedPace pace = shared_pace(mix(products, 1.0 - products), full, 0.0, hardware);
      EXPECT_GE(pace.compute + pace.communication, 1.0) << name;
      EXPECT_GT(pace.compute, 0.5) << name;
    }
  }
}

}  // namespace
}  // namespace foldwise::costmodel

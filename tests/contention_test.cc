// What do compute and a communication beside it take? Two fluids with worked numbers and bounds, and what a transfer's
// link, SMs and bytes make of a system's measured rates.
#include "costmodel/ops/contention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"

namespace foldwise::costmodel::contention_test {
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

// Ten parts of 0.2 s of communication, each after a wait of 0.3 s, beside 1 s of compute. They are issued one after
// another, so two are done when compute ends. A single part waits for all of it first.
TEST(SideBySide, LetsPartsWaitOneAfterAnother) {
  const SideBySide many = side_by_side(Seconds{1.0}, Seconds{2.0}, SharedPace{.wait = Seconds{3.0}, .starts = 10.0});
  EXPECT_NEAR(many.exposed.to<double>(), 1.6, 1e-12);
  const SideBySide one = side_by_side(Seconds{1.0}, Seconds{2.0}, SharedPace{.wait = Seconds{0.3}});
  EXPECT_NEAR(one.exposed.to<double>(), 1.3, 1e-12);
}

// Do compute and communication beside each other, at whatever pace, take at least the longer of the two, and at most
// one after the other?
RC_GTEST_PROP(SideBySide, LastsNoLessThanTheLongerAndNoMoreThanBoth, ()) {
  const auto share = [](int low) { return *rc::gen::inRange(low, 101) / 100.0; };
  const Seconds compute{*rc::gen::inRange(0, 1000) * 1e-3}, communication{*rc::gen::inRange(0, 1000) * 1e-3};
  const double own = share(1), other = std::max(0.01, share(static_cast<int>(100.0 * (1.0 - own))));
  RC_PRE(own + other >= 1.0);
  const SharedPace pace{.compute = own,
                        .communication = other,
                        .wait = Seconds{*rc::gen::inRange(0, 1500) * 1e-3},
                        .starts = *rc::gen::inRange(0, 40) * 0.5};
  const SideBySide both = side_by_side(compute, communication, pace);
  RC_ASSERT(both.elapsed() >= std::max(compute, communication) - Seconds{1e-9});
  RC_ASSERT(both.elapsed() <= compute + communication + Seconds{1e-9});
  RC_ASSERT(both.exposed >= Seconds{-1e-9} && both.compute >= compute - Seconds{1e-9});
}

costmodel::ExchangeKernel& exchange_of(Hardware& hardware) {
  return hardware.network.exchange.at(static_cast<std::size_t>(Dispatcher::kDeepEp));
}

/// An invented GPU with 100 SMs. Beside a collective of at least 20 channels, products keep 0.7 of their rate and the
/// collective 0.9 of its own; memory-bound kernels keep 0.8, and the collective 0.5.
Hardware made_up() {
  Hardware hardware;
  hardware.sms = 100;
  hardware.contention = {.gemm = {0.7, 0.9}, .memory = {0.8, 0.5}, .start_wait = 0.9, .launched = 0.7};
  for (CollectiveCurve& curve : hardware.network.nvlink) curve.bulk.bandwidth = gb_per_s(100);
  hardware.network.collective_sms = 20;
  hardware.network.channel_bandwidth = gb_per_s(5);
  exchange_of(hardware) = {.sms = 10, .rate_per_sm = gb_per_s(20), .row_overhead = {}};
  return hardware;
}

ComputeSum mix(double products, double memory) {
  return {.time = Seconds{products + memory}, .products = Seconds{products}, .squares = 0.0};
}

/// A transfer that sends this many bytes in one second.
CommunicationSum transfer(double gigabytes, GroupShape shape) {
  Op op;
  op.work = CollectiveWork{CollectiveKind::kSendRecv, Group::kPp, Bytes{gigabytes * 1e9}, shape};
  CommunicationSum sum;
  sum.add(op, Seconds{1.0}, made_up());
  return sum;
}
constexpr GroupShape kInside{.ranks = 2, .ranks_per_domain = 2}, kBetween{.ranks = 2, .ranks_per_domain = 1};

// A transfer of 100 GB/s in 20 channels has the measured price, each kind of kernel its own: 1 s of products and 1 s
// of memory-bound work take 1/0.7 and 1/0.8 s; the transfer keeps 0.9 of its rate in the former and half in the latter.
TEST(SharedPace, HasTheMeasuredRatesAtFullRate) {
  const double products = 1.0 / 0.7, memory = 1.0 / 0.8;
  const SharedPace pace = shared_pace(mix(1.0, 1.0), transfer(100.0, kInside), 0.0, made_up());
  EXPECT_NEAR(pace.compute, 2.0 / (products + memory), 1e-12);
  EXPECT_NEAR(pace.communication, (0.9 * products + 0.5 * memory) / (products + memory), 1e-12);
}

// Products that are launched beside a running collective keep their own rate, 0.4, those that it waits for 0.7.
TEST(SharedPace, TellsProductsThatAreLaunchedBesideACollective) {
  Hardware hardware = made_up();
  hardware.contention.launched = 0.4;
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), transfer(100.0, kInside), 0.0, hardware).compute, 0.4, 1e-12);
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), transfer(100.0, kInside), 1.0, hardware).compute, 0.7, 1e-12);
}

// A NIC of 10 GB/s needs two channels of 5, a tenth of the 20 at which products lose 0.3 and memory-bound kernels 0.2:
// they lose 0.03 and 0.02. The transfer is slowed as with many channels.
TEST(SharedPace, PricesATransferByWhatItsLinkMoves) {
  const CommunicationSum slow = transfer(10.0, kBetween);
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), slow, 0.0, made_up()).compute, 0.97, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), slow, 0.0, made_up()).compute, 0.98, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), slow, 0.0, made_up()).communication, 0.5, 1e-12);
}

// A fused dispatch has SMs of its own. 10 are half of the 20 at which products lose 0.3; 50 are half of all. 10 SMs
// could copy 200 GB/s. 160 GB in 1 s need 0.8 of that, and at half of their rate take 1.6 s. 20 GB, which a link moves
// in 1 s, are not slowed, and cost memory-bound kernels a tenth of the half of 0.2.
TEST(SharedPace, ChargesFusedExchangesTheirSms) {
  const auto exchange = [](double gigabytes, double sms) {
    Op op;
    op.work = ExchangeWork{.kind = CollectiveKind::kDispatch,
                           .group = Group::kEp,
                           .dispatcher = Dispatcher::kDeepEp,
                           .volume = {.to_ranks = Bytes{gigabytes * 1e9}, .to_domains = Bytes{}, .rows = 1},
                           .shape = kInside};
    Hardware hardware = made_up();
    exchange_of(hardware).sms = sms;
    CommunicationSum sum;
    sum.add(op, Seconds{1.0}, hardware);
    return sum;
  };
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), exchange(20.0, 10.0), 0.0, made_up()).compute, 0.85, 1e-12);
  EXPECT_NEAR(shared_pace(mix(1.0, 0.0), exchange(20.0, 50.0), 0.0, made_up()).compute, 0.5, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), exchange(160.0, 10.0), 0.0, made_up()).communication, 1.0 / 1.6, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), exchange(20.0, 10.0), 0.0, made_up()).communication, 1.0, 1e-12);
  EXPECT_NEAR(shared_pace(mix(0.0, 1.0), exchange(20.0, 10.0), 0.0, made_up()).compute, 0.99, 1e-12);
}

// Ten kernels of 0.1 s. A collective that arrives during one waits 0.9 of it, two collectives twice that.
TEST(SharedPace, WaitsForTheKernelThatRuns) {
  const CommunicationSum full = transfer(100.0, kInside);
  ComputeSum compute = mix(1.0, 0.0);
  compute.squares = 10 * 0.1 * 0.1;
  EXPECT_NEAR(shared_pace(compute, full, 1.0, made_up()).wait.to<double>(), 0.09, 1e-12);
  EXPECT_NEAR(shared_pace(compute, full, 2.0, made_up()).wait.to<double>(), 0.18, 1e-12);
}

/// Medians in us of a setting of a linear-backward.jsonl, by name of the way.
using Ways = std::map<std::string, double>;
std::map<std::string, Ways> linear_backwards(const std::string& file, const std::string& connections) {
  std::map<std::string, Ways> settings;
  std::ifstream records(FW_DATA_DIR "/kernels/" + file);
  for (std::string text; std::getline(records, text);) {
    const nlohmann::json line = nlohmann::json::parse(text);
    if (line.at("connections") != connections) continue;
    auto us = line.at("us").get<std::vector<double>>();
    std::ranges::nth_element(us, us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2));
    Ways& ways = settings[nlohmann::json{line.at("tp"), line.at("rows"), line.at("k"), line.at("n")}.dump()];
    ways[line.at("way")] = us[us.size() / 2];
    ways["tp"] = line.at("tp");
    ways["bytes"] = 2.0 * line.at("rows").get<double>() * line.at("k").get<double>();
  }
  return settings;
}

// Does backward of a column-parallel linear take what it took on four H100 and two H200, its collectives launched
// before the product beside each in one hardware queue? One after the other it would be 16 % off. And do they hide next
// to nothing in several queues, where Foldwise prices them one after the other?
TEST(SharedPace, IsThatOfALinearsBackward) {
  for (const auto& [system, file, settings, mean, most] :
       {std::tuple("h100-sxm-80gb", "h100-x4-linear-backward.jsonl", 24U, 0.035, 0.15),
        std::tuple("h200", "h200-x2-linear-backward.jsonl", 21U, 0.025, 0.06)}) {
    SCOPED_TRACE(system);
    const Hardware hardware = hwprofiles::load_profile(system).hardware;
    const auto beside = [&](const Ways& of, CollectiveKind kind, const char* collective, const char* product) {
      Op op;
      op.work = CollectiveWork{kind,
                               Group::kTp,
                               Bytes{of.at("bytes")},
                               {.ranks = static_cast<std::int64_t>(of.at("tp")), .ranks_per_domain = 8}};
      CommunicationSum communication;
      communication.add(op, Seconds{of.at(collective) * 1e-6}, hardware);
      const Seconds compute{of.at(product) * 1e-6};
      return side_by_side({.time = compute, .products = compute}, communication, 0.0, hardware).elapsed().to<double>() *
             1e6;
    };
    const auto measured = linear_backwards(file, "1");
    ASSERT_EQ(measured.size(), settings);
    double error = 0.0, worst = 0.0;
    for (const auto& [name, of] : measured) {
      const double alone = of.at("all_gather") + of.at("dgrad") + of.at("reduce_scatter") + of.at("wgrad"),
                   predicted = beside(of, CollectiveKind::kAllGather, "all_gather", "dgrad") +
                               beside(of, CollectiveKind::kReduceScatter, "reduce_scatter", "wgrad"),
                   off = predicted / alone * of.at("sequence") / of.at("beside") - 1.0;
      error += std::abs(off) / static_cast<double>(measured.size());
      worst = std::max(worst, std::abs(off));
    }
    EXPECT_LT(error, mean);
    EXPECT_LT(worst, most);
  }
  std::vector<double> hidden;
  for (const auto& [name, of] : linear_backwards("h100-x4-linear-backward.jsonl", "32"))
    hidden.push_back((of.at("sequence") - of.at("beside")) / (of.at("all_gather") + of.at("reduce_scatter")));
  std::ranges::sort(hidden);
  EXPECT_LT(hidden[hidden.size() / 2], 0.15);
}

// Do built-in systems price a collective within the bounds of the two fluids?
TEST(SharedPace, OfBuiltInSystemsNeverMakesOverlapWorseThanWaiting) {
  for (const std::string& name : hwprofiles::built_in_systems()) {
    const Hardware hardware = hwprofiles::load_profile(name).hardware;
    const Bandwidth rate = hardware.network.nvlink[static_cast<std::size_t>(CollectiveKind::kAllGather)].bulk.bandwidth;
    Op op;
    op.work = CollectiveWork{CollectiveKind::kSendRecv, Group::kPp, Bytes{rate.to<double>()}, kInside};
    CommunicationSum full;
    full.add(op, Seconds{1.0}, hardware);
    for (const double products : {0.0, 0.5, 1.0}) {
      const SharedPace pace = shared_pace(mix(products, 1.0 - products), full, 0.0, hardware);
      EXPECT_GE(pace.compute + pace.communication, 1.0) << name;
      EXPECT_GT(pace.compute, 0.5) << name;
    }
  }
}

}  // namespace
}  // namespace foldwise::costmodel::contention_test

#include "hwprofiles/fit/calibration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/fit/plot.h"
#include "hwprofiles/load/range.h"
#include "hwprofiles/records/import.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles::calibration_test {
namespace {

using costmodel::Hardware;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Session h200_session() {
  return {.id = "a", .program = "foldwise-kernels-cuda", .started = "2026-11-21T15:00:00Z", .device = "NVIDIA H200"};
}

Measurement setting(std::string kernel, std::map<std::string, std::string> of,
                    std::map<std::string, std::int64_t> shape) {
  Measurement measurement;
  measurement.session = "a";
  measurement.kernel = std::move(kernel);
  measurement.of = std::move(of);
  measurement.shape = std::move(shape);
  measurement.correct = true;
  return measurement;
}

/// Samples from the times of `hw`, with noise of `sigma`.
void measure(Measurement& measurement, const Hardware& hw, double sigma, std::mt19937_64& random) {
  std::normal_distribution<double> noise(0.0, sigma);
  const Hardware used = measured_alone(hw, under_load(measurement));
  const double time = predicted_time(ops_of(measurement), used).to<double>() * 1e6;
  for (int i = 0; i < 5; ++i) measurement.samples_us.push_back(time * std::exp(noise(random)));
}

/// Hardware unlike that of any built-in system.
Hardware imagined() {
  Hardware hw = load_profile("h200").hardware;
  auto& bf16 = hw.gemm.at(0);
  bf16.sustained = {0.71, 0.66, 0.52};
  bf16.launch = microseconds(4);
  bf16.wave_overhead = microseconds(1.5);
  bf16.per_group = microseconds(0.7);
  bf16.accumulate_per_group = microseconds(0.4);
  bf16.group_rate_share = 0.9;
  bf16.group_memory_share = 0.6;
  bf16.group_accumulate_share = 0.5;
  bf16.accumulate_share = 1.4;
  hw.power = {.limit = Watts{700}, .base = Watts{200}, .joule_per_flop = {0.9e-12}};
  hw.memory.at(static_cast<std::size_t>(costmodel::MemoryOp::kRope)) = {.share = 0.33, .launch = microseconds(5)};
  auto& row = hw.attention.at(1);
  row.forward_rate = tflops(612);
  row.forward_launch = microseconds(9);
  row.forward_tile = microseconds(3);
  row.backward_rate = tflops(500);
  row.backward_launch = microseconds(21);
  row.backward_tile = microseconds(6);
  hw.host.link_to_host = gb_per_s(41);
  return hw;
}

std::vector<Measurement> measured_by(const Hardware& hw, double sigma) {
  std::mt19937_64 random(7);
  std::vector<Measurement> records;
  for (const char* phase : {"forward", "dgrad", "wgrad"}) {
    for (const std::int64_t m : {512, 1024, 4096, 16384})
      for (const std::int64_t n : {1024, 1536, 4096, 7168})
        for (const std::int64_t k : {1024, 2048, 7168})
          records.push_back(setting("gemm", {{"format", "bf16"}, {"phase", phase}}, {{"m", m}, {"n", n}, {"k", k}}));
    for (const std::int64_t groups : {2, 8, 32})
      for (const std::int64_t rows : {128, 1024})
        records.push_back(
            setting("grouped_gemm", {{"format", "bf16"}, {"phase", phase}, {"distribution", "balanced"}},
                    {{"groups", groups}, {"rows", groups * rows}, {"n", 2048}, {"k", 1024}, {"max_rows", rows}}));
  }
  for (const std::int64_t m : {4096, 8192, 16384})
    records.push_back(setting("gemm", {{"format", "bf16"}, {"phase", "forward"}, {"load", "sustained"}},
                              {{"m", m}, {"n", 8192}, {"k", 8192}}));
  for (const std::int64_t rows : {64, 512, 4096, 32768, 131072}) {
    records.push_back(setting("memory", {{"op", "rope"}}, {{"rows", rows}, {"width", 4096}}));
    records.back().bytes = 4.0 * 4096.0 * static_cast<double>(rows);
  }
  for (const char* phase : {"forward", "backward"})
    for (const std::int64_t seq : {1024, 2048, 4096, 16384})
      for (const std::int64_t heads : {8, 32})
        records.push_back(setting(
            "attention", {{"format", "bf16"}, {"phase", phase}, {"mask", "causal"}},
            {{"batch", 1}, {"heads", heads}, {"kv_heads", 8}, {"seq", seq}, {"head_dim", 128}, {"head_dim_v", 128}}));
  for (const std::int64_t bytes : {8 << 20, 64 << 20, 512 << 20})
    records.push_back(setting("copy", {{"direction", "d2h"}}, {{"bytes", bytes}}));
  for (Measurement& record : records) measure(record, hw, sigma, random);
  return records;
}

const FittedCurve& named(const std::vector<FittedCurve>& curves, std::string_view name) {
  for (const FittedCurve& curve : curves)
    if (curve.name == name) return curve;
  throw std::out_of_range(std::string(name));
}

// Does a fit find the parameters that its samples were made with?
TEST(RecordFit, RecoversTheDeviceThatMadeTheRecords) {
  const Hardware truth = imagined();
  const Profile start = load_profile("h200");
  Hardware hw = start.hardware;
  const std::vector<FittedCurve> curves = fit_records(hw, start.json, measured_by(truth, 0.0), 1);
  for (std::size_t phase = 0; phase < 3; ++phase)
    EXPECT_NEAR(hw.gemm.at(0).sustained.at(phase), truth.gemm.at(0).sustained.at(phase), 0.005) << phase;
  EXPECT_NEAR(hw.gemm.at(0).launch.to<double>(), 4e-6, 0.2e-6);
  EXPECT_NEAR(hw.gemm.at(0).wave_overhead.to<double>(), 1.5e-6, 0.1e-6);
  EXPECT_NEAR(hw.gemm.at(0).per_group.to<double>(), 0.7e-6, 0.1e-6);
  EXPECT_NEAR(hw.gemm.at(0).accumulate_per_group.to<double>(), 0.4e-6, 0.1e-6);
  EXPECT_NEAR(hw.gemm.at(0).group_rate_share, 0.9, 0.01);
  EXPECT_NEAR(hw.gemm.at(0).group_memory_share, 0.6, 0.02);
  EXPECT_NEAR(hw.gemm.at(0).group_accumulate_share, 0.5, 0.02);
  EXPECT_NEAR(hw.gemm.at(0).accumulate_share, 1.4, 0.05);
  EXPECT_NEAR(hw.power.joule_per_flop.at(0) * 1e12, 0.9, 0.005);
  const auto rope = hw.memory.at(static_cast<std::size_t>(costmodel::MemoryOp::kRope));
  EXPECT_NEAR(rope.share, 0.33, 0.002);
  EXPECT_NEAR(rope.launch.to<double>(), 5e-6, 0.1e-6);
  const auto& row = hw.attention.at(1);
  EXPECT_NEAR(row.forward_rate.to<double>(), 612e12, 5e12);
  EXPECT_NEAR(row.forward_tile.to<double>(), 3e-6, 0.2e-6);
  EXPECT_NEAR(row.backward_rate.to<double>(), 500e12, 5e12);
  EXPECT_NEAR(row.backward_launch.to<double>(), 21e-6, 2e-6);
  EXPECT_NEAR(hw.host.link_to_host.to<double>(), 41e9, 1e6);
  for (const FittedCurve& curve : curves) EXPECT_LT(curve.validated.median, 0.01) << curve.name;
}
// Is the error of left-out settings that of the noise, and does one wild setting in ten not move the fit?
TEST(RecordFit, WildMeasurementsDoNotMoveIt) {
  const Hardware truth = imagined();
  std::vector<Measurement> records = measured_by(truth, 0.02);
  for (std::size_t i = 0; i < records.size(); i += 10)
    for (double& sample : records[i].samples_us) sample *= 3.0;
  const Profile start = load_profile("h200");
  Hardware hw = start.hardware;
  const std::vector<FittedCurve> curves = fit_records(hw, start.json, records, 1);
  EXPECT_NEAR(hw.gemm.at(0).sustained.at(0), 0.71, 0.02);
  const FittedCurve& gemm = named(curves, "gemm bf16");
  EXPECT_LT(gemm.validated.median, 0.03);
  EXPECT_GT(gemm.validated.median, 0.001);
  EXPECT_EQ(gemm.validated.samples, gemm.points.size());  // each was left out once
}
TEST(RecordFit, ASeedDecidesWhatIsLeftOut) {
  const std::vector<Measurement> records = measured_by(imagined(), 0.03);
  const Profile start = load_profile("h200");
  const auto validated = [&](std::uint64_t seed) {
    Hardware hw = start.hardware;
    return named(fit_records(hw, start.json, records, seed), "gemm bf16").validated.mean;
  };
  EXPECT_EQ(validated(1), validated(1));
  EXPECT_NE(validated(1), validated(2));
}

/// A record with a time of `us`.
Measurement taking(double us, const char* kernel, std::map<std::string, std::string> of,
                   std::map<std::string, std::int64_t> shape) {
  Measurement record = setting(kernel, std::move(of), std::move(shape));
  record.samples_us = {us};
  return record;
}

// Are a launch, a node of a graph and copies over the host link found in what was measured of many, short and both
// ways?
TEST(RecordFit, FindsLaunchesAndHostCopies) {
  std::vector<Measurement> records;
  for (const std::int64_t kernels : {1, 10, 100, 1000}) {
    const auto count = static_cast<double>(kernels);
    records.push_back(taking(7 + 4.5 * count, "launch", {{"mode", "stream"}}, {{"kernels", kernels}}));
    records.push_back(taking(6 + 0.8 * count, "launch", {{"mode", "graph"}}, {{"kernels", kernels}}));
  }
  for (const std::int64_t bytes : {1 << 12, 1 << 18, 1 << 24, 1 << 30}) {
    const auto size = static_cast<double>(bytes);
    records.push_back(taking(3 + size / 41e3, "copy", {{"direction", "d2h"}}, {{"bytes", bytes}}));
    records.push_back(taking(3 + size / 50e3, "copy", {{"direction", "h2d"}}, {{"bytes", bytes}}));
    // Both directions: the slower one at 0.9 of its rate.
    records.push_back(taking(3 + size / (0.9 * 41e3), "copy", {{"direction", "both"}}, {{"bytes", bytes}}));
  }
  const Profile start = load_profile("h200");
  Hardware hw = start.hardware;
  const Seconds sync = hw.host.sync;
  const std::vector<FittedCurve> curves = fit_records(hw, start.json, records, 1);
  EXPECT_NEAR(hw.host.launch.to<double>(), 4.5e-6, 0.05e-6);
  EXPECT_NEAR(hw.host.graph_node.to<double>(), 0.8e-6, 0.02e-6);
  EXPECT_NEAR(hw.host.link_to_host.to<double>(), 41e9, 0.5e9);
  EXPECT_NEAR(hw.host.link_from_host.to<double>(), 50e9, 0.5e9);
  EXPECT_NEAR(hw.host.link_both_share, 0.9, 0.01);
  EXPECT_NEAR(hw.host.link_latency.to<double>(), 3e-6, 0.05e-6);
  const Profile written = parse_profile(
      calibrate({.file = "r", .sessions = {h200_session()}, .measurements = records}, "mine", "h200", 1).profile, "p");
  EXPECT_EQ(written.hardware.host.graph_node, microseconds(0.8));
  EXPECT_EQ(written.hardware.host.sync, sync);  // explains the records, but a step does not wait for it
}

// Is the cost of running side by side recovered? A collective that takes M alone, beside kernels that take C alone,
// takes w C + M / b. It runs for M / b of that. Kernels beside it keep the rate a, so they take C / (1 - (1 - a) (M /
// b) / (w C + M / b)).
TEST(RecordFit, FindsWhatKernelsSideBySideCost) {
  struct Truth {
    const char* compute;
    double a, b;
  };
  constexpr double kWait = 0.9, kFullSms = 20;
  std::vector<Measurement> records;
  for (const Truth& t : {Truth{"gemm", 0.7, 0.95}, Truth{"memory", 0.8, 0.5}})
    for (const std::int64_t ctas : {0, 5})
      for (const std::int64_t bytes : {16, 128, 1024})
        for (const std::int64_t size : {1, 4}) {
          const double c = 100.0 * static_cast<double>(size), m = 3.0 * static_cast<double>(bytes);
          const double busy = m / t.b, period = kWait * c + busy,
                       lost = (1 - t.a) * (ctas > 0 ? static_cast<double>(ctas) / kFullSms : 1.0);
          const auto add = [&](const char* measured, const char* beside, double us) {
            records.push_back(taking(
                us, "overlap",
                {{"compute", t.compute}, {"collective", "all_gather"}, {"measured", measured}, {"beside", beside}},
                {{"ranks", 2}, {"bytes", bytes}, {"copied", size}}));
            if (ctas > 0) records.back().shape["ctas"] = ctas;
          };
          add("compute", "no", c);
          add("collective", "no", m);
          add("collective", "yes", period);
          add("compute", "yes", c / (1 - lost * busy / period));
        }
  const Profile start = load_profile("h200");
  Hardware hw = start.hardware;
  const std::vector<FittedCurve> curves = fit_records(hw, start.json, records, 1);
  EXPECT_NEAR(hw.contention.gemm.compute, 0.7, 0.005);
  EXPECT_NEAR(hw.contention.gemm.collective, 0.95, 0.005);
  EXPECT_NEAR(hw.contention.memory.compute, 0.8, 0.005);
  EXPECT_NEAR(hw.contention.memory.collective, 0.5, 0.005);
  EXPECT_NEAR(hw.contention.start_wait, kWait, 0.01);
  EXPECT_NEAR(hw.network.collective_sms, kFullSms, 0.3);
  EXPECT_LT(named(curves, "contention").validated.median, 0.01);
}

// Are collectives in the records fitted, written and predicted?
TEST(Calibration, FitsCollectives) {
  costmodel::Network network;
  const auto kind = costmodel::CollectiveKind::kAllGather;
  costmodel::CollectiveCurve& truth = network.nvlink.at(static_cast<std::size_t>(kind));
  truth.low_latency = {.base = microseconds(7), .per_rank = microseconds(1), .bandwidth = gb_per_s(60)};
  truth.bulk = {.base = microseconds(25), .per_rank = microseconds(2), .bandwidth = gb_per_s(210)};
  truth.own_share = gb_per_s(900);
  std::vector<Measurement> records;
  for (const std::int64_t ranks : {2, 4, 8})
    for (std::int64_t bytes = 1 << 10; bytes <= 1 << 30; bytes *= 2)
      records.push_back(
          taking(collective_time(network, kind, Bytes{static_cast<double>(bytes)}, {ranks, ranks}).to<double>() * 1e6,
                 "collective", {{"collective", "all_gather"}, {"distribution", "even"}},
                 {{"ranks", ranks}, {"bytes", bytes}}));
  const Records all{.file = "r.jsonl", .sessions = {h200_session()}, .measurements = records};
  const Calibration calibration = calibrate(all, "mine", "h200", 1);
  const Profile profile = parse_profile(calibration.profile, "profile.json");
  const Profile base = load_profile("h200");
  const auto error_on = [&](const Hardware& hw) {
    std::vector<double> errors;
    errors.reserve(records.size());
    for (const Measurement& record : records)
      errors.push_back(std::abs((predicted_time(ops_of(record), hw) / measured_time(record)).to<double>() - 1.0));
    return error_of(errors).median;
  };
  EXPECT_LT(error_on(profile.hardware), 0.03);
  EXPECT_GT(error_on(base.hardware), 0.15);  // another network
  EXPECT_EQ(profile.provenance.at("/network/nvlink/all_gather/bandwidth").kind, "fitted");
  EXPECT_EQ(profile.fits.at("/network/nvlink/all_gather").range.at("ranks"), (std::pair<double, double>{2, 8}));
  EXPECT_EQ(profile.hardware.network.nvlink.at(0), base.hardware.network.nvlink.at(0));  // all-reduce: not measured
}

// Do three large messages tell the bandwidth, and nothing else? And seven, from 4 MiB on, the base too? The network is
// half as fast as the base profile's, in all protocols.
TEST(Calibration, FewSizesTellWhatTheyCan) {
  const auto kind = static_cast<std::size_t>(costmodel::CollectiveKind::kAllGather);
  const Profile base = load_profile("h200");
  const costmodel::CollectiveCurve before = base.hardware.network.nvlink.at(kind);
  const auto fitted = [&](double slower_start, std::int64_t from, std::int64_t to) {
    costmodel::Network network = base.hardware.network;
    costmodel::CollectiveCurve& truth = network.nvlink.at(kind);
    for (costmodel::ProtocolCurve* protocol : {&truth.low_latency, &truth.bulk, &truth.in_switch}) {
      protocol->bandwidth = 0.5 * protocol->bandwidth;
      protocol->base = slower_start * protocol->base;
    }
    truth.own_share = 0.5 * truth.own_share;
    std::vector<Measurement> records;
    for (std::int64_t bytes = from; bytes <= to; bytes *= 2)
      records.push_back(taking(
          collective_time(network, costmodel::CollectiveKind::kAllGather, Bytes{static_cast<double>(bytes)}, {4, 4})
                  .to<double>() *
              1e6,
          "collective", {{"collective", "all_gather"}, {"distribution", "even"}}, {{"ranks", 4}, {"bytes", bytes}}));
    const Records all{.file = "r.jsonl", .sessions = {h200_session()}, .measurements = records};
    return parse_profile(calibrate(all, "mine", "h200", 1).profile, "profile.json")
        .hardware.network.nvlink.at(kind)
        .bulk;
  };
  const costmodel::ProtocolCurve large = fitted(1.0, 1 << 28, 1 << 30), more = fitted(2.0, 1 << 22, 1 << 28);
  EXPECT_NEAR((large.bandwidth / before.bulk.bandwidth).to<double>(), 0.5, 0.01);
  EXPECT_EQ(large.base, before.bulk.base);
  EXPECT_NEAR((more.bandwidth / before.bulk.bandwidth).to<double>(), 0.5, 0.01);
  EXPECT_NEAR((more.base / before.bulk.base).to<double>(), 2.0, 0.2);
  EXPECT_EQ(more.per_rank, before.bulk.per_rank);
}

// Is what calibrate writes a profile, and does it say where its numbers end?
// Is what NICs give found again, from collectives between domains alone?
TEST(RecordFit, FindsTheTierBetweenDomains) {
  const Profile start = load_profile("h200");
  costmodel::Network truth = start.hardware.network;
  truth.nic_efficiency = 0.71;
  truth.nic_all_to_all_efficiency = 0.55;
  truth.nic_latency = Seconds{23e-6};
  truth.nic_low_latency = Seconds{8e-6};
  std::vector<Measurement> records;
  for (const auto& [name, kind] : collective_kind_names())
    if (kind < costmodel::CollectiveKind::kDispatch)
      for (const auto& [ranks, of_domain] : {std::pair{16, 8}, {32, 8}, {4, 1}})
        for (std::int64_t bytes = 1 << 12; bytes <= 1 << 30; bytes *= 4)
          records.push_back(taking(collective_time(truth, kind, Bytes{static_cast<double>(bytes)},
                                                   {.ranks = ranks, .ranks_per_domain = of_domain})
                                           .to<double>() *
                                       1e6,
                                   "collective", {{"collective", name}, {"distribution", "even"}},
                                   {{"ranks", ranks}, {"ranks_per_domain", of_domain}, {"bytes", bytes}}));
  Hardware hw = start.hardware;
  hw.network.nic_efficiency = hw.network.nic_all_to_all_efficiency = 0.9;
  hw.network.nic_latency = hw.network.nic_low_latency = Seconds{1e-6};
  static_cast<void>(fit_records(hw, start.json, records, 1));
  EXPECT_NEAR(hw.network.nic_efficiency, truth.nic_efficiency, 0.005);
  EXPECT_NEAR(hw.network.nic_all_to_all_efficiency, truth.nic_all_to_all_efficiency, 0.005);
  EXPECT_NEAR(hw.network.nic_latency.to<double>(), 23e-6, 0.5e-6);
  EXPECT_NEAR(hw.network.nic_low_latency.to<double>(), 8e-6, 0.5e-6);
  EXPECT_EQ(hw.network.nvlink, start.hardware.network.nvlink);  // None lies inside a domain.
}

TEST(Calibration, WritesAProfileThatPredictsItsRecords) {
  Records records{.file = "records.jsonl", .sessions = {h200_session()}, .measurements = measured_by(imagined(), 0.0)};
  const Calibration calibration = calibrate(records, "mine", "h200", 1);
  const Profile profile = parse_profile(calibration.profile, "profile.json");
  EXPECT_EQ(profile.hardware.name, "mine");
  EXPECT_NEAR(profile.hardware.gemm.at(0).sustained.at(2), 0.52, 0.005);
  EXPECT_EQ(profile.provenance.at("/gemm/bf16/launch").kind, "fitted");
  EXPECT_EQ(profile.provenance.at("/peak/bf16").kind, "datasheet");  // the same GPU: the base holds
  const CurveFit& fit = profile.fits.at("/gemm/bf16");
  EXPECT_EQ(fit.samples, 144);
  EXPECT_EQ(fit.range.at("k"), (std::pair<double, double>{128, 7168}));  // 128: rows of a group in wgrad
  const auto ops =
      ops_of(setting("gemm", {{"format", "bf16"}, {"phase", "forward"}}, {{"m", 512}, {"n", 1024}, {"k", 65536}}));
  const std::vector<OutOfRange> outside = outside_of_fit(ops.front(), profile);
  ASSERT_EQ(outside.size(), 1U);
  EXPECT_EQ(outside.front().text(), "/gemm/bf16: k 6.554e+04, fitted to 128 to 7168");
}
TEST(Calibration, OfAnotherDeviceMarksWhatItDidNotMeasure) {
  Records records{.file = "records.jsonl", .sessions = {h200_session()}, .measurements = measured_by(imagined(), 0.0)};
  records.sessions.front().device = "Some GPU";
  const Profile profile = parse_profile(calibrate(records, "mine", "h200", 1).profile, "profile.json");
  EXPECT_EQ(profile.hardware.gpu, "Some GPU");
  EXPECT_EQ(profile.provenance.at("/peak/bf16").kind, "assumed");
  EXPECT_EQ(profile.provenance.at("/peak/bf16").note, "as h200: not measured on this device");
}
TEST(Calibration, PlotsEverySetting) {
  const Profile start = load_profile("h200");
  Hardware hw = start.hardware;
  const std::vector<FittedCurve> curves = fit_records(hw, start.json, measured_by(imagined(), 0.01), 1);
  const std::string image = plot(curves, "a <device>");
  std::size_t circles = 0, points = 0;
  for (std::size_t at = image.find("<circle"); at != std::string::npos; at = image.find("<circle", at + 1)) ++circles;
  for (const FittedCurve& curve : curves) points += curve.points.size();
  EXPECT_EQ(circles, points);
  EXPECT_THAT(image, HasSubstr("a &lt;device>"));
}

// Does a record file grow, survive an interruption and refuse another device?
TEST(RecordFile, ResumesWhereItWasInterrupted) {
  const std::string path = testing::TempDir() + "resumed.jsonl";
  std::filesystem::remove(path);
  Measurement first = setting("copy", {{"direction", "d2h"}}, {{"bytes", 1024}}), second = first;
  first.samples_us = second.samples_us = {1.5, 2.5};
  second.shape["bytes"] = 2048;
  {
    RecordFile file(path, h200_session());
    EXPECT_FALSE(file.has(first));
    file.append(first);
  }
  std::ofstream(path, std::ios::app) << R"({"schema":1,"session":"a","ker)";
  Session again = h200_session();
  again.id = "b";
  {
    RecordFile file(path, again);
    EXPECT_TRUE(file.has(first));
    EXPECT_FALSE(file.has(second));
    file.append(second);
  }
  const Records records = read_records(path);
  EXPECT_EQ(records.sessions.size(), 2U);
  EXPECT_EQ(records.measurements.size(), 2U);
  EXPECT_EQ(records.measurements.back().session, "b");
  again.id = "c";
  again.hosts = {"n1"};
  again.nvlink_domain = 8;
  again.nics = {{"mlx5_0", "400 Gb/sec (4X NDR), InfiniBand"}};
  EXPECT_TRUE(RecordFile(path, again).has(first));  // earlier records did not name NICs
  Measurement third = first;
  third.of["direction"] = "h2d";
  RecordFile(path, again).append(third);
  EXPECT_EQ(read_records(path).sessions.back(), again);
  again.nics = {{"mlx5_0", "200 Gb/sec (4X HDR), InfiniBand"}};
  EXPECT_FALSE(RecordFile(path, again).has(third));
  again.libraries["cublasLt"] = "14";  // settings measured with another library are measured again
  EXPECT_FALSE(RecordFile(path, again).has(first));
  again.device = "NVIDIA B200";
  EXPECT_THROW(RecordFile(path, again), std::runtime_error);
}

// Is a file of anything but records refused, and left as it is?
TEST(RecordFile, LeavesAnotherFileAsItIs) {
  const std::string path = testing::TempDir() + "other.jsonl", session = to_json_line(h200_session()) + "\n";
  for (const std::string& text :
       {std::string("[1]\n"), std::string("a line\n"), std::string(R"({"device":"NVIDIA H200","schema":"1"})") + "\n",
        session + R"({"session":")" + h200_session().id + R"(","correct":true})" + "\n",
        session + R"({"session":")" + h200_session().id + R"(","correct":"yes","kernel":"copy"})" + "\n"}) {
    std::ofstream(path, std::ios::binary) << text;
    try {
      RecordFile(path, h200_session()).append(setting("copy", {{"direction", "d2h"}}, {{"bytes", 1024}}));
      ADD_FAILURE() << text;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), path + ": not a file of records, nothing is appended");
    }
    EXPECT_EQ(text_of(path), text);
  }
}

std::string message_of(const std::string& file) {
  try {
    (void)parse_records(text_of(FW_INVALID_INPUTS_DIR "/" + file), "R");
  } catch (const config::ConfigError& error) {
    return error.what();
  }
  return "";
}

// Is every mistake in a file of records reported, each with its line?
TEST(InvalidRecords, AreReportedWithTheirLine) {
  EXPECT_EQ(message_of("records_unknown_kernel.jsonl"),
            "R:2: /kernel: expected one of attention, collective, copy, gemm, grouped_gemm, launch, memory, overlap, "
            "found \"gem\"");
  EXPECT_EQ(message_of("records_mixed_schema.jsonl"), "R:2: /schema: expected 1, found 2: written by another version");
  EXPECT_EQ(message_of("records_mixed_device.jsonl"),
            "R:3: /device: expected \"NVIDIA H200\" as in the first session, found \"NVIDIA B200\": one file holds one "
            "device");
  EXPECT_EQ(message_of("records_wrong_types.jsonl"),
            "R:2: /of/phase: expected one of forward, dgrad, wgrad, found \"back\"\n"
            "R:2: /shape/m: expected a whole number, found 4096.5\n"
            "R:2: /samples_us: expected times in microseconds above 0, found -1\n"
            "R:3: /shape/k: expected a whole number, found nothing\n"
            "R:3: /warmups: expected a whole number, found nothing\n"
            "R:3: /warmup: unknown key; the nearest known key is \"warmups\"");
  EXPECT_EQ(message_of("records_no_session.jsonl"),
            "R:1: /session: expected the id of a session line above, found \"a\"");
  EXPECT_EQ(message_of("records_truncated_inside.jsonl").substr(0, 4), "R:2:");
  EXPECT_EQ(message_of("records_empty.jsonl"), "R: expected a session line, found no records");
  EXPECT_THROW((void)read_records("no_such_file.jsonl"), config::ConfigError);
}
TEST(InvalidRecords, AnIncompleteLastLineIsAWarning) {
  const std::string whole = to_json_line(h200_session()) + "\n";
  const Records records = parse_records(whole + R"({"schema":1,"sess)", "R");
  ASSERT_EQ(records.warnings.size(), 1U);
  EXPECT_EQ(records.warnings.front().text(), "R:2: the last line is incomplete and was left out");
}
TEST(Records, OfASettingMeasuredAgainTheLastCountsAndAWrongResultDoesNot) {
  Measurement first = setting("copy", {{"direction", "d2h"}}, {{"bytes", 1024}});
  first.samples_us = {1.0};
  Measurement again = first, wrong = first;
  again.samples_us = {2.0};
  wrong.samples_us = {3.0};
  wrong.correct = false;
  const Records records = parse_records(to_json_line(h200_session()) + "\n" + to_json_line(first) + "\n" +
                                            to_json_line(again) + "\n" + to_json_line(wrong) + "\n",
                                        "R");
  ASSERT_EQ(records.measurements.size(), 1U);
  EXPECT_THAT(records.measurements.front().samples_us, ElementsAre(2.0));
  ASSERT_EQ(records.warnings.size(), 1U);
  EXPECT_EQ(records.warnings.front().text(), "R:4: the result was wrong; the measurement is left out");
}

// Do measurements of other programs become records?
TEST(Import, NcclTestsText) {
  const Records records = import_records(FW_GOLDEN_DIR "/nccl_tests_all_reduce.txt", {});
  EXPECT_EQ(records.sessions.front().device, "NVIDIA H200");
  ASSERT_EQ(records.measurements.size(), 3U);
  const Measurement& row = records.measurements.at(1);
  EXPECT_EQ(row.of.at("collective"), "all_reduce");
  EXPECT_EQ(row.shape, (std::map<std::string, std::int64_t>{{"bytes", 1048576}, {"ranks", 4}}));
  EXPECT_THAT(row.samples_us, ElementsAre(31.42));
}
TEST(Import, NcclTestsTextThatDoesNotNameItsCollective) {
  const std::string text = text_of(FW_GOLDEN_DIR "/nccl_tests_all_gather_unnamed.txt");
  EXPECT_THROW((void)import_text(text, "log", {}), config::ConfigError);
  const Records records = import_text(text, "log", {.device = "NVIDIA H100", .collective = "all_gather"});
  ASSERT_EQ(records.measurements.size(), 2U);
  EXPECT_EQ(records.measurements.front().shape.at("ranks"), 2);
  EXPECT_THAT(records.measurements.front().samples_us, ElementsAre(24.5));
}
TEST(Import, NcclTestsJson) {
  const Records records = import_records(FW_GOLDEN_DIR "/nccl_tests_reduce_scatter.json", {});
  EXPECT_EQ(records.measurements.front().of.at("collective"), "reduce_scatter");
  EXPECT_THAT(records.measurements.front().samples_us, ElementsAre(52.1));
}
/// A table of nccl-tests: two rows of a program on H200s.
std::string nccl_table(const std::string& program, int ranks, const std::string& wrong = "0") {
  std::string text = "# Collective test starting: " + program + "\n# Using devices\n";
  for (int i = 0; i < ranks; ++i)
    text += fmt::format("#  Rank {0:2} Group  0 Pid 811 on host device {0} [0x19] NVIDIA H200\n", i);
  text += "#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n";
  for (const int size : {1048576, 2097152})
    text += fmt::format("{0} {1} float sum -1 {2} 42.8 32.1 {3} {2} 42.8 32.1 0\n", size, size / 4, size / 40000,
                        size > 1048576 ? "0" : wrong);
  return text + "# Out of bounds values : 0 OK\n#\n";
}
/// The collective and ranks of each record: "all_reduce 8 8 all_gather 2 2".
std::string settings_in(const Records& records) {
  std::string settings, kind;
  for (const Measurement& measurement : records.measurements) {
    if (measurement.of.at("collective") != kind)
      settings += (settings.empty() ? "" : " ") + (kind = measurement.of.at("collective"));
    settings += fmt::format(" {}", measurement.shape.at("ranks"));
  }
  return settings;
}
std::string refusal_of(const std::string& text, const ImportOptions& options = {}) {
  try {
    return "not refused: " + settings_in(import_text(text, "nccl.txt", options));
  } catch (const config::ConfigError& error) {
    return error.what();
  }
}
std::vector<std::string> warnings_of(const std::string& text) {
  std::vector<std::string> texts;
  for (const auto& warning : import_text(text, "nccl.txt", {}).warnings) texts.push_back(warning.text());
  return texts;
}
// Has each table of a file its own collective, ranks and session, in one text with labels as without?
TEST(Import, EveryNcclTestsTableIsARunOfItsOwn) {
  const std::string text = nccl_table("all_reduce_perf", 8) + nccl_table("all_gather_perf", 8);
  const Records records = import_text(text, "nccl.txt", {});
  EXPECT_EQ(settings_in(records), "all_reduce 8 8 all_gather 8 8");
  ASSERT_EQ(records.sessions.size(), 2U);
  EXPECT_NE(records.sessions[0].id, records.sessions[1].id);
  EXPECT_EQ(records.sessions[1].devices, 8);
  EXPECT_EQ(settings_in(parse_records(to_json_lines(records), "R")), "all_reduce 8 8 all_gather 8 8");
  EXPECT_EQ(settings_in(import_text(nccl_table("all_reduce_perf", 8) + nccl_table("all_reduce_perf", 4), "f", {})),
            "all_reduce 8 8 4 4");
  // Before 2.17 a table does not name its collective; without devices, its head is that of its columns.
  std::string unnamed = nccl_table("", 8) + nccl_table("", 4);
  for (std::size_t at = 0; (at = unnamed.find("# Collective")) != std::string::npos;)
    unnamed.erase(at, unnamed.find('\n', at) + 1 - at);
  EXPECT_EQ(settings_in(import_text(unnamed, "f", {.collective = "all_gather"})), "all_gather 8 8 4 4");
  EXPECT_THAT(refusal_of(text, {.collective = "all_gather"}),
              HasSubstr("nccl.txt:1: --collective is all_gather, but the table is of all_reduce"));
  EXPECT_THAT(refusal_of(text, {.ranks = 16}), HasSubstr("--ranks is 16, but the device list has 8"));
}
// Is a table that measures no communication of a modelled collective refused, and left out beside others?
TEST(Import, NcclTestsTablesThatCannotBeUsedAreToldWithTheirReason) {
  std::string alone;
  for (int i = 0; i < 8; ++i) alone += nccl_table("all_reduce_perf", 1);
  EXPECT_THAT(refusal_of(alone), HasSubstr("nccl.txt:1: 8 tables: a table of one rank measures no communication"));
  EXPECT_THAT(refusal_of(alone), HasSubstr("built without MPI"));
  const std::string other = nccl_table("broadcast_perf", 8);
  for (const ImportOptions& options : {ImportOptions{}, ImportOptions{.collective = "all_reduce"}})
    EXPECT_THAT(refusal_of(other, options), HasSubstr("nccl.txt:1: broadcast_perf is not modelled: expected a table of "
                                                      "all_reduce, all_gather, reduce_scatter, all_to_all"));
  EXPECT_EQ(settings_in(import_text(other + nccl_table("all_reduce_perf", 2), "f", {})), "all_reduce 2 2");
  EXPECT_THAT(warnings_of(other + nccl_table("all_reduce_perf", 2)),
              ElementsAre(testing::AllOf(HasSubstr("nccl.txt:1: broadcast_perf"), HasSubstr("left out"))));
}
// Do ranks on several hosts share NVLink only within each, and in a rack all of them?
TEST(Import, NcclTestsOfSeveralHostsHaveADomainForEach) {
  const auto records_of = [](const std::string& device, int on_second) {
    std::string text = nccl_table("all_reduce_perf", 8);
    for (int i = 8 - on_second; i < 8; ++i) {
      const std::size_t at = text.find("on host device " + std::to_string(i));
      text.replace(at, 7, "on next");
    }
    for (std::size_t at = 0; (at = text.find("NVIDIA H200")) != std::string::npos;) text.replace(at, 11, device);
    return import_text(text, "f", {});
  };
  const Records two = records_of("NVIDIA H100 80GB HBM3", 4);
  EXPECT_EQ(two.measurements.front().shape.at("ranks"), 8);
  EXPECT_EQ(two.measurements.front().shape.at("ranks_per_domain"), 4);
  EXPECT_THAT(two.sessions.front().hosts, ElementsAre("host", "next"));
  EXPECT_FALSE(records_of("NVIDIA H100 80GB HBM3", 0).measurements.front().shape.contains("ranks_per_domain"));
  EXPECT_FALSE(records_of("NVIDIA GB200", 4).measurements.front().shape.contains("ranks_per_domain"));
  EXPECT_THROW((void)records_of("NVIDIA H100 80GB HBM3", 3), config::ConfigError);
}
// Are the columns those that the head names, with --per_iter_timing and timestamps (nccl-tests, util.cu)?
TEST(Import, NcclTestsColumnsAreThoseOfTheirHead) {
  std::string text = nccl_table("all_reduce_perf", 2);
  text.erase(text.find("#       size"));
  text +=
      "# size count type redop root cputime algbw busbw #wrong i_min i_max i_p99 i_cv% cputime algbw busbw #wrong "
      "i_min "
      "i_max i_p99 i_cv% timestamp\n"
      "1048576 262144 float sum -1 31.42 33.4 33.4 0 30.1 40.2 40.1 9.5 31.9 32.9 32.9 0 30.1 40.2 40.1 9.5 2026-08-01 "
      "10:00:00\n";
  const Records records = import_text(text, "f", {});
  ASSERT_EQ(records.measurements.size(), 1U);
  EXPECT_THAT(records.measurements.front().samples_us, ElementsAre(31.42));
  // A process has one entry in the JSON, however many GPUs it drives.
  const auto json_of = [](const char* config) {
    return fmt::format(R"({{"args": ["./build/all_reduce_perf"], "config": {{{}, "devices": [{{"rank": 0, "group": 0,
      "hostname": "a", "device_info": "NVIDIA H200"}}]}}, "results": [{{"size": 1048576, "out_of_place": {{"time": 9}}}}]}})",
                       config);
  };
  EXPECT_EQ(settings_in(import_text(json_of(R"("nthreads": 1, "ngpus": 8)"), "f", {})), "all_reduce 8");
  EXPECT_THAT(refusal_of(json_of(R"("nthreads": 1, "ngpus": 1)")), HasSubstr("a table of one rank"));
}
// Are rows with wrong results left out and named, in text as in JSON?
TEST(Import, WrongResultsOfNcclTestsAreLeftOut) {
  const std::string text = nccl_table("all_reduce_perf", 2, "1234");
  EXPECT_EQ(settings_in(import_text(text, "nccl.txt", {})), "all_reduce 2");
  EXPECT_THAT(warnings_of(text), ElementsAre("nccl.txt:1: 1 of 2 rows of all_reduce are left out, whose results are "
                                             "wrong (#wrong above 0): 1048576 bytes"));
  EXPECT_THAT(warnings_of(nccl_table("all_reduce_perf", 2, "N/A")), testing::IsEmpty());
  std::string all = text;
  all.erase(all.find("2097152"));
  EXPECT_THAT(refusal_of(all), HasSubstr("with wrong results only"));
  EXPECT_THAT(refusal_of(nccl_table("all_reduce_perf", 2, "some")), HasSubstr("nccl.txt:6: #wrong: expected a number"));
  std::string json = text_of(FW_GOLDEN_DIR "/nccl_tests_reduce_scatter.json");
  json.replace(json.find("\"nwrong\": 0"), 11, "\"nwrong\": 7");
  EXPECT_THAT(refusal_of(json), HasSubstr("with wrong results only"));
}
// PyTorch 2.1.0 wrote golden/pytorch_trace.json on a CPU: twice mm 256 x 128 x 512, bmm of 4, a linear layer.
TEST(Import, PyTorchTrace) {
  const Records records = import_records(FW_GOLDEN_DIR "/pytorch_trace.json", {});
  ASSERT_EQ(records.measurements.size(), 2U);
  for (const Measurement& measurement : records.measurements) {
    if (measurement.kernel == "gemm") {  // mm, and addmm of the linear layer
      EXPECT_EQ(measurement.shape, (std::map<std::string, std::int64_t>{{"m", 256}, {"n", 128}, {"k", 512}}));
      EXPECT_EQ(measurement.samples_us.size(), 4U);
      EXPECT_EQ(measurement.of.at("format"), "fp32");
    } else {
      EXPECT_EQ(measurement.kernel, "grouped_gemm");
      EXPECT_EQ(measurement.shape, (std::map<std::string, std::int64_t>{
                                       {"groups", 4}, {"rows", 256}, {"n", 32}, {"k", 96}, {"max_rows", 64}}));
      EXPECT_EQ(measurement.samples_us.size(), 2U);
    }
  }
}
TEST(Import, OnAGpuTheKernelsTimeCounts) {
  const Records records = import_text(R"({"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 40, "args": {"External id": 7, "Input Dims": [[4096, 8192], [8192, 2048]],
     "Input type": ["c10::BFloat16", "c10::BFloat16"]}},
    {"ph": "X", "cat": "kernel", "name": "nvjet_tst_128x256", "dur": 210.5, "args": {"External id": 7}},
    {"ph": "X", "cat": "kernel", "name": "elsewhere", "dur": 1, "args": {"External id": 8}}]})",
                                      "trace.json", {});
  EXPECT_EQ(records.sessions.front().device, "NVIDIA H200");
  ASSERT_EQ(records.measurements.size(), 1U);
  EXPECT_EQ(records.measurements.front().of.at("format"), "bf16");
  EXPECT_THAT(records.measurements.front().samples_us, ElementsAre(210.5));
  EXPECT_THAT(records.warnings, testing::IsEmpty());
}
// Are products that cannot be used told by their number, and nothing else?
TEST(Import, WhatATraceLeavesOutIsCounted) {
  const auto product = [](const char* name, int id, const char* rest) {
    return fmt::format(
        R"({{"ph": "X", "cat": "cpu_op", "name": "{}", "dur": 9, "args": {{"External id": {}, "Input type": ["float"]{}}}}},)",
        name, id, rest);
  };
  const char* const shapes = R"(, "Input Dims": [[64, 32], [32, 16]])";
  const Records records =
      import_text(R"({"traceEvents": [)" + product("aten::mm", 1, shapes) + product("aten::mm", 2, shapes) +
                      product("aten::mm", 3, "") + product("aten::bmm", 4, shapes) + product("aten::relu", 5, "") +
                      R"({"ph": "X", "cat": "kernel", "name": "gemm", "dur": 7, "args": {"External id": 1}}]})",
                  "trace.json", {});
  ASSERT_EQ(records.measurements.size(), 1U);
  std::vector<std::string> told;
  for (const auto& warning : records.warnings) told.push_back(warning.text());
  EXPECT_THAT(told,
              ElementsAre("trace.json: 2 of 4 matrix products are left out: their shapes or formats cannot be read",
                          "trace.json: 1 of 4 matrix products are left out: no kernel ran for them, or their times "
                          "cannot be read"));
}
TEST(Import, AiconfiguratorTables) {
  const Records records = import_records(FW_DATA_DIR "/kernels/aiconfigurator_kernels.json", {.device = "B200-SXM"});
  const auto count = [&](const char* kernel) {
    return std::count_if(records.measurements.begin(), records.measurements.end(),
                         [&](const Measurement& m) { return m.kernel == kernel; });
  };
  EXPECT_EQ(count("gemm"), 4 * 100 * 9);  // four formats, 100 weights, 9 numbers of rows
  EXPECT_GT(count("collective"), 100);
  EXPECT_THROW((void)import_records(FW_DATA_DIR "/kernels/aiconfigurator_kernels.json", {}), config::ConfigError);
}
TEST(Import, AnythingElseIsRefused) {
  for (const char* text : {"", "{}", "hello", R"({"traceEvents": []})", R"({"results": [{"size": 4}]})"})
    EXPECT_THROW((void)import_text(text, "f", {.device = "d", .collective = "all_reduce"}), config::ConfigError)
        << text;
}

}  // namespace
}  // namespace foldwise::hwprofiles::calibration_test

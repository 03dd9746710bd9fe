#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "hwprofiles/fit/collective_fit.h"
#include "hwprofiles/fit/curve_fit.h"
#include "hwprofiles/fit/host_fits.h"
#include "hwprofiles/fit/published_exchanges.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"

namespace foldwise::hwprofiles::profiles_test {
namespace {

using costmodel::CollectiveKind;
using costmodel::GemmPhase;
using costmodel::MathFormat;
using costmodel::MemoryOp;
using costmodel::Precision;

/// A profile file by a user; removed at the end of the test.
class UserFile {
 public:
  UserFile(const std::string& name, const std::string& text) : path_(std::filesystem::path(testing::TempDir()) / name) {
    std::ofstream(path_) << text;
  }
  UserFile(const UserFile&) = delete;
  UserFile& operator=(const UserFile&) = delete;
  ~UserFile() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string message_of(const std::string& name) {
  try {
    (void)load_profile(name);
  } catch (const config::ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// The message for a file of tests/invalid_inputs, without its folder.
std::string message_of_invalid(const std::string& file) {
  std::string message = message_of(FW_INVALID_INPUTS_DIR "/" + file);
  const std::string directory = FW_INVALID_INPUTS_DIR "/";
  for (std::size_t at = message.find(directory); at != std::string::npos; at = message.find(directory))
    message.erase(at, directory.size());
  return message;
}

// Does every built-in system load, and does each of its numbers have a source?
class BuiltIn : public testing::TestWithParam<std::string> {};

TEST_P(BuiltIn, Loads) {
  const Profile profile = load_profile(GetParam());
  EXPECT_EQ(profile.hardware.name, GetParam());
  EXPECT_FALSE(profile.hardware.gpu.empty());
}

// Costs of kernels side by side were measured on H200 and H100. Every other system uses these and says so.
TEST_P(BuiltIn, SaysWhatKernelsSideBySideCost) {
  const Profile profile = load_profile(GetParam());
  for (const costmodel::SharedRates& rates : {profile.hardware.contention.gemm, profile.hardware.contention.memory}) {
    EXPECT_GT(rates.compute, 0.5);
    EXPECT_LT(rates.compute, 0.95);
    EXPECT_GT(rates.collective, 0.3);
    EXPECT_LT(rates.collective, 1.0);
  }
  EXPECT_GT(profile.hardware.contention.start_wait, 0.5);
  const std::string base = base_of(GetParam()), of = base.empty() ? GetParam() : base;  // Its note names its base.
  const bool own = of == "h200" || of.starts_with("h100");
  EXPECT_EQ(profile.provenance.at("/contention/gemm/compute_rate").kind, own ? "fitted" : "assumed");
  EXPECT_EQ(profile.fits.contains("/contention"), own);
}

void collect(const nlohmann::json& node, const std::string& pointer, std::set<std::string>& found) {
  if (!node.is_object() || pointer == "/sources") return;
  if (node.contains("value")) {
    found.insert(pointer);
    return;
  }
  for (const auto& item : node.items()) collect(item.value(), pointer + "/" + item.key(), found);
}

TEST_P(BuiltIn, EveryNumberHasAProvenanceWhoseSourceResolves) {
  const Profile profile = load_profile(GetParam());
  std::set<std::string> numbers;
  collect(profile.json, "", numbers);
  EXPECT_GT(numbers.size(), 80U);
  std::set<std::string> explained;
  for (const auto& [pointer, provenance] : profile.provenance) {
    explained.insert(pointer);
    EXPECT_THAT(provenance.kind, testing::AnyOf("datasheet", "measured", "fitted", "assumed")) << pointer;
    EXPECT_FALSE(provenance.source.empty()) << pointer;
    EXPECT_FALSE(provenance.date.empty()) << pointer;
    // The note of an assumed number states its reason.
    if (provenance.kind == "assumed") {
      EXPECT_FALSE(provenance.note.empty()) << pointer;
    }
    // The key itself is not a citation.
    const auto& key = profile.json.at(nlohmann::json::json_pointer(pointer)).at("source").get_ref<const std::string&>();
    EXPECT_NE(provenance.source, key) << pointer;
  }
  EXPECT_EQ(numbers, explained);
}

TEST_P(BuiltIn, EveryCurveCanBeEvaluatedAndNoneBeatsTheDatasheet) {
  const costmodel::Hardware hw = load_profile(GetParam()).hardware;
  for (std::size_t i = 0; i < costmodel::kMathFormats; ++i) {
    if (hw.peak.at(i) <= FlopRate{0.0}) continue;
    for (const GemmPhase phase : {GemmPhase::kForward, GemmPhase::kDgrad, GemmPhase::kWgrad}) {
      const auto time = gemm_time(hw, static_cast<MathFormat>(i), phase, 8192, 8192, 8192, 1, false).to<double>();
      const double share = 2.0 * 8192.0 * 8192.0 * 8192.0 / time / hw.peak.at(i).to<double>();
      EXPECT_LT(share, 0.95) << i;
      EXPECT_GT(share, 0.25) << i;
    }
  }
  for (std::size_t i = 0; i < costmodel::kMemoryOps; ++i)
    EXPECT_GT(memory_time(hw, static_cast<MemoryOp>(i), Bytes{1e9}).to<double>(), 1e9 / hw.hbm_bandwidth.to<double>());
  const costmodel::GroupShape group{.ranks = 16, .ranks_per_domain = 8};
  for (std::size_t i = 0; i < costmodel::kMeasuredKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const bool exchange = kind == CollectiveKind::kDispatch || kind == CollectiveKind::kCombine;
    EXPECT_GT(exchange ? exchange_time(hw.network,
                                       hw.network.exchange[static_cast<std::size_t>(costmodel::Dispatcher::kDeepEp)],
                                       kind, {Bytes{1e9}, Bytes{1e9}, 1e5}, group)
                       : collective_time(hw.network, kind, Bytes{1e9}, group),
              Seconds{0.0});
  }
  ASSERT_EQ(hw.attention.size(), 4U);
  for (const costmodel::AttentionCurve& row : hw.attention) {
    EXPECT_LT(row.forward_rate, hw.peak.at(0));
    EXPECT_LE(row.backward_rate, row.forward_rate);
  }
  EXPECT_LE(hw.network.ranks_per_domain, hw.network.nvlink_domain);
  EXPECT_GT(hw.hbm_capacity, from_gib(70));
}

// Do products that pause for 2 % of the time lose less than half of their clocks to the power limit? More work
// then never takes less time (docs/formulas.md#power).
TEST_P(BuiltIn, KeepsHalfOfItsClocks) {
  const costmodel::Hardware hw = load_profile(GetParam()).hardware;
  for (std::size_t i = 0; i < costmodel::kMathFormats; ++i)
    EXPECT_LT((1.0 - sustained_clock(hw, static_cast<MathFormat>(i))) * 0.98, 0.5) << i;
}

INSTANTIATE_TEST_SUITE_P(Systems, BuiltIn, testing::ValuesIn(built_in_systems()), [](const auto& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(BuiltInSystems, AreTheNamesThatPublishedRunsUse) {
  std::ifstream in(FW_ACCURACY_DIR "/runs/published_runs.json");
  const nlohmann::json runs = nlohmann::json::parse(in);
  const std::vector<std::string> known = built_in_systems();
  for (const auto& run : runs) EXPECT_THAT(known, testing::Contains(run.at("system").get<std::string>()));
}

TEST(BuiltInSystems, AreTheFilesInTheDataDirectory) {
  std::vector<std::string> stems;
  for (const auto& file : std::filesystem::directory_iterator(FW_DATA_DIR "/systems"))
    stems.push_back(file.path().stem().string());
  EXPECT_THAT(built_in_systems(), testing::UnorderedElementsAreArray(stems));
}

TEST(BuiltInSystems, SupportThePrecisionsOfTheirGeneration) {
  const auto supports = [](const char* name, Precision precision) {
    return load_profile(name).hardware.supports(precision);
  };
  EXPECT_FALSE(supports("a100-sxm-80gb", Precision::kFp8Current));
  EXPECT_TRUE(supports("h100-sxm-80gb", Precision::kFp8Blockwise));
  EXPECT_FALSE(supports("h100-sxm-80gb", Precision::kMxfp8));
  EXPECT_TRUE(supports("b200", Precision::kMxfp8));
  EXPECT_TRUE(supports("gb300-nvl72", Precision::kNvfp4));
}

TEST(BuiltInSystems, HaveTheirDatasheetNumbers) {
  const costmodel::Hardware hw = load_profile("gb200-nvl72").hardware;
  EXPECT_EQ(hw.peak.at(static_cast<std::size_t>(MathFormat::kBf16)), tflops(2450));  // NVIDIA's own MFU denominator
  EXPECT_EQ(hw.network.ranks_per_domain, 64);
  EXPECT_NEAR(in_gib(hw.hbm_capacity), 185.03, 0.01);             // 189471 MiB
  EXPECT_NEAR(hw.network.nic_bandwidth.to<double>(), 50e9, 1.0);  // 400 Gb/s
  EXPECT_EQ(load_profile("h100-96gb-hbm2e-500w").hardware.hbm_bandwidth, gb_per_s(2400));
}

// Does a user's profile change what it says and nothing else?
TEST(BaseAndChanges, TakeTheNumberAndItsProvenanceFromTheUppermostFile) {
  const UserFile file("ours.json", R"({"base": "h200",
    "sources": {"mine": "our own nodes"},
    "hbm": {"bandwidth": {"value": 4.5, "unit": "TB/s", "kind": "measured", "source": "mine"}},
    "network": {"nic_bandwidth": {"value": 200, "unit": "Gb/s", "kind": "datasheet", "source": "MLE-net"}}})");
  const Profile base = load_profile("h200"), changed = load_profile(file.path());
  EXPECT_EQ(changed.hardware.hbm_bandwidth, gb_per_s(4500));
  EXPECT_EQ(changed.provenance.at("/hbm/bandwidth").kind, "measured");
  EXPECT_EQ(changed.provenance.at("/hbm/bandwidth").source, "our own nodes");
  EXPECT_NEAR(changed.hardware.network.nic_bandwidth.to<double>(), 25e9, 1.0);

  costmodel::Hardware expected = base.hardware;
  EXPECT_EQ(changed.hardware.name, "ours");  // the stem of the file, which states no name
  expected.name = "ours";
  expected.unmeasured = changed.hardware.unmeasured;
  EXPECT_NE(expected.unmeasured, "");
  expected.hbm_bandwidth = changed.hardware.hbm_bandwidth;
  expected.network.nic_bandwidth = changed.hardware.network.nic_bandwidth;
  EXPECT_EQ(changed.hardware, expected);
  EXPECT_EQ(changed.provenance.at("/sms").source, base.provenance.at("/sms").source);
  EXPECT_EQ(changed.json.at("hbm").at("capacity"), base.json.at("hbm").at("capacity"));
  EXPECT_FALSE(changed.json.contains("base"));
}
TEST(BaseAndChanges, ACompleteCopyLoadsAsTheOriginal) {
  const Profile original = load_profile("b300");
  const UserFile file("b300.json", original.json.dump(1));
  const Profile copy = load_profile(file.path());
  EXPECT_EQ(copy.hardware, original.hardware);
  EXPECT_EQ(copy.json, original.json);
}
TEST(BaseAndChanges, AFabricMayBeDescribed) {
  const UserFile file("fabric.json", R"({"base": "h200", "sources": {"mine": "our own nodes"}, "network": {
    "links": {"nic": "ethernet", "host": "pcie"},
    "nic_bandwidth": {"value": 200, "unit": "Gb/s", "kind": "datasheet", "source": "mine"},
    "gpus_per_nic": {"value": 2, "unit": "GPU", "kind": "datasheet", "source": "mine"},
    "domains_per_leaf": {"value": 4, "unit": "domain", "kind": "datasheet", "source": "mine"},
    "oversubscription": {"value": 2, "unit": "1", "kind": "datasheet", "source": "mine"},
    "domains": {"value": 16, "unit": "domain", "kind": "datasheet", "source": "mine"}}})");
  const costmodel::Network ours = load_profile(file.path()).hardware.network;
  EXPECT_EQ(ours.nic_link, costmodel::LinkType::kEthernet);
  EXPECT_EQ(ours.gpus_per_nic, 2);
  EXPECT_EQ(ours.domains_per_leaf, 4);
  EXPECT_EQ(ours.domains, 16);
  // Half of the NIC bandwidth and, between leaves, half of that.
  const costmodel::Network base = load_profile("h200").hardware.network;
  const auto seconds = [](const costmodel::Network& network, std::int64_t leaves) {
    return collective_time(network, CollectiveKind::kAllToAll, Bytes{1e9}, {64, 8, leaves}).to<double>();
  };
  EXPECT_NEAR(seconds(ours, 1) / seconds(base, 1), 2.0, 0.01);
  EXPECT_NEAR(seconds(ours, 2) / seconds(ours, 1), 2.0 * (1.0 / 2.0) / (7.0 / 8.0), 0.01);
}
TEST(BaseAndChanges, AnAttentionRowMayBeAdded) {
  const UserFile file("row.json", R"({"base": "h200", "sources": {"mine": "ours"}, "attention": {"96": {
    "forward_rate": {"value": 500, "unit": "TFLOPS", "kind": "measured", "source": "mine"},
    "backward_rate": {"value": 400, "unit": "TFLOPS", "kind": "measured", "source": "mine"},
    "forward_launch": {"value": 30, "unit": "us", "kind": "measured", "source": "mine"},
    "backward_launch": {"value": 50, "unit": "us", "kind": "measured", "source": "mine"}}}})");
  const costmodel::Hardware hw = load_profile(file.path()).hardware;
  ASSERT_EQ(hw.attention.size(), 5U);
  EXPECT_EQ(hw.attention.at(1).head_dim, 96);  // ascending: 64, 96, 128, ...
  EXPECT_EQ(hw.attention.at(1).backward_rate, tflops(400));
}

// Is a mistake in a profile reported with its file, line and field?
struct Mistake {
  std::string file, message;
};
class InvalidProfile : public testing::TestWithParam<Mistake> {};
TEST_P(InvalidProfile, IsReported) { EXPECT_EQ(message_of_invalid(GetParam().file), GetParam().message); }
INSTANTIATE_TEST_SUITE_P(
    Files, InvalidProfile,
    testing::Values(
        Mistake{"profile_bare_number.json",
                "profile_bare_number.json:2: /hbm/bandwidth: expected an object with value, unit, kind and source, "
                "found 4000"},
        Mistake{"profile_beyond_hardware.json",
                "profile_beyond_hardware.json:3: /hbm/bandwidth/value: expected a bandwidth of 1e-06 to 100000 TB/s, "
                "found 1e+30\n"
                "profile_beyond_hardware.json:4: /hbm/capacity/value: expected a size of 9.31323e-10 to 931323 GiB, "
                "found 1e-30\n"
                "profile_beyond_hardware.json:5: /peak/bf16/value: expected a rate of 1e-06 to 1e+07 TFLOPS, found "
                "1e-30\n"
                "profile_beyond_hardware.json:6: /memory/rope/share/value: expected a share of 1e-06 to 1, found "
                "1e-30\n"
                "profile_beyond_hardware.json:7: /host/launch/value: expected a time of 0 to 1e+07 us, found 1e+30\n"
                "profile_beyond_hardware.json:8: /power/limit/value: expected a power of 0 to 1e+06 W, found 1e+30\n"
                "profile_beyond_hardware.json:9: /overheads/context/value: expected a size of 0 to 931323 GiB, found "
                "1e+300"},
        Mistake{"profile_curve_without_peak.json",
                "profile_curve_without_peak.json:1: /peak/nvfp4: missing\n"
                "profile_curve_without_peak.json:3: /gemm/nvfp4/launch: missing\n"
                "profile_curve_without_peak.json:3: /gemm/nvfp4/sustained/dgrad: missing\n"
                "profile_curve_without_peak.json:3: /gemm/nvfp4/sustained/wgrad: missing\n"
                "profile_curve_without_peak.json:3: /gemm/nvfp4/wave_overhead: missing"},
        Mistake{"profile_power.json",
                "profile_power.json:4: /power/limit: expected more than the 200 W of /power/base, found 150 W"},
        Mistake{"profile_domain.json",
                "profile_domain.json:4: /network/ranks_per_domain: expected at most the 8 GPUs of "
                "/network/nvlink_domain, found 16"},
        Mistake{"profile_fabric.json",
                "profile_fabric.json:4: /network/nvlink_domain/value: expected a number of GPUs of at least 1, whole, "
                "found 0\n"
                "profile_fabric.json:5: /network/links/nic: expected one of \"infiniband\", \"ethernet\", found "
                "\"infinibnd\"; the nearest is \"infiniband\"\n"
                "profile_fabric.json:5: /network/links/host: expected one of \"pcie\", \"nvlink-c2c\", found \"usb\"\n"
                "profile_fabric.json:5: /network/links/spine: unknown key\n"
                "profile_fabric.json:6: /network/oversubscription/value: expected a ratio of at least 1, found 0.5\n"
                "profile_fabric.json:7: /network/gpus_per_nic: 3 does not divide the 8 GPUs of "
                "/network/ranks_per_domain"},
        Mistake{"profile_head_dim.json",
                "profile_head_dim.json:2: /attention/wide: expected a head dimension such as \"128\""},
        Mistake{"profile_incomplete.json",
                "profile_incomplete.json:1: /attention: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /flex_dispatchers: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /gemm: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /hbm: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /host: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /memory: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /network: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /overheads: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /peak: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /power: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /sms: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:1: /software: missing, and there is no \"base\" to take it from\n"
                "profile_incomplete.json:2: /generation: expected a text in quotes, found 9"},
        Mistake{"profile_negative.json",
                "profile_negative.json:3: /hbm/bandwidth/value: expected a bandwidth above 0, found -3\n"
                "profile_negative.json:4: /network/nic_efficiency/value: expected a share above 0 and at most 1, found "
                "1.5\n"
                "profile_negative.json:5: /sms/value: expected a number of SMs of at least 1, whole, found 131.5"},
        Mistake{"profile_no_provenance.json",
                "profile_no_provenance.json:2: /host/launch/kind: expected a text in quotes, found nothing\n"
                "profile_no_provenance.json:2: /host/launch/source: expected a text in quotes, found nothing"},
        Mistake{"profile_no_unit.json",
                "profile_no_unit.json:3: /hbm/bandwidth/unit: expected the unit of a bandwidth, one of \"GB/s\", "
                "\"TB/s\", \"Gb/s\", found nothing"},
        Mistake{"profile_not_an_object.json", "profile_not_an_object.json:1: expected an object"},
        Mistake{"profile_quantity_key.json", "profile_quantity_key.json:3: /sms/comment: unknown key"},
        Mistake{"profile_text_for_number.json",
                "profile_text_for_number.json:3: /sms/value: expected a number, found \"132\""},
        Mistake{"profile_unknown_base.json",
                "profile_unknown_base.json:1: /base: expected a built-in system (a100-sxm-80gb, a800-sxm-80gb, b100, "
                "b200, b300, gb200-nvl72, gb300-nvl72, gh200, h100-96gb-hbm2e-500w, h100-nvl, h100-pcie, "
                "h100-sxm-80gb, h20, h200, h800, vr-nvl72), "
                "found \"h2000\"; the nearest is \"h200\""},
        Mistake{"profile_unknown_group.json",
                "profile_unknown_group.json:2: /hmb: unknown key; the nearest known key is \"hbm\""},
        Mistake{"profile_unknown_key.json",
                "profile_unknown_key.json:3: /hbm/bandwith: unknown key; the nearest known key is \"bandwidth\""},
        Mistake{"profile_unknown_kind.json",
                "profile_unknown_kind.json:3: /host/launch/kind: expected one of datasheet, measured, fitted, assumed, "
                "found \"guessed\""},
        Mistake{"profile_unknown_source.json",
                "profile_unknown_source.json:2: /host/launch/source: expected a key of /sources, found \"ours\""},
        Mistake{"profile_wrong_unit.json",
                "profile_wrong_unit.json:3: /hbm/bandwidth/unit: expected the unit of a bandwidth, one of \"GB/s\", "
                "\"TB/s\", \"Gb/s\", found \"us\""}),
    [](const auto& instance) {
      const std::string& file = instance.param.file;
      return file.substr(0, file.find('.'));
    });

TEST(InvalidProfileFiles, AllHaveATest) {
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(FW_INVALID_INPUTS_DIR))
    if (file.path().filename().string().starts_with("profile_")) ++files;
  EXPECT_EQ(files, 20U);
}
TEST(SystemName, AnUnknownOneIsReportedWithTheNearest) {
  EXPECT_EQ(message_of("gb200-nvl27"),
            "system: expected a built-in system (a100-sxm-80gb, a800-sxm-80gb, b100, b200, b300, gb200-nvl72, "
            "gb300-nvl72, gh200, h100-96gb-hbm2e-500w, h100-nvl, h100-pcie, h100-sxm-80gb, h20, h200, h800, vr-nvl72) "
            "or a path that ends in .json, found \"gb200-nvl27\"; the nearest is \"gb200-nvl72\"");
}

// Does a fit find the parameters that its samples were made with?
TEST(Fit, RecoversACollectivesProtocols) {
  costmodel::Network network;
  costmodel::CollectiveCurve& curve = network.nvlink.at(static_cast<std::size_t>(CollectiveKind::kAllGather));
  curve.low_latency = {.base = microseconds(5), .per_rank = microseconds(1), .bandwidth = gb_per_s(100)};
  curve.bulk = {.base = microseconds(20), .per_rank = microseconds(2), .bandwidth = gb_per_s(300)};
  curve.own_share = gb_per_s(1000);
  std::vector<CollectiveSample> samples;
  for (const std::int64_t ranks : {2, 4, 8})
    for (int doubling = 10; doubling < 30; ++doubling) {
      const Bytes bytes{std::exp2(doubling)};
      samples.push_back({ranks, bytes, collective_time(network, CollectiveKind::kAllGather, bytes, {ranks, ranks})});
    }
  const CollectiveFit fit = fit_collective(CollectiveKind::kAllGather, samples, 0, 3);
  EXPECT_NEAR(fit.curve.bulk.bandwidth.to<double>(), 300e9, 15e9);
  EXPECT_NEAR(fit.curve.low_latency.base.to<double>(), 5e-6, 0.5e-6);
  EXPECT_LT(fit.validated.median, 0.03);
  EXPECT_LT(fit.validated_small.median, 0.03);
}

/// Output of megatron_steps.py --calls for a rank whose layers take `forward` and `backward` ms, in addition to an
/// exchange of 2 and 0.5 ms and a head of 1 ms per micro-batch.
nlohmann::ordered_json host_calls(const std::string& run, const std::string& dispatcher, double forward,
                                  double backward, double waits) {
  constexpr int kLayers = 3, kMicroBatches = 5, kCalls = kLayers * kMicroBatches;
  const auto call = [](int count, double ms) {
    return nlohmann::ordered_json{{"count", count}, {"seconds", 1e-3 * ms * count}};
  };
  const bool flex = dispatcher == "flex";
  const std::string name = flex ? "MoEFlexTokenDispatcher" : "MoEAlltoAllTokenDispatcher";
  return {{"run",
           {{"model", "q235"},
            {"id", run},
            {"tp", 2},
            {"ep", 2},
            {"experts", 32},
            {"seq", 256},
            {"layers", kLayers},
            {"mb", kMicroBatches},
            {"dispatcher", dispatcher}}},
          {"calls",
           {{"TransformerLayer.forward", call(kCalls, forward + 2.0 + waits)},
            {name + ".token_dispatch", call(kCalls, 1.5 + waits)},
            {name + ".token_combine", call(kCalls, 0.5)},
            {"_Linear.backward", call(kCalls, 0.3)},
            {flex ? "FusedDispatch.backward" : "_AllToAll.backward", call(kCalls, 0.5)},
            {"CrossEntropyFunction.backward", call(kMicroBatches, 1.0)},
            {"backward", call(kMicroBatches, kLayers * (backward + 0.5) + 1.0)}}}};
}

// A layer of these runs enters eight modules in each direction: QKV, three norms, attention, its projection, two
// grouped linears.
TEST(HostFit, RecoversTheShareOfBackwardOnHostsOfAnySpeed) {
  costmodel::Hardware hardware = load_profile("h200").hardware;
  hardware.host = {};
  hardware.host.module = microseconds(1000);
  std::vector<nlohmann::ordered_json> records;
  for (const auto& [run, dispatcher, speed] : {std::tuple{"slow", "alltoall", 2.0}, std::tuple{"fast", "flex", 0.5}}) {
    records.push_back(host_calls(run, dispatcher, 8.0 * speed, 0.6 * 8.0 * speed, 0.1));
    records.push_back(host_calls(run, dispatcher, 6.0 * speed, 0.6 * 7.0 * speed, 2.0 * speed));  // It waits.
  }
  const std::vector<HostLayer> layers = host_layers(records, hardware);
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_NEAR(layers[0].forward.to<double>(), 16e-3, 1e-9);
  EXPECT_NEAR(layers[0].priced_forward.to<double>(), 8e-3, 1e-9);
  EXPECT_NEAR(layers[1].backward.to<double>(), 2.4e-3, 1e-9);
  EXPECT_NEAR(layers[1].priced_backward.to<double>(), 8e-3, 1e-9);
  const BackwardShare fit = fit_backward_share(layers);
  EXPECT_NEAR(fit.value, 0.6, 1e-9);
  EXPECT_NEAR(fit.speed, 1.25, 1e-9);
  EXPECT_NEAR(fit.validated.median, 0.0, 1e-9);
}

// Are the exchange's collectives left out of the price as they are of the time? What is left is a gather and a
// scatter around attention, the gather of counts, and three of their gradients.
TEST(HostFit, PricesNoExchange) {
  costmodel::Hardware hardware = load_profile("h200").hardware;
  hardware.host = {};
  hardware.host.collective = microseconds(1000);
  const std::vector<HostLayer> layers = host_layers(
      {host_calls("counts", "alltoall", 1.0, 1.0, 0.0), host_calls("fused", "flex", 1.0, 1.0, 0.0)}, hardware);
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_NEAR(layers[0].priced_forward.to<double>(), 3e-3, 1e-9);
  EXPECT_NEAR(layers[1].priced_forward.to<double>(), 2e-3, 1e-9);
  for (const HostLayer& layer : layers) EXPECT_NEAR(layer.priced_backward.to<double>(), 3e-3, 1e-9) << layer.run;
}

TEST(HostFit, RefusesWhatItCannotPrice) {
  nlohmann::ordered_json record = host_calls("one layer", "alltoall", 1.0, 1.0, 0.0);
  record["run"]["layers"] = 1;
  EXPECT_THROW((void)host_layers({record}, {}), std::runtime_error);
  record["run"]["layers"] = 2;
  record["run"]["model"] = "another";
  EXPECT_THROW((void)host_layers({record}, {}), std::runtime_error);
}

// Are the numbers in the profiles the ones that foldwise-fit finds in the records?
TEST(HostFit, IsWhatTheProfilesHave) {
  std::vector<nlohmann::ordered_json> records;
  std::ifstream in(FW_DATA_DIR "/kernels/host_calls.jsonl");
  for (std::string line; std::getline(in, line);) records.push_back(nlohmann::ordered_json::parse(line));
  const BackwardShare fit = fit_backward_share(host_layers(records, load_profile("h200").hardware));
  for (const std::string& name : built_in_systems())  // The others copy it.
    EXPECT_NEAR(load_profile(name).hardware.host.backward_share, fit.value, 1e-4) << name;
  EXPECT_LT(fit.validated.median, 0.05);
}

// Do the profiles of H200 and H100, fitted to others' nccl-tests, predict NCCL on our own four H200 and two H100?
TEST(MeasuredCollectives, AreWithinTenPercentInTheMedianFromOneMebibyteOn) {
  const std::map<std::string, CollectiveKind> kinds{{"all_reduce", CollectiveKind::kAllReduce},
                                                    {"all_gather", CollectiveKind::kAllGather},
                                                    {"reduce_scatter", CollectiveKind::kReduceScatter},
                                                    {"all_to_all", CollectiveKind::kAllToAll}};
  for (const auto& [system, records] : {std::pair{"h200", "h200-x4"}, std::pair{"h100-sxm-80gb", "h100-x2"}}) {
    const costmodel::Network network = load_profile(system).hardware.network;
    std::ifstream in(std::string(FW_DATA_DIR "/records/") + records + ".jsonl");
    std::map<std::string, std::vector<double>> errors;
    for (std::string line; std::getline(in, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.value("kernel", "") != "collective" || record.at("of").at("distribution") != "even") continue;
      const std::string name = record.at("of").at("collective");
      const Bytes bytes{record.at("shape").at("bytes").get<double>()};
      if (!kinds.contains(name) || bytes < Bytes{kLargeMessage}) continue;
      const std::int64_t ranks = record.at("shape").at("ranks");
      std::vector<double> samples = record.at("samples_us");
      std::sort(samples.begin(), samples.end());
      const Seconds measured = microseconds(samples.at(samples.size() / 2));
      const Seconds predicted =
          collective_time(network, kinds.at(name), bytes, {.ranks = ranks, .ranks_per_domain = ranks});
      errors[name].push_back(std::abs((predicted / measured).to<double>() - 1.0));
    }
    ASSERT_EQ(errors.size(), kinds.size()) << records;
    for (const auto& [name, list] : errors) {
      EXPECT_GE(list.size(), 10U) << records << " " << name;
      EXPECT_LT(error_of(list).median, 0.10) << records << " " << name;
    }
  }
}

/// The published tables, and the samples that foldwise-fit makes of them.
nlohmann::ordered_json published_kernels() {
  std::ifstream in(FW_DATA_DIR "/kernels/published_kernels.json");
  return nlohmann::ordered_json::parse(in);
}
/// Network for predicting a published system: of its generation, with its NVLink rate.
costmodel::Network network_of(const std::string& system) {
  const bool blackwell = system == "gb200-nvl72" || system == "b200" || system == "SM100";
  costmodel::Network network = load_profile(blackwell ? "gb200-nvl72" : "h100-sxm-80gb").hardware.network;
  const double nvlink_share = system == "h800" || system == "SM90" ? 200.0 / 450.0 : 1.0;
  for (costmodel::CollectiveCurve& curve : network.nvlink) curve.bulk.bandwidth = curve.bulk.bandwidth * nvlink_share;
  return network;
}

// How far are the built-in profiles from the published dispatchers, of which half were fitted?
TEST(PublishedExchanges, AreWithinFifteenPercentInTheMedian) {
  std::vector<double> all, held_out;
  std::size_t count = 0;
  for (const PublishedExchange& exchange : published_exchanges(published_kernels())) {
    const ExchangeSample& sample = exchange.sample;
    const costmodel::Network network = network_of(exchange.system);
    const double error = std::abs((exchange_prediction(network, sample) / sample.time).to<double>() - 1.0);
    all.push_back(error);
    if (sample.held_out) held_out.push_back(error);
    ++count;
  }
  EXPECT_GE(count, 140U);
  EXPECT_GE(2 * held_out.size(), count);
  EXPECT_LT(error_of(all).median, 0.15);
  EXPECT_LT(error_of(held_out).median, 0.15);
}

// Does an exchange get slower from one node to eight as measured (Megatron Core's report on H100)?
TEST(PublishedExchanges, GrowFromOneNodeToEightAsMeasured) {
  std::map<std::int64_t, double> measured, predicted;
  for (const PublishedExchange& exchange : published_exchanges(published_kernels())) {
    if (exchange.table != "mcore-report-ep-latency" || exchange.system != "h100") continue;
    if (exchange.sample.kind != CollectiveKind::kDispatch) continue;
    const std::int64_t ranks = exchange.sample.group.ranks;
    measured[ranks] = exchange.sample.time.to<double>();
    predicted[ranks] = exchange_prediction(network_of("h100"), exchange.sample).to<double>();
  }
  ASSERT_EQ(measured.size(), 4U);
  EXPECT_NEAR(predicted[64] / predicted[8], measured[64] / measured[8], 0.25 * measured[64] / measured[8]);
  EXPECT_NEAR(predicted[64] / predicted[16], measured[64] / measured[16], 0.25 * measured[64] / measured[16]);
}
TEST(PublishedExchanges, PlainAllToAllsAreWithinTenPercentInTheMedian) {
  std::vector<double> errors;
  for (const PublishedAllToAll& row : published_all_to_alls(published_kernels())) {
    const costmodel::Network network = network_of(row.system);
    const std::int64_t domain = std::min(row.ranks, network.ranks_per_domain);
    const Seconds time = collective_time(network, CollectiveKind::kAllToAll, row.bytes, {row.ranks, domain});
    errors.push_back(std::abs((time / row.time).to<double>() - 1.0));
  }
  EXPECT_EQ(errors.size(), 16U);
  EXPECT_LT(error_of(errors).median, 0.10);
}
TEST(Fit, MeasuresErrorAsMedianAndMean) {
  const FitError error = error_of({0.3, 0.1, 0.2});
  EXPECT_DOUBLE_EQ(error.median, 0.2);
  EXPECT_NEAR(error.mean, 0.2, 1e-12);
  EXPECT_EQ(error.samples, 3U);
}

}  // namespace
}  // namespace foldwise::hwprofiles::profiles_test

#include "hwprofiles/load/derive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "hwprofiles/load/derive_rules.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"

namespace foldwise::hwprofiles::derive_test {
namespace {

using nlohmann::json;

Quantity number(double value, const std::string& unit = "1") {
  return {.value = value, .unit = unit, .kind = "measured", .source = "here", .date = "2026-11", .note = "timed"};
}

// Does each rule give the number worked out here?
TEST(Rule, CopiesScalesAndInverts) {
  RuleInput in{.of = number(300.0, "GB/s"), .factor = 2.0, .to = {}, .to_there = {}, .own = {}, .there = {}};
  EXPECT_DOUBLE_EQ(copy(in), 300.0);
  EXPECT_DOUBLE_EQ(scaled(in), 600.0);
  EXPECT_DOUBLE_EQ(inverse(in), 150.0);
}
// dgrad reaches 0.6 where forward reaches 0.8 there: 0.9 * 0.6 / 0.8 = 0.675 here.
TEST(Rule, KeepsAProportion) {
  const RuleInput in{
      .of = number(0.6), .factor = 1.0, .to = number(0.9), .to_there = number(0.8), .own = {}, .there = {}};
  EXPECT_DOUBLE_EQ(proportion(in), 0.675);
}
// A ratio accepts units of different size: 800 Gb/s are 100 GB/s.
TEST(Rule, ComparesUnitsOfDifferentSize) {
  EXPECT_DOUBLE_EQ(ratio(number(800.0, "Gb/s"), number(50.0, "GB/s")), 2.0);
  EXPECT_THROW((void)ratio(number(1.0, "GB/s"), number(1.0, "furlong")), std::logic_error);
}

RuleInput memory_input(double share, double ceiling, double ceiling_there, double bandwidth, double sms) {
  const auto own = [=](const std::string& pointer) {
    return pointer == "/sms" ? number(sms, "SM") : number(pointer == "/hbm/ceiling" ? ceiling : bandwidth);
  };
  const auto there = [=](const std::string& pointer) {
    return pointer == "/sms" ? number(100.0, "SM") : number(pointer == "/hbm/ceiling" ? ceiling_there : 1.0);
  };
  return {.of = number(share), .factor = 1.0, .to = {}, .to_there = {}, .own = own, .there = there};
}
// A kernel at half the bandwidth spends 2 per byte: 1 in HBM, whose ceiling is 1, and 1 in the SMs. With twice the
// bandwidth the latter counts 2, unless there are also twice the SMs: 1 / (1 + 2) and 1 / (1 + 1).
TEST(Rule, TakesTheTimeInTheSmsFromTheOtherGpu) {
  EXPECT_DOUBLE_EQ(memory_share(memory_input(0.5, 1.0, 1.0, 2.0, 100.0)), 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(memory_share(memory_input(0.5, 1.0, 1.0, 2.0, 200.0)), 0.5);
}
// An element of 8 bytes takes 10 ps there, 8 of them in HBM at 1 TB/s. Here HBM is twice as fast and there are half the
// SMs: 4 + 2 x 2. An element that takes no longer than its bytes spends no time in the SMs.
TEST(Rule, TakesBytesByBandwidthAndTheRestByTheSms) {
  const auto gpu = [](double bandwidth, double sms) {
    return [=](const std::string& pointer) {
      return pointer == "/sms"           ? number(sms, "SM")
             : pointer == "/hbm/ceiling" ? number(1.0)
                                         : number(bandwidth, "TB/s");
    };
  };
  RuleInput in{.of = number(10.0, "ps"),
               .factor = 1.0,
               .to = number(8.0, "B"),
               .to_there = number(8.0, "B"),
               .own = gpu(2.0, 50.0),
               .there = gpu(1.0, 100.0)};
  EXPECT_DOUBLE_EQ(element_time(in), 8.0);
  in.of = number(0.005, "ns");
  EXPECT_DOUBLE_EQ(element_time(in), 0.004);
}
// A share above the ceiling is reduced to the ceiling.
TEST(Rule, TakesTheCeilingWhereAShareIsAbove) {
  EXPECT_DOUBLE_EQ(below_ceiling(memory_input(0.9, 0.78, 0.92, 1.0, 100.0)), 0.78);
  EXPECT_DOUBLE_EQ(below_ceiling(memory_input(0.5, 0.78, 0.92, 1.0, 100.0)), 0.5);
}
// A kernel at the ceiling there is at the ceiling here. Kernels above it are reduced to it.
TEST(Rule, EndsAtTheCeiling) {
  EXPECT_DOUBLE_EQ(memory_share(memory_input(0.9, 0.8, 0.9, 2.0, 100.0)), 0.8);
  EXPECT_DOUBLE_EQ(memory_share(memory_input(0.95, 0.8, 0.9, 2.0, 100.0)), 0.8);
}

TEST(Pattern, StandsForEveryAlternativeInOrder) {
  EXPECT_THAT(expanded("/sms"), testing::ElementsAre("/sms"));
  EXPECT_THAT(
      expanded("/gemm/{bf16,fp8}/{launch,per_group}"),
      testing::ElementsAre("/gemm/bf16/launch", "/gemm/bf16/per_group", "/gemm/fp8/launch", "/gemm/fp8/per_group"));
}

/// A profile with some numbers and a "derive" block.
PartialProfile partial(const std::string& text) {
  const auto document = config::Document::parse(text, "partial.json");
  config::Diagnostics diagnostics;
  PartialProfile profile{.tree = document.root(), .derivations = {}};
  for (const Derivation& derivation : read_derivations(document, document.root(), {"a", "b", "c"}, diagnostics))
    profile.derivations.emplace(derivation.field, derivation);
  diagnostics.throw_if_any();
  return profile;
}

const std::string launch_of_a =
    R"({"host": {"launch": {"value": 5, "unit": "us", "kind": "measured", "source": "s"}}})";

// Does a number that is derived from a derived one get there, and say the way?
TEST(Deriver, FollowsAChain) {
  Deriver deriver([](const std::string& name) {
    if (name == "a") return partial(launch_of_a);
    if (name == "b")
      return partial(R"({"derive": [{"field": "/host/launch", "rule": "scaled", "by": [3, 2], "from": "a"}]})");
    return partial(R"({"derive": [{"field": "/host/launch", "rule": "copy", "from": "b"},
                                  {"field": "/host/sync", "rule": "inverse", "by": [1, 4], "of": "/host/launch"}]})");
  });
  const Quantity sync = deriver.at("c", "/host/sync");
  EXPECT_DOUBLE_EQ(sync.value, 5.0 * 1.5 * 4.0);
  EXPECT_EQ(sync.unit, "us");
  EXPECT_EQ(sync.kind, "assumed");
  EXPECT_EQ(sync.note, "as /host/launch / 0.250: as b: as a x 1.500");
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const config::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Deriver, ReportsACycle) {
  Deriver deriver([](const std::string& name) {
    return partial(name == "a" ? "{\"derive\": [\n{\"field\": \"/host/launch\", \"rule\": \"copy\", \"from\": \"b\"}]}"
                               : R"({"derive": [{"field": "/host/launch", "rule": "copy", "from": "a"}]})");
  });
  EXPECT_EQ(message_of([&] { (void)deriver.at("a", "/host/launch"); }),
            "partial.json:2: /derive/0/field: derived from itself: /host/launch from /host/launch of b from "
            "/host/launch");
}
TEST(Deriver, ReportsANumberThatTheOtherProfileLacks) {
  Deriver deriver([](const std::string& name) {
    return partial(name == "a"
                       ? launch_of_a
                       : R"({"derive": [{"field": "/host/sync", "rule": "copy", "of": "/host/lunch", "from": "a"}]})");
  });
  EXPECT_EQ(message_of([&] { (void)deriver.at("b", "/host/sync"); }),
            "partial.json:1: /derive/0/field: a has no number \"/host/lunch\"; the nearest is \"/host/launch\"");
}

TEST(Deriver, ReportsANumberWithoutAKnownUnit) {
  Deriver deriver([](const std::string&) {
    return partial(R"({"host": {"sync": {"value": 1, "unit": "furlong"}},
                       "derive": [{"field": "/host/launch", "rule": "copy", "of": "/host/sync"}]})");
  });
  EXPECT_EQ(message_of([&] { (void)deriver.at("", "/host/launch"); }),
            "partial.json:2: /derive/0/field: /host/sync has no unit that is known");
}

// Is every mistake in a "derive" block reported with its line and the nearest name?
TEST(DeriveBlock, ReportsEveryMistake) {
  EXPECT_EQ(
      message_of([] {
        (void)partial(R"({"derive": [
{"field": "/host/lanch", "rule": "copy", "from": "a"},
{"field": "/host/sync", "rule": "coppy", "from": "a"},
{"field": "/host/task", "rule": "copy", "from": "d"},
{"field": "/host/step", "rule": "scaled", "from": "a"},
{"field": "/host/step", "rule": "copy", "by": [1, 2], "from": "a"},
{"field": "/host/{module,collective,eager_op}", "rule": "copy", "of": ["/host/sync", "/host/task"]},
{"field": "host", "rule": "copy", "form": "a"}]})");
      }),
      "partial.json:2: /derive/0/field: a profile has no number \"/host/lanch\"; the nearest is \"/host/launch\"\n"
      "partial.json:3: /derive/1/rule: expected one of copy, scaled, inverse, proportion, below-ceiling, memory-share, "
      "element-time, found "
      "\"coppy\"; the nearest is \"copy\"\n"
      "partial.json:4: /derive/2/from: expected a built-in system, found \"d\"\n"
      "partial.json:5: /derive/3/by: missing; needed by the rule \"scaled\"\n"
      "partial.json:6: /derive/4/by: not read by the rule \"copy\"\n"
      "partial.json:6: /derive/4/field: a second rule for /host/step\n"
      "partial.json:7: /derive/5/of: expected one pointer or 3, one for each field, found 2\n"
      "partial.json:8: /derive/6/field: expected a JSON pointer such as \"/sms\" or a list of them, found "
      "\"host\"\n"
      "partial.json:8: /derive/6/form: unknown key; the nearest known key is \"from\"");
}

// Do the numbers that are written in the built-in profiles follow from each other by their rules? To the rounding of
// what is written: four digits of each number, whole SMs.
TEST(BuiltInProfiles, HoldWhatTheirRulesGive) {
  std::size_t checked = 0;
  std::map<std::string, json> written_in;
  for (const std::string& name : built_in_systems()) written_in[name] = load_profile(name).json;
  for (const std::string& name : built_in_systems()) {
    const auto document = config::Document::load(FW_DATA_DIR "/systems/" + name + ".json");
    config::Diagnostics diagnostics;
    const auto derivations = read_derivations(document, written_in[name], built_in_systems(), diagnostics);
    diagnostics.throw_if_any();
    for (const Derivation& derivation : derivations) {
      Deriver deriver([&](const std::string& system) {
        PartialProfile partial{.tree = written_in[system], .derivations = {}};
        if (system != name) return partial;
        const json::json_pointer pointer(derivation.field);
        partial.tree.at(pointer.parent_pointer()).erase(pointer.back());
        partial.derivations.emplace(derivation.field, derivation);
        return partial;
      });
      const Quantity quantity = deriver.at(name, derivation.field);
      const json& written = written_in[name].at(json::json_pointer(derivation.field));
      EXPECT_NEAR(quantity.value, written.at("value").get<double>(),
                  quantity.unit == "SM" ? 0.5 : 2e-3 * quantity.value)
          << name << " " << derivation.field;
      EXPECT_EQ(quantity.unit, written.at("unit").get<std::string>()) << name << " " << derivation.field;
      EXPECT_EQ(written.at("kind"), "assumed") << name << " " << derivation.field;
      ++checked;
    }
  }
  EXPECT_GT(checked, 500U);
}

// A rule in a user's profile provides numbers that the file does not state. A stated number overrides it.
TEST(LoadedProfile, DerivesWhatItDoesNotGive) {
  const Profile base = load_profile("h200");
  const Profile profile = parse_profile(R"({"base": "h200", "sources": {"mine": "our own"},
    "derive": [{"field": "/network/nvlink/{dispatch,combine}/bandwidth", "rule": "scaled",
                "by": "/network/nvlink_bandwidth", "from": "h100-sxm-80gb"},
               {"field": "/host/launch", "rule": "copy", "of": "/host/sync"}],
    "host": {"launch": {"value": 7, "unit": "us", "kind": "measured", "source": "mine"}},
    "network": {"nvlink_bandwidth": {"value": 225, "unit": "GB/s", "kind": "datasheet", "source": "mine"}}})",
                                        "mine.json");
  const auto dispatch = static_cast<std::size_t>(costmodel::CollectiveKind::kDispatch);
  EXPECT_DOUBLE_EQ(profile.hardware.network.nvlink.at(dispatch).bulk.bandwidth.to<double>(),
                   load_profile("h100-sxm-80gb").hardware.network.nvlink.at(dispatch).bulk.bandwidth.to<double>() / 2);
  EXPECT_DOUBLE_EQ(profile.hardware.host.launch.to<double>(), 7e-6);
  const Provenance& origin = profile.provenance.at("/network/nvlink/dispatch/bandwidth");
  EXPECT_EQ(origin.kind, "assumed");
  EXPECT_THAT(origin.source, testing::HasSubstr("DeepEP"));
  EXPECT_THAT(origin.note, testing::StartsWith("as h100-sxm-80gb x 0.500, the ratio of /network/nvlink_bandwidth: "));
  EXPECT_EQ(profile.hardware.memory, base.hardware.memory);
}

}  // namespace
}  // namespace foldwise::hwprofiles::derive_test

// Is the software a part of the question: does every release have its name, its stack and its values, and does a run
// keep to those of the release that it names?
#include "planner/run/release.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "planner/foldwise.h"
#include "planner/launch/arguments.h"
#include "planner/launch/export.h"
#include "planner/rules/rules.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "planner/run/requirements.h"
#include "planner/search/space.h"
#include "tests/mini_mixtral.h"

namespace foldwise::planner::release_test {
namespace {

using nlohmann::json;

std::vector<std::string> rules_broken(const planner::Run& run) {
  std::vector<std::string> ids;
  for (const Rejection& rejection : violations(run)) ids.emplace_back(rejection.rule);
  return ids;
}

// ---- Releases ------------------------------------------------------------------------------------------------------

// Is a release found by its name, its tag and a shorter number, and by nothing that two of them have?
TEST(Releases, AreFoundByNameTagAndShortNumber) {
  EXPECT_THAT(release_names(), testing::ElementsAre("0.16.1", "0.17.1", "0.18.2", "0.19.0", "main"));
  for (const char* text : {"0.19.0", "0.19", "core_v0.19.0", "v0.19.0", "core_v0.19"}) {
    ASSERT_NE(find_release(text), nullptr) << text;
    EXPECT_EQ(find_release(text)->name, "0.19.0") << text;
    EXPECT_EQ(mistake_in_release(text), "") << text;
  }
  EXPECT_EQ(find_release("main")->text(), "main of " + find_release("main")->date);
  EXPECT_EQ(newest_release().name, "0.19.0");
  EXPECT_EQ(newest_release().text(), "0.19.0");
  // "0" matches every number, and "0.1" is not a complete part of one.
  for (const char* text : {"", "0", "0.1", "0.15", "0.19.1", "dev", "Main", "core_v"})
    EXPECT_EQ(find_release(text), nullptr) << text;
  EXPECT_EQ(mistake_in_release("nightly"),
            "expected a release of Megatron-Core (0.16.1, 0.17.1, 0.18.2, 0.19.0, main), found \"nightly\"");
  EXPECT_THAT(mistake_in_release("0.19.x"), testing::EndsWith("found \"0.19.x\"; the nearest is \"0.19.0\""));
}

// Are they in order of time, and is each known by its commit, the one that its arguments were made from?
TEST(Releases, AreThoseThatTheArgumentsWereMadeFrom) {
  std::ifstream file(FW_DATA_DIR "/../../planner/launch/megatron_arguments.json");
  const json made = json::parse(file).at("releases");
  ASSERT_EQ(made.size(), releases().size());
  for (std::size_t i = 0; i < releases().size(); ++i) {
    const Release& release = releases()[i];
    EXPECT_EQ(release.order, static_cast<int>(i));
    EXPECT_EQ(made[i].at("name"), release.name);
    EXPECT_EQ(made[i].at("commit"), release.commit);
    EXPECT_EQ(made[i].at("date"), release.date);
    EXPECT_EQ(release.tag, release.name == "main" ? "" : "core_v" + release.name);
    EXPECT_EQ(release.commit.size(), 40U);
    EXPECT_TRUE(i == 0 || releases()[i - 1].date < release.date) << release.name;
    for (const std::string& entry : {release.gpt_entry, release.hybrid_entry})
      EXPECT_THAT(entry, testing::MatchesRegex("pretrain_[a-z]+\\.py"));
  }
}

// Does every release say which software it is run with, and where that is read?
TEST(Releases, HaveAStackWithSources) {
  for (const Release& release : releases()) {
    std::set<std::string> names;
    for (const Component& component : release.stack) {
      EXPECT_TRUE(names.insert(component.name).second) << release.name << " has two of " << component.name;
      EXPECT_FALSE(component.version.empty()) << release.name << " " << component.name;
      EXPECT_GE(component.source.size(), 8U) << release.name << " " << component.name;
    }
    for (const char* name : {"Transformer Engine", "PyTorch", "CUDA", "cuDNN frontend"})
      EXPECT_TRUE(names.contains(name)) << release.name << " lacks " << name;
    EXPECT_TRUE(std::ranges::any_of(names, [](const std::string& name) { return name.starts_with("DeepEP"); }))
        << release.name;
  }
}

// Does a span hold its releases and say so? A name that is none is a mistake of ours.
TEST(Releases, SpansHoldThoseFromOneToAnother) {
  const auto held = [](const ReleaseSpan& span) {
    std::string text;
    for (const Release& release : releases()) text += span.has(release) ? 'x' : '-';
    return text;
  };
  EXPECT_EQ(held({}), "xxxxx");
  EXPECT_FALSE(ReleaseSpan{}.named);
  const std::vector<std::tuple<std::string, std::string, std::string, std::string>> spans = {
      {"", "", "xxxxx", ""},
      {"0.18.2", "", "--xxx", "since 0.18.2"},
      {"", "0.17.1", "xx---", "until 0.17.1"},
      {"0.17.1", "0.18.2", "-xx--", "in 0.17.1 to 0.18.2"},
      {"0.18.2", "0.18.2", "--x--", "in 0.18.2 alone"},
      {"main", "", "----x", "since main"}};
  for (const auto& [since, until, releases_held, text] : spans) {
    const ReleaseSpan span = in_releases(since, until);
    EXPECT_TRUE(span.named);
    EXPECT_EQ(held(span), releases_held) << since << " to " << until;
    EXPECT_EQ(span.text(), text);
  }
  EXPECT_THROW(static_cast<void>(in_releases("0.18")), std::logic_error);
  EXPECT_THROW(static_cast<void>(in_releases("", "0.20.0")), std::logic_error);
}

// ---- The table of fields -------------------------------------------------------------------------------------------

/// A field with another flag in older releases, or without a flag in Megatron's parser.
bool told_otherwise(const Field& f) {
  return f.key == "cuda_graph.scope";  // --cuda-graph-scope before 0.18.
}

/// Fields whose flag no release has: of Megatron's branch dev, in its configuration only, or of study schedules.
const std::set<std::string> no_release_has = {"fp8_attention", "schedule", "offload.weights",
                                              "offload.optimizer_states"};

// Does every field say of the same releases as Megatron's own parser that they have it, and its values?
TEST(ReleaseFields, AgreeWithMegatronsParser) {
  int flags = 0, values = 0;
  for (const Field& f : fields()) {
    if (f.flags.empty() || told_otherwise(f)) continue;
    const ArgumentSpec* spec = find_flag(f.flags.front());
    if (spec == nullptr) {  // Other branches, and our studies.
      EXPECT_TRUE(no_release_has.contains(f.key)) << f.key << ": no release has " << f.flags.front();
      continue;
    }
    ++flags;
    for (const Release& release : releases())
      EXPECT_EQ(f.releases.has(release), spec->releases.has(release)) << f.key << " in " << release.name;
    if (f.value.type != FieldType::kName || !f.name_flags.empty() || spec->choices.empty()) continue;
    for (const LimitedValue& limited : f.limited) {
      const std::string name = limited.value.is_string() ? limited.value.get<std::string>() : "";
      if (std::ranges::count(spec->choices, name) == 0) continue;
      ++values;
      for (const Release& release : releases()) {
        // A value may be refused although the parser accepts it, but not the other way round.
        EXPECT_TRUE(!limited.releases.has(release) || has_choice(spec->flag, name, release) ||
                    f.key == "cuda_graph.impl")
            << f.key << " " << name << " in " << release.name;
      }
    }
  }
  EXPECT_GE(flags, 60);
  EXPECT_GE(values, 2);
}

// Does each limited value say why, stay a value of its field, and give way to one that the releases without it have?
TEST(ReleaseFields, LimitedValuesGiveWayToWhatThereIs) {
  int limited = 0;
  for (const Field& f : fields())
    for (const LimitedValue& row : f.limited) {
      SCOPED_TRACE(f.key + " " + row.value.dump());
      ++limited;
      EXPECT_EQ(mistake_in(f, row.value), "");
      EXPECT_THAT(
          row.source,
          testing::MatchesRegex(
              "(core_v0\\.[0-9]+\\.[0-9]+ megatron|Transformer Engine [0-9.]+ transformer_engine)/.*\\.py:[0-9]+.*"));
      EXPECT_TRUE(row.releases.named || !row.needs.empty()) << "says nothing";
      if (!row.releases.named) continue;
      const json& instead = f.instead_of(row.value);
      EXPECT_NE(instead, row.value);
      for (const Release& release : releases()) {
        EXPECT_EQ(f.has_value_in(release, row.value), row.releases.has(release)) << release.name;
        EXPECT_TRUE(f.has_value_in(release, instead)) << release.name;
        EXPECT_EQ(f.lacks(release, row.value).empty(), row.releases.has(release)) << release.name;
      }
    }
  EXPECT_GE(limited, 12);
}

/// "2.14" from "Transformer Engine 2.14"; empty: any version.
std::string version_in(const std::string& needs) {
  const std::string last = needs.substr(needs.rfind(' ') + 1);
  return last.find_first_not_of("0123456789.") == std::string::npos ? last : "";
}

// Does every release bring what its values need? A plan may then use them as the release is installed.
TEST(ReleaseFields, StacksHaveWhatValuesNeed) {
  for (const Field& f : fields())
    for (const LimitedValue& row : f.limited) {
      const std::string version = version_in(row.needs);
      if (version.empty()) continue;
      const std::string library = row.needs.substr(0, row.needs.rfind(' '));
      for (const Release& release : releases()) {
        if (!row.releases.has(release)) continue;
        const auto component = std::ranges::find(release.stack, library, &Component::name);
        ASSERT_NE(component, release.stack.end()) << release.name << " has no " << library;
        EXPECT_FALSE(older(component->version, version)) << f.key << " " << row.value << " needs " << row.needs << "; "
                                                         << release.name << " has " << component->version;
      }
    }
}

// ---- Runs ----------------------------------------------------------------------------------------------------------

// Does a default that a release lacks give way to what it has instead, and does the run say so?
TEST(ReleaseRuns, DefaultsGiveWay) {
  const std::string bridge = newest_defaults("megatron-bridge");
  const auto loss_of = [&](const char* release) {
    const planner::Run run = run_with({{"release", release}, {"defaults", bridge}});
    EXPECT_THAT(rules_broken(run), testing::IsEmpty()) << release;
    return field("software.cross_entropy").value.get(run.options).get<std::string>();
  };
  // core_v0.18.2 megatron/training/arguments.py:1528 refuses Transformer Engine's.
  EXPECT_EQ(loss_of("0.16.1"), "te");
  EXPECT_EQ(loss_of("0.17"), "te");
  for (const char* release : {"0.18", "core_v0.19.0", "main"}) EXPECT_EQ(loss_of(release), "native") << release;
  const planner::Run run = run_with({{"release", "0.19.0"}, {"defaults", bridge}});
  EXPECT_EQ(run.release, find_release("0.19.0"));
  EXPECT_THAT(run.assumed,
              testing::Contains("software.cross_entropy = native (not in the file; Megatron-Core 0.19.0)"));
  // Without a release: the value in Megatron-Bridge's set of defaults.
  EXPECT_EQ(field("software.cross_entropy").value.get(run_with({{"defaults", bridge}}).options), "te");
}

// Is a stated value that the release lacks refused with both, and with Megatron's line?
TEST(ReleaseRuns, StatedValuesMustBeThere) {
  const planner::Run run = run_with({{"release", "0.19.0"}, {"software", {{"cross_entropy", "te"}}}});
  const std::vector<Rejection> found = violations(run);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().text(),
            "foldwise.release: --cross-entropy-fusion-impl te is in Megatron-Core until 0.17.1, not in 0.19.0 "
            "(core_v0.18.2 megatron/training/arguments.py:1528)");
  EXPECT_EQ(first_violation({.model = run.model, .hardware = run.hardware, .num_gpus = 16, .release = run.release},
                            run.options)
                ->rule,
            "foldwise.release");
  EXPECT_THROW(static_cast<void>(launch_of(run)), config::ConfigError);
  // The same for every limited value that can be set in this run.
  for (const Field& f : fields())
    for (const LimitedValue& row : f.limited)
      for (const Release& release : releases()) {
        planner::Run other = run_with({{"release", release.name}, {"software", {{"cross_entropy", "native"}}}});
        f.value.set(other.options, row.value);
        if (!f.applies_to(other.options) || f.value.get(other.options) != row.value) continue;
        EXPECT_EQ(std::ranges::count(rules_broken(other), std::string("foldwise.release")),
                  row.releases.has(release) ? 0 : 1)
            << f.key << " " << row.value << " in " << release.name;
      }
}

// Is a run file that names no release asked none of the rules of some releases, and read as before?
TEST(ReleaseRuns, WithoutAReleaseNoRuleOfOneIsAsked) {
  const json gathered = {{"dispatcher", "allgather"}, {"software", {{"permute", "fused"}, {"cross_entropy", "te"}}}};
  const auto in = [&](const char* release) {
    json changes = gathered;
    if (*release != '\0') changes["release"] = release;
    return run_with(changes);
  };
  EXPECT_EQ(in("").release, nullptr);
  EXPECT_THAT(rules_broken(in("")), testing::IsEmpty());
  EXPECT_THAT(rules_broken(in("0.16.1")), testing::ElementsAre("moe.allgather_permute"));
  EXPECT_THAT(rules_broken(in("0.17.1")), testing::IsEmpty());
  EXPECT_THAT(rules_broken(in("0.18.2")), testing::ElementsAre("foldwise.release"));
  EXPECT_FALSE(write_run(in("")).contains("release"));
  for (const Rule& rule : rules()) {
    EXPECT_EQ(rule.holds_in(nullptr), !rule.releases.named) << rule.id;
    for (const Release& release : releases())
      EXPECT_EQ(rule.holds_in(&release), rule.releases.has(release)) << rule.id << " in " << release.name;
  }
}

// Is a release that is none told with file and key?
TEST(ReleaseRuns, AnUnknownReleaseIsAMistake) {
  EXPECT_THAT(
      [] {
        static_cast<void>(run_with({{"release", "0.15"}}));
      },
      testing::ThrowsMessage<config::ConfigError>(testing::AllOf(
          testing::HasSubstr("/release"), testing::HasSubstr("expected a release of Megatron-Core (0.16.1, 0.17.1"))));
  EXPECT_THAT(
      [] {
        static_cast<void>(run_with({{"release", ""}}));
      },
      testing::ThrowsMessage<config::ConfigError>(testing::HasSubstr("/release")));
  PlanRequest request = mini_request();
  request.release = "0.15";
  EXPECT_THAT([&] { static_cast<void>(foldwise::plan_problem(request)); },
              testing::ThrowsMessage<config::ConfigError>(testing::HasSubstr("arguments: release:")));
  request = mini_request({{"software.cross_entropy", {"te"}}});
  EXPECT_THAT([&] { static_cast<void>(foldwise::plan_problem(request)); },
              testing::ThrowsMessage<config::ConfigError>(testing::HasSubstr("until 0.17.1, not in 0.19.0")));
}

// Is something left to try of every dimension, whatever the release lacks?
TEST(ReleasePlans, EveryDimensionHasAValue) {
  for (const char* system : {"h100-sxm-80gb", "gb300-nvl72"})
    for (const char* model : {"mini-mixtral-8l", "mini-llama-16l", "deepseek-v3"}) {
      const costmodel::ModelSpec spec = foldwise::load_model(model);
      const costmodel::Hardware hardware = foldwise::load_system(system);
      for (const Release& release : releases())
        for (const Dimension& dimension : default_space({.model = spec,
                                          .hardware = hardware,
                                          .num_gpus = 64,
                                          .seq_len = 4096,
                                          .global_batch = 512,
                                          .release = &release})
                                              .dimensions) {
          EXPECT_FALSE(dimension.values.empty()) << dimension.field->key << " in " << release.name;
          for (const json& value : dimension.values)
            EXPECT_TRUE(dimension.field->has_value_in(release, value))
                << dimension.field->key << " in " << release.name;
        }
    }
}

// Does a plan have the release that it was asked for, keep it in its run file, and start as it?
TEST(ReleasePlans, KeepTheirRelease) {
  for (const Release& release : releases()) {
    PlanRequest request = mini_request({{"tp", {"1"}}, {"micro_batch", {"1", "2"}}});
    request.release = release.name;
    const PlanProblem problem = foldwise::plan_problem(request);
    EXPECT_EQ(problem.release, &release);
    const PlanResult result = foldwise::plan(problem);
    ASSERT_FALSE(result.plans.empty()) << release.name;
    for (const Plan& plan : result.plans) {
      const planner::Run run = foldwise::parse_run(foldwise::run_file(problem, plan), "plan.json");
      EXPECT_EQ(run.release, &release);
      EXPECT_THAT(rules_broken(run), testing::IsEmpty()) << release.name;
      const Launch launch = launch_of(run);
      EXPECT_EQ(launch.release, &release);
      EXPECT_THAT(launch_text(launch, LaunchTarget::kTorchrun),
                  testing::HasSubstr("Megatron-Core " + release.text() + ", by foldwise"));
      for (const Argument& argument : to_arguments(launch.plan, release))
        EXPECT_TRUE(find_flag(argument.flag)->releases.has(release)) << argument.flag << " in " << release.name;
    }
  }
  EXPECT_EQ(foldwise::plan_problem(mini_request()).release, &newest_release());
}

// ---- What a run needs ----------------------------------------------------------------------------------------------

// Is of each library the highest version named that some option needs, with that option?
TEST(Requirements, TheHighestVersionCounts) {
  const auto needs = [](const json& changes) {
    std::map<std::string, Requirement> list;
    const planner::Run run = run_with(changes);
    for (const Requirement& needed : requirements(run.model, run.options)) {
      EXPECT_FALSE(list.contains(needed.library)) << needed.library << " twice";
      list[needed.library] = needed;
    }
    return list;
  };
  // fp8-current needs 2.2, fused permutation 2.1 and the fused router 2.7: the highest is 2.7.
  const auto hopper = needs({{"precision", "fp8-current"},
                             {"dispatcher", "deepep"},
                             {"software", {{"permute", "fused"}, {"router_fusion", true}, {"experts", "grouped"}}}});
  EXPECT_EQ(hopper.at("Transformer Engine").version, "2.7");
  EXPECT_EQ(hopper.at("Transformer Engine").because, "software.router_fusion true");
  EXPECT_EQ(hopper.at("DeepEP").version, "");
  EXPECT_EQ(hopper.at("DeepEP").because, "dispatcher deepep");
  EXPECT_FALSE(hopper.contains("PyTorch"));
  // Fused experts need 2.14, EP overlap PyTorch 2.6.
  const auto blackwell = needs({{"system", "gb200-nvl72"},
                                {"precision", "mxfp8"},
                                {"dispatcher", "alltoall"},
                                {"vpp", 2},
                                {"overlaps", {{"ep_a2a", true}, {"shared_expert", false}}},
                                {"software", {{"experts", "fused"}}}});
  EXPECT_EQ(blackwell.at("Transformer Engine").version, "2.14");
  EXPECT_EQ(blackwell.at("PyTorch").version, "2.6");

  EXPECT_TRUE(older("2.9.1", "2.14"));
  EXPECT_TRUE(older("2.14", "2.14.1"));
  EXPECT_FALSE(older("2.14", "2.14"));
  EXPECT_FALSE(older("2.14.0", "2.14"));
  EXPECT_FALSE(older("2.13.0a0", "2.6"));
  EXPECT_EQ(requirements_text({{"Transformer Engine", "2.14", "x"}, {"DeepEP", "", "y"}}),
            "Transformer Engine 2.14, DeepEP");
  EXPECT_EQ(requirements_json({{"DeepEP", "", "y"}}),
            json::parse(R"([{"library": "DeepEP", "version": null, "because": "y"}])"));
}

}  // namespace
}  // namespace foldwise::planner::release_test

// Is a GPU of a generation that no code knows data only? A made-up one that starts from a built-in profile must load,
// predict and plan by what its file says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "costmodel/step/prediction.h"
#include "hwprofiles/load/profile.h"
#include "planner/foldwise.h"
#include "planner/models/models.h"
#include "planner/rules/rules.h"
#include "planner/run/run_file.h"
#include "planner/search/search.h"
#include "planner/uncertainty/error_model.h"

namespace foldwise::planner::new_generation_test {
namespace {

using costmodel::CollectiveKind;
using costmodel::Dispatcher;
using costmodel::Precision;

/// An invented datasheet: twice the FLOPS, 2.5 times the memory and twice the NVLink bandwidth of a GB300, two FP8
/// layouts and FP8 current scaling as on Hopper, and DeepEP.
const std::string made_up = R"({
  "name": "vera-nvl72", "base": "gb300-nvl72", "gpu": "VERA-NVL72", "generation": "vera",
  "sources": {"sheet": "a datasheet", "lab": "a guess"},
  "derive": [
    {"field": "/network/nvlink/{all_reduce,all_gather,reduce_scatter,all_to_all,send_recv,dispatch,combine}/bandwidth",
     "rule": "scaled", "by": "/network/nvlink_bandwidth", "from": "gb300-nvl72"},
    {"field": "/memory/{rope,permute,quantize}/share", "rule": "memory-share", "from": "h200",
     "of": "/memory/{rope,permute,quantize}/step_share"}],
  "tensor_cores": {"fp8_layouts": {"value": 2, "unit": "layout", "kind": "datasheet", "source": "sheet"}},
  "flex_dispatchers": {"value": ["deepep"], "kind": "assumed", "source": "lab"},
  "recipe": {
    "fp8": {"value": "fp8-current", "kind": "assumed", "source": "lab"},
    "dispatcher": {"value": "deepep", "kind": "assumed", "source": "lab"},
    "graph_modules": {"value": ["attn"], "kind": "assumed", "source": "lab"}},
  "sms": {"value": 224, "unit": "SM", "kind": "datasheet", "source": "sheet"},
  "peak": {
    "bf16": {"value": 4900, "unit": "TFLOPS", "kind": "datasheet", "source": "sheet"},
    "fp8": {"value": 9800, "unit": "TFLOPS", "kind": "datasheet", "source": "sheet"}},
  "hbm": {"bandwidth": {"value": 20, "unit": "TB/s", "kind": "datasheet", "source": "sheet"}},
  "network": {"nvlink_bandwidth": {"value": 1800, "unit": "GB/s", "kind": "datasheet", "source": "sheet"}}
})";

/// Writes the profile to a file; returns its path.
std::string profile_file(const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "vera-nvl72.json";
  std::ofstream(path) << text;
  return path.string();
}

Run run_on(const std::string& system, const std::string& precision) {
  const auto document = config::Document::parse(R"({"model": "qwen3-30b-a3b", "system": ")" + system +
                                                    R"(", "num_gpus": 64, "seq_len": 4096,
          "global_batch": 512, "micro_batch": 1, "ep": 8, "dispatcher": "alltoall", "precision": ")" +
                                                    precision + R"("})",
                                                "run.json");
  config::Diagnostics diagnostics;
  config::ObjectReader reader(document, diagnostics);
  Run run = read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

TEST(NewGeneration, LoadsWithWhatItsFileSays) {
  const hwprofiles::Profile base = hwprofiles::load_profile("gb300-nvl72");
  const hwprofiles::Profile profile = hwprofiles::load_profile(profile_file(made_up));
  EXPECT_EQ(profile.hardware.traits.generation, "vera");
  EXPECT_EQ(profile.hardware.traits.fp8_layouts, 2);
  EXPECT_THAT(profile.hardware.traits.flex_dispatchers, testing::ElementsAre(Dispatcher::kDeepEp));
  EXPECT_EQ(profile.hardware.recipe.fp8, Precision::kFp8Current);
  const auto gather = static_cast<std::size_t>(CollectiveKind::kAllGather);
  EXPECT_DOUBLE_EQ(profile.hardware.network.nvlink.at(gather).bulk.bandwidth.to<double>(),
                   2.0 * base.hardware.network.nvlink.at(gather).bulk.bandwidth.to<double>());
  // H200's RoPE: 0.417 of 4.8 TB/s on 132 SMs, ceilings 0.92 and 0.8.
  const double sm_time = (1.0 / 0.417 - 1.0 / 0.92) * (20.0 / 4.8) * (132.0 / 224.0);
  EXPECT_NEAR(profile.hardware.memory.at(static_cast<std::size_t>(costmodel::MemoryOp::kRope)).share,
              1.0 / (1.0 / 0.8 + sm_time), 1e-12);
  EXPECT_EQ(profile.provenance.at("/memory/rope/share").kind, "assumed");
  EXPECT_EQ(profile.provenance.at("/recipe/dispatcher").source, "a guess");
}

TEST(NewGeneration, Predicts) {
  const std::string system = profile_file(made_up);
  // Bound by the GPU: with its host the run would wait for that on either GPU.
  const auto step_time = [](auto run) {
    run.hardware.host = {};
    return costmodel::predict(run.model, run.options, run.hardware).step_time;
  };
  const auto run = run_on(system, "fp8-unspecified");
  EXPECT_EQ(run.options.layer.precision, Precision::kFp8Current);
  EXPECT_LT(step_time(run), step_time(run_on("gb300-nvl72", "fp8-current")));
  // The interval says that no run on it was measured.
  const auto interval = step_time_interval(built_in_errors(), run, foldwise::predict(run).step_time);
  ASSERT_TRUE(interval.has_value());
  EXPECT_THAT(interval->unmeasured, testing::Contains("fp8"));
}

// Two layouts of FP8 weights need a byte per parameter more than one layout.
TEST(NewGeneration, KeepsAsManyLayoutsAsItsTensorCoresNeed) {
  auto run = run_on(profile_file(made_up), "fp8-current");
  const auto parameters = [&] {
    return costmodel::predict(run.model, run.options, run.hardware).memory.front().parameters;
  };
  const Bytes two = parameters();
  run.hardware.traits.fp8_layouts = 1;
  EXPECT_GT(two, parameters());
}

TEST(NewGeneration, PlansByItsRecipe) {
  PlanProblem problem = foldwise::plan_problem({.model = "qwen3-30b-a3b",
                                                .system = profile_file(made_up),
                                                .release = {},
                                                .num_gpus = 16,
                                                .seq_len = 4096,
                                                .global_batch = 128,
                                                .precisions = {Precision::kBf16}});
  EXPECT_THAT(problem.space.find("dispatcher")->values, testing::ElementsAre("alltoall", "deepep", "allgather"));
  for (const char* key : {"tp", "cp", "pp", "etp", "micro_batch"}) problem.space.set(key, {1});
  problem.top = 1;
  ASSERT_EQ(plan(problem).plans.size(), 1U);
}

TEST(NewGeneration, RefusesADispatcherThatItsFileDoesNotList) {
  auto run = run_on(profile_file(made_up), "bf16");
  run.options.layer.dispatcher = Dispatcher::kHybridEp;
  std::vector<std::string> reasons;
  for (const Rejection& rejection : violations(run)) reasons.push_back(rejection.reason);
  EXPECT_THAT(reasons, testing::Contains(
                           "--moe-flex-dispatcher-backend hybridep does not run on VERA-NVL72; what does: deepep"));
}

// An unknown name from a closed set gives one message with the nearest name.
TEST(NewGeneration, ReportsAnUnknownName) {
  std::string text = made_up;
  text.replace(text.find("[\"deepep\"]"), 10, "[\"depep\"]");
  try {
    (void)hwprofiles::parse_profile(text, "vera.json");
    FAIL();
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("/flex_dispatchers/value: expected one of deepep, hybridep, found "
                                                "\"depep\"; the nearest is \"deepep\""));
  }
}

}  // namespace
}  // namespace foldwise::planner::new_generation_test

// Does a plan say, and may its user demand, that its choices were run together?
#include "planner/rules/evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/foldwise.h"
#include "planner/rules/rules.h"
#include "tests/mini_mixtral.h"

namespace foldwise::planner::evidence_test {
namespace {

using nlohmann::json;

/// "bf16 none grouped alltoall ...", in the order of ChoicePart.
std::string text_of(const JointChoice& choice) {
  std::string text;
  for (std::size_t i = 0; i < kChoiceParts; ++i)
    text += (i == 0 ? "" : " ") + text_of(static_cast<ChoicePart>(i), choice[i]);
  return text;
}

std::string choice_of(const json& changes) {
  const planner::Run run = run_with(changes);
  return text_of(joint_choice(run.model, run.options));
}

/// `choice` with other values for these parts.
JointChoice with(JointChoice choice, const std::map<ChoicePart, std::uint8_t>& values) {
  for (const auto& [part, value] : values) choice[static_cast<std::size_t>(part)] = value;
  return choice;
}

// Is each of the nine parts read off the options, and is what makes no other run the same choice?
TEST(JointChoice, IsReadOffTheOptions) {
  EXPECT_EQ(choice_of({}), "bf16 none grouped alltoall none 1f1b no ddp-distopt none");
  // Every recipe of FP8 is one class; MXFP8 and NVFP4 are others.
  for (const char* precision : {"fp8-delayed", "fp8-current", "fp8-blockwise"})
    EXPECT_EQ(choice_of({{"precision", precision}}), "fp8 none grouped alltoall none 1f1b no ddp-distopt none");
  EXPECT_EQ(choice_of({{"precision", "mxfp8"}, {"system", "b200"}, {"software", {{"experts", "fused"}}}}),
            "mxfp8 none fused alltoall none 1f1b no ddp-distopt none");
  EXPECT_EQ(choice_of({{"vpp", 2}, {"overlaps", {{"ep_a2a", true}}}}),
            "bf16 none grouped alltoall none interleaved yes ddp-distopt none");
  EXPECT_EQ(choice_of({{"pp", 1}, {"dispatcher", "deepep"}}), "bf16 none grouped deepep none none no ddp-distopt none");
  EXPECT_EQ(choice_of({{"cuda_graph", {{"impl", "transformer_engine"}, {"scope", {"attn"}}}}}),
            "bf16 none grouped alltoall transformer_engine 1f1b no ddp-distopt none");
  // Single modules of activations do not matter. Two kinds of offloading together are a kind of their own.
  EXPECT_EQ(choice_of({{"offload", {{"type", "fine-grained-activation"}, {"modules", {"core_attn"}}}}}),
            choice_of({{"offload", {{"type", "fine-grained-activation"}, {"modules", {"moe_act", "qkv_linear"}}}}}));
  EXPECT_EQ(
      choice_of({{"offload",
                  {{"type", "fine-grained-activation"}, {"modules", {"core_attn"}}, {"optimizer_cpu_offload", true}}},
                 {"optimizer", {{"precision_aware", true}, {"exp_avg_dtype", "fp32"}}}}),
      "bf16 none grouped alltoall none 1f1b no ddp-distopt activations+optimizer");
  // Without exchange of tokens there is no dispatcher, and a dense model has no experts.
  EXPECT_EQ(choice_of({{"ep", 1}, {"dispatcher", "allgather"}}),
            "bf16 none grouped none none 1f1b no ddp-distopt none");
  EXPECT_EQ(choice_of({{"model", "mini-llama-16l"}, {"ep", 1}}), "bf16 none dense none none 1f1b no ddp-distopt none");
}

/// Two runs on hopper, with different models, and one on blackwell.
MeasuredChoices hand_made() {
  const planner::Run run = run_with({});
  const JointChoice plain = joint_choice(run.model, run.options),
                    other = with(plain, {{ChoicePart::kDispatcher, 0}, {ChoicePart::kOffload, 1}});
  return MeasuredChoices({{.id = "plain-16", .generation = "hopper", .model = "a", .num_gpus = 16, .choice = plain},
                          {.id = "plain-64", .generation = "hopper", .model = "a", .num_gpus = 64, .choice = plain},
                          {.id = "other", .generation = "hopper", .model = "b", .num_gpus = 8, .choice = other},
                          {.id = "new", .generation = "blackwell", .model = "a", .num_gpus = 8, .choice = other}});
}

// Are choices found together, one by one, and by their leading parts, each on its own generation?
TEST(MeasuredChoices, SayWhatWasRunTogether) {
  const MeasuredChoices measured = hand_made();
  const planner::Run run = run_with({});
  const JointChoice plain = joint_choice(run.model, run.options);
  EXPECT_TRUE(measured.has_generation("hopper"));
  EXPECT_FALSE(measured.has_generation("ampere"));
  EXPECT_EQ(measured.level_of("hopper", plain), Evidence::kRun);
  EXPECT_EQ(measured.level_of("blackwell", plain), Evidence::kAny);  // Its dispatcher was not run there.
  EXPECT_EQ(measured.level_of("ampere", plain), Evidence::kAny);
  // Offloading was run, but with another dispatcher.
  const JointChoice joined = with(plain, {{ChoicePart::kOffload, 1}});
  EXPECT_EQ(measured.level_of("hopper", joined), Evidence::kParts);
  EXPECT_EQ(measured.level_of("hopper", with(plain, {{ChoicePart::kOffload, 2}})), Evidence::kAny);
  // All parts but the last occur in one run.
  EXPECT_TRUE(measured.has(Evidence::kRun, "hopper", joined, kChoiceParts - 1));
  EXPECT_FALSE(measured.has(Evidence::kRun, "hopper", joined, kChoiceParts));
  EXPECT_TRUE(measured.has(Evidence::kParts, "hopper", joined));
  EXPECT_FALSE(measured.has(Evidence::kParts, "ampere", joined, 1));
  EXPECT_TRUE(measured.has(Evidence::kAny, "ampere", joined));
}

// Is the nearest run the one with the fewest other choices, then the same model's, then of the nearest size?
TEST(MeasuredChoices, TheNearestSharesMostChoices) {
  const MeasuredChoices measured = hand_made();
  const planner::Run run = run_with({});
  const JointChoice plain = joint_choice(run.model, run.options),
                    other = with(plain, {{ChoicePart::kDispatcher, 0}, {ChoicePart::kOffload, 1}});
  EXPECT_EQ(measured.nearest("hopper", plain, "b", 8)->id, "plain-16");   // Equal choices, though another model.
  EXPECT_EQ(measured.nearest("hopper", plain, "a", 40)->id, "plain-64");  // 64 / 40 is 1.6, 40 / 16 is 2.5.
  EXPECT_EQ(measured.nearest("hopper", plain, "a", 30)->id, "plain-16");  // 30 / 16 is 1.9, 64 / 30 is 2.1.
  EXPECT_EQ(measured.nearest("hopper", other, "a", 8)->id, "other");
  // Both differ in one choice: the model decides.
  const JointChoice between = with(plain, {{ChoicePart::kOffload, 1}});
  EXPECT_EQ(measured.nearest("hopper", between, "b", 16)->id, "other");
  EXPECT_EQ(measured.nearest("hopper", between, "a", 16)->id, "plain-16");
  EXPECT_EQ(measured.nearest("ampere", plain, "a", 8), nullptr);
}

// Does a run say what the nearest one chose otherwise?
TEST(RunEvidence, NamesWhatTheNearestRunLacks) {
  const MeasuredChoices measured = hand_made();
  const RunEvidence same = evidence_of(run_with({}), measured);
  EXPECT_EQ(evidence_json(same), json::parse(R"({"level": "run", "nearest": "plain-16", "lacks": []})"));
  const RunEvidence offloads =
      evidence_of(run_with({{"offload", {{"type", "fine-grained-activation"}, {"modules", {"core_attn"}}}}}), measured);
  const json lacks = {
      {"level", "parts"}, {"nearest", "plain-16"}, {"lacks", json::array({"offload activations (nearest run: none)"})}};
  EXPECT_EQ(evidence_json(offloads), lacks);
  const RunEvidence none = evidence_of(run_with({{"system", "a100-sxm-80gb"}}), measured);
  EXPECT_EQ(evidence_json(none), json::parse(R"({"level": "any", "nearest": null, "lacks": []})"));
}

// Are the built-in runs many, of both generations, and each found as it was written?
TEST(BuiltInEvidence, HoldsWhatItsRowsSay) {
  const MeasuredChoices& measured = MeasuredChoices::built_in();
  EXPECT_TRUE(measured.has_generation("hopper"));
  EXPECT_TRUE(measured.has_generation("blackwell"));
  EXPECT_FALSE(measured.has_generation("ampere"));
  std::ifstream file(FW_DATA_DIR "/evidence.json");
  const json rows = json::parse(file).at("runs");
  EXPECT_GE(rows.size(), 500U);
  // Converted to MeasuredChoice and back.
  std::vector<MeasuredChoice> runs;
  for (const json& row : rows) {
    MeasuredChoice run{row.at("id"), row.at("generation"), row.at("model"), row.at("num_gpus"), {}};
    for (std::size_t i = 0; i < kChoiceParts; ++i) {
      const auto part = static_cast<ChoicePart>(i);
      const std::string value = row.at("choice").at(std::string(name_of(part)));
      while (text_of(part, run.choice[i]) != value) ++run.choice[i];
    }
    EXPECT_EQ(measured.level_of(run.generation, run.choice), Evidence::kRun) << run.id;
    runs.push_back(std::move(run));
  }
  EXPECT_EQ(measured_choices_json(runs), rows);
}

// Is the list that of the measured runs as they are read today? `foldwise accuracy --write-evidence` renews it.
TEST(BuiltInEvidence, IsThatOfTheMeasuredRuns) {
  std::ifstream file(FW_DATA_DIR "/evidence.json");
  const json rows = json::parse(file).at("runs");
  std::map<std::string, json> listed;
  for (const json& row : rows) listed[row.at("id")] = row;
  std::size_t compared = 0;
  for (const char* name : {"published_runs", "h100_runs", "h100x2_runs", "h200x2_runs", "h200x4_runs"}) {
    const std::string path = std::string(FW_ACCURACY_DIR) + "/runs/" + name + ".json";
    if (!std::ifstream(path)) continue;
    for (const planner::Run& run : load_runs(path).runs) {
      const MeasuredChoice choice = measured_choice(run);
      const auto found = listed.find(choice.id);
      if (found == listed.end()) continue;
      ++compared;
      EXPECT_EQ(measured_choices_json({choice}).front(), found->second);
    }
  }
  EXPECT_GE(compared, 150U);
}

// Do plans of `run` have only choices that one run has together, and are faster ones named that have not?
TEST(PlansByEvidence, AreWhatWasRun) {
  const PlanProblem problem = foldwise::plan_problem(mini_request({{"tp", {"1", "2"}}}));
  ASSERT_EQ(problem.evidence, Evidence::kRun);
  const PlanResult result = foldwise::plan(problem);
  EXPECT_EQ(result.evidence, Evidence::kRun);
  ASSERT_FALSE(result.plans.empty());
  for (const Plan& plan : result.plans) {
    const planner::Run run = run_of(problem, plan);
    const RunEvidence evidence = evidence_of(run);
    EXPECT_EQ(evidence.level, Evidence::kRun);
    EXPECT_FALSE(evidence.nearest.empty());
    EXPECT_TRUE(evidence.lacks.empty());
  }
  EXPECT_LE(result.unproven.size(), 2U);
  for (const Plan& faster : result.unproven) {
    EXPECT_LT(faster.prediction.step_time, result.plans.front().prediction.step_time);
    EXPECT_NE(evidence_of(run_of(problem, faster)).level, Evidence::kRun);
  }
  // Plans found with `any` are not slower.
  PlanRequest request = mini_request({{"tp", {"1", "2"}}});
  request.evidence = Evidence::kAny;
  const PlanResult any = foldwise::plan(foldwise::plan_problem(request));
  EXPECT_EQ(any.evidence, Evidence::kAny);
  EXPECT_TRUE(any.unproven.empty());
  EXPECT_LE(any.plans.front().prediction.step_time.to<double>(),
            result.plans.front().prediction.step_time.to<double>() * (1.0 + 1e-9));
}

// Where nothing was run together, does the question fall to the next level, and where nothing was run at all, to the
// last?
TEST(PlansByEvidence, FallToTheNextLevel) {
  // On hopper there are runs with Megatron-FSDP of gradients and runs with the allgather dispatcher, but none with
  // both.
  const PlanProblem parts = foldwise::plan_problem(mini_request(
      {{"tp", {"1"}}, {"sharding", {"fsdp-optim-grads"}}, {"dispatcher", {"allgather"}}, {"micro_batch", {"1"}}}));
  EXPECT_EQ(parts.evidence, Evidence::kParts);
  // There is no run on ampere.
  PlanRequest request = mini_request({{"tp", {"1", "2"}}, {"micro_batch", {"1"}}});
  request.system = "a100-sxm-80gb";
  const PlanProblem any = foldwise::plan_problem(request);
  EXPECT_EQ(any.evidence, Evidence::kAny);
  const PlanResult result = foldwise::plan(any);
  EXPECT_EQ(result.evidence, Evidence::kAny);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_EQ(evidence_of(run_of(any, result.plans.front())).nearest, "");
  EXPECT_TRUE(result.unproven.empty());
}

// Are the levels' names those of --evidence, and does each have a next one?
TEST(PlansByEvidence, HaveNames) {
  EXPECT_EQ(name_of(Evidence::kRun), "run");
  EXPECT_EQ(name_of(Evidence::kParts), "parts");
  EXPECT_EQ(name_of(Evidence::kAny), "any");
  EXPECT_EQ(less(Evidence::kRun), Evidence::kParts);
  EXPECT_EQ(less(Evidence::kParts), Evidence::kAny);
  EXPECT_EQ(name_of(ChoicePart::kEpOverlap), "EP overlap");
}

}  // namespace
}  // namespace foldwise::planner::evidence_test

// Does the program itself keep its promises: exit codes, results on stdout and messages on stderr, JSON with the
// documented keys?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "planner/run/release.h"
#include "tests/program_test.h"

namespace foldwise::cli_test {
namespace {

using nlohmann::json;

using Cli = ProgramTest;

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> result;
  for (const auto& item : object.items()) result.push_back(item.key());
  return result;
}

TEST_F(Cli, WithoutACommandIsBadInput) {
  const Outcome outcome = foldwise("");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "command line: A subcommand is required\n");
}

TEST_F(Cli, HelpIsAResult) {
  const Outcome outcome = foldwise("--help");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* command : {"plan", "predict", "compare", "validate", "models", "systems"})
    EXPECT_NE(outcome.out.find(command), std::string::npos) << command;
}

TEST_F(Cli, MistakesOnTheCommandLineAreBadInput) {
  for (const char* arguments : {"plann",
                                "predict",
                                "predict a b",
                                "plan --gpus 0",
                                "plan --gpus 1e3",
                                "plan --gpus",
                                "plan --format xml",
                                "plan --precision fp7",
                                "compare one.json",
                                "plan --pin tp",
                                "plan --pin tp=0",
                                "plan --pin foo=1",
                                "plan --pin tp=1,tp=2",
                                "plan --set tp",
                                "plan --set tp=0,1",
                                "plan --set tp=1,1",
                                "plan --set dp=1",
                                "plan --set tp=1 --pin tp=2",
                                "plan --headroom 100",
                                "plan --top 0",
                                "plan --objective gpus",
                                "plan --max-step-time 1",
                                "plan --slack 5",
                                "plan --objective memory --max-step-time 1 --slack 5",
                                "plan --set mtp=0,1",
                                "plan --set model_overrides.num_hidden_layer=4",
                                "plan --set tp=3",
                                "plan --model none",
                                "plan --system none",
                                "plan --system h100-sxm-80gb --precision nvfp4",
                                "models none",
                                "systems none",
                                "plan --price 2",
                                "plan --tokens 5X",
                                "plan --tokens 1T --mtbf 5",
                                "sweep",
                                "sweep --plan",
                                "sweep --set tp=1",
                                "sweep nothing.json --set tp=1",
                                "sweep run.json --plan --set tp=1",
                                "sweep run.json --gpus 8 --set tp=1",
                                "sweep --plan --set dp=1",
                                "sweep --plan --pin tp=1 --set tp=1,2",
                                "sweep --plan --gpus 8 --set num_gpus=8,16",
                                "sweep --plan --top 3 --set tp=1,2",
                                "sweep --plan --set tp=1,2 --y status",
                                "calibrate --runs runs.json --base h100",
                                "calibrate --records records.jsonl --quick",
                                "calibrate --device cpu --ranks 4",
                                "diagnose --profiles runs.json --html page.html",
                                "systems h100 --base h200",
                                "systems --new mine.json --base h100 --format json",
                                "validate records.jsonl --rows",
                                "serve --port 99999"}) {
    const Outcome outcome = foldwise(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err, "") << arguments;
  }
}

TEST_F(Cli, ErrorsAreJsonWhenAskedFor) {
  json run = small_run();
  run["tp"] = -2;
  run["micro_bach"] = 1;
  const std::string file = write("bad.json", run);
  const Outcome outcome = foldwise("predict " + file + " --format json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  const json errors = json::parse(outcome.err)["errors"];
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0], (json{{"file", file},
                             {"line", 9},
                             {"field", "/micro_bach"},
                             {"message", "unknown key; the nearest known key is \"micro_batch\""}}));
  EXPECT_EQ(errors[1]["field"], "/tp");
  const Outcome parse = foldwise("predict --format=json");
  EXPECT_EQ(parse.code, 2);
  EXPECT_EQ(json::parse(parse.err)["errors"][0]["file"], "command line");
}

TEST_F(Cli, PredictPrintsTheDocumentedKeys) {
  const Outcome outcome = foldwise("predict --format json " + write("run.json", small_run()));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json result = json::parse(outcome.out);
  EXPECT_THAT(keys(result), testing::IsSupersetOf({"step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu",
                                                   "mfu_pct", "peak_memory_gib", "fits", "interval", "breakdown",
                                                   "breakdown_detail", "stages", "memory", "assumed"}));
  EXPECT_THAT(keys(result["breakdown"]),
              testing::UnorderedElementsAre("compute", "exposed_communication", "exposed_copy", "bubble", "host"));
  double sum = 0.0;
  for (const auto& item : result["breakdown"].items()) sum += item.value().get<double>();
  const double step = result["step_time_s"];
  EXPECT_NEAR(sum, step, 1e-9 * step);
  ASSERT_EQ(result["stages"].size(), 2U);
  ASSERT_EQ(result["memory"].size(), 2U);
  double peak = 0.0;
  for (const json& stage : result["memory"]) {
    double total = 0.0;
    for (const char* part : {"parameters", "gradients", "optimizer", "activations", "buffers", "overhead"})
      total += stage[part].get<double>();
    EXPECT_NEAR(total, stage["total"].get<double>(), 1e-9 * total);
    peak = std::max(peak, stage["allocated"].get<double>());
  }
  EXPECT_DOUBLE_EQ(result["peak_memory_gib"].get<double>(), peak);
  // tokens a step / seconds / GPUs: 128 * 4096 / t / 16
  EXPECT_NEAR(result["tokens_per_s_per_gpu"].get<double>(), 128.0 * 4096.0 / step / 16.0, 1e-6 / step);
}

TEST_F(Cli, WhatPredictPrintsAsRunIsARunFileOfTheSamePrediction) {
  const Outcome first = foldwise("predict --format json " + write("run.json", small_run()));
  ASSERT_EQ(first.code, 0) << first.err;
  const json result = json::parse(first.out);
  const Outcome second = foldwise("predict --format json " + write("again.json", result["run"]));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(json::parse(second.out)["step_time_s"], result["step_time_s"]);
  EXPECT_TRUE(json::parse(second.out)["assumed"].empty());
}

// From a plan to a launch and back: does what --out writes start the plan's run, is what import makes of it a run file
// of the same prediction, and does --from answer how far that run is from the best?
TEST_F(Cli, APlanIsExportedImportedAndAskedAnew) {
  const std::string out = (folder_ / "plans").string();
  const Outcome planned = foldwise(
      "plan --model mixtral-8x7b --system h100 --gpus 16 --global-batch 64 --precision bf16 --top 1 --effort 0.2 "
      "--set overlaps.ep_a2a=false --set pp=2 --set cuda_graph.impl=none --format json --out " +
      out);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const json plan = json::parse(planned.out)["plans"][0];
  for (const char* file : {"plan-1.json", "plan-1.flags", "plan-1.sbatch", "report.html"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "plans" / file)) << file;
  EXPECT_EQ(json::parse(foldwise("predict --format json " + out + "/plan-1.json").out)["step_time_s"],
            plan["prediction"]["step_time_s"]);

  const Outcome imported = foldwise("import --system h100 " + out + "/plan-1.sbatch");
  if (imported.err.find("in a sandbox; there is none here") != std::string::npos) GTEST_SKIP() << imported.err;
  ASSERT_EQ(imported.code, 0) << imported.err;
  json today = json::parse(imported.out);
  const json read = json::parse(foldwise("predict --format json " + write("back.json", today)).out);
  EXPECT_EQ(read["step_time_s"], plan["prediction"]["step_time_s"]);
  EXPECT_EQ(read["peak_device_memory_gib"], plan["prediction"]["peak_device_memory_gib"]);

  today["micro_batch"] = 1;
  today["recompute"] = {{"granularity", "full"}, {"method", "uniform"}, {"num_layers", 1}};
  const Outcome from = foldwise("plan --effort 0.2 --top 1 --format json --from " + write("today.json", today));
  ASSERT_EQ(from.code, 0) << from.err;
  const json answer = json::parse(from.out);
  ASSERT_EQ(answer["from"]["runs"].size(), 2U);
  EXPECT_GT(answer["from"]["runs"][0]["prediction"]["step_time_s"],
            answer["from"]["runs"][1]["prediction"]["step_time_s"]);
  EXPECT_EQ(answer["from"]["runs"][1]["prediction"]["step_time_s"], answer["plans"][0]["prediction"]["step_time_s"]);

  // With --set of a field the question differs in that field only. --set of the model is a mistake.
  const std::string changed = "plan --effort 0.2 --top 1 --format json --from " + path("today.json") + " --set ";
  const Outcome other = foldwise(changed + "precision=fp8-current --pin ep=4");
  ASSERT_EQ(other.code, 0) << other.err;
  const json run = json::parse(other.out)["plans"][0]["run"];
  EXPECT_EQ(run["precision"], "fp8-current");
  EXPECT_EQ(run["ep"], 4);
  EXPECT_EQ(foldwise(changed + "model_overrides.num_hidden_layers=2").code, 2);
  EXPECT_THAT(foldwise("plan --set overrides.num_hidden_layers=2").err,
              testing::HasSubstr("is \"model_overrides.num_hidden_layers\""));
}

// Is what contradicts itself or is needed by nothing refused, instead of the one or the other taken?
TEST_F(Cli, OptionsThatWouldNotCountAreRefused) {
  json run = json::parse(R"({"model": "mini-mixtral-8l", "system": "h200", "num_gpus": 8, "seq_len": 4096,
    "global_batch": 64, "micro_batch": 1, "precision": "bf16", "dispatcher": "alltoall", "ep": 8})");
  const std::string file = write("run.json", run);
  run["offload"] = {{"modules", {"moe_act"}}};
  const std::string modules = write("modules.json", run);
  run["offload"] = {{"num_layers", 2}};
  const std::string layers = write("layers.json", run);
  for (const std::string& command : std::vector<std::string>{
           "plan --precision bf16 --pin precision=fp8-current", "plan --precision all --set precision=bf16",
           "plan --from " + file + " --headroom 200", "plan --from " + file + " --headroom -50", "predict " + modules,
           "predict " + layers, "export " + file + " --python python3"}) {
    const Outcome refused = foldwise(command);
    EXPECT_EQ(refused.code, 2) << command;
    EXPECT_NE(refused.err, "") << command;
  }
  // The allocator's settings are no option of the search, and of the run all the same.
  run.erase("offload");
  run["software"]["pytorch_cuda_alloc_conf"] = "expandable_segments:False";
  const json again = json::parse(foldwise("predict --format json " + write("conf.json", run)).out)["run"];
  EXPECT_EQ(again["software"]["pytorch_cuda_alloc_conf"], "expandable_segments:False");
  // Without a release it is exported for the newest.
  EXPECT_THAT(foldwise("export " + file).out, testing::HasSubstr("Megatron-Core " + planner::newest_release().text()));
}

// Is the question of --from asked of the release that --release names, else of the run's own, else of the newest that
// accepts the run? Is what it does not read refused?
TEST_F(Cli, FromAsksOfARelease) {
  json run = json::parse(R"({"model": "mini-mixtral-8l", "system": "h200", "num_gpus": 8, "seq_len": 4096,
    "global_batch": 64, "micro_batch": 1, "precision": "bf16", "dispatcher": "alltoall", "ep": 8})");
  const auto release_of = [&](const std::string& more) {
    const Outcome plan = foldwise("plan --effort 0.1 --top 1 --format json --from " + write("run.json", run) + more);
    EXPECT_EQ(plan.code, 0) << plan.err;
    return json::parse(plan.out)["problem"]["release"];
  };
  EXPECT_EQ(release_of(""), planner::newest_release().name);
  EXPECT_EQ(release_of(" --release 0.17.1"), "0.17.1");
  run["software"] = {{"cross_entropy", "te"}};  // Not on command lines from 0.18 on.
  EXPECT_EQ(release_of(""), "0.17.1");
  const Outcome lacks = foldwise("plan --from " + path("run.json") + " --release 0.19.0");
  EXPECT_EQ(lacks.code, 2);
  EXPECT_THAT(lacks.err, testing::HasSubstr("--cross-entropy-fusion-impl te is in Megatron-Core until 0.17.1"));
  run["release"] = "0.16.1";
  EXPECT_EQ(release_of(""), "0.16.1");
  for (const char* of_run : {"--gpus 16", "--model mixtral-8x7b", "--seq-len 8192", "--global-batch 8",
                             "--precision bf16", "--schedule 1f1b", "--system h100"}) {
    const Outcome refused = foldwise("plan --from " + path("run.json") + " " + of_run);
    EXPECT_EQ(refused.code, 2) << of_run;
    EXPECT_THAT(refused.err, testing::HasSubstr(std::string(of_run).substr(0, std::string(of_run).find(' '))));
  }
}

// Four sequences per micro-batch do not fit into an H200. The changed run files in the answer do.
TEST_F(Cli, PredictSaysWhatWouldMakeARunFit) {
  json run = small_run();
  run["micro_batch"] = 4;
  const Outcome text = foldwise("predict " + write("run.json", run));
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("DOES NOT FIT"), std::string::npos);
  EXPECT_NE(text.out.find("GiB over. It fits with one of these"), std::string::npos);
  const json result = json::parse(foldwise("predict --format json " + write("run.json", run)).out);
  EXPECT_NEAR(result["fitting"]["over_gib"].get<double>(),
              result["peak_device_memory_gib"].get<double>() - result["capacity_gib"].get<double>(), 1e-9);
  ASSERT_EQ(result["fitting"]["changes"].size(), 3U);
  for (const json& change : result["fitting"]["changes"]) {
    const json again = json::parse(foldwise("predict --format json " + write("changed.json", change["run"])).out);
    EXPECT_TRUE(again["fits"].get<bool>()) << change["change"];
    EXPECT_DOUBLE_EQ(again["step_time_s"].get<double>(), change["step_time_s"].get<double>());
    EXPECT_DOUBLE_EQ(again["peak_memory_gib"].get<double>(), change["peak_memory_gib"].get<double>());
    EXPECT_TRUE(again["fitting"].is_null());
  }
}

TEST_F(Cli, ARunThatMegatronRefusesIsBadInputWithTheRule) {
  json run = small_run();
  run["ep"] = 3;
  const Outcome outcome = foldwise("predict " + write("run.json", run));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--expert-model-parallel-size 3"), std::string::npos) << outcome.err;
}

TEST_F(Cli, CompareSaysWhatDiffersAndWhatItCosts) {
  json other = small_run();
  other["pp"] = 1;
  other["dp"] = 16;
  const Outcome outcome =
      foldwise("compare --format json " + write("a.json", small_run()) + " " + write("b.json", other));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["runs"].size(), 2U);
  EXPECT_EQ(result["differences"], json::parse(R"([{"field": "dp", "values": ["8", "16"]},
                                                   {"field": "pp", "values": ["2", "1"]}])"));
  EXPECT_EQ(result["seconds"]["step"][0], result["runs"][0]["prediction"]["step_time_s"]);
  EXPECT_EQ(result["seconds"]["bubble"].size(), 2U);
  EXPECT_EQ(result["memory_gib"]["total"].size(), 2U);
  EXPECT_FALSE(result["explanation"].empty());
  double apart = 0.0;
  for (const json& line : result["explanation"])
    apart += line["seconds"][1].get<double>() - line["seconds"][0].get<double>();
  EXPECT_NEAR(apart, result["seconds"]["step"][1].get<double>() - result["seconds"]["step"][0].get<double>(), 1e-9);
  EXPECT_TRUE(result["stage"].is_null()) << "one stage against two";
  ASSERT_EQ(result["distances"].size(), 1U);
  EXPECT_EQ(result["distances"][0]["error_pct"], 3.0);
  ASSERT_EQ(result["distances"][0]["single_changes"].size(), 1U);
  EXPECT_EQ(result["distances"][0]["nearest"], "pp");
  EXPECT_NEAR(result["distances"][0]["single_changes"][0]["share"], 1.0, 1e-9) << "DP follows from PP";
}

// Does `plan` answer each question, and is a bad one a mistake before the search?
TEST_F(Cli, PlanSaysWhyNot) {
  const std::string problem =
      "plan --format json --model mini-mixtral-8l --system h100-sxm-80gb --gpus 8 --global-batch 64 --effort 0.3";
  const Outcome outcome = foldwise(problem + " --why-not tp=2,pp=1 --why-not ep=3");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json why = json::parse(outcome.out)["why_not"];
  ASSERT_EQ(why.size(), 2U);
  EXPECT_EQ(why[0]["set"], json::parse(R"({"tp": [2], "pp": [1]})"));
  EXPECT_EQ(why[0]["plan"]["run"]["tp"], 2);
  EXPECT_FALSE(why[1]["refused"].empty());
  EXPECT_TRUE(why[1]["plan"].is_null());
  const Outcome bad = foldwise(problem + " --why-not tp --why-not ep=x --why-not tpp=1 --why-not tp=1,tp=2");
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(json::parse(bad.err)["errors"].size(), 4U) << bad.err;
}

TEST_F(Cli, ValidateComputesErrorsAndNamesWhatItSkips) {
  // Seconds of a step: 10.0 as given; 128 * 4096 tokens / (4096 tokens/s/GPU * 16 GPUs) = 8.0
  json seconds = small_run(), tokens = small_run(), unknown = small_run(), refused = small_run(), silent = small_run();
  seconds["id"] = "seconds";
  seconds["measured"] = {{"step_time_s", 10.0}, {"tokens_per_s_per_gpu", 1.0}, {"peak_memory_gib", 50.0}};
  seconds["recompute"] = tokens["recompute"] = {{"granularity", "none"}};
  tokens["id"] = "tokens";
  tokens["measured"] = {{"tokens_per_s_per_gpu", 4096.0}, {"tflops_per_gpu", 1.0}};
  tokens["system"] = "h100-sxm-80gb";
  unknown["id"] = "unknown";
  unknown["model"] = "no-such-model";
  refused["id"] = "refused";
  refused["ep"] = 3;
  silent["id"] = "silent";
  json ran_out = small_run();
  ran_out["id"] = "ran-out";
  ran_out["oom"] = true;
  const std::string file = write("runs.json", json::array({seconds, tokens, unknown, refused, silent, ran_out}));
  const Outcome outcome = foldwise("validate --format json " + file);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  ASSERT_EQ(result["rows"].size(), 2U);
  EXPECT_EQ(result["rows"][0]["measured"]["step_time_s"], 10.0);
  EXPECT_EQ(result["rows"][1]["measured"]["step_time_s"], 8.0);
  EXPECT_EQ(result["rows"][1]["measured"]["from"], "tokens_per_s_per_gpu");
  const double step = result["rows"][0]["predicted"]["step_time_s"];
  EXPECT_NEAR(result["rows"][0]["error_pct"].get<double>(), 100.0 * (step - 10.0) / 10.0, 1e-9);
  EXPECT_EQ(result["summary"]["step_time"]["count"], 2);
  EXPECT_EQ(result["summary"]["memory"]["count"], 1);
  ASSERT_EQ(result["skipped"].size(), 3U);
  EXPECT_EQ(result["skipped"][0]["id"], "unknown");
  EXPECT_EQ(result["skipped"][1]["id"], "refused");
  EXPECT_EQ(result["skipped"][2]["reason"], "nothing measured that we predict");
  ASSERT_EQ(result["out_of_memory"].size(), 1U);
  EXPECT_EQ(result["out_of_memory"][0]["id"], "ran-out");
  EXPECT_EQ(result["by"]["kind"]["hopper moe"]["step_time"]["count"], 2);

  const Outcome text = foldwise("validate " + file);
  ASSERT_EQ(text.code, 0);
  for (const char* id : {"unknown", "refused", "silent", "ran-out"})
    EXPECT_NE(text.out.find(id), std::string::npos) << id;
}

// Is a measured step in another unit a mistake, of every command that learns from measured steps, before it searches?
TEST_F(Cli, AMeasuredStepIsOfThisRun) {
  json run = small_run();
  const double predicted = json::parse(foldwise("predict --format json " + write("run.json", run)).out)["step_time_s"];
  const std::string file = path("measured.json");
  for (const auto& [factor, command] :
       {std::pair(1e-3, "plan --model mixtral-8x7b --system h200 --gpus 16 --global-batch 128 --measured " + file),
        std::pair(1e3, "calibrate --runs " + file + " --out " + path("site"))}) {
    run["measured"]["step_time_s"] = factor * predicted;
    static_cast<void>(write("measured.json", run));
    const Outcome outcome = foldwise(command);
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_NE(outcome.err.find("expected a step within 10 times the predicted"), std::string::npos) << outcome.err;
  }
}

TEST_F(Cli, RoundedTokensAreRefinedByTflopsThatAgree) {
  // TFLOPS replace rounded tokens if both agree to about a per mille. TFLOPS that give twice the speed were counted by
  // another convention and do not.
  const auto steps = [&](const json& measurements) {
    json runs = json::array();
    for (const json& measured : measurements) {
      runs.push_back(small_run());
      runs.back()["measured"] = measured;
      runs.back()["measured"]["tokens_are_rounded"] = true;
    }
    const Outcome outcome = foldwise("validate --format json " + write("runs.json", runs));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("rows");
  };
  const auto seconds = [](const json& row) { return row.at("measured").at("step_time_s").get<double>(); };
  const json tokens = {{"tokens_per_s_per_gpu", 4096.0}};
  const json apart = steps({tokens, {{"tflops_per_gpu", 100.0}}});
  const double same = 100.0 * seconds(apart[1]) / seconds(apart[0]);
  json agree = tokens, disagree = tokens;
  agree["tflops_per_gpu"] = 1.001 * same;
  disagree["tflops_per_gpu"] = 2.0 * same;
  const json rows = steps({agree, disagree});
  EXPECT_EQ(rows[0]["measured"]["from"], "tflops_per_gpu");
  EXPECT_NEAR(seconds(rows[0]), seconds(apart[0]) / 1.001, 1e-9);
  EXPECT_EQ(rows[1]["measured"]["from"], "tokens_per_s_per_gpu");
  EXPECT_EQ(seconds(rows[1]), seconds(apart[0]));
}

// Is a pinned field fixed in every plan, a dimension of the search or not, and is the set that gave the others named?
TEST_F(Cli, AnyFieldCanBePinned) {
  const Outcome outcome = foldwise(
      "plan --model mixtral-8x7b --system h200 --gpus 8 --global-batch 64 --top 2 --format json --pin "
      "tp=1,cp=1,pp=1,micro_batch=1,ep_overlap=false,optimizer.precision_aware=false,recompute.modules=moe_act+"
      "layernorm");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["problem"]["defaults"], "megatron-bridge-26.04");
  for (const json& plan : result["plans"]) {
    EXPECT_EQ(plan["run"]["tp"], 1);
    EXPECT_EQ(plan["run"]["defaults"], "megatron-bridge-26.04");
    EXPECT_EQ(plan["run"]["optimizer"]["precision_aware"], false);
    EXPECT_EQ(plan["run"]["overlaps"]["ep_a2a"], false);
    EXPECT_EQ(plan["run"]["recompute"]["modules"], json::parse(R"(["moe_act", "layernorm"])"));
  }
}

// Are all mistakes of a command line reported at once, each with what was expected?
TEST_F(Cli, PlanReportsAllMistakesAtOnce) {
  const Outcome outcome = foldwise(
      "plan --model deepseek-v33 --system h2000 --gpus 0 --headroom 100 --effort 0 --objective gpus --set tpp=1 --set "
      "pp= "
      "--set hierarchical_context_parallel_sizes=-2+4 --set mtp=0,1 --set vpp=-1 --pin ep --pin etp=x");
  EXPECT_EQ(outcome.code, 2);
  for (const char* message :
       {"--effort: expected 0.1 to 1000000, found 0", "--gpus: expected a whole number of at least 1, found 0",
        "--headroom: expected 0 to 99 percent, found 100", "--objective gpus: needs --max-step-time SECONDS",
        "--pin: expected key=value, found \"ep\"", "--pin etp: expected a whole number, found \"x\"",
        "--set mtp: expected one value, found 2",
        "--set hierarchical_context_parallel_sizes: expected whole numbers of at least 1, found [-2,4]",
        "--set pp: expected at least one value, found none", "--set tpp: cannot be set; the nearest that can is \"tp\"",
        "--set vpp: expected a whole number of at least 1, found -1",
        "neither a built-in model nor a file; the nearest built-in is \"deepseek-v3\"",
        R"(found "h2000"; the nearest is "h200")"})
    EXPECT_THAT(outcome.err, testing::HasSubstr(message));
}

// Are sizes that cannot go together the user's mistake, whichever way it is found out, with the rule?
TEST_F(Cli, WhatNoCandidateCanHaveIsAMistake) {
  const Outcome sizes = foldwise("plan --gpus 256 --set pp=5");
  EXPECT_EQ(sizes.code, 2);
  EXPECT_THAT(sizes.err, testing::HasSubstr("no candidate is valid: grid.world_dense: --tensor-model-parallel-size"));
  const Outcome others = foldwise(
      "plan --model mixtral-8x7b --system h200 --gpus 8 --global-batch 64 --pin "
      "tp=1,cp=1,pp=1,overlaps.ep_a2a=true,recompute.granularity=full,recompute.method=uniform");
  EXPECT_EQ(others.code, 2) << others.out;
  EXPECT_THAT(others.err, testing::HasSubstr("no candidate is valid: epov.recompute: "));
}

// Do the experts keep to attention's grid without folding, and is that said?
TEST_F(Cli, WithoutFoldingExpertsKeepToAttentionsGrid) {
  const std::string plan =
      "plan --model mixtral-8x7b --system h200 --gpus 16 --global-batch 64 --no-folding --top 4 --effort 0.2 --set "
      "micro_batch=1 ";
  const json result = json::parse(foldwise(plan + "--format json").out);
  EXPECT_EQ(result["problem"]["folding"], false);
  ASSERT_FALSE(result["plans"].empty());
  for (const json& found : result["plans"]) {
    EXPECT_EQ(found["run"]["etp"], found["run"]["tp"]);
    EXPECT_EQ(found["run"]["dp"].get<int>() % found["run"]["ep"].get<int>(), 0);
    EXPECT_LE(found["imbalance"]["p99_memory_gib"], found["prediction"]["capacity_gib"]);
  }
  EXPECT_THAT(foldwise(plan).out, testing::HasSubstr("no folding   Megatron-Core 0.19.0\n"));
}

// Does a plan of a changed model, or an alternative to it, predict the same from its run file?
TEST_F(Cli, APlanOfAChangedModelIsThePredictionOfItsRunFile) {
  const Outcome outcome = foldwise(
      "plan --model mini-deepseek-12l --system h200 --gpus 4 --global-batch 32 --top 2 --effort 0.2 --format json "
      "--set "
      "mtp_num_layers=1 --set model_overrides.num_hidden_layers=8 --set cp=1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["problem"]["set"]["mtp"], json::parse("[1]"));
  for (const json& plan : result["plans"]) {
    EXPECT_EQ(plan["run"]["model_overrides"], (json{{"num_hidden_layers", 8}}));
    EXPECT_EQ(plan["run"]["mtp"], 1);
    const Outcome predicted = foldwise("predict --format json " + write("plan.json", plan["run"]));
    ASSERT_EQ(predicted.code, 0) << predicted.err;
    EXPECT_EQ(json::parse(predicted.out)["step_time_s"], plan["prediction"]["step_time_s"]);
  }
  int alternatives = 0;
  for (const json& alternative : result["alternatives"]) {
    if (alternative["plan"].is_null()) continue;
    const Outcome predicted = foldwise("predict --format json " + write("plan.json", alternative["plan"]["run"]));
    ASSERT_EQ(predicted.code, 0) << predicted.err;
    EXPECT_EQ(json::parse(predicted.out)["step_time_s"], alternative["plan"]["step_time_s"]) << alternative["choice"];
    ++alternatives;
  }
  EXPECT_GE(alternatives, 1);
}

// Do plans with EP overlap have the room for what torch reserves, and are faster ones that have not said to be left
// out? (Runs of this question that had not took a quarter longer: benchmarks/accuracy/journal.md#memory-gone.)
TEST_F(Cli, APlanHasRoomForWhatTorchReserves) {
  const std::string plan =
      "plan --model qwen3-30b-a3b --system h100 --gpus 4 --global-batch 64 --headroom 8 --top 2 --effort 1 "
      "--format json --release 0.16.1 --set model_overrides.num_hidden_layers=18 --set dispatcher=alltoall "
      "--set cuda_graph.impl=none --set software.experts=grouped ";
  const auto note = [&](const json& run) {
    std::istringstream words(foldwise("predict " + write("plan.json", run)).out);
    std::string text;  // In one line.
    for (std::string word; words >> word;) text += word + ' ';
    return text.find("torch has to give memory back") != std::string::npos;
  };
  const json free = json::parse(foldwise(plan).out),
             overlapped = json::parse(foldwise(plan + "--set overlaps.ep_a2a=true").out);
  for (const json& result : {free, overlapped}) {
    const json& first = result["plans"].at(0);
    EXPECT_FALSE(note(first["run"]));
    EXPECT_FALSE(result["search"]["proven"]);
    EXPECT_THAT(first["why"].dump(),
                testing::AnyOf(testing::HasSubstr("faster ones, from 2."), testing::HasSubstr("hosts differ")));
  }
  EXPECT_TRUE(overlapped["plans"].at(0)["run"]["overlaps"]["ep_a2a"]);
}

// Is a plan that torch has room for found, though faster ones of larger micro-batches have none? (Half of the
// micro-batch was planned: benchmarks/accuracy/started.md, `fp7`.)
TEST_F(Cli, APlanIsNotLeftOutForWhatAnotherHasPending) {
  const std::string plan =
      "plan --model glm-4.5-air --system h100 --gpus 2 --global-batch 32 --precision fp8-current --release 0.16.1 "
      "--top 3 --format json --set model_overrides.num_hidden_layers=3 --set mtp=0 --set overlaps.tp=false --set "
      "dispatcher=alltoall --set cp=1 --set pp=1 ";
  const auto fastest = [&](const std::string& set) {
    double least = std::numeric_limits<double>::infinity();
    const json answer = json::parse(foldwise(plan + set).out);
    for (const json& found : answer["plans"]) least = std::min(least, found["prediction"]["step_time_s"].get<double>());
    return least;
  };
  EXPECT_LE(fastest(""), 1.005 * fastest("--set micro_batch=4 --set tp=1"));
}

// Does a plan leave out the MTP layers that Megatron refuses beside hyper-connections, and say so?
TEST_F(Cli, APlanOfHyperConnectionsHasNoMtpLayers) {
  const Outcome outcome = foldwise(
      "plan --model deepseek-v4-flash --system gb300 --gpus 128 --global-batch 256 --top 1 --effort 0.1 --format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["problem"]["set"]["mtp"], json::parse("[0]"));
  ASSERT_EQ(result["plans"].size(), 1U);
  EXPECT_EQ(result["plans"][0]["run"]["mtp"], 0);
}

// Do the other objectives keep their limit, list what was tried, and fail as "nothing fits" does?
TEST_F(Cli, ObjectivesKeepToTheStepTime) {
  const std::string plan =
      "plan --model mixtral-8x7b --system h200 --gpus 16 --global-batch 64 --effort 0.2 --top 3 --set micro_batch=1 "
      "--set "
      "cp=1 --set tp=1,2 --format json ";
  const json fastest = json::parse(foldwise(plan).out);
  const double time = fastest["plans"][0]["prediction"]["step_time_s"];
  const Outcome memory = foldwise(plan + "--objective memory --slack 20");
  ASSERT_EQ(memory.code, 0) << memory.err;
  const json least = json::parse(memory.out);
  EXPECT_THAT(keys(least), testing::UnorderedElementsAre("problem", "search", "plans", "pareto", "groups",
                                                         "alternatives", "other_states", "shortage", "explain",
                                                         "why_not", "decision", "schema", "tried"));
  EXPECT_EQ(least["problem"]["objective"], "memory");
  EXPECT_LE(least["problem"]["max_step_time_s"], 1.2 * time);  // Fastest: the first may be plainer.
  EXPECT_GE(least["problem"]["max_step_time_s"], 1.2 * time / 1.01);
  EXPECT_LE(least["plans"][0]["prediction"]["step_time_s"], 1.2 * time);
  EXPECT_LE(least["plans"][0]["prediction"]["peak_device_memory_gib"],
            fastest["plans"][0]["prediction"]["peak_device_memory_gib"]);
  EXPECT_EQ(least["problem"]["headroom"], 0.05);
  const Outcome gpus = foldwise(plan + "--objective gpus --max-step-time " + std::to_string(2.5 * time));
  ASSERT_EQ(gpus.code, 0) << gpus.err;
  const json fewest = json::parse(gpus.out);
  EXPECT_EQ(fewest["problem"]["num_gpus"], 7);
  EXPECT_EQ(fewest["plans"][0]["run"]["num_gpus"], 7);
  for (const json& tried : fewest["tried"]) EXPECT_EQ(tried["within"], tried["num_gpus"] >= 7) << tried;
  EXPECT_EQ(foldwise(plan + "--objective memory --max-step-time 0.001").code, 3);
  // Does the screen say how fast it could be, and not that nothing fits?
  const Outcome slow = foldwise(
      "plan --model mini-mixtral-8l --system h200 --gpus 8 --seq-len 1024 --effort 0.1 --objective memory "
      "--max-step-time "
      "0.0001");
  EXPECT_EQ(slow.code, 3);
  EXPECT_THAT(slow.out, testing::HasSubstr("the fastest plan that was found takes"));
  EXPECT_THAT(slow.out, testing::HasSubstr("no plan"));
  EXPECT_THAT(slow.out, testing::Not(testing::HasSubstr("nothing fits")));
}

// Has a field only the values that --set gives, even one that is not searched, and is the headroom left free?
TEST_F(Cli, PlansKeepToWhatIsSetAndLeaveTheHeadroom) {
  const Outcome outcome = foldwise(
      "plan --model mixtral-8x7b --system h200 --gpus 8 --global-batch 64 --format json --headroom 25% --set tp=2,4 "
      "--set cp=1 --set pp=1 --set micro_batch=1,2 --set optimizer.precision_aware=true,false");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["problem"]["headroom"], 0.25);
  EXPECT_EQ(result["problem"]["set"]["tp"], json::parse("[2, 4]"));
  for (const json& plan : result["plans"]) {
    EXPECT_THAT(plan["run"]["tp"].get<int>(), testing::AnyOf(2, 4));
    EXPECT_THAT(plan["run"]["micro_batch"].get<int>(), testing::AnyOf(1, 2));
    EXPECT_EQ(plan["run"]["pp"], 1);
    EXPECT_LE(plan["prediction"]["peak_device_memory_gib"].get<double>(),
              0.75 * plan["prediction"]["capacity_gib"].get<double>());
  }
}

// Is a name that can mean one thing that thing, and one that can mean several a mistake that lists them?
TEST_F(Cli, NamesMayBeShortOrAsOthersWriteThem) {
  const std::string plan = "plan --gpus 8 --global-batch 64 --effort 0.1 --top 1 --format json ";
  const Outcome outcome = foldwise(
      plan + "--model mistralai/Mixtral-8x7B --system h100 --pin tensor_parallel=2,context-parallel=1,micro_b=1");
  ASSERT_NE(outcome.code, 2) << outcome.err;
  const json problem = json::parse(outcome.out)["problem"];
  EXPECT_EQ(problem["model"], "mixtral-8x7b");
  EXPECT_EQ(problem["system"], "h100-sxm-80gb");
  EXPECT_EQ(problem["set"], json::parse(R"({"tp": [2], "cp": [1], "micro_batch": [1], "precision": ["bf16"]})"));
  EXPECT_EQ(json::parse(foldwise("models Qwen/Qwen3-235B-A22B --format json").out)["name"], "qwen3-235b-a22b");
  EXPECT_EQ(json::parse(foldwise("systems GB200 --format json").out)["name"], "gb200-nvl72");
  const Outcome several = foldwise("plan --gpus 8 --model mixtral --system h2000 --set offload=1");
  EXPECT_EQ(several.code, 2);
  for (const char* message : {R"("mixtral" can mean several: mixtral-8x22b, mixtral-8x22b-g8t8, mixtral-8x7b)",
                              R"(found "h2000"; the nearest is "h200")", R"("offload" can mean several: offload.)"})
    EXPECT_THAT(several.err, testing::HasSubstr(message));
  EXPECT_EQ(several.err.find("neither"), std::string::npos) << "said once";
  // A run file is kept, so names of fields must be complete in it. The message says what the short one means.
  json run = small_run();
  run["system"] = "h100";
  run["tensor_parallel"] = 1;
  const Outcome kept = foldwise("predict " + write("short.json", run));
  EXPECT_EQ(kept.code, 2);
  EXPECT_THAT(kept.err, testing::EndsWith("/tensor_parallel: unknown key; the known key is \"tp\"\n"));
}

// Are a model and a system that a run file names looked for beside it first?
TEST_F(Cli, PathsOfARunFileStartBesideIt) {
  std::filesystem::create_directory(folder_ / "mine");
  json model = json::parse(foldwise("models mixtral-8x7b --format json").out)["config"], run = small_run();
  model["num_hidden_layers"] = 16;
  static_cast<void>(write("mine/model.json", model));
  static_cast<void>(write("mine/system.json", {{"base", "h200"}, {"name", "mine"}}));
  run["model"] = "mine/model.json";
  run["system"] = "mine/system.json";
  const Outcome outcome = foldwise("predict --format json " + write("run.json", run));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json written = json::parse(outcome.out)["run"];
  EXPECT_EQ(written["model"], (folder_ / "mine/model.json").string());
  EXPECT_EQ(written["system"], (folder_ / "mine/system.json").string());
  run["model"] = "mistralai/Mixtral-8x7B";
  EXPECT_EQ(json::parse(foldwise("predict --format json " + write("other.json", run)).out)["run"]["model"],
            "mixtral-8x7b");
  run["model"] = "mixtral-8x";  // Short names are for the command line only: a run file is read again later.
  EXPECT_EQ(foldwise("predict " + write("short.json", run)).code, 2);
}

// Does bash complete commands, options, values and keys, and take the script without a word?
TEST_F(Cli, BashCompletesWhatTheHelpHas) {
  const std::string script = (folder_ / "completion").string();
  std::ofstream(script) << foldwise("completion bash").out << R"(
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _foldwise; echo "${COMPREPLY[*]}"; }
ask foldwise sw
ask foldwise plan --obj
ask foldwise plan --objective m
ask foldwise plan --system gb2
ask foldwise sweep --set optimizer.na
ask foldwise completion b
ask foldwise models deepseek-v3.
)";
  const std::string out = (folder_ / "completed").string();
  ASSERT_EQ(std::system(("bash -eu " + script + " >" + out + " 2>&1").c_str()), 0)
      << contents(out);  // NOLINT(cert-env33-c)
  EXPECT_EQ(contents(out), "sweep\n--objective\nmemory\ngb200-nvl72\noptimizer.name=\nbash\ndeepseek-v3.2\n");
}

// Do zsh and fish take their scripts, and does fish complete options and values?
TEST_F(Cli, OtherShellsTakeTheirCompletions) {
  EXPECT_THAT(foldwise("completion zsh").out, testing::StartsWith("#compdef foldwise\n"));
  const std::string zsh = write_text("_foldwise", foldwise("completion zsh").out),
                    fish = write_text("foldwise.fish", foldwise("completion fish").out), out = path("completed");
  if (shell("zsh -c true 2>/dev/null") == 0) {
    EXPECT_EQ(shell("zsh -n " + zsh), 0);
  }
  if (shell("fish -c true 2>/dev/null") == 0) {
    EXPECT_EQ(shell("fish -N -c 'source " + fish + "; complete -C \"foldwise plan --object\"' >" + out), 0);
    EXPECT_THAT(contents(out), testing::StartsWith("--objective"));
  }
}

// Does a rule's name in a message lead to what it demands?
TEST_F(Cli, ARuleOfAMessageHasItsPage) {
  json run = small_run();
  run["ep"] = 3;
  EXPECT_THAT(foldwise("predict " + write("run.json", run)).err,
              testing::EndsWith("foldwise rules grid.world_expert says what that demands\n"));
  const json rule = json::parse(foldwise("rules grid.world_expert --format json").out);
  EXPECT_THAT(rule["demands"].get<std::string>(), testing::HasSubstr("multiple of ETP x EP x PP"));
  EXPECT_THAT(foldwise("rules").out, testing::HasSubstr("epov.cg_impl"));
  const Outcome unknown = foldwise("rules grid.world");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, testing::HasSubstr("no rule"));
  const json all = json::parse(foldwise("rules --format json").out);
  for (const json& listed : all["rules"]) EXPECT_NE(listed["demands"], "") << listed["rule"];
}

// Has every command an example in its help, and the manual page every option of every command?
TEST_F(Cli, HelpAndManualHaveAllCommands) {
  EXPECT_THAT(foldwise("--version").out, testing::MatchesRegex("foldwise [0-9.]+( \\([0-9a-f]+\\))?\n"));
  const std::string manual = foldwise("man").out;
  EXPECT_THAT(manual, testing::StartsWith(".TH FOLDWISE 1 "));
  std::istringstream help(foldwise("--help").out);
  int commands = 0;
  for (std::string line; std::getline(help, line);) {
    std::istringstream words(line);
    std::string command;
    if (line.find_first_not_of(' ') != 2 || !(words >> command) || command[0] == '-') continue;
    ++commands;
    const std::string own = foldwise(command + " --help").out;
    EXPECT_THAT(own, testing::HasSubstr("foldwise " + command + ' ')) << command;
    std::istringstream lines(own);
    for (std::string its; std::getline(lines, its);)
      if (its.find("foldwise ") == std::string::npos) {
        EXPECT_LE(its.size(), 80U) << its;
      }
    EXPECT_THAT(manual, testing::HasSubstr(".SS " + command + "\n"));
    std::istringstream options(own);
    for (std::string word; options >> word && !word.starts_with("Example");)
      if (word.starts_with("--")) {
        std::string written = word.substr(2, word.find_first_of(",=") - 2);
        for (std::size_t at = 0; (at = written.find('-', at)) != std::string::npos; at += 2) written.insert(at, "\\");
        EXPECT_THAT(manual, testing::HasSubstr("\\-\\-" + written)) << command << ' ' << word;
      }
  }
  EXPECT_GE(commands, 11);
}

TEST_F(Cli, FieldsListsEveryOption) {
  const json result = json::parse(foldwise("fields --format json").out);
  const json& list = result["fields"];
  const auto tp = std::find_if(list.begin(), list.end(), [](const json& field) { return field["key"] == "tp"; });
  ASSERT_NE(tp, list.end());
  EXPECT_EQ((*tp)["flags"], json::parse(R"(["--tensor-model-parallel-size"])"));
  EXPECT_EQ((*tp)["default"], 1);
  EXPECT_FALSE(result["defaults"].empty());
}

TEST_F(Cli, PlanFindsLayoutsThatPredictAccepts) {
  const Outcome outcome = foldwise(
      "plan --model mixtral-8x7b --system h200 --gpus 8 --global-batch 64 --pin tp=1,cp=1,micro_batch=1 --top 3 "
      "--format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json result = json::parse(outcome.out);
  EXPECT_TRUE(result["shortage"].is_null());
  ASSERT_FALSE(result["alternatives"].empty());
  EXPECT_THAT(keys(result),
              testing::UnorderedElementsAre("problem", "search", "plans", "pareto", "groups", "alternatives",
                                            "other_states", "shortage", "explain", "why_not", "decision", "schema"));
  EXPECT_THAT(keys(result["search"]),
              testing::IsSupersetOf({"enumerated", "nodes", "composed", "fitting", "simulated", "proven", "least_s",
                                     "effort", "seconds", "rejected_by_rule"}));
  EXPECT_LE(result["search"]["least_s"], result["plans"][0]["prediction"]["step_time_s"]);
  ASSERT_FALSE(result["plans"].empty());
  EXPECT_LE(result["plans"].size(), 3U);
  for (const json& plan : result["plans"]) {
    EXPECT_EQ(plan["run"]["tp"], 1);
    EXPECT_TRUE(plan["prediction"]["fits"].get<bool>());
    const Outcome predicted = foldwise("predict --format json " + write("plan.json", plan["run"]));
    ASSERT_EQ(predicted.code, 0) << predicted.err;
    EXPECT_EQ(json::parse(predicted.out)["step_time_s"], plan["prediction"]["step_time_s"]);
  }
}

TEST_F(Cli, PredictWritesATraceAndADrawing) {
  const std::string run = write("run.json", small_run()), trace = folder_ / "trace.json", svg = folder_ / "plan.svg";
  const Outcome outcome = foldwise("predict --format json --trace " + trace + " --svg " + svg + " " + run);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json events = json::parse(contents(trace)).at("traceEvents");
  const double step = json::parse(outcome.out).at("step_time_s");
  double last = 0.0;
  for (const json& event : events) last = std::max(last, event["ts"].get<double>() + event.value("dur", 0.0));
  EXPECT_NEAR(last, 1e6 * step, 1.0);  // Microseconds.
  EXPECT_EQ(contents(svg).substr(0, 5), "<svg ");
  EXPECT_FALSE(std::filesystem::exists(trace + ".new"));
}

TEST_F(Cli, ATraceThatCannotBeWrittenIsAMistakeOfTheUser) {
  const Outcome outcome = foldwise("predict --trace /nowhere/trace.json " + write("run.json", small_run()));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "/nowhere/trace.json: cannot be written: No such file or directory\n");
}

// Does a page hold the answer that --format json prints and the command, loads nothing, and stay one where an answer's
// text would end its script?
TEST_F(Cli, APageHoldsTheAnswer) {
  json small = small_run();
  small["id"] = "</script><script>alert('1')</script>";
  const std::string run = write("small.json", small), page = (folder_ / "page.html").string();
  ASSERT_EQ(foldwise("predict " + run + " --html " + page).code, 0);
  const std::string text = contents(page), start = R"(<script type="application/json" id="data">)";
  const std::size_t begin = text.find(start) + start.size();
  const json data = json::parse(text.substr(begin, text.find("</script>", begin) - begin));
  EXPECT_EQ(data["answer"], json::parse(foldwise("predict " + run + " --format json").out));
  EXPECT_EQ(data["command"], "foldwise predict " + run + " --html " + page);
  EXPECT_EQ(data["systems"][0]["facts"], json::parse(foldwise("systems h200 --format json").out)["facts"]);
  EXPECT_EQ(text.find("<script>alert("), std::string::npos);
  // Only the page's own elements run: each has its hash, and no part of the answer has one.
  const std::size_t policy = text.find("Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-");
  ASSERT_NE(policy, std::string::npos);
  const std::string said = text.substr(policy, text.find("\">", policy) - policy);
  EXPECT_EQ(said.find("unsafe"), std::string::npos);
  EXPECT_NE(said.find("base-uri 'none'; form-action 'none'"), std::string::npos);
}

// Is a page that cannot be written the user's mistake, of every command that writes one?
TEST_F(Cli, APageThatCannotBeWrittenIsAMistakeOfTheUser) {
  const std::string run = write("small.json", small_run()), page = (folder_ / "none" / "page.html").string();
  const auto expect_mistake = [&](const std::string& arguments) {
    std::string command = arguments;
    const Outcome outcome = foldwise(command.append(" --html ").append(page));
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_NE(outcome.err.find(page + ": cannot be written"), std::string::npos) << outcome.err;
  };
  expect_mistake("predict " + run);
  expect_mistake("compare " + run + ' ' + run);
  expect_mistake("sweep " + run + " --set ep=8");
}

// Is what would not count refused: a question of plans where a run is swept, and a file whose rows would count twice?
TEST_F(Cli, WhatWouldNotCountIsRefused) {
  const std::string run = write("small.json", small_run());
  const Outcome swept = foldwise("sweep " + run + " --model mixtral-8x7b --set ep=4,8");
  EXPECT_EQ(swept.code, 2);
  EXPECT_THAT(swept.err, testing::HasSubstr("--plan: needed for what `plan` is asked"));
  const Outcome twice = foldwise("validate " + run + ' ' + run);
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, testing::HasSubstr("is given twice"));
  const Outcome mistyped = foldwise("sweep " + run + " --set ep");
  EXPECT_THAT(mistyped.err, testing::HasSubstr("command line: --set: expected key=value"));
}

// Study schedules are predicted as stated, and planned only if asked for.
TEST_F(Cli, AScheduleForStudyWinsNoPlanUnlessAskedFor) {
  json run = small_run();
  run["schedule"] = "dualpipe";
  const Outcome predicted = foldwise("predict --format json " + write("run.json", run));
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(json::parse(predicted.out)["run"]["schedule"], "dualpipe");
  const std::string plan =
      "plan --model mixtral-8x7b --system h200 --gpus 16 --global-batch 128 --precision bf16 --top 3 "
      "--format json --pin tp=1,cp=1,pp=2,micro_batch=1,etp=1,ep=8,cuda_graph.impl=none";
  const json unasked = json::parse(foldwise(plan).out)["plans"];
  for (const json& found : unasked) EXPECT_EQ(found["run"]["schedule"], "1f1b");
  const json asked = json::parse(foldwise(plan + " --schedule zb-h1").out)["plans"];
  ASSERT_FALSE(asked.empty());
  for (const json& found : asked) EXPECT_EQ(found["run"]["schedule"], "zb-h1");
  EXPECT_EQ(foldwise(plan + " --schedule zb-h2").code, 2);
}

TEST_F(Cli, NothingFitsHasItsOwnExitCode) {
  const Outcome outcome = foldwise(
      "plan --model deepseek-v3 --system h100-sxm-80gb --gpus 8 --global-batch 8 --format json --pin "
      "tp=1,cp=1,pp=1,etp=1,micro_batch=1,cuda_graph.impl=none,offload.optimizer_cpu_offload=false");
  EXPECT_EQ(outcome.code, 3);
  const json result = json::parse(outcome.out);
  EXPECT_TRUE(result["plans"].empty());
  EXPECT_TRUE(result["alternatives"].empty());
  const json& shortage = result["shortage"];
  EXPECT_EQ(shortage["cause"], "device_memory");
  const json& miss = shortage["nearest"].at(0);
  EXPECT_NEAR(miss["peak_device_memory_gib"].get<double>(),
              shortage["may_use_gib"].get<double>() + miss["over_gib"].get<double>(), 1e-6);
  const Outcome predicted = foldwise("predict --format json " + write("miss.json", miss["run"]));
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_FALSE(json::parse(predicted.out)["fits"].get<bool>());
}

TEST_F(Cli, ModelsAndSystemsShowFactsWithSources) {
  EXPECT_GT(json::parse(foldwise("models --format json").out)["models"].size(), 40U);
  const json model = json::parse(foldwise("models deepseek-v3 --format json").out);
  EXPECT_EQ(model["num_layers"], 61);
  EXPECT_EQ(model["parameters"]["total"], 671026404352);  // Published: 671 billion.
  EXPECT_TRUE(model["config"].contains("_source"));
  const json system = json::parse(foldwise("systems h200 --format json").out);
  ASSERT_FALSE(system["facts"].empty());
  for (const json& fact : system["facts"]) {
    EXPECT_NE(fact["source"], "") << fact;
    EXPECT_THAT(fact["kind"].get<std::string>(), testing::AnyOf("datasheet", "measured", "fitted", "assumed"));
  }
  EXPECT_NE(foldwise("systems h200").out.find("Sources"), std::string::npos);
}

// From a machine's CPU to a profile that predicts, with a few settings.
TEST_F(Cli, CalibrateMakesAProfileThatPredictAndValidateAccept) {
  const std::string out = (folder_ / "mine").string();
  const std::string calibrate = "calibrate --device cpu --quick --only memory --out " + out + " --format json";
  const Outcome outcome = foldwise(calibrate);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_THAT(keys(result), testing::UnorderedElementsAre("base", "curves", "device", "plot", "profile", "records",
                                                          "schema", "settings"));
  EXPECT_EQ(result["settings"], 33);  // 11 operations, three shapes
  for (const json& curve : result["curves"])
    EXPECT_THAT(keys(curve), testing::UnorderedElementsAre("curve", "left_out", "parameters", "range", "training"));
  EXPECT_NE(contents(result["plot"].get<std::string>()).find("<circle"), std::string::npos);

  // Nothing is measured twice: the records do not change.
  const std::string records = result["records"];
  const std::string before = contents(records);
  EXPECT_EQ(foldwise(calibrate).code, 0);
  EXPECT_EQ(contents(records), before);

  json run = small_run();
  run["system"] = result["profile"];
  EXPECT_EQ(foldwise("predict " + write("run.json", run)).code, 0);
  const Outcome validated =
      foldwise("validate --format json " + records + " --system " + result["profile"].get<std::string>());
  ASSERT_EQ(validated.code, 0) << validated.err;
  const json errors = json::parse(validated.out);
  EXPECT_THAT(keys(errors), testing::UnorderedElementsAre("kernels", "schema", "skipped", "summary", "system"));
  EXPECT_EQ(errors["kernels"].size(), 33U);
  EXPECT_EQ(errors["summary"]["memory rope"]["count"], 3);
  EXPECT_THAT(keys(errors["kernels"][0]), testing::UnorderedElementsAre("error_pct", "kernel", "measured_us", "of",
                                                                        "outside_of_fit", "predicted_us", "shape"));
  // A CPU is not a built-in system.
  EXPECT_EQ(foldwise("validate " + records).code, 2);
}
TEST_F(Cli, CalibrateNeedsOneSourceOfRecords) {
  EXPECT_EQ(foldwise("calibrate").err,
            "command line: give one of --device (measure), --records (fit what was measured), --import (from other "
            "programs) and --runs (measured steps of a site)\n");
  const Outcome outcome = foldwise("calibrate --import " FW_GOLDEN_DIR "/pytorch_trace.json --out " + folder_.string());
  EXPECT_EQ(outcome.code, 2);  // two settings are no curve
  EXPECT_NE(outcome.err.find("expected more settings of a kernel than its curve has parameters"), std::string::npos)
      << outcome.err;
}
// Is a user told what is left out of a file that an import reads?
TEST_F(Cli, CalibrateSaysWhatAnImportLeavesOut) {
  std::string events;
  for (int n = 1; n <= 8; ++n)
    events += fmt::format(
        R"({{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": {}, "args": {{"Input type": ["float"], "Input Dims": [[{}, 512], [512, 512]]}}}},)",
        10 * n, 128 * n);
  const std::string trace =
      write_text("trace.json",
                 R"({"traceEvents": [)" + events + R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 1}]})");
  const Outcome outcome = foldwise("calibrate --import " + trace + " --out " + path("mine"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::HasSubstr("trace.json: 1 of 9 matrix products are left out"));
}
TEST_F(Cli, CalibratingGpusWithoutTheirProgramIsAClearError) {
  if (std::filesystem::exists(std::filesystem::path(FW_FOLDWISE).parent_path().parent_path() / "kernels" /
                              "foldwise-kernels-cuda"))
    GTEST_SKIP() << "this build has foldwise-kernels-cuda";
  const Outcome outcome = foldwise("calibrate --device cuda --out " + folder_.string());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("foldwise-kernels-cuda is not beside foldwise"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace foldwise::cli_test

// Does the end of a step count what unmodified pretrain_gpt.py has: tensors of the optimizer, buckets of gradients?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/step/step.h"
#include "planner/run/run_file.h"

namespace foldwise::costmodel::step_end_test {
namespace {

/// A run on one H200, whose host takes nothing.
planner::Run run_of(const std::string& model, int layers, bool check = false) {
  const auto document = config::Document::parse(
      R"({"system": "h200", "num_gpus": 1, "seq_len": 4096, "global_batch": 1, "sharding": "ddp-distopt",
          "overlaps": {"dp_grad": true, "dp_param": true}, "model": ")" +
          model + R"(", "mtp": 0, "model_overrides": {"num_hidden_layers": )" + std::to_string(layers) +
          R"(}, "check_for_nan_in_loss_and_grad": )" + (check ? "true}" : "false}"),
      "run.json");
  config::Diagnostics diagnostics;
  config::ObjectReader reader(document, diagnostics);
  planner::Run run = planner::read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  for (const HostPrice& price : kHostPrices) run.hardware.host.*price.price = Seconds{};
  return run;
}

StepTail tail_of(const planner::Run& run) {
  return compose_step(run.model, run.options, run.hardware).composition.tails.front();
}

struct Started {
  std::string model;
  int layers;
  double tensors;      ///< In the optimizer's parameter groups; 0: not recorded.
  double buckets = 0;  ///< Norms of gradients in the kernel profile; 0: not recorded.
};

// Source: benchmarks/accuracy/records/h200x1_step_ends.jsonl.xz, optimizer_tensors and kernels of profile_rank0.
const std::vector<Started> started = {
    {"qwen2.5-14b", 12, 87, 38},      {"llama3-70b", 4, 0, 18},     {"qwen3-30b-a3b", 10, 2633, 152},
    {"deepseek-v2-lite", 12, 0, 162}, {"mixtral-8x7b", 4, 0, 70},   {"gpt-oss-20b", 6, 0, 108},
    {"qwen3-30b-a3b", 6, 1581},       {"olmoe-1b-7b", 16, 2163},    {"ling-mini-2.0", 4, 1574},
    {"deepseek-v2-lite", 8, 978},     {"qwen3-32b", 8, 67},         {"qwen1.5-moe-a2.7b", 8, 1035},
    {"ling-mini-2.0", 6, 2616},       {"mistral-nemo-12b", 14, 87}, {"mixtral-8x22b", 2, 45},
    {"olmoe-1b-7b", 12, 1623},        {"phi-3.5-moe", 4, 164},      {"qwen3-8b", 14, 115},
    {"gpt-oss-20b", 5, 688}};

// A second each and nothing else: what the host spends on tensors.
TEST(StepEnd, HasTheTensorsOfMegatronsOptimizer) {
  for (const Started& s : started) {
    if (s.tensors == 0) continue;
    planner::Run run = run_of(s.model, s.layers);
    run.hardware.host.parameter = Seconds{1.0};
    const StepTail tail = tail_of(run);
    EXPECT_NEAR((tail.idle + tail.compute).to<double>(), s.tensors, 1e-6) << s.model << ' ' << s.layers;
  }
}

TEST(StepEnd, ChecksTheBucketsOfMegatronsGradients) {
  for (const Started& s : started) {
    if (s.buckets == 0) continue;
    planner::Run run = run_of(s.model, s.layers, true);
    run.hardware.host.bucket_check = Seconds{1.0};
    EXPECT_NEAR(tail_of(run).idle.to<double>(), s.buckets, 0.02 * s.buckets) << s.model << ' ' << s.layers;
    run.options.layer.check_for_nan = false;
    EXPECT_EQ(tail_of(run).idle, Seconds{}) << s.model;
  }
}

// Ops on a tensor: two copies without a precision-aware optimizer, three for each state below FP32 before Transformer
// Engine's Adam read them.
TEST(StepEnd, CountsTheOpsOnATensor) {
  planner::Run run = run_of("qwen2.5-14b", 12);
  run.hardware.host.plain_op = Seconds{1.0};
  const auto ops = [&] {
    const StepTail tail = tail_of(run);
    return (tail.idle + tail.compute).to<double>() / 87.0;
  };
  Optimizer& optimizer = run.options.step.optimizer;
  optimizer = {};
  EXPECT_NEAR(ops(), 2.0, 1e-6);
  optimizer = {.precision_aware = true, .exp_avg = DataType::kBf16, .exp_avg_sq = DataType::kBf16};
  EXPECT_NEAR(ops(), 6.0, 1e-6);
  optimizer.exp_avg_sq = DataType::kFp32;
  EXPECT_NEAR(ops(), 3.0, 1e-6);
  optimizer.exp_avg_sq = DataType::kBf16;
  optimizer.reads_bf16_moments = true;
  run.hardware.host.parameter = Seconds{1.0};  // Else the device takes longer.
  EXPECT_NEAR(ops(), 1.0, 1e-6);
}

// The host loads each micro-batch and checks its loss while the GPU waits.
TEST(StepEnd, WaitsForEachMicroBatch) {
  for (const bool check : {false, true}) {
    planner::Run run = run_of("qwen2.5-14b", 12, check);
    run.options.pipeline.global_batch = 5;
    const auto step = [&] { return predict(compose_step(run.model, run.options, run.hardware)).step_time; };
    const Seconds before = step();
    run.hardware.host.micro_batch = Seconds{1.0};
    // Products get faster after a rest: the power limit leaves them more.
    EXPECT_NEAR((step() - before).to<double>(), check ? 10.0 : 5.0, 0.05);
  }
}

// Parts of a step's end that the report names add up to it.
TEST(StepEnd, IsTheSumOfItsParts) {
  planner::Run run = run_of("qwen3-30b-a3b", 6, true);
  run.hardware.host.parameter = run.hardware.host.bucket_check = Seconds{1e-3};
  const Step step = compose_step(run.model, run.options, run.hardware);
  const Prediction prediction = predict(step);
  Seconds parts{};
  for (const StepPart& part : prediction.step_end) parts += part.exposed;
  EXPECT_NEAR(parts.to<double>(), step.composition.tails.front().total().to<double>(), 1e-9);
}

}  // namespace
}  // namespace foldwise::costmodel::step_end_test

// Is the communication of whole steps right? Kernel lists of rank 0 of 34 Megatron-LM steps on four H200, and layouts
// of Qwen3-235B on 256 H100 that differ in who talks to whom.
#include "costmodel/step/communication.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/report/beyond_fit.h"
#include "planner/run/run_file.h"
#include "tests/usual_options.h"

namespace foldwise::planner::communication_test {
namespace {

using Milliseconds = std::map<std::string, double>;  // By kind of NCCL kernel.

/// NCCL uses the same kernel for all-to-alls and for transfers between stages.
constexpr std::array<std::pair<const char*, const char*>, 4> kKernels{
    {{"ncclDevKernel_SendRecv", "send_recv"},
     {"ncclDevKernel_AllGather", "all_gather"},
     {"ncclDevKernel_ReduceScatter", "reduce_scatter"},
     {"ncclDevKernel_AllReduce", "all_reduce"}}};

Milliseconds measured_kernels(const Run& run) {
  Milliseconds sums;
  for (const auto& kernel : run.json.at("measured").at("kernel_profile_rank0").at("kernels"))
    for (const auto& [prefix, kind] : kKernels)
      if (kernel[0].get<std::string>().starts_with(prefix)) sums[kind] += kernel[2].get<double>();
  return sums;
}

costmodel::CommunicationReport report_of(const Run& run) {
  const costmodel::Step step = costmodel::compose_step(run.model, run.options, run.hardware);
  return communication_report(step, costmodel::predict(step));
}

Milliseconds predicted_kernels(const Run& run) {
  Milliseconds sums;
  for (const auto& entry : report_of(run).entries) {
    const std::string kind = entry.kind == "all_to_all" ? "send_recv" : entry.kind;
    sums[kind] += 1e3 * (entry.exposed + entry.hidden).to<double>();
  }
  return sums;
}

/// Computes Layout::dp from `num_gpus`.
planner::Run run_of(const char* model, const std::string& system, int num_gpus, const costmodel::Layout& layout) {
  const std::int64_t dp = num_gpus / (layout.tp * layout.pp);
  const nlohmann::json json{{"model", model},      {"system", system},         {"num_gpus", num_gpus},
                            {"precision", "bf16"}, {"dispatcher", "alltoall"}, {"global_batch", 4 * dp},
                            {"seq_len", 4096},     {"tp", layout.tp},          {"pp", layout.pp},
                            {"ep", layout.ep}};
  config::Diagnostics diagnostics;
  const config::Document document = config::Document::parse(json.dump(), "run.json");
  config::ObjectReader reader(document, diagnostics);
  planner::Run run = read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

/// Tier of the first entry of a kind.
std::string slowest(const planner::Run& run, const char* kind) {
  for (const auto& entry : report_of(run).entries)
    if (entry.kind == kind) return entry.tier;
  return "none";
}

/// Milliseconds. Kinds that take less are not compared.
constexpr double kSmallest = 2.0;
/// A step that exceeds the GPU's busy time by this factor waits for its host, and NCCL's kernels for the slowest rank.
constexpr double kWaiting = 1.12;

// Do NCCL's kernels take as long in a step as predicted, where nobody waits?
TEST(MeasuredSteps, CollectivesOfRankZeroAreWithinTwentyPercentOnAverage) {
  std::vector<double> errors;
  for (const char* file : {"h200x4_runs.json", "h200x4_te_runs.json"}) {
    for (const auto& run : load_runs(std::string(FW_ACCURACY_DIR) + "/runs/" + file).runs) {
      const auto& profile = run.json.at("measured").at("kernel_profile_rank0");
      const double busy = profile.at("busy_ms"), step = 1e3 * *run.measured.step_time_s, wall = profile.at("wall_ms");
      const double copies =
          profile.value("exposed_host_copy_ms", 0.0);  // The GPU is busy, but waits for the host link.
      const bool host_waits = step > kWaiting * (busy - copies) || wall > kWaiting * busy;
      const Milliseconds predicted = predicted_kernels(run);
      for (const auto& [kind, ms] : measured_kernels(run)) {
        const auto found = predicted.find(kind);
        if (ms < kSmallest || found == predicted.end()) continue;
        // A pipeline rank also waits for other stages, and EP overlap slows the exchange.
        const bool counts = !host_waits && run.options.pipeline.pp == 1 && !run.options.pipeline.overlaps.ep_a2a;
        const double error = found->second / ms - 1.0;
        if (counts) errors.push_back(std::abs(error));
        fmt::print("{:34} {:14} measured {:6.1f} ms, predicted {:6.1f}, {}\n", run.id, kind, ms, found->second,
                   counts ? fmt::format("{:+.0f} %", 100.0 * error)
                          : fmt::format("waiting {:.0f} %", 100.0 * std::max(0.0, 1.0 - found->second / ms)));
      }
    }
  }
  ASSERT_GT(errors.size(), 15U);
  double sum = 0.0;
  for (const double error : errors) sum += error;
  fmt::print("mean error {:.1f} % of {} kinds\n", 100.0 * sum / static_cast<double>(errors.size()), errors.size());
  EXPECT_LT(sum / static_cast<double>(errors.size()), 0.20);
}

// Do layouts of one model come out in their measured order, whichever loss of those that Megatron's command line
// accepts ran (rule ce.te; the source does not say)? With the native loss, the second one's unknown fifth
// (docs/accuracy.md) leaves it level with the first.
TEST(MeasuredSteps, LayoutsOfQwen3ComeOutInTheirMeasuredOrder) {
  using costmodel::CrossEntropy;
  const RunList zoo = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/model_zoo_runs.json");
  ASSERT_EQ(zoo.runs.size(), 3U);
  EXPECT_EQ(zoo.runs.front().options.layer.software.cross_entropy, CrossEntropy::kUnfused);  // Megatron's default.
  for (const CrossEntropy loss : {CrossEntropy::kUnfused, CrossEntropy::kNative})
    for (const bool fused_permute : {false, true}) {
      std::vector<double> measured, predicted;
      for (planner::Run run : zoo.runs) {
        run.options.layer.software.cross_entropy = loss;
        run.options.layer.software.fused_permute = fused_permute;
        measured.push_back(run.measured.step_time_s.value());
        predicted.push_back(costmodel::predict(run.model, run.options, run.hardware).step_time.to<double>());
      }
      EXPECT_TRUE(std::ranges::is_sorted(measured));
      if (loss == CrossEntropy::kNative) predicted[1] *= 1.02;  // The first two are level.
      EXPECT_TRUE(std::ranges::is_sorted(predicted)) << testing::PrintToString(predicted);
    }
}

// Do all parts of a report add up, also where Megatron-FSDP gathers and reduces?
TEST(CommunicationReport, ExposesWhatTheBreakdownExposes) {
  RunList zoo = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/model_zoo_runs.json");
  ASSERT_EQ(zoo.runs.size(), 3U);
  const RunList published = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/published_runs.json");
  const auto fsdp = std::ranges::find(published.runs, "folding-t3-qwen2-57b-a14b-fsdp-ep-64g", &Run::id);
  ASSERT_NE(fsdp, published.runs.end());
  for (const costmodel::Sharding sharding : {costmodel::Sharding::kFsdp, costmodel::Sharding::kFsdpOptimGrads}) {
    zoo.runs.push_back(*fsdp);
    zoo.runs.back().options.step.sharding = sharding;
  }
  for (const auto& run : zoo.runs) {
    const costmodel::Step step = costmodel::compose_step(run.model, run.options, run.hardware);
    const costmodel::Prediction p = costmodel::predict(step);
    const costmodel::CommunicationReport report = communication_report(step, p);
    Seconds exposed{};
    for (const auto& entry : report.entries) exposed += entry.exposed;
    EXPECT_NEAR(exposed / p.breakdown.exposed_communication, 1.0, 0.01) << run.id;
    ASSERT_FALSE(report.links.empty());
    EXPECT_LT(report.links.front().busy(), p.step_time);
  }
}
// Do the links carry both directions of a pipeline: a stage a node, so that nothing else leaves it?
TEST(CommunicationReport, RoutesTransfersBetweenStages) {
  RunList zoo = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/model_zoo_runs.json");
  auto& run = zoo.runs.front();
  run.options.set_layout({.tp = 8, .cp = 1, .dp = 1, .pp = 2, .vpp = 1, .ep = 8, .etp = 1});
  run.options.pipeline.layout.clear();
  run.options.pipeline.global_batch = 8 * run.options.layer.micro_batch;
  const costmodel::CommunicationReport report = report_of(run);
  const auto transfers = std::ranges::find(report.entries, "pp", &costmodel::CommunicationEntry::group);
  const auto nic = std::ranges::find(report.links, "infiniband", &costmodel::LinkLoad::tier);
  ASSERT_NE(transfers, report.entries.end());
  ASSERT_NE(nic, report.links.end());
  EXPECT_EQ(transfers->tier, "nic");
  EXPECT_DOUBLE_EQ(nic->bytes / transfers->bytes, 1.0);
}
TEST(CommunicationReport, NamesTheNicWhereExpertsSpanNodesAndNvlinkWhereNot) {
  const RunList zoo = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/model_zoo_runs.json");
  EXPECT_EQ(slowest(zoo.runs[0], "dispatch"), "nic");       // EP 32 on nodes of 8.
  EXPECT_EQ(slowest(zoo.runs[1], "all_to_all"), "nvlink");  // EP 8.
  EXPECT_EQ(slowest(zoo.runs[2], "dispatch"), "nvlink");
  // EP 6 of 60 experts: the first group lies in one node, the second in two, if the job has a second one.
  EXPECT_EQ(slowest(run_of("qwen1.5-moe-a2.7b", "h100-sxm-80gb", 24, {.ep = 6}), "all_to_all"), "nic");
  EXPECT_EQ(slowest(run_of("qwen1.5-moe-a2.7b", "h100-sxm-80gb", 6, {.ep = 6}), "all_to_all"), "nvlink");
}

// Does every size of job have a report, also where its last NVLink domain is not full or groups straddle domains, and
// is no link busy for longer than the step?
TEST(CommunicationReport, IsThereForEverySizeOfJob) {
  const std::map<std::string, std::vector<int>> systems{{"h100-sxm-80gb", {4, 9, 10, 12, 14, 18, 20, 24, 28}},
                                                        {"gb200-nvl72", {72, 96, 144, 216}}};
  for (const auto& [system, sizes] : systems)
    for (const int num_gpus : sizes)
      for (const int tp : {1, 2, 4})
        for (const int pp : {1, 2, 3, 4, 6})
          for (const int ep : {1, 4, 16}) {
            const int dp = num_gpus / (tp * pp);
            if (dp * tp * pp != num_gpus || dp * tp % ep != 0) continue;
            const planner::Run run = run_of("mini-qwen3-moe-12l", system, num_gpus, {.tp = tp, .pp = pp, .ep = ep});
            const std::string id = fmt::format("{} {} TP{} PP{} EP{}", num_gpus, system, tp, pp, ep);
            const costmodel::Step step = costmodel::compose_step(run.model, run.options, run.hardware);
            const costmodel::Prediction p = costmodel::predict(step);
            const costmodel::CommunicationReport report = communication_report(step, p);
            ASSERT_FALSE(report.links.empty()) << id;
            EXPECT_LT(report.links.front().busy(), p.step_time) << id;
          }
}

// Does it see what stands besides the decoder layers? Of layers with experts and TP 4, MTP's projection alone adds up
// more than 13,000 features (2 x 7168).
TEST(BeyondFit, SeesMtp) {
  hwprofiles::Profile profile = hwprofiles::load_profile("h200");
  profile.fits = {{"/gemm/bf16", {.samples = 1, .range = {{"k", {1.0, 13'000.0}}}}}};
  costmodel::ModelSpec model = load_model("deepseek-v3");
  model.layers.assign(4, model.layers.back());
  model.vocab_size = 16'384;
  costmodel::TrainingOptions options = usual_options();
  options.set_layout({.tp = 4, .cp = 1, .dp = 2, .pp = 1, .vpp = 1, .ep = 8, .etp = 1});
  options.pipeline.global_batch = 4;
  const std::vector<std::string> lines = beyond_fit(costmodel::compose_step(model, options, profile.hardware), profile);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines.front().find("eh_proj"), std::string::npos) << lines.front();
  model.mtp_num_layers = 0;
  EXPECT_TRUE(beyond_fit(costmodel::compose_step(model, options, profile.hardware), profile).empty());
}

}  // namespace
}  // namespace foldwise::planner::communication_test

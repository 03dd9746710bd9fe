// Do the published memory figures of DeepSeek-V3 come out of the op list, and does
// benchmarks/accuracy/memory-published.md say how far off each is?
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "costmodel/ops/block_ops.h"
#include "costmodel/step/composition.h"
#include "costmodel/step/prediction.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "tests/usual_options.h"

namespace foldwise::planner::published_memory_test {
namespace {

using costmodel::Composition;
using costmodel::Precision;
using costmodel::RecomputeGranularity;
using costmodel::RecomputeModule;
using costmodel::StepContext;
using costmodel::TrainingOptions;

const costmodel::ModelSpec& deepseek() {
  static const costmodel::ModelSpec model = load_model("deepseek-v3");
  return model;
}

const costmodel::Hardware& gb200() {
  static const costmodel::Hardware hardware = hwprofiles::load_profile("gb200-nvl72").hardware;
  return hardware;
}

// Conditions of the table: BF16, 256 GPUs, PP 4, VPP 4, EP 64; 4096 tokens per micro-batch as in the recipes.
TrainingOptions published_run() {
  TrainingOptions o = usual_options();
  o.set_layout({.tp = 1, .cp = 1, .dp = 64, .pp = 4, .vpp = 4, .ep = 64, .etp = 1});
  o.pipeline.global_batch = 8192;
  o.pipeline.layout = "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|tmL";
  return o;
}

TrainingOptions recomputing(std::initializer_list<RecomputeModule> modules) {
  TrainingOptions o = published_run();
  o.set_recompute({.granularity = RecomputeGranularity::kSelective, .modules = modules});
  return o;
}

TrainingOptions in_precision(Precision precision) {
  TrainingOptions o = published_run();
  o.layer.precision = precision;
  return o;
}

// The report's run on GB200: MXFP8, bf16 states, --offload-optimizer-states.
TrainingOptions offloading_states() {
  TrainingOptions o = in_precision(Precision::kMxfp8);
  o.step.optimizer.precision_aware = true;
  o.step.optimizer.exp_avg = o.step.optimizer.exp_avg_sq = costmodel::DataType::kBf16;
  o.step.offload.optimizer_states = true;
  return o;
}

Composition composed(const TrainingOptions& o) {
  const StepContext context{deepseek(), o, gb200()};
  const costmodel::ModelKinds kinds = costmodel::model_kinds(deepseek());
  return compose(context, kinds, model_costs(context, kinds), stage_layout(deepseek(), o));
}

// Bytes that one micro-batch keeps for backward in all 61 decoder layers.
Bytes kept_by_all_layers(const TrainingOptions& o) {
  const StepContext context{deepseek(), o, gb200()};
  const costmodel::ModelKinds kinds = costmodel::model_kinds(deepseek());
  const costmodel::ModelCosts costs = model_costs(context, kinds);
  Bytes sum{};
  for (std::size_t kind = 0; kind < kinds.kinds.size(); ++kind)
    sum += static_cast<double>(kinds.prefix[kind].back()) * costs.covered[kind].memory.kept;
  return sum;
}

// Largest sum of bytes kept for backward by the chunks in flight on the first rank.
Bytes kept_in_flight(const TrainingOptions& o) {
  const Composition c = composed(o);
  const costmodel::PeakTable peaks = costmodel::peak_table(c.times.shape, 0);
  const auto vpp = static_cast<std::size_t>(o.pipeline.vpp), pp = static_cast<std::size_t>(o.pipeline.pp);
  Bytes most{};
  for (std::size_t moment = 0; moment < peaks.running.size(); ++moment) {
    Bytes sum{};
    for (std::size_t chunk = 0; chunk < vpp; ++chunk)
      sum += peaks.counts[moment * vpp + chunk] * c.stage(chunk * pp).cost.memory.kept;
    most = std::max(most, sum);
  }
  return most;
}

// Bytes that unpermutation would keep if probabilities were applied after the experts: the experts' output, in MoE
// layers.
Bytes expert_outputs(double layers) {
  const costmodel::RankShape shape = rank_shape(deepseek(), published_run().layer);
  return Bytes{2.0 * shape.routed_rows * static_cast<double>(deepseek().hidden_size) * layers};
}

struct Ours {                                ///< The two columns of the document.
  double all_layers = 0.0, in_flight = 0.0;  ///< GiB; equal for rows that are not about activations.
};

Ours saving(const TrainingOptions& changed) {
  return {in_gib(kept_by_all_layers(published_run()) - kept_by_all_layers(changed)),
          in_gib(kept_in_flight(published_run()) - kept_in_flight(changed))};
}

// Each row of the document's table, computed.
std::map<std::string, Ours> computed() {
  const TrainingOptions o = published_run();
  const Composition c = composed(o);
  const StepContext context{deepseek(), o, gb200()};
  const costmodel::StaticBytes fixed = static_bytes(context, c.parameters[1]);  // 16 MoE layers: ranks 1 and 2.
  const double weights = in_gib(fixed.parameters + fixed.gradients), optimizer = in_gib(fixed.optimizer),
               permuted = in_gib(expert_outputs(58.0)), all = in_gib(kept_by_all_layers(o)) + permuted,
               flight = in_gib(kept_in_flight(o));
  const double predicted = in_gib(costmodel::predict(deepseek(), o, gb200()).memory[0].activations);
  EXPECT_NEAR(predicted / flight, 1.0, 0.06);  // The rest is allocated within the running chunk.
  const double states = in_gib(static_bytes({deepseek(), offloading_states(), gb200()}, c.parameters[1]).returning);
  using RM = RecomputeModule;
  return {{"weights+grads", {weights, weights}},
          {"fp32 main weights+optimizer state", {optimizer, optimizer}},
          {"activations", {all, flight}},
          {"total", {weights + optimizer + all, weights + optimizer + flight}},
          {"MLA up-projection", saving(recomputing({RM::kMlaUpProj}))},
          {"SwiGLU activation", saving(recomputing({RM::kMoeAct}))},
          {"LayerNorm", saving(recomputing({RM::kLayerNorm}))},
          {"all three", saving(recomputing({RM::kMlaUpProj, RM::kMoeAct, RM::kLayerNorm}))},
          // 58 MoE layers. The first rank has 19 chunks of 4 layers in flight, 7 of them with three dense layers.
          {"memory-efficient permutation, DSv3", {permuted, in_gib(expert_outputs(76.0 - 21.0))}},
          {"FP8 training, activation saving DSv3", saving(in_precision(Precision::kMxfp8))},
          {"optimizer-state CPU offload on GB200", {states, states}}};
}

std::map<std::string, double> published() {
  std::ifstream file(FW_DATA_DIR "/kernels/published_kernels.json");
  std::map<std::string, double> lines;
  const nlohmann::json all = nlohmann::json::parse(file);
  for (const auto& entry : all.is_array() ? all : all["entries"]) {
    const std::string id = entry["id"];
    if (id != "mcore-report-memory-breakdown" && id != "mcore-report-recompute-savings" &&
        id != "mcore-report-misc-ablation")
      continue;
    for (const auto& row : entry["rows"]) {
      const std::string name = row.contains("component")   ? row["component"]
                               : row.contains("recompute") ? row["recompute"]
                                                           : row["item"];
      for (const char* key : {"gb", "saved_gb", "saved_gb_approx"})
        if (row.contains(key)) lines[name] = row[key];
      if (row.contains("saved_gb_range")) lines[name] = row["saved_gb_range"][1];
    }
  }
  return lines;
}

struct Row {
  std::string line;
  std::vector<double> numbers;  ///< The published number, then ours twice, each with its deviation in percent.
  std::string reason;
};

std::vector<Row> documented() {
  std::ifstream file(FW_ACCURACY_DIR "/memory-published.md");
  std::vector<Row> rows;
  std::size_t seen = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| ", 0) != 0 || ++seen <= 2) continue;
    std::istringstream in(line.substr(2));
    std::vector<std::string> cells;
    for (std::string cell; std::getline(in, cell, '|');) cells.push_back(cell);
    EXPECT_GE(cells.size(), 7U) << line;
    Row row;
    row.line = cells[0].substr(0, cells[0].find_last_not_of(' ') + 1);
    for (std::size_t i = 1; i <= 5; ++i) row.numbers.push_back(std::strtod(cells[i].c_str(), nullptr));
    row.reason = cells[6].find_first_not_of(' ') == std::string::npos ? "" : cells[6];
    rows.push_back(row);
  }
  return rows;
}

TEST(PublishedMemory, TheDocumentHoldsEveryLineWithOurNumbers) {
  const auto ours = computed();
  const auto theirs = published();
  const std::vector<Row> rows = documented();
  EXPECT_EQ(rows.size(), theirs.size());
  for (const Row& row : rows) {
    ASSERT_TRUE(ours.count(row.line) == 1 && theirs.count(row.line) == 1) << row.line;
    const double line = theirs.at(row.line);
    const Ours& mine = ours.at(row.line);
    EXPECT_DOUBLE_EQ(row.numbers[0], line) << row.line;
    EXPECT_NEAR(row.numbers[1] / mine.all_layers, 1.0, 0.01) << row.line << ' ' << mine.all_layers;
    EXPECT_NEAR(row.numbers[2], 100.0 * (mine.all_layers / line - 1.0), 1.0) << row.line;
    EXPECT_NEAR(row.numbers[3] / mine.in_flight, 1.0, 0.01) << row.line << ' ' << mine.in_flight;
    EXPECT_NEAR(row.numbers[4], 100.0 * (mine.in_flight / line - 1.0), 1.0) << row.line;
    const bool far = std::max(std::abs(row.numbers[2]), std::abs(row.numbers[4])) > 5.0;
    EXPECT_TRUE(!far || !row.reason.empty()) << row.line;
  }
}

// Seconds that the report states for offloading of states, compared with ours.
TEST(PublishedMemory, OffloadedStatesTakeWhatTheDocumentSays) {
  const TrainingOptions with = offloading_states();
  TrainingOptions without = with;
  without.step.offload = {};
  const auto added = (costmodel::predict(deepseek(), with, gb200()).step_time -
                      costmodel::predict(deepseek(), without, gb200()).step_time)
                         .to<double>();
  std::ifstream file(FW_ACCURACY_DIR "/memory-published.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}}, before = "Ours adds ";
  const std::size_t at = text.find(before);
  ASSERT_NE(at, std::string::npos);
  EXPECT_NEAR(std::strtod(text.c_str() + at + before.size(), nullptr), added, 0.005);
}

}  // namespace
}  // namespace foldwise::planner::published_memory_test

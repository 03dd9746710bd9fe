// Where does Megatron's own memory estimator (theoretical_memory_usage.py) agree with us, and does the named cause
// explain the difference where it does not? benchmarks/accuracy/megatron-estimator.md is the table of these cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "costmodel/ops/block_ops.h"
#include "costmodel/step/composition.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "tests/usual_options.h"

namespace foldwise::planner::estimator_test {
namespace {

using costmodel::LayerSpec;
using costmodel::ModelSpec;
using costmodel::ParameterCount;
using costmodel::StepContext;
using costmodel::TrainingOptions;
using nlohmann::json;

const std::vector<json>& cases() {
  static const std::vector<json> list = [] {
    std::ifstream file(FW_GOLDEN_DIR "/memory_cases.json");
    return json::parse(file)["cases"].get<std::vector<json>>();
  }();
  return list;
}

const costmodel::Hardware& h100() {
  static const costmodel::Hardware hardware = hwprofiles::load_profile("h100-sxm-80gb").hardware;
  return hardware;
}

double number(const json& object, const char* key, double otherwise = 0.0) {
  return object[key].is_number() ? object[key].get<double>() : otherwise;
}

ModelSpec model_of(const json& test) {
  const std::string name = test["model"];
  const bool without_mtp = name == "deepseek-v3-nomtp";
  ModelSpec model = load_model(without_mtp ? "deepseek-v3" : name);
  if (without_mtp) model.mtp_num_layers = 0;
  model.vocab_size = test["layout"]["padded_vocab_size"];
  return model;
}

TrainingOptions options_of(const json& test) {
  const json& l = test["layout"];
  TrainingOptions o = usual_options();
  o.set_layout({.tp = l["tensor_model_parallel_size"],
                .cp = l["context_parallel_size"],
                .dp = l["data_parallel_size"],
                .pp = l["pipeline_model_parallel_size"],
                .ep = l["expert_model_parallel_size"],
                .etp = l["expert_tensor_parallel_size"]});
  o.pipeline.global_batch = o.step.dp * 64;
  o.layer.seq_len = l["seq_length"];
  o.step.sharding = l["use_distributed_optimizer"].get<bool>() ? costmodel::Sharding::kDdpDistributedOptimizer
                                                               : costmodel::Sharding::kDdp;
  return o;
}

// bf16 weight 2, fp32 gradient 4, fp32 master and Adam's states 12 over `shards` ranks.
double bytes_per_parameter(const TrainingOptions& o, std::int64_t shards) {
  return o.step.sharding == costmodel::Sharding::kDdp ? 18.0 : 6.0 + 12.0 / static_cast<double>(shards);
}

// The shard that the estimator calls the most loaded: 1 / PP of all decoder layers, every MTP layer, one embedding
// table, and without a pipeline the output layer. Counted from our op lists.
ParameterCount estimators_shard(const ModelSpec& model, const TrainingOptions& o) {
  const StepContext context{model, o, h100()};
  ParameterCount count;
  const auto add = [&](const ParameterCount& more, double times) {
    count.dense += times * more.dense;
    count.expert += times * more.expert;
  };
  const auto layer = [&](const LayerSpec& spec) {
    ParameterCount both = costmodel::parameters(mixer_ops(context.layer(), spec));
    both += costmodel::parameters(mlp_ops(context.layer(), spec));
    return both;
  };
  const double share = 1.0 / static_cast<double>(o.pipeline.pp);
  for (const LayerSpec& spec : model.layers) add(layer(spec), share);
  for (std::int64_t depth = 0; depth < model.mtp_num_layers; ++depth) {
    add(costmodel::parameters(mtp_ops(context.layer())), 1.0);
    for (const LayerSpec& spec : model.mtp_layers) add(layer(spec), 1.0);
  }
  add(costmodel::parameters(embedding_ops(context.layer())), 1.0);
  if (o.pipeline.pp == 1) add(costmodel::parameters(head_ops(context.layer(), 1)), 1.0);
  return count;
}

double our_bytes(const ParameterCount& count, const TrainingOptions& o) {
  return count.dense * bytes_per_parameter(o, o.layout().dp_cp()) +
         count.expert * bytes_per_parameter(o, o.layout().edp());
}

// Difference of Megatron minus ours by cause, computed from the case's arguments alone.
std::map<std::string, double> causes(const json& test, const TrainingOptions& o, const ParameterCount& ours) {
  const json& a = test["args"];
  const double h = a["hidden_size"], heads = a["num_attention_heads"], layers = a["num_layers"],
               experts = number(a, "num_experts"), mtp = number(a, "mtp_num_layers"), head_dim = a["kv_channels"];
  const auto tp = static_cast<double>(o.layer.tp), pp = static_cast<double>(o.pipeline.pp);
  const double dense = bytes_per_parameter(o, o.step.dp), expert = bytes_per_parameter(o, o.layout().edp());
  const bool mla = a["multi_latent_attention"], biases = a["add_bias_linear"];
  const double q = heads * head_dim, kv = number(a, "num_query_groups", heads) * head_dim;
  std::map<std::string, double> result;
  // Dense states are sharded over DP x CP; the estimator divides by DP.
  if (o.layer.cp > 1 && o.step.sharding != costmodel::Sharding::kDdp)
    result["CP"] = ours.dense * (dense - bytes_per_parameter(o, o.layout().dp_cp()));
  // The final norm is on the last stage. The estimator distributes it over all. Without a pipeline it is on the shard.
  if (pp > 1.0) result["final norm"] = h / pp * dense;
  if (a["qk_layernorm"].get<bool>() && !mla) result["QK norms"] = -layers / pp * 2.0 * head_dim * dense;
  if (a["add_qkv_bias"].get<bool>()) result["QKV biases"] = -layers / pp * (q + 2.0 * kv) / tp * dense;
  if (biases) {
    const double width = number(a, "moe_ffn_hidden_size");
    result["other biases"] =
        -layers / pp * (h * dense + (2.0 * width + h) * experts / static_cast<double>(o.layer.ep) * expert);
  }
  if (a["softmax_type"] == "learnable") result["sinks"] = -layers / pp * heads / tp * dense;
  if (mla && tp > 1.0) {
    const double q_lora = number(a, "q_lora_rank"), kv_lora = number(a, "kv_lora_rank"),
                 rope = number(a, "qk_pos_emb_head_dim");
    const double down = q_lora * h + (kv_lora + rope) * h + q_lora + kv_lora;
    result["MLA down projections"] = -(layers / pp + mtp) * down * (1.0 - 1.0 / tp) * dense;
  }
  // Projection of two concatenated hidden states, with two input norms and the final norm of the depth.
  if (mtp > 0.0) result["MTP projection"] = -mtp * (2.0 * h * h / tp + 3.0 * h) * dense;
  return result;
}

TEST(Estimator, CasesAreOfTheModelsThatWeHave) {
  for (const json& test : cases()) {
    const ModelSpec model = model_of(test);
    EXPECT_EQ(model.hidden_size, test["args"]["hidden_size"].get<std::int64_t>()) << test["model"];
    EXPECT_EQ(model.num_layers(), test["args"]["num_layers"].get<std::int64_t>()) << test["model"];
    EXPECT_EQ(padded_vocab_size(model, options_of(test).layer.tp), model.vocab_size) << test["model"];
    EXPECT_EQ(options_of(test).layout().world(), test["layout"]["world_size"].get<std::int64_t>()) << test["model"];
    EXPECT_EQ(options_of(test).layout().edp(), test["layout"]["expert_data_parallel_size"].get<std::int64_t>());
  }
}

// Both counts are exact; bytes are multiples of 12 / shards, so that a byte is far below one parameter.
TEST(Estimator, EqualsOursOrDiffersByTheNamedCauses) {
  std::size_t equal = 0;
  for (const json& test : cases()) {
    const TrainingOptions o = options_of(test);
    const ParameterCount ours = estimators_shard(model_of(test), o);
    const auto named = causes(test, o, ours);
    double difference = 0.0;
    for (const auto& [cause, bytes] : named) difference += bytes;
    const double megatron = test["weight_and_optimizer_bytes"];
    EXPECT_NEAR(megatron - our_bytes(ours, o), difference, 1.0) << test["model"] << ' ' << test["layout"];
    if (named.empty()) ++equal;
  }
  EXPECT_EQ(equal, 2U);  // llama3-8b and deepseek-v2-lite, on one pipeline stage without CP.
}

// The shard is a real rank (the first one, without the share of the final norm) if PP divides the layers and there is
// no MTP layer. Our memory model then charges that rank the sum above, except for buffer padding.
TEST(Estimator, ShardIsOurFirstRankWhereTheLayersDivide) {
  std::size_t compared = 0;
  for (const json& test : cases()) {
    const ModelSpec model = model_of(test);
    TrainingOptions o = options_of(test);
    const bool kinds_spread = test["args"]["moe_layer_freq"].is_array();
    if (model.num_layers() % o.pipeline.pp != 0 || model.mtp_num_layers > 0 || (kinds_spread && o.pipeline.pp > 1))
      continue;
    ++compared;
    const StepContext context{model, o, h100()};
    const costmodel::ModelKinds kinds = costmodel::model_kinds(model);
    const costmodel::Composition c = compose(context, kinds, model_costs(context, kinds), stage_layout(model, o));
    const ParameterCount shard = estimators_shard(model, o);
    EXPECT_NEAR(c.parameters[0].dense, shard.dense, 1e-3) << test["model"];
    EXPECT_NEAR(c.parameters[0].expert, shard.expert, 1e-3) << test["model"];
    const costmodel::StaticBytes bytes = static_bytes(context, c.parameters[0]);
    // Unsharded masters are separate tensors. The caching allocator rounds them up, which the estimator ignores.
    const double rounding = (o.layout().dp_cp() == 1 ? c.parameters[0].dense_rounding : 0.0) +
                            (o.layout().edp() == 1 ? c.parameters[0].expert_rounding : 0.0);
    const auto sum = (bytes.parameters + bytes.gradients + bytes.optimizer).to<double>() - rounding;
    EXPECT_NEAR(sum / our_bytes(shard, o), 1.0, 1e-3) << test["model"];
  }
  EXPECT_EQ(compared, 10U);  // Not 126 and 94 layers over 8 stages, nor 61 over 16.
}

// Rows of the document's first table: case, Megatron's GiB, ours, difference, causes.
std::vector<std::vector<std::string>> documented_rows() {
  std::ifstream file(FW_ACCURACY_DIR "/megatron-estimator.md");
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| ", 0) != 0) continue;
    std::vector<std::string> cells;
    std::istringstream in(line.substr(2));
    for (std::string cell; std::getline(in, cell, '|');) {
      cell.erase(0, cell.find_first_not_of(' '));
      cell.erase(cell.find_last_not_of(' ') + 1);
      cells.push_back(cell);
    }
    rows.push_back(cells);
  }
  rows.erase(rows.begin(), rows.begin() + std::min<std::ptrdiff_t>(2, std::ssize(rows)));  // Titles and the line below.
  return rows;
}

TEST(Estimator, TheDocumentedTableHoldsTheseNumbers) {
  const auto rows = documented_rows();
  ASSERT_EQ(rows.size(), cases().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& test = cases()[i];
    const TrainingOptions o = options_of(test);
    const ParameterCount ours = estimators_shard(model_of(test), o);
    const auto named = causes(test, o, ours);
    const double megatron = test["weight_and_optimizer_bytes"], mine = our_bytes(ours, o);
    std::string text;
    for (const auto& [cause, bytes] : named)
      text += fmt::format("{}{} {:+.3f}", text.empty() ? "" : ", ", cause, 1024.0 * bytes / kGib);
    const std::vector<std::string> expected = {
        test["model"].get<std::string>(), fmt::format("{:.3f}", megatron / kGib), fmt::format("{:.3f}", mine / kGib),
        text.empty() ? "equal" : fmt::format("{:+.3f}", 1024.0 * (megatron - mine) / kGib), text};
    ASSERT_EQ(rows[i].size(), expected.size() + 1) << fmt::format("{}", i);  // Model, then layout.
    EXPECT_EQ(rows[i][0], expected[0]);
    for (std::size_t cell = 1; cell < expected.size(); ++cell) EXPECT_EQ(rows[i][cell + 1], expected[cell]);
  }
}

}  // namespace
}  // namespace foldwise::planner::estimator_test

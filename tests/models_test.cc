#include "planner/models/models.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/ops/block_ops.h"

namespace foldwise::models_test {

using foldwise::config::ConfigError;
using foldwise::config::Diagnostics;
using foldwise::config::Document;
using foldwise::costmodel::CompressedSpec;
using foldwise::costmodel::GatedDeltaNetSpec;
using foldwise::costmodel::GqaSpec;
using foldwise::costmodel::kNoMixer;
using foldwise::costmodel::LayerSpec;
using foldwise::costmodel::LightningSpec;
using foldwise::costmodel::MambaSpec;
using foldwise::costmodel::megatron_flops;
using foldwise::costmodel::Mixer;
using foldwise::costmodel::MlaSpec;
using foldwise::costmodel::MlpKind;
using foldwise::costmodel::ModelSpec;
using foldwise::costmodel::padded_vocab_size;
using foldwise::planner::built_in_model_text;
using foldwise::planner::built_in_models;
using foldwise::planner::load_model;
using nlohmann::json;

namespace {

const std::string inputs = FW_INVALID_INPUTS_DIR "/";

std::string complaint_about(const std::string& path, const json* overrides = nullptr) {
  try {
    (void)load_model(path, overrides);
  } catch (const ConfigError& error) {
    std::string text = error.what();
    for (std::size_t at = 0; (at = text.find(inputs, at)) != std::string::npos;) text.erase(at, inputs.size());
    return text;
  }
  return "(read without complaint)";
}

std::string complaint_about_file(const std::string& file) { return complaint_about(inputs + file); }

std::string complaint_about_overrides(const std::string& name, const json& overrides) {
  return complaint_about(name, &overrides);
}

ModelSpec with_overrides(const std::string& name, const json& overrides) { return load_model(name, &overrides); }

const json& flops_cases() {
  static const json cases = [] {
    std::ifstream in(FW_GOLDEN_DIR "/flops_cases.json");
    return json::parse(in).at("cases");
  }();
  return cases;
}

std::int64_t whole(const json& args, const char* key) {
  return args.at(key).is_null() ? 0 : args.at(key).get<std::int64_t>();
}

/// The model described by Megatron's arguments, without use of the Hugging Face reader.
ModelSpec from_megatron_args(const json& args) {
  ModelSpec model;
  model.hidden_size = whole(args, "hidden_size");
  model.ffn_hidden_size = whole(args, "ffn_hidden_size");
  model.swiglu = model.gated_linear_unit = args.at("swiglu").get<bool>();
  model.vocab_size = whole(args, "vocab_size");
  model.mtp_num_layers = whole(args, "mtp_num_layers");
  model.add_bias_linear = model.router_bias = args.at("add_bias_linear").get<bool>();
  model.normalization = args.at("normalization") == "LayerNorm" ? foldwise::costmodel::Normalization::kLayerNorm
                                                                : foldwise::costmodel::Normalization::kRmsNorm;
  model.share_embeddings_and_output_weights = !args.at("untie_embeddings_and_output_weights").get<bool>();
  const std::int64_t heads = whole(args, "num_attention_heads");
  const bool mla = args.at("multi_latent_attention").get<bool>();
  const GqaSpec gqa = {
      .heads = heads,
      .query_groups = args.at("group_query_attention").get<bool>() ? whole(args, "num_query_groups") : heads,
      .head_dim = whole(args, "kv_channels"),
      .qkv_bias = args.at("add_qkv_bias").get<bool>(),
      .qk_layernorm = args.at("qk_layernorm").get<bool>(),
      .output_gate = args.at("attention_output_gate").get<bool>(),
      .learnable_softmax = args.at("softmax_type") == "learnable"};
  const MlaSpec latent = {.heads = heads,
                          .q_lora_rank = whole(args, "q_lora_rank"),
                          .kv_lora_rank = whole(args, "kv_lora_rank"),
                          .qk_head_dim = whole(args, "qk_head_dim"),
                          .qk_pos_emb_head_dim = whole(args, "qk_pos_emb_head_dim"),
                          .v_head_dim = whole(args, "v_head_dim"),
                          .qk_layernorm = args.at("qk_layernorm").get<bool>()};
  const MambaSpec mamba = {.heads = whole(args, "mamba_num_heads"),
                           .head_dim = whole(args, "mamba_head_dim"),
                           .state = whole(args, "mamba_state_dim"),
                           .groups = whole(args, "mamba_num_groups")};
  model.moe = {.experts = whole(args, "num_experts"),
               .topk = whole(args, "moe_router_topk"),
               .ffn_hidden_size = whole(args, "moe_ffn_hidden_size"),
               .shared_ffn_hidden_size = whole(args, "moe_shared_expert_intermediate_size"),
               .shared_gate = args.at("moe_shared_expert_gate").get<bool>(),
               .latent_size = whole(args, "moe_latent_size")};
  if (!args.at("hybrid_layer_pattern").is_null()) {
    model.hybrid = true;
    model.mixers = {mamba, gqa};
    for (const char symbol : args.at("hybrid_layer_pattern").get<std::string>())
      model.layers.push_back({.mixer = symbol == 'M'   ? 0
                                       : symbol == '*' ? 1
                                                       : kNoMixer,
                              .mlp = symbol == 'E'   ? MlpKind::kMoe
                                     : symbol == '-' ? MlpKind::kDense
                                                     : MlpKind::kNone});
    return model;
  }
  model.mixers = {mla ? Mixer(latent) : Mixer(gqa)};
  const json& frequency = args.at("moe_layer_freq");
  for (std::int64_t i = 0; i < whole(args, "num_layers"); ++i) {
    const bool moe = model.moe.experts > 0 && (frequency.is_array() ? frequency.at(static_cast<std::size_t>(i)) == 1
                                                                    : i % frequency.get<std::int64_t>() == 0);
    model.layers.push_back({.mixer = 0, .mlp = moe ? MlpKind::kMoe : MlpKind::kDense});
  }
  model.mtp_layers = {model.layers.back()};
  return model;
}

void expect_golden_flops(const ModelSpec& model, const json& golden) {
  const double s = golden.at("seq_length").get<double>(), batch = golden.at("global_batch_size").get<double>();
  const bool packed = golden.value("packed_thd", false);
  const double tokens = packed ? golden.at("total_real_tokens").get<double>() : batch * s;
  const double squared = packed ? golden.at("seqlen_squared_sum").get<double>() : batch * s * s;
  const double expected = golden.at("total_flops_per_global_batch").get<double>();
  EXPECT_NEAR(megatron_flops(model, tokens, squared) / expected, 1, 1e-9);
  EXPECT_NEAR(megatron_flops(model, tokens, squared) / tokens / golden.at("flops_per_token").get<double>(), 1, 1e-9);
  EXPECT_EQ(padded_vocab_size(model, 1), golden.at("padded_vocab_size").get<std::int64_t>());
}

template <typename Predicate>
std::int64_t count_layers(const ModelSpec& model, Predicate predicate) {
  return std::count_if(model.layers.begin(), model.layers.end(), predicate);
}

template <typename Spec>
bool has(const ModelSpec& model, const LayerSpec& layer) {
  return model.mixer(layer) != nullptr && std::holds_alternative<Spec>(*model.mixer(layer));
}

template <typename Spec>
std::int64_t count(const ModelSpec& model) {
  return count_layers(model, [&](const LayerSpec& layer) { return has<Spec>(model, layer); });
}

std::int64_t count(const ModelSpec& model, MlpKind kind) {
  return count_layers(model, [&](const LayerSpec& layer) { return layer.mlp == kind; });
}

}  // namespace

// --- golden: do we count the FLOPs that Megatron's num_floating_point_operations counts (executed, at the commit in
// the file)? Once for the model as Megatron's arguments describe it, once for the built-in model of the same name.
// -----------

TEST(MegatronFlops, AreThoseOfMegatronForEveryGoldenCase) {
  ASSERT_EQ(flops_cases().size(), 20U);
  for (const json& golden : flops_cases()) {
    SCOPED_TRACE(golden.at("model").get<std::string>() + " at sequence length " + golden.at("seq_length").dump());
    expect_golden_flops(from_megatron_args(golden.at("args")), golden);
  }
}

TEST(MegatronFlops, AreThoseOfMegatronForEveryBuiltInModelThatHasACase) {
  const std::vector<std::string> names = built_in_models();
  int compared = 0;
  for (const json& golden : flops_cases()) {
    const auto name = golden.at("model").get<std::string>();
    if (!std::binary_search(names.begin(), names.end(), name)) continue;
    SCOPED_TRACE(name);
    // Mixtral-8x22B: the case has the vocabulary of the Instruct release (32768), the built-in model that of the base
    // model.
    expect_golden_flops(with_overrides(name, {{"vocab_size", golden.at("args").at("vocab_size")}}), golden);
    compared += load_model(name).vocab_size == golden.at("args").at("vocab_size") ? 1 : 0;
  }
  EXPECT_EQ(compared, 17);  // All but deepseek-v3-nomtp, hybrid-synthetic-moe and the unchanged mixtral-8x22b.
}

TEST(MegatronFlops, OfTheCasesWithoutAModelOfTheirNameFollowFromOverrides) {
  for (const json& golden : flops_cases()) {
    if (golden.at("model") == "deepseek-v3-nomtp")
      expect_golden_flops(with_overrides("deepseek-v3", {{"num_nextn_predict_layers", 0}}), golden);
    if (golden.at("model") == "hybrid-synthetic-moe")  // Sizes of Nemotron-3-Nano.
      expect_golden_flops(load_model("nemotron-3-nano-30b-a3b"), golden);
  }
}

TEST(MegatronFlops, OfAModelWithLatentExpertsCountTheNarrowExpertsAndTheirProjections) {
  // Per token and MoE layer with h = 4096, latent 1024, fm 2688, k 22, shared 5376, two matrices (no gate), 2 FLOPs per
  // multiply-add and 3 passes: experts 6*2*1024*2688*22, shared 6*2*4096*5376, projections 6*2*4096*1024.
  const ModelSpec model = load_model("nemotron-3-super-120b-a12b");
  ModelSpec without = model;
  std::erase_if(without.layers, [](const LayerSpec& layer) { return layer.mlp == MlpKind::kMoe; });
  const auto moe_layers = static_cast<double>(count(model, MlpKind::kMoe));
  const double expected = 12.0 * 1024 * 2688 * 22 + 12.0 * 4096 * 5376 + 12.0 * 4096 * 1024;
  EXPECT_NEAR((megatron_flops(model, 1, 0) - megatron_flops(without, 1, 0)) / moe_layers / expected, 1, 1e-9);
}

TEST(MegatronFlops, OfLinearAttentionDoNotGrowWithTheSquareOfTheSequence) {
  // Qwen3-Next: 12 of 48 layers and the depth of multi-token prediction have full attention; C = 6 * heads * head_dim.
  const ModelSpec model = load_model("qwen3-next-80b-a3b");
  EXPECT_DOUBLE_EQ(megatron_flops(model, 0, 1), (12 + 1) * 6.0 * 16 * 256);
}

// Are the FLOPs of two batches of different lengths the sum of theirs?
RC_GTEST_PROP(MegatronFlops, OfTwoBatchesAreTheSumOfTheirs, ()) {
  const auto names = built_in_models();
  const auto name = *rc::gen::elementOf(names);
  if (name.rfind("deepseek-v4", 0) == 0) return;  // Its selection of keys depends on the sequence length.
  const ModelSpec model = load_model(name);
  const double tokens = *rc::gen::inRange(1, 1 << 20), more = *rc::gen::inRange(1, 1 << 20);
  const double both = megatron_flops(model, tokens + more, tokens * tokens + more * more);
  const double sum = megatron_flops(model, tokens, tokens * tokens) + megatron_flops(model, more, more * more);
  RC_ASSERT(std::abs(both / sum - 1) < 1e-12);
}

// --- Is the vocabulary padded as Megatron pads it?
// ---------------------------------------------------------------------

TEST(PaddedVocabSize, IsTheNextMultipleOfDivisorTimesTensorParallelSize) {
  ModelSpec model;
  model.vocab_size = 50304;  // 393 * 128
  EXPECT_EQ(padded_vocab_size(model, 1), 50304);
  EXPECT_EQ(padded_vocab_size(model, 2), 50432);  // 197 * 256
  model.make_vocab_size_divisible_by = 1280;
  EXPECT_EQ(padded_vocab_size(model, 8), 51200);  // 5 * 10240
}

// --- Do the weights on the op lists add up to the parameters that Megatron's modules create? Once for the model as
// Megatron's arguments describe it, once for the built-in model of the same name.
// ---------------------------------------------------------------------

void expect_golden_parameters(const ModelSpec& model, const json& golden) {
  const json& params = golden.at("params");
  const foldwise::costmodel::ParameterTotals totals = foldwise::costmodel::parameter_totals(model);
  const auto want = [&](const char* key, const char* hybrid_key) {
    return params.at(params.contains(key) ? key : hybrid_key).get<std::int64_t>();
  };
  EXPECT_EQ(totals.main_total, want("main_total", "total"));
  EXPECT_EQ(totals.main_active, want("main_active", "active"));
  EXPECT_EQ(totals.total_with_mtp, want("total_with_mtp", "total"));
  EXPECT_EQ(totals.active_with_mtp, want("active_with_mtp", "active"));
  EXPECT_EQ(totals.embedding_and_output, params.at("embedding_and_output").get<std::int64_t>());
}

TEST(Parameters, AreThoseOfMegatronForEveryGoldenCase) {
  const std::vector<std::string> names = built_in_models();
  int cases = 0, built_in = 0;
  for (const json& golden : flops_cases()) {
    if (!golden.contains("params")) continue;  // The packed case repeats another model.
    const std::string name = golden.at("model");
    SCOPED_TRACE(name);
    ++cases;
    expect_golden_parameters(from_megatron_args(golden.at("args")), golden);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    ++built_in;
    ModelSpec model = load_model(name);
    model.vocab_size = golden.at("padded_vocab_size");  // mixtral-8x22b: the case has the vocabulary of v0.3.
    expect_golden_parameters(model, golden);
  }
  EXPECT_EQ(cases, 19);
  EXPECT_GE(built_in, 16);
}

// _derived.total_params of each config counts matrices only, not norms, convolutions, sinks and MTP. A complete count
// is therefore slightly larger.
TEST(Parameters, AreCloseToTheDerivedTotalOfEveryBuiltInModel) {
  for (const std::string& name : built_in_models()) {
    const json config = json::parse(built_in_model_text(name));
    if (!config.contains("_derived")) continue;
    const double derived = config["_derived"]["total_params"];
    const foldwise::costmodel::ParameterTotals totals = foldwise::costmodel::parameter_totals(load_model(name));
    EXPECT_NEAR(static_cast<double>(totals.main_total) / derived, 1.0, 0.006) << name;
  }
}

// Are models of every family that we read as large as their publishers or Hugging Face's code make them, padding of the
// vocabulary aside?
TEST(Parameters, AreThoseOfPublishedConfigsOfEveryFamily) {
  std::ifstream in(FW_GOLDEN_DIR "/model_parameters.json");
  const json cases = json::parse(in).at("cases");
  for (const json& golden : cases) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    Diagnostics diagnostics;
    const ModelSpec model = foldwise::planner::read_huggingface(
        Document::parse(golden.at("config").dump(2), "config.json"), "x", diagnostics);
    ASSERT_TRUE(diagnostics.ok()) << (diagnostics.list().empty() ? "" : diagnostics.list().front().text());
    const double tables = model.share_embeddings_and_output_weights ? 1.0 : 2.0,
                 padding =
                     tables * static_cast<double>((padded_vocab_size(model, 1) - model.vocab_size) * model.hidden_size);
    const auto found = static_cast<double>(foldwise::costmodel::parameter_totals(model).main_total) - padding;
    EXPECT_NEAR(found / golden.at("parameters").get<double>(), 1.0, 1e-4);
  }
  EXPECT_GE(cases.size(), 47U);
}

// --- Does every built-in model read as the model it is?
// ----------------------------------------------------------------

TEST(BuiltInModels, AreSortedAndAllThere) {
  const std::vector<std::string> names = built_in_models();
  EXPECT_EQ(names.size(), 84U);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_THROW((void)built_in_model_text("gpt-5"), std::out_of_range);
}

TEST(BuiltInModels, AllLoadAndAreComplete) {
  for (const std::string& name : built_in_models()) {
    SCOPED_TRACE(name);
    ModelSpec model;
    ASSERT_NO_THROW(model = load_model(name)) << complaint_about(name);
    const json config = json::parse(built_in_model_text(name));
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(model.num_layers(), config.at("num_hidden_layers").get<std::int64_t>());
    EXPECT_EQ(model.hybrid, config.contains("hybrid_override_pattern"));
    EXPECT_EQ(model.has_moe(), count(model, MlpKind::kMoe) > 0);
    EXPECT_EQ(model.ffn_hidden_size > 0, count(model, MlpKind::kDense) > 0);
    EXPECT_GT(megatron_flops(model, 4096, 4096.0 * 4096), 0);
    if (!model.hybrid) {
      EXPECT_EQ(model.mtp_layers.size(), 1U);
      EXPECT_EQ(
          count_layers(model, [](const LayerSpec& l) { return l.mixer == kNoMixer; }) + count(model, MlpKind::kNone),
          0);
    }
  }
}

TEST(BuiltInModels, DeepSeekStartsWithDenseLayersAndHasNormsInItsLatentAttention) {
  const ModelSpec model = load_model("deepseek-v3");
  EXPECT_EQ(count<MlaSpec>(model), 61);
  EXPECT_EQ(count(model, MlpKind::kDense), 3);
  EXPECT_EQ(model.layers[2].mlp, MlpKind::kDense);
  EXPECT_EQ(model.layers[3].mlp, MlpKind::kMoe);
  EXPECT_TRUE(model.find<MlaSpec>()->qk_layernorm);
  EXPECT_EQ(model.find<MlaSpec>()->index_heads, 0);
  EXPECT_EQ(model.mtp_num_layers, 1);
  EXPECT_EQ(model.moe.shared_ffn_hidden_size, 2048);
  EXPECT_EQ(load_model("deepseek-v2").moe.shared_ffn_hidden_size, 2 * 1536);
  EXPECT_EQ(load_model("deepseek-v2-lite").find<MlaSpec>()->q_lora_rank, 0);
  EXPECT_EQ(load_model("kimi-k2").mtp_num_layers, 0);
  EXPECT_EQ(load_model("deepseek-v3.2").find<MlaSpec>()->index_topk, 2048);
  EXPECT_EQ(load_model("glm-5").find<MlaSpec>()->index_heads, 32);
}

TEST(BuiltInModels, DeepSeekV4MixesWindowedAndCompressedLayers) {
  const ModelSpec model = load_model("deepseek-v4-flash");
  const auto with_ratio = [&](std::int64_t ratio) {
    return count_layers(model,
                        [&](const LayerSpec& layer) { return layer.compress_ratio == ratio && layer.window == 127; });
  };
  EXPECT_EQ(with_ratio(0), 2);
  EXPECT_EQ(with_ratio(4), 21);
  EXPECT_EQ(with_ratio(128), 20);
  ASSERT_EQ(model.mtp_layers.size(), 1U);
  EXPECT_EQ(model.mtp_layers.front().compress_ratio, 0);
  EXPECT_EQ(model.find<CompressedSpec>()->residual_streams, 4);
  EXPECT_EQ(model.find<CompressedSpec>()->output_groups, 8);
}

TEST(BuiltInModels, GptOssHasBiasesSinksAndAWindowOnEverySecondLayer) {
  const ModelSpec model = load_model("gpt-oss-120b");
  EXPECT_TRUE(model.add_bias_linear && model.router_bias && model.find<GqaSpec>()->qkv_bias &&
              model.find<GqaSpec>()->learnable_softmax);
  EXPECT_EQ(model.layers[0].window, 127);
  EXPECT_EQ(model.layers[1].window, 0);
  EXPECT_EQ(count_layers(model, [](const LayerSpec& layer) { return layer.window == 127; }), 18);
}

TEST(BuiltInModels, QwenFamiliesDifferInNormsBiasesAndSharedExperts) {
  const ModelSpec second = load_model("qwen2-57b-a14b"), third = load_model("qwen3-235b-a22b");
  EXPECT_TRUE(second.find<GqaSpec>()->qkv_bias && second.moe.shared_gate && !second.find<GqaSpec>()->qk_layernorm);
  EXPECT_EQ(second.moe.shared_ffn_hidden_size, 20480);
  EXPECT_TRUE(!third.find<GqaSpec>()->qkv_bias && !third.moe.shared_gate && third.find<GqaSpec>()->qk_layernorm);
  EXPECT_EQ(third.moe.shared_ffn_hidden_size, 0);
  const ModelSpec next = load_model("qwen3-next-80b-a3b");
  EXPECT_TRUE(!next.hybrid && next.find<GqaSpec>()->output_gate && next.moe.shared_gate);
  EXPECT_EQ(count<GatedDeltaNetSpec>(next), 36);
  EXPECT_TRUE(has<GqaSpec>(next, next.layers[3]));
  EXPECT_EQ(next.mtp_num_layers, 1);
  EXPECT_TRUE(has<GqaSpec>(next, next.mtp_layers.front()));
}

TEST(BuiltInModels, OtherFamiliesKeepTheirPeculiarities) {
  const ModelSpec maverick = load_model("llama4-maverick-400b");
  EXPECT_EQ(maverick.layers[0].mlp, MlpKind::kDense);
  EXPECT_EQ(maverick.layers[1].mlp, MlpKind::kMoe);
  EXPECT_EQ(maverick.ffn_hidden_size, 16384);
  EXPECT_EQ(count(load_model("llama4-scout-109b"), MlpKind::kDense), 0);
  const ModelSpec m1 = load_model("minimax-m1");
  EXPECT_EQ(count<LightningSpec>(m1), 70);
  EXPECT_TRUE(has<GqaSpec>(m1, m1.layers[7]));
  EXPECT_EQ(load_model("minimax-m2").mtp_num_layers, 3);
  const ModelSpec super = load_model("nemotron-3-super-120b-a12b");
  EXPECT_TRUE(super.hybrid && super.mtp_use_repeated_layer && !super.gated_linear_unit);
  EXPECT_EQ(super.moe.latent_size, 1024);
  EXPECT_EQ(super.mtp_layers.size(), 2U);
  EXPECT_EQ(count<GqaSpec>(super), 8);
  EXPECT_EQ(count<MambaSpec>(super) + count(super, MlpKind::kMoe), 80);
  const ModelSpec gpt = load_model("gpt-462b"), nemotron4 = load_model("nemotron4-340b");
  EXPECT_TRUE(gpt.learned_position_embedding && gpt.share_embeddings_and_output_weights && !gpt.swiglu);
  EXPECT_TRUE(!nemotron4.learned_position_embedding && !nemotron4.add_bias_linear && !nemotron4.gated_linear_unit);
  EXPECT_EQ(load_model("dbrx").moe.experts, 16);
  EXPECT_TRUE(load_model("grok1-314b").gated_linear_unit);
  EXPECT_EQ(load_model("ling-1t").moe.shared_ffn_hidden_size, 2048);
  EXPECT_FALSE(load_model("glm-4.5-air").find<GqaSpec>()->qk_layernorm);
}

// --- Are configs read as Hugging Face publishes them, beside the ones we carry?
// ----------------------------------------

namespace {

ModelSpec read_text(const json& config) {
  Diagnostics diagnostics;
  ModelSpec model =
      foldwise::planner::read_huggingface(Document::parse(config.dump(2), "config.json"), "x", diagnostics);
  diagnostics.throw_if_any();
  return model;
}

std::string complaint_about_text(const json& config) {
  try {
    (void)read_text(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(PublishedConfigs, OfMultimodalModelsAreReadAtTheirTextConfig) {
  json config = json::parse(built_in_model_text("llama4-scout-109b"));
  ModelSpec expected = load_model("llama4-scout-109b");
  expected.name = "x";
  EXPECT_EQ(read_text({{"model_type", "llama4"}, {"text_config", config}, {"vision_config", json::object()}}),
            expected);
}

// Does a file have the sizes of its class in Transformers where it is silent: a whole file its key-value heads, a
// nested one any? Numbers of parameters: Mistral-7B-v0.1's and LLaVA-1.5-7B's language model (less 64 tokens) as
// published.
TEST(PublishedConfigs, HaveTheDefaultsOfTheirClass) {
  const ModelSpec mistral = read_text({{"model_type", "mistral"},
                                       {"hidden_size", 4096},
                                       {"intermediate_size", 14336},
                                       {"num_attention_heads", 32},
                                       {"num_hidden_layers", 32},
                                       {"vocab_size", 32000}});
  EXPECT_EQ(costmodel::parameter_totals(mistral).main_total, 7'241'732'096);
  const ModelSpec llava = read_text(
      {{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}}}, {"vision_config", json::object()}});
  EXPECT_EQ(costmodel::parameter_totals(llava).main_total, 6'738'415'616);
  EXPECT_THAT(fmt::format("{}", fmt::join(llava.notes.lines, "\n")),
              testing::HasSubstr("taken from its class in Transformers"));
}

TEST(PublishedConfigs, OfGptOssMayListTheirLayers) {
  json config = json::parse(built_in_model_text("gpt-oss-20b"));
  const ModelSpec by_default = read_text(config);
  config["layer_types"] = json::array();
  for (int i = 0; i < 24; ++i) config["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  config["experts_per_token"] = 4;
  EXPECT_EQ(read_text(config), by_default);
  config["layer_types"][3] = "sliding_attention";
  EXPECT_EQ(read_text(config).layers[3].window, 127);
}

TEST(PublishedConfigs, OfDbrxHaveNamesOfTheirOwn) {
  json config = json::parse(built_in_model_text("dbrx"));
  const ModelSpec with_aliases = read_text(config);
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "num_local_experts", "num_experts_per_tok"})
    config.erase(key);
  EXPECT_EQ(read_text(config), with_aliases);
  EXPECT_EQ(
      complaint_about_overrides("dbrx", {{"num_local_experts", 8}}),
      "built-in model dbrx:21: /ffn_config/moe_num_experts: moe_num_experts is 16, but num_local_experts is 8; they "
      "mean the same");
}

TEST(PublishedConfigs, OfQwenSayWhichLayersAreDense) {
  json config = json::parse(built_in_model_text("qwen3-30b-a3b"));
  config["mlp_only_layers"] = {0, 5};
  const ModelSpec model = read_text(config);
  EXPECT_EQ(count(model, MlpKind::kDense), 2);
  EXPECT_EQ(model.layers[5].mlp, MlpKind::kDense);
  EXPECT_EQ(model.ffn_hidden_size, 6144);
}

TEST(PublishedConfigs, OfDenseModelsMayHaveWindowsAndBiases) {
  json config = json::parse(built_in_model_text("llama3-8b"));
  config["model_type"] = "qwen2";
  config["sliding_window"] = 4096;
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 30;
  config.erase("attention_bias");
  const ModelSpec model = read_text(config);
  EXPECT_TRUE(model.find<GqaSpec>()->qkv_bias);
  EXPECT_EQ(count_layers(model, [](const LayerSpec& layer) { return layer.window == 4095; }), 2);
  EXPECT_EQ(model.layers[29].window, 0);
  EXPECT_EQ(model.layers[30].window, 4095);
}

// Is a file of a family that nobody knows read by its keys, if we know all of them, and refused else?
TEST(PublishedConfigs, OfUnknownFamiliesAreReadByTheirKeys) {
  json config = json::parse(built_in_model_text("qwen3-30b-a3b"));
  config["model_type"] = "qwen9_moe";
  const ModelSpec model = read_text(config);
  EXPECT_EQ(model.moe.experts, 128);
  EXPECT_THAT(
      model.notes.lines,
      testing::ElementsAre("model_type \"qwen9_moe\" is not known; its keys are those of \"qwen3_moe\", as which "
                           "it is read"));
  config["third_stream_width"] = 4;
  EXPECT_THROW((void)read_text(config), ConfigError);
}

// Does a note say what the op list has only something like, and which part of a file was left out?
TEST(PublishedConfigs, SayWhatIsApproximatedOrLeftOut) {
  std::ifstream in(FW_GOLDEN_DIR "/model_parameters.json");
  const json cases = json::parse(in).at("cases");
  const auto read = [&](const std::string& name) {
    for (const json& golden : cases)
      if (golden.at("name") == name) return read_text(golden.at("config"));
    return ModelSpec{};
  };
  EXPECT_THAT(read("kimi-linear-48b-a3b").approximated, testing::ElementsAre("Kimi delta attention"));
  EXPECT_THAT(read("jamba, its defaults").approximated, testing::ElementsAre("Mamba-1"));
  EXPECT_THAT(read("gemma-3-12b").notes.lines,
              testing::Contains("the language model alone: left out is vision_config"));
  EXPECT_THAT(read("mistral-small-24b").approximated, testing::IsEmpty());
}

// Are files that transformers 5 writes for Nemotron-H, with a word for every layer, the same model as the older ones
// with letters?
TEST(PublishedConfigs, OfNemotronMayHaveAWordForEveryLayer) {
  json config = json::parse(built_in_model_text("nemotron-3-super-120b-a12b"));
  const ModelSpec expected = read_text(config);
  const auto words = [](const std::string& letters) {
    json result = json::array();
    for (const char letter : letters)
      result.push_back(letter == 'M' ? "mamba" : letter == '*' ? "attention" : letter == 'E' ? "moe" : "mlp");
    return result;
  };
  config["layers_block_type"] = words(config.at("hybrid_override_pattern").get<std::string>());
  config["mtp_layers_block_type"] = words(config.at("mtp_hybrid_override_pattern").get<std::string>());
  for (const char* key : {"hybrid_override_pattern", "mtp_hybrid_override_pattern", "num_hidden_layers"})
    config.erase(key);
  EXPECT_EQ(read_text(config), expected);
  config["layers_block_type"][2] = "window";
  EXPECT_THAT(complaint_about_text(config), testing::HasSubstr("/layers_block_type: expected \"mamba\", \"attention\", "
                                                               "\"mlp\" or \"moe\", found \"window\" for layer 2"));
}

// Has Falcon-7B one key and value head (multi_query), and Falcon-40B those that its file states?
TEST(PublishedConfigs, OfFalconHaveOneKeyHeadOrThoseOfTheNewDecoder) {
  json config = {{"model_type", "falcon"},           {"hidden_size", 4544}, {"num_attention_heads", 71},
                 {"num_hidden_layers", 2},           {"multi_query", true}, {"vocab_size", 65024},
                 {"new_decoder_architecture", false}};
  EXPECT_EQ(read_text(config).find<GqaSpec>()->query_groups, 1);
  config.erase("multi_query");  // True is the default of FalconConfig.
  EXPECT_EQ(read_text(config).find<GqaSpec>()->query_groups, 1);
  config["multi_query"] = false;
  EXPECT_EQ(read_text(config).find<GqaSpec>()->query_groups, 71);
}

// Is a published file refused if it has a part that its family does not have, where other keys that are not read only
// widen the interval?
TEST(PublishedConfigs, OfADenseFamilyWithExpertsAreRefused) {
  json config = json::parse(built_in_model_text("glm-4-9b"));
  config["architectures"] = {"GlmForCausalLM"};
  config["some_new_scale"] = 2.0;
  EXPECT_THAT(read_text(config).approximated, testing::ElementsAre(planner::kUnreadKeys));
  config["n_routed_experts"] = 160;
  EXPECT_THAT(complaint_about_text(config),
              testing::HasSubstr("/n_routed_experts: n_routed_experts states a part that this family is not known to "
                                 "have; expected a model_type of a family with it, or the file without this key"));
}

// Has BitNet's MLP a gate although its activation is a squared ReLU, and has InternLM biases of queries, keys and
// values? By hand: 128256 x 2560, and 30 layers of 2560 x (2 x 2560 + 2 x 640 + 3 x 6912), norms aside;
// 2 x 103168 x 4096, and 32 layers of 4096 x (4 x 4096 + 3 x 11008 + 3 + 2).
TEST(PublishedConfigs, OfBitNetAndInternLmHaveTheirPublishedSizes) {
  const auto total = [](const json& config) {
    return static_cast<double>(foldwise::costmodel::parameter_totals(read_text(config)).main_total);
  };
  const json shared = {{"num_key_value_heads", 5},  {"hidden_act", "relu2"},     {"model_type", "bitnet"},
                       {"hidden_size", 2560},       {"vocab_size", 128256},      {"num_hidden_layers", 30},
                       {"intermediate_size", 6912}, {"num_attention_heads", 20}, {"max_position_embeddings", 4096}};
  EXPECT_NEAR(total(shared) / 2412820480.0, 1.0, 1e-3);
  const json biased = {{"model_type", "internlm"},  {"bias", true},
                       {"hidden_size", 4096},       {"vocab_size", 103168},
                       {"num_hidden_layers", 32},   {"intermediate_size", 11008},
                       {"num_attention_heads", 32}, {"max_position_embeddings", 2048}};
  EXPECT_NEAR(total(biased) / 7321817088.0, 1.0, 1e-6);  // Without the bias of attention's output, 0.002 %.
}

// Is a family with a part that no op list has refused by one message, which names the part and its keys?
TEST(InvalidModels, OfFamiliesThatAreNotModelledNameThePart) {
  const json config = {{"model_type", "zamba2"}, {"hidden_size", 3584}, {"num_mem_blocks", 2}};
  EXPECT_EQ(complaint_about_text(config),
            "config.json:3: /model_type: \"zamba2\" is not modelled: its attention layers share weights "
            "(num_mem_blocks), each with a low-rank part of its own (adapter_rank). A model without that part can be "
            "written as Megatron's arguments have it: \"model_type\": \"megatron\" (docs/run-file.md#model)");
}

// Does Kimi-K3 have gates of full rank, and what is left out a name?
TEST(PublishedConfigs, OfKimiK3HaveGatesOfFullRank) {
  std::ifstream in(FW_GOLDEN_DIR "/model_parameters.json");
  const json cases = json::parse(in).at("cases");
  json config;
  for (const json& golden : cases)
    if (golden.at("name") == "kimi-linear-48b-a3b") config = golden.at("config");
  EXPECT_EQ(read_text(config).find<GatedDeltaNetSpec>()->gate_rank, 128);
  config["linear_attn_config"]["use_full_rank_gate"] = true;
  config["mla_use_output_gate"] = true;
  const ModelSpec model = read_text(config);
  EXPECT_EQ(model.find<GatedDeltaNetSpec>()->gate_rank, 0);
  EXPECT_THAT(model.approximated, testing::UnorderedElementsAre("Kimi delta attention", "decay of every channel",
                                                                "output gate of latent attention"));
}

// Do names as people write them mean the built-in model of that geometry, and others none?
TEST(ModelNames, OfReleasesMeanTheModelOfTheirGeometry) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"Qwen/Qwen3-8B", "qwen3-8b"},
      {"Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"},
      {"Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "qwen3-235b-a22b"},
      {"meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"},
      {"nvidia/Nemotron-H-56B-Base-8K", "nemotronh-56b"},
      {"deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3.1", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"},
      {"zai-org/GLM-4.6", "glm-4.5"},
      {"zai-org/GLM-4.5-Air-Base", "glm-4.5-air"},
      {"moonshotai/Kimi-K2-Instruct", "kimi-k2"},
      {"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
      {"QWEN3_32B", "qwen3-32b"},
      {"qwen3-235b", "qwen3-235b-a22b"},
      {"mixtral", "mixtral"},            // Several match.
      {"deepseek-v33", "deepseek-v33"},  // None matches.
      {"no/such/config.json", "no/such/config.json"}};
  for (const auto& [name, meant] : names) EXPECT_EQ(foldwise::planner::find_model(name, ""), meant) << name;
}

// --- Do overrides replace keys, and only keys that the family has?
// ----------------------------------------------------

TEST(Overrides, ReplaceKeysOfTheFile) {
  EXPECT_EQ(with_overrides("llama3-70b", {{"num_hidden_layers", 12}}).num_layers(), 12);
  EXPECT_EQ(with_overrides("dbrx", {{"num_hidden_layers", 2}}).num_layers(), 2);  // n_layers in its file.
  EXPECT_EQ(with_overrides("llama3-70b", {{"n_layers", 12}}).num_layers(), 12);
  const ModelSpec model = with_overrides("deepseek-v3", {{"num_hidden_layers", 4}, {"first_k_dense_replace", 1}});
  EXPECT_EQ(count(model, MlpKind::kDense), 1);
  EXPECT_EQ(count(model, MlpKind::kMoe), 3);
  EXPECT_EQ(with_overrides("mini-deepseek-12l", {{"num_nextn_predict_layers", 1}}).mtp_num_layers, 1);
  EXPECT_EQ(with_overrides("mini-llama-16l", json::object()), load_model("mini-llama-16l"));
  EXPECT_EQ(with_overrides("mini-llama-16l", {{"make_vocab_size_divisible_by", 64}}).make_vocab_size_divisible_by, 64);
}

TEST(Overrides, OfKeysThatTheFamilyDoesNotKnowAreErrors) {
  EXPECT_EQ(complaint_about_overrides("llama3-8b", {{"num_hidden_layer", 4}}),
            "model overrides: /num_hidden_layer: unknown key; the nearest known key is \"num_hidden_layers\"");
  EXPECT_EQ(complaint_about_overrides("llama3-8b", {{"kv_lora_rank", 512}}),
            "model overrides: /kv_lora_rank: unknown key");
}

TEST(Overrides, AreCheckedLikeTheFile) {
  EXPECT_EQ(complaint_about_overrides("llama3-8b", {{"num_hidden_layers", 0}, {"hidden_size", "x"}}),
            "model overrides: /hidden_size: expected a whole number, found \"x\"\n"
            "model overrides: /num_hidden_layers: expected a whole number of at least 1, found 0");
  EXPECT_EQ(
      complaint_about_overrides("nemotron-3-nano-30b-a3b", {{"num_hidden_layers", 4}}),
      "built-in model nemotron-3-nano-30b-a3b:24: /hybrid_override_pattern: 52 layers, but num_hidden_layers is 4");
  EXPECT_EQ(complaint_about_overrides("llama3-8b", 4),
            "model overrides: expected an object that replaces keys of the model's config.json");
}

// --- Is every mistake in a config named with its place? (one file per mistake)
// ----------------------------------------

TEST(InvalidModels, AreRefusedWithTheWholeReason) {
  const std::vector<std::pair<std::string, std::string>> complaints = {
      {"model_absurd_vocabulary.json",
       "model_absurd_vocabulary.json:8: "
       "/vocab_size: expected a whole number of at most 16777216, found 4294967296"},
      {"model_fractional_width.json",
       "model_fractional_width.json:7: "
       "/intermediate_size: expected a whole number, found 1.5"},
      {"model_heads_do_not_divide.json",
       "model_heads_do_not_divide.json:6: "
       "/num_key_value_heads: num_key_value_heads 5 does not divide num_attention_heads 32"},
      {"model_hidden_not_divided_by_heads.json",
       "model_hidden_not_divided_by_heads.json:5: "
       "/num_attention_heads: hidden_size 4096 cannot be divided over 30 attention heads, and there is "
       "no head_dim"},
      {"model_layer_types_of_wrong_length.json",
       "model_layer_types_of_wrong_length.json:9: "
       "/layer_types: 3 layers, but num_hidden_layers is 4"},
      {"model_missing_hidden_size.json",
       "model_missing_hidden_size.json:1: "
       "/hidden_size: expected a whole number, found nothing"},
      {"model_misspelled_key.json",
       "model_misspelled_key.json:8: "
       "/num_key_value_head: unknown key; the nearest known key is \"num_key_value_heads\""},
      {"model_mla_with_fewer_kv_heads.json",
       "model_mla_with_fewer_kv_heads.json:6: "
       "/num_key_value_heads: num_key_value_heads is 4, but num_attention_heads is 16; multi-latent "
       "attention has as many of either"},
      {"model_more_dense_layers_than_layers.json",
       "model_more_dense_layers_than_layers.json:13: "
       "/first_k_dense_replace: 5 dense layers, but num_hidden_layers is 4"},
      {"model_negative_layers.json",
       "model_negative_layers.json:4: "
       "/num_hidden_layers: expected a whole number of at least 1, found -4"},
      {"model_no_family.json",
       "model_no_family.json:1: "
       "/model_type: expected the family of the model, such as \"llama\" or \"deepseek_v3\", found "
       "nothing"},
      {"model_pattern_of_wrong_length.json",
       "model_pattern_of_wrong_length.json:13: "
       "/hybrid_override_pattern: 5 layers, but num_hidden_layers is 4"},
      {"model_pattern_with_unknown_symbol.json",
       "model_pattern_with_unknown_symbol.json:13: "
       "/hybrid_override_pattern: expected only the symbols M (Mamba), * (attention), - (MLP) and E "
       "(MoE), found X"},
      {"model_several_mistakes.json",
       "model_several_mistakes.json:3: /hidden_size: expected a whole number, found \"4096\"\n"
       "model_several_mistakes.json:4: /num_hidden_layers: expected a whole number of at least 1, found 0\n"
       "model_several_mistakes.json:9: /num_local_experts: unknown key\n"
       "model_several_mistakes.json:10: /vocab_sizes: unknown key; the nearest known key is \"vocab_size\""},
      {"model_too_large_in_total.json",
       "model_too_large_in_total.json:1: "
       "these sizes make a model of about 2.2e+20 parameters; the limit is 1e+16"},
      {"model_too_many_experts_per_token.json",
       "model_too_many_experts_per_token.json:10: "
       "/num_experts_per_tok: 9 experts per token, but num_local_experts is 8"},
      {"model_unknown_activation.json",
       "model_unknown_activation.json:9: "
       "/hidden_act: expected one of \"silu\", \"swish\", \"swiglu\", \"swigluoai\", \"situ\", \"xielu\", \"gelu\", "
       "\"gelu_new\", \"gelu_fast\", \"gelu_pytorch_tanh\", \"quick_gelu\", \"relu\", \"relu2\", found \"sliu\"; the "
       "nearest is \"silu\""},
  };
  for (const auto& [file, complaint] : complaints) EXPECT_EQ(complaint_about_file(file), complaint);
}

TEST(InvalidModels, OfAnUnknownFamilyNameTheNearestAndWhatKeepsThemFromBeingRead) {
  EXPECT_EQ(
      complaint_about_file("model_unknown_family.json"),
      "model_unknown_family.json:2: /model_type: \"lama\" is not known, nor can it be read by its keys as \"llama\": "
      "what follows; the nearest family is \"llama\". A model can also be written as Megatron's arguments have it: "
      "\"model_type\": \"megatron\" (docs/run-file.md#model)\n"
      "model_unknown_family.json:9: /second_vocabulary: unknown key");
}

TEST(InvalidModels, ThatAreNotThereAreNamedWithTheNearestBuiltInModel) {
  EXPECT_EQ(complaint_about("deepseek-v33"),
            "deepseek-v33: neither a built-in model nor a file; the nearest built-in is \"deepseek-v3\"");
  EXPECT_EQ(complaint_about("no/such/config.json"), "no/such/config.json: neither a built-in model nor a file");
}

TEST(InvalidModels, MayBeADirectory) {
  EXPECT_EQ(complaint_about(FW_INVALID_INPUTS_DIR), FW_INVALID_INPUTS_DIR ": expected a file, found a directory");
}

// --- Can a config that was damaged anywhere crash the reader, or slip through?
// ----------------------------------------

// Is a model's configuration that lost any key read or refused with a message?
RC_GTEST_PROP(DamagedModels, EitherReadOrAreRefusedWhenAKeyIsLost, ()) {
  const auto names = built_in_models();
  json config = json::parse(built_in_model_text(*rc::gen::elementOf(names)));
  const auto at = *rc::gen::inRange<std::size_t>(0, config.size());
  config.erase(std::next(config.begin(), static_cast<std::ptrdiff_t>(at)));
  Diagnostics diagnostics;
  const ModelSpec model =
      foldwise::planner::read_huggingface(Document::parse(config.dump(), "damaged"), "damaged", diagnostics);
  if (diagnostics.ok()) RC_ASSERT(megatron_flops(model, 4096, 4096.0 * 4096) > 0);
}

// And one with any value replaced by another?
RC_GTEST_PROP(DamagedModels, EitherReadOrAreRefusedWhenAValueIsReplaced, ()) {
  static const std::vector<json> values = {nullptr,
                                           true,
                                           -1,
                                           0,
                                           1,
                                           3,
                                           1.5,
                                           1e300,
                                           4294967296,
                                           "",
                                           "silu",
                                           "MM*",
                                           json::array(),
                                           json::object(),
                                           {1, 0},
                                           {"full_attention"},
                                           std::int64_t{1} << 62};
  const auto names = built_in_models();
  json config = json::parse(built_in_model_text(*rc::gen::elementOf(names)));
  for (int i = *rc::gen::inRange(1, 4); i > 0; --i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, config.size());
    *std::next(config.begin(), static_cast<std::ptrdiff_t>(at)) = *rc::gen::elementOf(values);
  }
  Diagnostics diagnostics;
  const ModelSpec model =
      foldwise::planner::read_huggingface(Document::parse(config.dump(), "damaged"), "damaged", diagnostics);
  if (!diagnostics.ok()) return;
  RC_ASSERT(!model.layers.empty());
  RC_ASSERT(megatron_flops(model, 4096, 4096.0 * 4096) > 0);
}

}  // namespace foldwise::models_test

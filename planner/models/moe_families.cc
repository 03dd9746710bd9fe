#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "planner/models/config_reader.h"

// Grouped-query attention and experts.
namespace foldwise::planner {
namespace {

using config::ObjectReader;
using costmodel::LayerSpec;
using costmodel::MixerKind;
using costmodel::MlpKind;
using costmodel::Normalization;

// --- All layers MoE, grouped-query attention ------------------------------------------------------------------------

void read_mixtral(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_local_experts", "intermediate_size");
  const std::int64_t window = c.in.integer_or("sliding_window", 0, 0, kMaxPositions);
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
  c.apply_windows("sliding_window", std::nullopt, window);
}

void read_phimoe(ConfigReader& c) {
  c.spec.normalization = Normalization::kLayerNorm;
  read_mixtral(c);
}

void read_olmoe(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/true);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_experts", "intermediate_size");
  c.in.ignore({"clip_qkv"});
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
}

/// DBRX nests its sizes and has its own names; our built-in file adds the common ones, which must agree.
void read_dbrx(ConfigReader& c) {
  c.spec.normalization = Normalization::kLayerNorm;
  c.spec.max_position_embeddings = c.in.integer_or("max_seq_len", c.spec.max_position_embeddings, 0, kMaxPositions);
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.experts_key = "moe_num_experts";
  const auto nested = [&](ObjectReader& inside, std::string_view key, std::string_view common, std::int64_t high) {
    const std::int64_t value = inside.required_integer(key, 1, high);
    if (const auto other = c.in.integer(common, 1, high); other && *other != value)
      inside.error(key, fmt::format("{} is {}, but {} is {}; they mean the same", key, value, common, *other));
    return value;
  };
  if (auto attention = c.in.object("attn_config")) {
    attention->ignore({"clip_qkv", "rope_theta", "attn_pdrop", "attn_impl", "model_type"});
    c.spec.gqa.query_groups = nested(*attention, "kv_n_heads", "num_key_value_heads", kMaxHeads);
    attention->finish();
  } else if (!c.in.has("attn_config")) {
    c.in.error("attn_config", "expected an object, found nothing");
  }
  if (auto ffn = c.in.object("ffn_config")) {
    ffn->ignore({"ffn_act_fn", "moe_loss_weight", "moe_jitter_eps", "moe_normalize_expert_weights",
                 "uniform_expert_assignment", "model_type"});
    c.spec.moe.ffn_hidden_size = nested(*ffn, "ffn_hidden_size", "intermediate_size", kMaxWidth);
    c.spec.moe.experts = nested(*ffn, "moe_num_experts", "num_local_experts", kMaxExperts);
    c.spec.moe.topk = nested(*ffn, "moe_top_k", "num_experts_per_tok", kMaxExperts);
    ffn->finish();
  } else if (!c.in.has("ffn_config")) {
    c.in.error("ffn_config", "expected an object, found nothing");
  }
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
}

/// MiniMax-M1 (mostly lightning attention) and M2 (softmax only).
void read_minimax(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_local_experts", "intermediate_size");
  c.spec.moe.shared_ffn_hidden_size = c.optional_width("shared_intermediate_size");
  const auto softmax_layers = c.in.integers("attn_type_list", 0, 1);
  if (!c.in.boolean_or("use_mtp", true)) c.spec.mtp_num_layers = 0;
  c.in.ignore({"qk_norm_type", "shared_moe_mode", "postnorm", "mtp_transformer_layers", "sliding_window",
               "attn_window_size", "layernorm_full_attention_alpha", "layernorm_full_attention_beta",
               "layernorm_linear_attention_alpha", "layernorm_linear_attention_beta", "layernorm_mlp_alpha",
               "layernorm_mlp_beta", "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor",
               "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor"});
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
  if (!softmax_layers || !c.check_length("attn_type_list", softmax_layers->size())) return;
  for (std::size_t i = 0; i < c.layers; ++i)
    if ((*softmax_layers)[i] == 0) c.spec.layers[i].mixer = MixerKind::kLightning;
}

/// Bridge: biases everywhere, a learned sink per head, window_size (sliding_window - 1, 0) on every second layer.
void read_gpt_oss(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/true, /*qk_layernorm=*/false);
  c.spec.gqa.learnable_softmax = true;
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_local_experts", "intermediate_size");
  c.spec.scaled_rope = true;
  c.spec.clamped_activation = c.in.number_or("swiglu_limit", 7.0, 0.0, 1e6) > 0.0;
  c.spec.add_bias_linear = c.in.boolean_or("mlp_bias", true);
  const std::int64_t window = c.in.integer_or("sliding_window", 0, 0, kMaxPositions);
  auto layer_types = c.in.strings("layer_types");
  c.in.ignore({"experts_per_token"});
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
  if (!layer_types) {
    layer_types.emplace();
    for (std::size_t i = 0; i < c.layers; ++i)
      layer_types->emplace_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  c.apply_windows("layer_types", layer_types, window);
}

/// One shared expert as wide as a routed one; every interleave_moe_layer_step-th layer is MoE, the others are dense and
/// intermediate_size_mlp wide. The norm of queries and keys has no weight. Chunked attention is not modelled: the text
/// model is trained with full causal attention in Megatron.
void read_llama4(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  c.spec.gqa.qk_layernorm = false;
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_local_experts", "intermediate_size");
  c.spec.ffn_hidden_size = c.optional_width("intermediate_size_mlp");
  c.spec.moe.shared_ffn_hidden_size =
      c.in.integer_or("shared_expert_intermediate_size", c.spec.moe.ffn_hidden_size, 0, kMaxWidth);
  const std::int64_t step = c.in.integer_or("interleave_moe_layer_step", 1, 1, kMaxLayers);
  const auto moe_layers = c.in.integers("moe_layers", 0, kMaxLayers);
  c.in.ignore({"attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor",
               "layer_types"});
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, moe_layers ? MlpKind::kDense : MlpKind::kMoe);
  if (moe_layers) {
    for (const std::int64_t layer : *moe_layers) {
      if (layer < c.num_layers())
        c.spec.layers[static_cast<std::size_t>(layer)].mlp = MlpKind::kMoe;
      else
        c.in.error("moe_layers", fmt::format("layer {}, but num_hidden_layers is {}", layer, c.layers));
    }
  } else {
    for (std::int64_t i = 0; i < c.num_layers(); ++i)
      if ((i + 1) % step != 0) c.spec.layers[static_cast<std::size_t>(i)].mlp = MlpKind::kDense;
  }
  const bool dense = std::any_of(c.spec.layers.begin(), c.spec.layers.end(),
                                 [](const LayerSpec& layer) { return layer.mlp == MlpKind::kDense; });
  if (dense && c.spec.ffn_hidden_size == 0)
    c.in.error("intermediate_size_mlp", "expected a whole number, found nothing: some layers are dense");
}

// --- Qwen -----------------------------------------------------------------------------------------------------------

/// Qwen2-MoE has a shared expert behind a sigmoid gate and biases on the QKV projection, Qwen3-MoE norms of queries and
/// keys. Which layers are sparse follows Hugging Face (decoder_sparse_step, mlp_only_layers); Bridge makes all of them
/// MoE, which is the same for every published model.
void read_qwen_moe(ConfigReader& c, bool second_generation) {
  c.read_gqa(/*qkv_bias=*/second_generation, /*qk_layernorm=*/!second_generation);
  c.spec.gqa.qkv_bias = c.in.boolean_or("qkv_bias", c.spec.gqa.qkv_bias);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_experts", "moe_intermediate_size");
  c.spec.ffn_hidden_size = c.optional_width("intermediate_size");
  if (second_generation) {
    c.spec.moe.shared_ffn_hidden_size = c.width("shared_expert_intermediate_size");
    c.spec.moe.shared_gate = true;
  }
  const std::int64_t step = c.in.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  const auto dense_layers = c.in.integers("mlp_only_layers", 0, kMaxLayers);
  const std::int64_t window = c.in.integer_or("sliding_window", 0, 0, kMaxPositions);
  const bool use_window = c.in.boolean_or("use_sliding_window", false);
  const std::int64_t full_layers = c.in.integer_or("max_window_layers", 0, 0, kMaxLayers);
  const auto layer_types = c.in.strings("layer_types");
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
  c.apply_windows("layer_types", layer_types, use_window ? window : 0);
  for (std::int64_t i = 0; i < c.num_layers(); ++i) {
    LayerSpec& layer = c.spec.layers[static_cast<std::size_t>(i)];
    const bool listed = dense_layers && std::find(dense_layers->begin(), dense_layers->end(), i) != dense_layers->end();
    if (listed || (i + 1) % step != 0) layer.mlp = MlpKind::kDense;
    if (layer.mlp == MlpKind::kDense && c.spec.ffn_hidden_size == 0) {
      c.in.error("intermediate_size", fmt::format("expected a whole number, found nothing: layer {} is dense", i));
      return;
    }
    if (!layer_types && i < full_layers) layer.window = 0;
  }
}

/// Qwen3-Next and the text backbone of Qwen3.5: gated delta net, and full attention with an output gate on every
/// full_attention_interval-th layer; shared expert behind a gate. A depth of multi-token prediction has full attention.
void read_qwen3_next(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/true);
  c.spec.gqa.output_gate = c.in.boolean_or("attn_output_gate", true);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_experts", "moe_intermediate_size");
  c.read_gated_delta_net();
  c.spec.moe.shared_ffn_hidden_size = c.width("shared_expert_intermediate_size");
  c.spec.moe.shared_gate = true;
  const std::int64_t interval = c.in.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  const auto layer_types = c.in.strings("layer_types");
  (void)c.in.integer_or("decoder_sparse_step", 1, 1, 1);  // Every layer is MoE, so intermediate_size is of no layer.
  const auto dense_layers = c.in.integers("mlp_only_layers", 0, kMaxLayers);
  c.in.ignore({"intermediate_size", "mamba_ssm_dtype", "mtp_use_dedicated_embeddings"});
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.check_divides("linear_num_value_heads", c.spec.gdn.value_heads, "linear_num_key_heads", c.spec.gdn.key_heads);
  if (dense_layers && !dense_layers->empty()) c.in.error("mlp_only_layers", "expected an empty list, found a list");
  if (layer_types && !c.check_length("layer_types", layer_types->size())) return;
  c.all_layers(MixerKind::kGqa, MlpKind::kMoe);
  for (std::size_t i = 0; i < c.layers; ++i) {
    const bool full =
        layer_types ? (*layer_types)[i] == "full_attention" : (i + 1) % static_cast<std::size_t>(interval) == 0;
    if (layer_types && !full && (*layer_types)[i] != "linear_attention")
      c.in.error("layer_types",
                 fmt::format(R"(expected "full_attention" or "linear_attention", found "{}" for layer {})",
                             (*layer_types)[i], i));
    if (!full) c.spec.layers[i].mixer = MixerKind::kGatedDeltaNet;
  }
  c.spec.mtp_layers = {{.mixer = MixerKind::kGqa, .mlp = MlpKind::kMoe}};
}

// --- First layers dense, shared experts -----------------------------------------------------------------------------

/// Shared experts are as wide as routed ones; Bridge sets their sum.
void read_glm4_moe(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("n_routed_experts", "moe_intermediate_size");
  c.spec.ffn_hidden_size = c.width("intermediate_size");
  c.spec.moe.shared_ffn_hidden_size = c.spec.moe.ffn_hidden_size * c.in.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t dense = c.in.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.dense_first(MixerKind::kGqa, dense, 1);
}

/// Ling and Ring.
void read_bailing(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/true);
  c.spec.gqa.qkv_bias = c.in.boolean_or("use_qkv_bias", c.spec.gqa.qkv_bias);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("num_experts", "moe_intermediate_size");
  c.spec.add_bias_linear = c.in.boolean_or("use_bias", false);
  c.spec.ffn_hidden_size = c.width("intermediate_size");
  const std::int64_t shared = c.in.integer_or("num_shared_experts", 0, 0, 1024);
  c.spec.moe.shared_ffn_hidden_size =
      shared * c.in.integer_or("moe_shared_expert_intermediate_size", c.spec.moe.ffn_hidden_size, 1, kMaxWidth);
  const std::int64_t dense = c.in.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  c.in.ignore({"use_rmsnorm", "moe_router_enable_shared_expert", "mtp_loss_scaling_factor", "max_window_layers"});
  if (!c.clean()) return;
  c.check_gqa();
  c.check_experts();
  c.dense_first(MixerKind::kGqa, dense, 1);
}

}  // namespace

const std::vector<ModelFamily>& moe_families() {
  static const std::vector<ModelFamily> families{
      {"bailing_moe", read_bailing},
      {"bailing_moe_v2", read_bailing},
      {"dbrx", read_dbrx, /*dbrx=*/true},
      {"glm4_moe", read_glm4_moe},
      {"gpt_oss", read_gpt_oss},
      {"grok-1", read_mixtral},
      {"llama4_text", read_llama4},
      {"minimax_m1", read_minimax},
      {"minimax_m2", read_minimax},
      {"mixtral", read_mixtral},
      {"olmoe", read_olmoe},
      {"phimoe", read_phimoe},
      {"qwen2_moe", [](ConfigReader& c) { read_qwen_moe(c, /*second_generation=*/true); }},
      {"qwen3_5_moe_text", read_qwen3_next},
      {"qwen3_moe", [](ConfigReader& c) { read_qwen_moe(c, /*second_generation=*/false); }},
      {"qwen3_next", read_qwen3_next},
  };
  return families;
}

}  // namespace foldwise::planner

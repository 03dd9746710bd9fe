#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/models/config_reader.h"

// A GPT described with Megatron's arguments. Every layer may have its own mixer, MLP and window.
namespace foldwise::planner {
namespace {

using costmodel::LayerSpec;
using costmodel::MlpKind;
using costmodel::Normalization;

costmodel::MlaSpec read_mla(ConfigReader& c) {
  costmodel::MlaSpec mla{.heads = c.in.required_integer("num_attention_heads", 1, kMaxHeads),
                         .q_lora_rank = c.optional_width("q_lora_rank"),
                         .kv_lora_rank = c.width("kv_lora_rank"),
                         .qk_head_dim = c.width("qk_nope_head_dim"),
                         .qk_pos_emb_head_dim = c.width("qk_rope_head_dim"),
                         .v_head_dim = c.width("v_head_dim"),
                         .qk_layernorm = c.in.boolean_or("use_qk_norm", false)};
  if (c.in.has("index_n_heads")) c.read_indexer(mla);
  return mla;
}

void read_moe(ConfigReader& c) {
  c.read_experts("num_experts", "moe_intermediate_size");
  c.spec.moe.shared_ffn_hidden_size = c.optional_width("moe_shared_expert_intermediate_size");
  c.spec.moe.shared_gate = c.in.boolean_or("moe_shared_expert_gate", false);
  c.spec.moe.latent_size = c.optional_width("moe_latent_size");
}

void read_trunk_of_megatron(ConfigReader& c) {
  c.read_normalization(Normalization::kLayerNorm);
  c.read_position_embedding(/*learned=*/true);
  c.spec.add_bias_linear = c.in.boolean_or("add_bias_linear", true);
  c.spec.gated_linear_unit = c.in.boolean_or("gated_linear_unit", false);
  c.spec.swiglu = c.spec.gated_linear_unit;
  c.spec.clamped_activation = c.in.boolean_or("clamped_activation", false);
  c.spec.scaled_rope = c.in.boolean_or("scaled_rope", false);
  c.spec.ffn_hidden_size = c.in.integer_or("intermediate_size", 4 * c.spec.hidden_size, 1, kMaxWidth);
}

}  // namespace

/// A GPT as Megatron-LM builds it, in Hugging Face's keys and some of Megatron's. Missing keys take Megatron's defaults
/// (learned positions, a bias on every linear). With squared ReLU they take those of Nemotron-4 (arXiv:2402.16819:
/// rotary positions, no biases).
void read_megatron_gpt(ConfigReader& c) {
  const bool nemotron = c.in.has("hidden_act") && c.in.json()["hidden_act"] == "relu2";
  c.read_normalization(Normalization::kLayerNorm);
  c.read_position_embedding(/*learned=*/!nemotron);
  c.spec.add_bias_linear = c.in.boolean_or("add_bias_linear", !nemotron);
  c.read_gqa(/*qkv_bias=*/c.spec.add_bias_linear, /*qk_layernorm=*/false);
  c.read_activation("hidden_act", c.in.boolean_or("gated_linear_unit", false));
  c.spec.ffn_hidden_size = c.in.integer_or("intermediate_size", 4 * c.spec.hidden_size, 1, kMaxWidth);
  if (!c.clean()) return;
  c.check_gqa();
  c.all_layers(c.mixer(c.gqa), MlpKind::kDense);
}

void read_megatron(ConfigReader& c) {
  read_trunk_of_megatron(c);
  const bool latent = c.in.has("kv_lora_rank"), linear = c.in.has("linear_num_key_heads"),
             moe = c.in.has("num_experts");
  costmodel::MlaSpec mla;
  if (latent) {
    mla = read_mla(c);
  } else {
    c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
    c.gqa.output_gate = c.in.boolean_or("attn_output_gate", false);
    c.gqa.learnable_softmax = c.in.boolean_or("learnable_softmax", false);
  }
  const auto gdn = linear ? c.read_gated_delta_net() : costmodel::GatedDeltaNetSpec{};
  if (moe) read_moe(c);
  const auto moe_layers = c.in.integers("moe_layers", 0, 1), linear_layers = c.in.integers("linear_layers", 0, 1);
  const auto window_layers = c.in.integers("window_layers", 0, 1);
  const std::int64_t window = c.in.integer_or("sliding_window", 0, 0, kMaxPositions);
  if (!c.clean()) return;
  if (!latent) c.check_gqa();
  if (moe) c.check_experts();
  bool lengths = true;
  for (const auto& [key, list] : {std::pair{"moe_layers", &moe_layers}, std::pair{"linear_layers", &linear_layers},
                                  std::pair{"window_layers", &window_layers}})
    if (*list) lengths &= c.check_length(key, (*list)->size());
  if (!lengths) return;
  c.all_layers(latent ? c.mixer(mla) : c.mixer(c.gqa), moe ? MlpKind::kMoe : MlpKind::kDense);
  for (std::size_t i = 0; i < c.layers; ++i) {
    LayerSpec& layer = c.spec.layers[i];
    if (moe_layers && (*moe_layers)[i] == 0) layer.mlp = MlpKind::kDense;
    if (linear_layers && (*linear_layers)[i] != 0) layer.mixer = c.mixer(gdn);
    if (window > 1 && (!window_layers || (*window_layers)[i] != 0)) layer.window = window - 1;
  }
}

}  // namespace foldwise::planner

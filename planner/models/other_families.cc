#include <fmt/format.h>

#include <cstddef>

#include "planner/models/config_reader.h"

// Families with special attention.
namespace foldwise::planner {

using costmodel::LayerSpec;
using costmodel::MlpKind;

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
  c.all_layers(c.mixer(c.gqa), MlpKind::kMoe);
  if (!softmax_layers || !c.check_length("attn_type_list", softmax_layers->size())) return;
  for (std::size_t i = 0; i < c.layers; ++i)
    if ((*softmax_layers)[i] == 0)
      c.spec.layers[i].mixer = c.mixer(costmodel::LightningSpec{.heads = c.gqa.heads, .head_dim = c.gqa.head_dim});
}

/// DeepSeek-V4. All layers are MoE and have a window; those with a nonzero ratio also have compressed keys.
/// compress_ratios lists the decoder layers, then the depths of multi-token prediction.
void read_deepseek_v4(ConfigReader& c) {
  costmodel::CompressedSpec attention;
  attention.heads = c.in.required_integer("num_attention_heads", 1, kMaxHeads);
  attention.head_dim = c.width("head_dim");
  attention.q_lora_rank = c.width("q_lora_rank");
  attention.output_lora_rank = c.width("o_lora_rank");
  attention.output_groups = c.in.required_integer("o_groups", 1, kMaxHeads);
  attention.index_heads = c.in.required_integer("index_n_heads", 1, kMaxHeads);
  attention.index_head_dim = c.width("index_head_dim");
  attention.index_topk = c.in.required_integer("index_topk", 1, kMaxPositions);
  attention.residual_streams = c.in.integer_or("hc_mult", 1, 1, 64);
  (void)c.in.integer("num_key_value_heads", 1, 1);
  attention.qk_pos_emb_head_dim = c.in.integer_or("qk_rope_head_dim", 64, 1, kMaxWidth);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("n_routed_experts", "moe_intermediate_size");
  c.spec.moe.shared_ffn_hidden_size = c.spec.moe.ffn_hidden_size * c.in.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t window = c.in.required_integer("sliding_window", 2, kMaxPositions);
  const auto ratios = c.in.integers("compress_ratios", 0, kMaxPositions);
  if (!c.in.has("compress_ratios")) c.in.error("compress_ratios", "expected a list of whole numbers, found nothing");
  c.in.ignore({"hc_sinkhorn_iters", "hc_eps", "attention_bias", "intermediate_size"});
  if (!c.clean()) return;
  c.check_experts();
  c.check_divides("num_attention_heads", attention.heads, "o_groups", attention.output_groups);
  const auto depths = static_cast<std::size_t>(c.spec.mtp_num_layers);
  if (ratios->size() != c.layers && ratios->size() != c.layers + depths) {
    c.in.error("compress_ratios",
               fmt::format("{} layers, but num_hidden_layers is {} and num_nextn_predict_layers is {}", ratios->size(),
                           c.layers, depths));
    return;
  }
  const auto layer = [&](std::size_t i) {
    return LayerSpec{
        .mixer = c.mixer(attention), .mlp = MlpKind::kMoe, .window = window - 1, .compress_ratio = (*ratios)[i]};
  };
  for (std::size_t i = 0; i < c.layers; ++i) c.spec.layers.push_back(layer(i));
  if (ratios->size() > c.layers) c.spec.mtp_layers = {layer(c.layers)};
}

}  // namespace foldwise::planner

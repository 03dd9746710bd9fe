#include <fmt/format.h>

#include "planner/models/config_reader.h"

// Attention over compressed keys and values: multi-latent, sparse, compressed.
namespace foldwise::planner {
namespace {

using costmodel::LayerSpec;
using costmodel::MlpKind;

/// DeepSeek-V2, V3, Kimi-K2, Moonlight; with `sparse` DeepSeek-V3.2 and GLM-5 (an indexer on every layer).
/// Bridge: multi-latent attention with norms of the compressed tensors; shared size = sum over the shared experts.
void read_mla(ConfigReader& c, bool sparse) {
  costmodel::MlaSpec mla;
  mla.heads = c.in.required_integer("num_attention_heads", 1, kMaxHeads);
  const auto key_value_heads = c.in.integer("num_key_value_heads", 1, kMaxHeads);
  mla.q_lora_rank = c.optional_width("q_lora_rank");
  mla.kv_lora_rank = c.width("kv_lora_rank");
  mla.qk_head_dim = c.width("qk_nope_head_dim");
  mla.qk_pos_emb_head_dim = c.width("qk_rope_head_dim");
  mla.v_head_dim = c.width("v_head_dim");
  mla.qk_layernorm = true;
  const auto whole_head = c.in.integer("qk_head_dim", 1, kMaxWidth);
  if (sparse) {
    mla.index_heads = c.in.required_integer("index_n_heads", 1, kMaxHeads);
    mla.index_head_dim = c.width("index_head_dim");
    mla.index_topk = c.in.required_integer("index_topk", 1, kMaxPositions);
    c.in.ignore({"indexer_rope_interleave"});
  }
  c.in.ignore({"head_dim"});  // Some releases of Hugging Face write the rotary part or 192; the widths above hold.
  const bool bias = c.in.boolean_or("attention_bias", false);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.read_experts("n_routed_experts", "moe_intermediate_size");
  c.spec.ffn_hidden_size = c.width("intermediate_size");
  c.spec.moe.shared_ffn_hidden_size = c.spec.moe.ffn_hidden_size * c.in.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t dense = c.in.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  const std::int64_t frequency = c.in.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  if (!c.clean()) return;
  if (bias)
    c.in.error("attention_bias", "expected false, found true: multi-latent attention has no biases in Megatron");
  if (key_value_heads && *key_value_heads != mla.heads)
    c.in.error("num_key_value_heads",
               fmt::format("num_key_value_heads is {}, but num_attention_heads is {}; multi-latent "
                           "attention has as many of either",
                           *key_value_heads, mla.heads));
  if (whole_head && *whole_head != mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    c.in.error("qk_head_dim", fmt::format("qk_head_dim is {}, but qk_nope_head_dim + qk_rope_head_dim is {}",
                                          *whole_head, mla.qk_head_dim + mla.qk_pos_emb_head_dim));
  c.check_experts();
  c.dense_first(c.mixer(mla), dense, frequency);
}

/// DeepSeek-V4: all layers MoE; every layer has a window, and compressed keys where its ratio is not 0. compress_ratios
/// lists the decoder layers and then the depths of multi-token prediction.
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

}  // namespace

const std::vector<ModelFamily>& latent_families() {
  static const std::vector<ModelFamily> families{
      {"deepseek_v2", [](ConfigReader& c) { read_mla(c, /*sparse=*/false); }},
      {"deepseek_v3", [](ConfigReader& c) { read_mla(c, /*sparse=*/false); }},
      {"deepseek_v32", [](ConfigReader& c) { read_mla(c, /*sparse=*/true); }},
      {"deepseek_v4", read_deepseek_v4},
      {"glm_moe_dsa", [](ConfigReader& c) { read_mla(c, /*sparse=*/true); }},
      {"kimi_k2", [](ConfigReader& c) { read_mla(c, /*sparse=*/false); }},
  };
  return families;
}

}  // namespace foldwise::planner

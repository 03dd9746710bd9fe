#include "costmodel/model/model.h"

#include <algorithm>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

/// FLOPs of one layer of one kind: `tokens * per_token + squared_tokens * per_squared_token`, forward and backward.
struct LayerFlops {
  double per_token = 0;
  double per_squared_token = 0;
};

/// Multiply-adds per token of a gated delta net: input projection (q, k, v, z, b, a), short convolution, delta rule,
/// output.
double gated_delta_net_macs(const ModelSpec& model) {
  const GatedDeltaNetSpec& gdn = model.gdn;
  const double h = real(model.hidden_size);
  const double keys = real(gdn.key_heads) * real(gdn.key_head_dim);
  const double values = real(gdn.value_heads) * real(gdn.value_head_dim);
  const double input = 2 * keys + 2 * values + 2 * real(gdn.value_heads);
  const double delta_rule = 4 * real(gdn.value_heads) * real(gdn.value_head_dim) * real(gdn.value_head_dim);
  return h * input + real(gdn.conv_kernel) * (2 * keys + values) + delta_rule + h * values;
}

/// Of multi-latent attention. The indexer of sparse attention is not counted and its selection neither: Megatron's
/// function knows neither, so DeepSeek-V3.2 reports what DeepSeek-V3 does.
LayerFlops mla_flops(const ModelSpec& model) {
  const MlaSpec& mla = model.mla;
  const double h = real(model.hidden_size), n = real(mla.heads);
  const double nope = real(mla.qk_head_dim), rope = real(mla.qk_pos_emb_head_dim), v = real(mla.v_head_dim);
  const double q_lora = real(mla.q_lora_rank), kv_lora = real(mla.kv_lora_rank);
  // The two "+ 1" are the norms of the compressed tensors.
  const double query = mla.q_lora_rank == 0 ? h * n * (nope + rope) : q_lora * (h + n * (nope + rope) + 1);
  const double key_value = kv_lora * (h + n * (nope + v) + 1) + h * rope;
  return {.per_token = 6 * (query + key_value + n * v * h), .per_squared_token = 3 * n * (nope + rope + v)};
}

/// DeepSeek-V4's layers of this ratio select keys with an indexer; those of ratio 128 read all their compressed keys.
constexpr std::int64_t kIndexedCompressRatio = 4;

/// Of DeepSeek-V4 attention, which Megatron's function does not know: projections as they are, core attention over the
/// window and the compressed keys, of which a layer with an indexer sees at most index_topk.
LayerFlops compressed_flops(const ModelSpec& model, const LayerSpec& layer, double tokens, double squared_tokens) {
  const CompressedSpec& attention = model.compressed;
  const double h = real(model.hidden_size), q = real(attention.heads) * real(attention.head_dim);
  const double query = real(attention.q_lora_rank) * (h + q + 1);
  const double key_value = h * real(attention.head_dim);
  const double output = real(attention.output_lora_rank) * (q + real(attention.output_groups) * h);
  double keys = real(layer.window) + 1;  // Per query, averaged over the batch.
  if (layer.compress_ratio > 0 && tokens > 0) {
    const double compressed_keys = squared_tokens / tokens / 2 / real(layer.compress_ratio);  // Causal: half of s.
    const bool indexed = layer.compress_ratio == kIndexedCompressRatio && attention.index_topk > 0;
    keys += indexed ? std::min(compressed_keys, real(attention.index_topk)) : compressed_keys;
  }
  return {.per_token = 6 * (query + key_value + output) + 12 * q * keys, .per_squared_token = 0};
}

LayerFlops mixer_flops(const ModelSpec& model, const LayerSpec& layer, double tokens, double squared_tokens) {
  const double h = real(model.hidden_size);
  const double q = real(model.gqa.heads) * real(model.gqa.head_dim);
  switch (layer.mixer) {
    case MixerKind::kNone:
      return {};
    case MixerKind::kGqa: {
      const double kv = real(model.gqa.query_groups) * real(model.gqa.head_dim);
      return {.per_token = 6 * h * (2 * q + 2 * kv + (model.gqa.output_gate ? q : 0)), .per_squared_token = 6 * q};
    }
    case MixerKind::kMla:
      return mla_flops(model);
    case MixerKind::kGatedDeltaNet:
      return {.per_token = 6 * gated_delta_net_macs(model), .per_squared_token = 0};
    case MixerKind::kLightning:
      // Not in Megatron's function: q, k, v, gate and output projections, and per head the update and the read of a
      // head_dim x head_dim state.
      return {.per_token = 6 * (5 * h * q + 2 * q * real(model.gqa.head_dim)), .per_squared_token = 0};
    case MixerKind::kCompressed:
      return compressed_flops(model, layer, tokens, squared_tokens);
    case MixerKind::kMamba:
      FW_CHECK(model.hybrid, "a Mamba layer outside a hybrid model");
      return {};
  }
  return {};
}

double mlp_flops_per_token(const ModelSpec& model, MlpKind kind) {
  const double h = real(model.hidden_size);
  const double matrices = model.swiglu ? 3 : 2;
  switch (kind) {
    case MlpKind::kNone:
      return 0;
    case MlpKind::kDense:
      return 6 * h * matrices * real(model.ffn_hidden_size);
    case MlpKind::kMoe: {
      const double latent = real(model.moe.latent_size);
      double routed = matrices * real(model.moe.ffn_hidden_size) * real(model.moe.topk);
      if (latent > 0) routed = routed * latent / h + 2 * latent;  // The two projections h <-> latent.
      return 6 * h * (routed + matrices * real(model.moe.shared_ffn_hidden_size));
    }
  }
  return 0;
}

/// Forward FLOPs of one layer of a hybrid, as Megatron's hybrid branch counts them. Only Mamba, gated delta net, GQA,
/// dense MLP and MoE count there. The inner width of Mamba is taken as 2h whatever the heads say: Megatron does so.
double hybrid_layer_forward_flops(const ModelSpec& model, const LayerSpec& layer, double tokens,
                                  double squared_tokens) {
  const double h = real(model.hidden_size);
  double flops = 0;
  if (layer.mixer == MixerKind::kGqa) {
    const double q = real(model.gqa.heads) * real(model.gqa.head_dim);
    const double kv = real(model.gqa.query_groups) * real(model.gqa.head_dim);
    flops += 4 * tokens * h * (q + kv) + 2 * squared_tokens * q;
  } else if (layer.mixer == MixerKind::kMamba) {
    const double inner = 2 * h, state = real(model.mamba.state);
    const double input = 2 * inner + 2 * real(model.mamba.groups) * state + real(model.mamba.heads);
    flops += 2 * tokens * h * input + 7 * tokens * inner * state + 2 * tokens * inner * h;
  } else if (layer.mixer == MixerKind::kGatedDeltaNet) {
    flops += 2 * tokens * gated_delta_net_macs(model);
  }
  return flops + tokens * mlp_flops_per_token(model, layer.mlp) / 3;
}

}  // namespace

std::int64_t padded_vocab_size(const ModelSpec& model, std::int64_t tp) {
  FW_CHECK(tp >= 1 && model.make_vocab_size_divisible_by >= 1);
  const std::int64_t multiple = model.make_vocab_size_divisible_by * tp;
  return (model.vocab_size + multiple - 1) / multiple * multiple;
}

double megatron_flops(const ModelSpec& model, double tokens, double squared_tokens, std::int64_t tp) {
  const double h = real(model.hidden_size);
  const double depths = real(model.mtp_num_layers);
  // Once for the main head and once for each depth of multi-token prediction.
  const double logits = 6 * h * real(padded_vocab_size(model, tp)) * (depths + 1);

  const auto layer_flops = [&](const LayerSpec& layer) {
    if (model.hybrid) return 3 * hybrid_layer_forward_flops(model, layer, tokens, squared_tokens);
    const LayerFlops mixer = mixer_flops(model, layer, tokens, squared_tokens);
    return tokens * (mixer.per_token + mlp_flops_per_token(model, layer.mlp)) +
           squared_tokens * mixer.per_squared_token;
  };

  double total = tokens * logits;
  for (const LayerSpec& layer : model.layers) total += layer_flops(layer);
  for (const LayerSpec& layer : model.mtp_layers) total += depths * layer_flops(layer);
  // Three norms and the projection of [hidden, embedding] per depth; the hybrid branch leaves them out.
  if (!model.hybrid) total += tokens * 6 * depths * (3 * h + 2 * h * h);
  return total;
}

}  // namespace foldwise::costmodel

#include <algorithm>

#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {
namespace {

// DeepSeek-V4's layers of ratio 4 select keys with an indexer; those of ratio 128 read all their compressed keys.
bool indexed(const CompressedSpec& c, const LayerSpec& layer) {
  constexpr std::int64_t kIndexedRatio = 4;
  return layer.compress_ratio == kIndexedRatio && c.index_heads > 0;
}

}  // namespace

// Of DeepSeek-V4 attention, which Megatron's function does not know: projections as they are, core attention over the
// window and the compressed keys, of which a layer with an indexer sees at most index_topk.
MixerFlops CompressedSpec::flops(const FlopsContext& context) const {
  const LayerSpec& layer = context.layer;
  const double tokens = context.tokens;
  const double h = real(context.model.hidden_size), q = real(heads) * real(head_dim);
  const double query = real(q_lora_rank) * (h + q + 1);
  const double key_value = h * real(head_dim);
  const double output = real(output_lora_rank) * (q + real(output_groups) * h);
  double keys = real(layer.window) + 1;  // Per query, averaged over the batch.
  if (layer.compress_ratio > 0 && tokens > 0) {
    const double compressed_keys =
        context.squared_tokens / tokens / 2 / real(layer.compress_ratio);  // Causal: half of s.
    keys += indexed(*this, layer) ? std::min(compressed_keys, real(index_topk)) : compressed_keys;
  }
  return {.per_token = 6 * (query + key_value + output) + 12 * q * keys, .per_squared_token = 0};
}

// DeepSeek-V4: queries through a low rank, one shared key/value head, output through grouped low-rank blocks.
// First order: hyper-connection streams appear as extra residual traffic, compression as a limit of keys per query.
void build(Builder& b, const CompressedSpec& c, const LayerSpec& layer) {
  const LayerOptions& o = b.options();
  const std::int64_t tp = o.tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens, t = b.shape().tokens, s = static_cast<double>(o.seq_len);
  const auto n = static_cast<double>(c.heads) / b.tp(), d = static_cast<double>(c.head_dim);
  const double q8 = b.recipe().saved_input_bytes();
  input_norm(b, "input_layernorm", false, !b.recipe().low_precision() ? 2.0 : 2.0 * q8);
  b.linear({.name = "linear_q_down_proj", .rows = t, .out = c.q_lora_rank, .in = h});
  b.keep("compressed_query", 2.0 * t * static_cast<double>(c.q_lora_rank));
  b.norm("q_layernorm", t, c.q_lora_rank);
  b.keep_for_wgrad(0, "compressed_query_norm", q8 * t * static_cast<double>(c.q_lora_rank));
  b.linear({.name = "linear_q_up_proj",
            .split = Split::kColumn,
            .rows = ta,
            .out = c.heads * c.head_dim / tp,
            .in = c.q_lora_rank});
  b.linear({.name = "linear_kv", .rows = t, .out = c.head_dim, .in = h});
  b.norm("kv_layernorm", t, c.head_dim);
  rope(b, ta * (n + 1.0) * d);
  auto keys = static_cast<double>(layer.window > 0 ? layer.window : 128);
  if (layer.compress_ratio > 0) {
    const double compressed_keys = s / static_cast<double>(layer.compress_ratio);
    const bool selects = indexed(c, layer);
    keys += selects ? std::min(compressed_keys, static_cast<double>(c.index_topk)) : compressed_keys / 2.0;
    b.linear({.name = "compressor", .rows = t, .out = 2 * c.head_dim, .in = h});
    if (selects) {
      b.linear({.name = "indexer_wq_b", .rows = t, .out = c.index_heads * c.index_head_dim, .in = c.q_lora_rank});
      b.step();
      b.forward("indexer_scores",
                AttentionWork{c.index_head_dim,
                              Flops{2.0 * ta * s / 2.0 / static_cast<double>(layer.compress_ratio) *
                                    static_cast<double>(c.index_heads * c.index_head_dim) / b.tp()},
                              0.0, false, true},
                4);
    }
  }
  const CoreAttention core{
      .heads = n, .groups = 1.0, .qk_dim = c.head_dim, .v_dim = c.head_dim, .keys = std::min(keys, s)};
  core_attention(b, core);
  const std::int64_t group_in = c.heads * c.head_dim / std::max<std::int64_t>(1, c.output_groups);
  b.linear({.name = "linear_o_a",
            .split = Split::kDuplicated,
            .rows = ta,
            .out = c.output_groups * c.output_lora_rank / tp,
            .in = group_in});
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = c.output_groups * c.output_lora_rank / tp});
  const auto streams = static_cast<double>(c.residual_streams - 1);
  b.memory_op("hyper_connection", MemoryOp::kElementwise, 6.0 * streams * t * static_cast<double>(h),
              MemoryOp::kElementwise, 8.0 * streams * t * static_cast<double>(h), 4, 6);
  b.keep("residual_streams", 2.0 * streams * t * static_cast<double>(h));
}

}  // namespace foldwise::costmodel

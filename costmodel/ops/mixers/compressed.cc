#include <algorithm>

#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;

// DeepSeek-V4's layers of ratio 4 select keys with an indexer. Layers of ratio 128 read all their compressed keys.
bool indexed(const CompressedSpec& c, const LayerSpec& layer) {
  constexpr std::int64_t kIndexedRatio = 4;
  return layer.compress_ratio == kIndexedRatio && c.index_heads > 0;
}

}  // namespace

// FLOPs of DeepSeek-V4 attention, which Megatron's function does not know. Projections are counted as they are. Core
// attention covers the window and the compressed keys, of which a layer with an indexer sees at most index_topk.
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

namespace {

// Compressed keys: values and gates for each of `windows` windows by two BF16 projections, and their pooling by
// softmax.
void compress(Builder& b, std::string_view name, std::int64_t head_dim, std::int64_t ratio, std::int64_t windows) {
  const double t = b.shape().tokens;
  const std::int64_t width = windows * head_dim;
  for (int i = 0; i < 2; ++i)  // Values and gates.
    b.linear({.name = name, .rows = t, .out = width, .in = b.model().hidden_size, .quantised = false});
  const double elements = t * real(width);
  b.op_pair("key_compressor", SoftwareWork{SoftwareKernel::kKeyCompressorForward, elements},
            SoftwareWork{SoftwareKernel::kKeyCompressorBackward, elements}, 1, 6);
  b.keep("values_and_gates", 4.0 * elements);
  b.weight("position_bias", ratio * width, false, false, true);
  b.norm("key_norm", t / real(ratio), head_dim);
}

// Hyper-connection: residual streams around attention or MLP. Weights made from the streams sum them into the input and
// mix them, and the output is added to each. Backward needs the streams and that output.
void hyper_connection(Builder& b, std::string_view name, std::int64_t streams) {
  if (streams <= 1) return;
  const double t = b.shape().tokens, h = real(b.model().hidden_size), elements = t * real(streams) * h;
  b.step();
  b.op_pair(name, SoftwareWork{SoftwareKernel::kHyperConnectionForward, elements},
            SoftwareWork{SoftwareKernel::kHyperConnectionBackward, elements}, 52, 142);
  b.keep("residual_streams", 2.0 * elements);
  b.keep("output", 2.0 * t * h);
  const std::int64_t weights = (2 + streams) * streams;
  b.weight(name, weights * streams * b.model().hidden_size + weights + 3, false, false, true, 3);
}

}  // namespace

// DeepSeek-V4: low-rank queries, one shared key/value head, compressed keys besides a window, and output through
// grouped low-rank blocks. The hyper-connections around attention and MLP are both charged here. The ops are those of
// transformers 5.24 (models/deepseek_v4); ops that are neither products nor attention are compiled
// (benchmarks/accuracy/journal.md#software). Not included: the indexer's training loss, and the gather of keys in
// sparse attention.
void build(Builder& b, const CompressedSpec& c, const LayerSpec& layer) {
  const LayerOptions& o = b.options();
  const std::int64_t tp = o.tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens, t = b.shape().tokens, s = static_cast<double>(o.seq_len);
  const auto n = static_cast<double>(c.heads) / b.tp(), d = static_cast<double>(c.head_dim);
  const double q8 = b.recipe().saved_input_bytes();
  hyper_connection(b, "attention_hyper_connection", c.residual_streams);
  input_norm(b, "input_layernorm", false, !b.recipe().low_precision() ? 2.0 : 2.0 * q8);
  b.linear({.name = "linear_q_down_proj", .rows = t, .out = c.q_lora_rank, .in = h});
  b.keep("compressed_query", 2.0 * t * static_cast<double>(c.q_lora_rank));
  b.recompute({RM::kMlaUpProj});
  b.norm("q_layernorm", t, c.q_lora_rank);
  b.keep_for_wgrad(0, "compressed_query_norm", q8 * t * static_cast<double>(c.q_lora_rank), {RM::kMlaUpProj});
  b.linear({.name = "linear_q_up_proj",
            .split = Split::kColumn,
            .rows = ta,
            .out = c.heads * c.head_dim / tp,
            .in = c.q_lora_rank});
  // Norm of each head's query, without a weight, and its rotary part.
  b.op_pair("query_norm", SoftwareWork{SoftwareKernel::kQueryNormForward, ta * n * d},
            SoftwareWork{SoftwareKernel::kQueryNormBackward, ta * n * d}, 1, 2);
  b.keep("query_before_norm", 2.0 * ta * n * d, {RM::kMlaUpProj});
  b.recompute({});
  b.linear({.name = "linear_kv", .rows = t, .out = c.head_dim, .in = h});
  b.norm("kv_layernorm", t, c.head_dim);
  const auto rotary = static_cast<double>(c.qk_pos_emb_head_dim);
  rope(b, ta * rotary);
  auto keys = static_cast<double>(layer.window > 0 ? layer.window : 128);
  if (layer.compress_ratio > 0) {
    const double compressed_keys = s / static_cast<double>(layer.compress_ratio);
    const bool selects = indexed(c, layer);
    const std::int64_t windows = selects ? 2 : 1;
    keys += selects ? std::min(compressed_keys, static_cast<double>(c.index_topk)) : compressed_keys / 2.0;
    compress(b, "compressor", c.head_dim, layer.compress_ratio, windows);
    if (selects) {
      b.linear({.name = "indexer_wq_b", .rows = t, .out = c.index_heads * c.index_head_dim, .in = c.q_lora_rank});
      compress(b, "indexer_compressor", c.index_head_dim, layer.compress_ratio, windows);
      b.linear({.name = "indexer_weights_proj", .rows = t, .out = c.index_heads, .in = h, .quantised = false});
      select_keys(b, c.index_heads, c.index_head_dim, compressed_keys, c.index_topk);
    }
  }
  CoreAttention core{.heads = n, .groups = 1.0, .qk_dim = c.head_dim, .v_dim = c.head_dim, .keys = std::min(keys, s)};
  core.query_freed_by = {RM::kMlaUpProj};
  core_attention(b, core);
  b.weight("sinks", c.heads / tp, false);
  rope(b, ta * n * rotary);  // Inverse rotation of the output.
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
  hyper_connection(b, "mlp_hyper_connection", c.residual_streams);
}

}  // namespace foldwise::costmodel

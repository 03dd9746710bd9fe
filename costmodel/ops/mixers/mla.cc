#include <algorithm>

#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;

}  // namespace

// FLOPs of multi-latent attention. Sparse attention's indexer and selection are not counted, because Megatron's
// function does not know them. So DeepSeek-V3.2 reports as many as DeepSeek-V3.
MixerFlops MlaSpec::flops(const FlopsContext& context) const {
  if (context.model.hybrid) return {};  // The function's hybrid branch does not know multi-latent attention either.
  const double h = real(context.model.hidden_size), n = real(heads);
  const double nope = real(qk_head_dim), rotary = real(qk_pos_emb_head_dim), v = real(v_head_dim);
  const double q_lora = real(q_lora_rank), kv_lora = real(kv_lora_rank);
  // The two "+ 1" are the norms of the compressed tensors.
  const double query = q_lora_rank == 0 ? h * n * (nope + rotary) : q_lora * (h + n * (nope + rotary) + 1);
  const double key_value = kv_lora * (h + n * (nope + v) + 1) + h * rotary;
  return {.per_token = 6 * (query + key_value + n * v * h), .per_squared_token = 3 * n * (nope + rotary + v)};
}

namespace {

// Down projections to the latent of the query, and to that of key and value with the key's rotary part.
void project_down(Builder& b, const MlaSpec& m) {
  const std::int64_t h = b.model().hidden_size;
  const double t = b.shape().tokens, latent = static_cast<double>(m.kv_lora_rank + m.qk_pos_emb_head_dim);
  if (m.q_lora_rank > 0) {
    b.linear({.name = "linear_q_down_proj", .rows = t, .out = m.q_lora_rank, .in = h});
    b.keep_for(1, "compressed_query", kBf16 * t * static_cast<double>(m.q_lora_rank), {}, {OM::kQkvLinear});
  }
  b.linear({.name = "linear_kv_down_proj", .rows = t, .out = m.kv_lora_rank + m.qk_pos_emb_head_dim, .in = h});
  b.keep("compressed_key_value", kBf16 * t * latent, {}, {OM::kQkvLinear});
  b.memory_op("down_proj_grad_add", MemoryOp::kElementwise, 0.0, MemoryOp::kElementwise,
              3.0 * kBf16 * t * static_cast<double>(h));
}

// Up projections of the latents to the heads of this rank.
void project_up(Builder& b, const MlaSpec& m, std::int64_t heads) {
  const double ta = b.shape().attention_tokens, t = b.shape().tokens, q8 = b.recipe().saved_input_bytes();
  const std::int64_t qk = m.qk_head_dim + m.qk_pos_emb_head_dim;
  // In Transformer Engine the up projections contain the latents' norms.
  const auto latent_norm = [&](std::string_view name, std::int64_t width) {
    if (!m.qk_layernorm) return;
    b.inside_module(b.options().software.transformer_engine);
    b.norm(name, t, width);
    b.inside_module(false);
  };
  if (m.q_lora_rank > 0) {
    latent_norm("q_layernorm", m.q_lora_rank);
    b.keep_for_wgrad(1, "compressed_query_norm", q8 * t * static_cast<double>(m.q_lora_rank), {RM::kMlaUpProj},
                     {OM::kQkvLinear});
    b.linear({.name = "linear_q_up_proj", .split = Split::kColumn, .rows = ta, .out = heads * qk, .in = m.q_lora_rank});
  } else {
    b.linear(
        {.name = "linear_q_proj", .split = Split::kColumn, .rows = ta, .out = heads * qk, .in = b.model().hidden_size});
  }
  latent_norm("kv_layernorm", m.kv_lora_rank);
  b.keep_for_wgrad(1, "compressed_key_value_norm", q8 * t * static_cast<double>(m.kv_lora_rank), {RM::kMlaUpProj},
                   {OM::kQkvLinear});
  if (b.options().splits_sequence())
    b.collective("rope_key", Phase::kForward, CollectiveKind::kAllGather, Group::kTp,
                 kBf16 * ta * static_cast<double>(m.qk_pos_emb_head_dim));
  b.linear({.name = "linear_kv_up_proj",
            .split = Split::kColumn,
            .rows = ta,
            .out = heads * (m.qk_head_dim + m.v_head_dim),
            .in = m.kv_lora_rank});
}

// Fused, the query's rotary part is rotated in place, and one kernel assembles key and value.
void rotate(Builder& b, const MlaSpec& m, double heads) {
  const double ta = b.shape().attention_tokens;
  const auto rotary = static_cast<double>(m.qk_pos_emb_head_dim);
  const double assembled =
      kBf16 * ta * heads * static_cast<double>(2 * m.qk_head_dim + 2 * m.v_head_dim + m.qk_pos_emb_head_dim);
  const double unfused = b.options().software.transformer_engine && m.fuses_rope() ? 1.0 : 6.0;
  b.memory_op("rope_query", MemoryOp::kRope, unfused * 4.0 * ta * heads * rotary, MemoryOp::kRope,
              unfused * 4.0 * ta * heads * rotary);
  // Every layer caches YaRN's cosine and sine in BF16 and an FP32 table; before the first step BF16 tables for 4096
  // positions.
  constexpr double kFirstPositions = 4096.0;
  const double positions = std::max(kFirstPositions, static_cast<double>(b.options().seq_len));
  b.cache((2.0 * kBf16 + kFp32) * positions * rotary, 2.0 * kBf16 * kFirstPositions * rotary);
  b.memory_op("rope_key_value", MemoryOp::kElementwise, unfused * assembled, MemoryOp::kElementwise,
              unfused * assembled);
}

// Linears of DeepSeek sparse attention's indexer.
void project_indexer(Builder& b, const MlaSpec& m) {
  const std::int64_t h = b.model().hidden_size;
  const double t = b.shape().tokens;
  b.linear({.name = "indexer_wq_b",
            .rows = t,
            .out = m.index_heads * m.index_head_dim,
            .in = std::max<std::int64_t>(m.q_lora_rank, 1)});
  b.linear({.name = "indexer_wk", .rows = t, .out = m.index_head_dim, .in = h});
  b.linear({.name = "indexer_weights_proj", .rows = t, .out = m.index_heads, .in = h, .quantised = false});
  b.norm("indexer_k_norm", t, m.index_head_dim);
}

}  // namespace

void build(Builder& b, const MlaSpec& m, const LayerSpec&) {
  const std::int64_t heads = m.heads / b.options().tp;
  const auto n = static_cast<double>(m.heads) / b.tp();
  // In FP8 each down projection quantises the norm's output itself and keeps its copy.
  const double down_projections = m.q_lora_rank > 0 ? 2.0 : 1.0;
  input_norm(b, "input_layernorm", false,
             b.recipe().low_precision() ? down_projections * b.recipe().saved_input_bytes() : kBf16);
  project_down(b, m);
  b.recompute({RM::kMlaUpProj});
  project_up(b, m, heads);
  rotate(b, m, n);
  b.recompute({});
  CoreAttention core{.heads = n,
                     .groups = n,
                     .qk_dim = m.qk_head_dim + m.qk_pos_emb_head_dim,
                     .v_dim = m.v_head_dim,
                     .keys = static_cast<double>(m.index_topk)};
  core.query_freed_by = core.keys_freed_by = {RM::kMlaUpProj};
  if (m.index_heads > 0) {
    project_indexer(b, m);
    sparse_attention(b, core, m.index_heads, m.index_head_dim);
  } else {
    core_attention(b, core);
  }
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = b.shape().attention_tokens,
            .out = b.model().hidden_size,
            .in = heads * m.v_head_dim});
}

}  // namespace foldwise::costmodel

#include <algorithm>

#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;

}  // namespace

// Of multi-latent attention. The indexer of sparse attention is not counted and its selection neither: Megatron's
// function knows neither, so DeepSeek-V3.2 reports what DeepSeek-V3 does.
MixerFlops MlaSpec::flops(const FlopsContext& context) const {
  if (context.model.hybrid) return {};  // Nor does its hybrid branch know multi-latent attention.
  const double h = real(context.model.hidden_size), n = real(heads);
  const double nope = real(qk_head_dim), rotary = real(qk_pos_emb_head_dim), v = real(v_head_dim);
  const double q_lora = real(q_lora_rank), kv_lora = real(kv_lora_rank);
  // The two "+ 1" are the norms of the compressed tensors.
  const double query = q_lora_rank == 0 ? h * n * (nope + rotary) : q_lora * (h + n * (nope + rotary) + 1);
  const double key_value = kv_lora * (h + n * (nope + v) + 1) + h * rotary;
  return {.per_token = 6 * (query + key_value + n * v * h), .per_squared_token = 3 * n * (nope + rotary + v)};
}

void build(Builder& b, const MlaSpec& m, const LayerSpec&) {
  const LayerOptions& o = b.options();
  const std::int64_t tp = o.tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens, t = b.shape().tokens;
  const double q8 = b.recipe().saved_input_bytes();
  const std::int64_t qk = m.qk_head_dim + m.qk_pos_emb_head_dim, heads = m.heads / tp;
  const auto n = static_cast<double>(m.heads) / b.tp();
  const auto latent = static_cast<double>(m.kv_lora_rank + m.qk_pos_emb_head_dim);
  // In FP8 each down projection quantises the norm output for itself and keeps that copy.
  const double down_projections = m.q_lora_rank > 0 ? 2.0 : 1.0;
  input_norm(b, "input_layernorm", false, !b.recipe().low_precision() ? 2.0 : down_projections * q8);

  if (m.q_lora_rank > 0) {
    b.linear({.name = "linear_q_down_proj", .rows = t, .out = m.q_lora_rank, .in = h});
    b.keep_for(1, "compressed_query", 2.0 * t * static_cast<double>(m.q_lora_rank), {}, {OM::kQkvLinear});
  }
  b.linear({.name = "linear_kv_down_proj", .rows = t, .out = m.kv_lora_rank + m.qk_pos_emb_head_dim, .in = h});
  b.keep("compressed_key_value", 2.0 * t * latent, {}, {OM::kQkvLinear});
  b.memory_op("down_proj_grad_add", MemoryOp::kElementwise, 0.0, MemoryOp::kElementwise,
              6.0 * t * static_cast<double>(h));

  b.recompute({RM::kMlaUpProj});
  // With Transformer Engine the norms of the latents are part of the up projections.
  const auto latent_norm = [&](std::string_view name, std::int64_t width) {
    if (!m.qk_layernorm) return;
    b.inside_module(o.software.transformer_engine);
    b.norm(name, t, width);
    b.inside_module(false);
  };
  if (m.q_lora_rank > 0) {
    latent_norm("q_layernorm", m.q_lora_rank);
    b.keep_for_wgrad(1, "compressed_query_norm", q8 * t * static_cast<double>(m.q_lora_rank), {RM::kMlaUpProj},
                     {OM::kQkvLinear});
    b.linear({.name = "linear_q_up_proj", .split = Split::kColumn, .rows = ta, .out = heads * qk, .in = m.q_lora_rank});
  } else {
    b.linear({.name = "linear_q_proj", .split = Split::kColumn, .rows = ta, .out = heads * qk, .in = h});
  }
  latent_norm("kv_layernorm", m.kv_lora_rank);
  b.keep_for_wgrad(1, "compressed_key_value_norm", q8 * t * static_cast<double>(m.kv_lora_rank), {RM::kMlaUpProj},
                   {OM::kQkvLinear});
  if (o.splits_sequence())
    b.collective("rope_key", Phase::kForward, CollectiveKind::kAllGather, Group::kTp,
                 2.0 * ta * static_cast<double>(m.qk_pos_emb_head_dim));
  b.linear({.name = "linear_kv_up_proj",
            .split = Split::kColumn,
            .rows = ta,
            .out = heads * (m.qk_head_dim + m.v_head_dim),
            .in = m.kv_lora_rank});
  // The query's rotary part works in place; key and value are assembled by one kernel.
  const auto rotary = static_cast<double>(m.qk_pos_emb_head_dim);
  const double assembled =
      2.0 * ta * n * static_cast<double>(2 * m.qk_head_dim + 2 * m.v_head_dim + m.qk_pos_emb_head_dim);
  const double unfused = o.software.transformer_engine ? 1.0 : 6.0;
  b.memory_op("rope_query", MemoryOp::kRope, unfused * 4.0 * ta * n * rotary, MemoryOp::kRope,
              unfused * 4.0 * ta * n * rotary);
  // YaRN's cosine and sine in bf16 and an fp32 table, cached by every layer; at first bf16 tables for 4096 positions.
  constexpr double kFirstPositions = 4096.0;
  b.cache(8.0 * std::max(kFirstPositions, static_cast<double>(o.seq_len)) * rotary, 4.0 * kFirstPositions * rotary);
  b.memory_op("rope_key_value", MemoryOp::kElementwise, unfused * assembled, MemoryOp::kElementwise,
              unfused * assembled);
  b.recompute({});

  double keys = 0;
  if (m.index_heads > 0) {  // DeepSeek sparse attention: a small attention picks index_topk keys per query.
    keys = static_cast<double>(m.index_topk);
    b.linear({.name = "indexer_wq_b",
              .rows = t,
              .out = m.index_heads * m.index_head_dim,
              .in = std::max<std::int64_t>(m.q_lora_rank, 1)});
    b.linear({.name = "indexer_wk", .rows = t, .out = m.index_head_dim, .in = h});
    b.linear({.name = "indexer_weights_proj", .rows = t, .out = m.index_heads, .in = h, .quantised = false});
    b.norm("indexer_k_norm", t, m.index_head_dim);
    select_keys(b, m.index_heads, m.index_head_dim, static_cast<double>(o.seq_len), m.index_topk);
    b.keep("indexer_query", 2.0 * t * static_cast<double>(m.index_heads * m.index_head_dim));
  }
  CoreAttention core{.heads = n, .groups = n, .qk_dim = qk, .v_dim = m.v_head_dim, .keys = keys};
  core.query_freed_by = core.keys_freed_by = {RM::kMlaUpProj};
  core_attention(b, core);
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = heads * m.v_head_dim});
}

}  // namespace foldwise::costmodel

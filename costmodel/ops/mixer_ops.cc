#include <cmath>

#include "costmodel/ops/builder.h"

// The token-mixing half of a layer: norm, attention (or Mamba, delta net, ...), residual add. Which tensors backward
// keeps follows docs/memory.md; kernels and bytes follow docs/formulas.md#op-list.
namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;

struct CoreAttention {
  double heads = 0, groups = 0;  ///< Per TP rank.
  std::int64_t qk_dim = 0, v_dim = 0;
  double window = 0;  ///< 0: full causal.
  double keys = 0;    ///< Sparse attention: keys per query; 0: all.
  BitSet<RM> inputs_freed_by{};
};

// Causal (query, key) pairs of one head and sequence, under a window or a limit of keys per query.
double causal_pairs(double s, double window, double keys) {
  double limit = s;
  if (window > 0) limit = std::min(limit, window);
  if (keys > 0) limit = std::min(limit, keys);
  return limit >= s ? s * s / 2.0 : s * limit - limit * limit / 2.0;
}

// K/V (or all four tensors) exchanged over CP. Source: docs/formulas.md#context-parallel.
void context_parallel(Builder& b, const CoreAttention& a, Phase phase) {
  const auto cp = static_cast<double>(b.options().cp);
  if (cp <= 1) return;
  const double ta = b.shape().attention_tokens;
  const double kv = 2.0 * ta * a.groups * static_cast<double>(a.qk_dim + a.v_dim);
  const double k = 2.0 * ta * a.groups * static_cast<double>(a.qk_dim);
  const double q = 2.0 * ta * a.heads * static_cast<double>(a.qk_dim),
               o = 2.0 * ta * a.heads * static_cast<double>(a.v_dim);
  const std::int64_t ranks = b.options().cp, inner = b.options().cp_all_to_all_ranks();
  if (inner > 1) {
    b.collective("cp_a2a_q", phase, CollectiveKind::kAllToAll, Group::kCp, q, inner, 1);
    b.collective("cp_a2a_k", phase, CollectiveKind::kAllToAll, Group::kCp, k, inner, 1);
    b.collective("cp_a2a_v", phase, CollectiveKind::kAllToAll, Group::kCp, kv - k, inner, 1);
    b.collective("cp_a2a_out", phase, CollectiveKind::kAllToAll, Group::kCp, o, inner, 1);
  }
  switch (b.options().cp_comm) {
    case CpComm::kP2p:
    case CpComm::kA2aP2p: {
      // Ring: one op for all steps, beside the attention kernel.
      const double passes = phase == Phase::kForward ? 1.0 : 2.0;
      const std::int64_t ring = ranks / inner;
      b.overlap(Overlap::kCpAttention);
      b.collective("cp_p2p", phase, CollectiveKind::kSendRecv, Group::kCp, passes * static_cast<double>(ring - 1) * kv,
                   ring, inner);
      b.overlap(Overlap::kNone);
      break;
    }
    case CpComm::kAllGather:
      b.collective("cp_all_gather", phase, CollectiveKind::kAllGather, Group::kCp, cp * kv);
      if (phase != Phase::kForward)
        b.collective("cp_reduce_scatter", phase, CollectiveKind::kReduceScatter, Group::kCp, cp * kv);
      break;
    case CpComm::kA2a:
      break;
  }
}

// Score matrices alive at once in the backward of unfused attention, beside the kept probabilities.
// Source: docs/memory.md#moments.
constexpr int kScoreCopies = 3;

// Scaled dot-product attention with its backward, and what it keeps.
void core_attention(Builder& b, const CoreAttention& a) {
  const LayerOptions& o = b.options();
  const auto s = static_cast<double>(o.seq_len), batch = static_cast<double>(o.micro_batch);
  const auto cp = static_cast<double>(o.cp), ta = b.shape().attention_tokens;
  const auto qk = static_cast<double>(a.qk_dim), v = static_cast<double>(a.v_dim);
  double pairs = batch * a.heads * causal_pairs(s, a.window, a.keys) / cp;
  const double window = o.software.fused_attention && a.window < s ? a.window : 0.0;
  if (!o.software.fused_attention) pairs *= 2.0;  // Unfused kernels compute the masked half too.
  const double heads_ta = a.heads * ta, groups_ta = a.groups * ta;

  b.recompute({RM::kCoreAttn});
  const bool te = o.software.transformer_engine;
  b.inside_module(te);
  b.step();
  context_parallel(b, a, Phase::kForward);
  const double score_bytes = 2.0 * batch * a.heads * s * s / cp;
  const bool ring =
      o.cp_comm != CpComm::kAllGather && o.cp_all_to_all_ranks() < o.cp;  // Something is left for the ring.
  if (ring) b.overlap(Overlap::kCpAttention);
  // A ring runs one kernel per step and rescales the output it has so far (fp32 read, bf16 read, fp32 write).
  const int steps = ring ? static_cast<int>(o.cp / o.cp_all_to_all_ranks()) : 1;
  for (int step = 0; step < steps; ++step)
    b.forward("core_attention",
              AttentionWork{a.qk_dim, Flops{2.0 * pairs * (qk + v) / steps}, heads_ta, false, o.fp8_attention, window},
              2)
        .modules = te && step == 0 ? 1 : 0;
  if (ring)
    b.forward("merge_steps", MemoryWork{MemoryOp::kElementwise, Bytes{10.0 * (steps - 1) * heads_ta * v}}, steps);
  if (!o.software.fused_attention)  // Mask, softmax, scale and copies: 11 of the 25 passes over the scores are forward.
    b.forward("scores", MemoryWork{MemoryOp::kElementwise, Bytes{11.0 * score_bytes}}, 6);
  b.keep("query", 2.0 * heads_ta * qk, a.inputs_freed_by, {OM::kCoreAttn});
  if (o.software.fused_attention) {
    BitSet<RM> key_freed_by = a.inputs_freed_by;
    key_freed_by = key_freed_by | RM::kAlternateMatmuls;
    b.keep("key", 2.0 * groups_ta * qk, key_freed_by, {OM::kCoreAttn});
    b.keep("value", 2.0 * groups_ta * v, a.inputs_freed_by, {OM::kCoreAttn});
  }
  b.keep("attention_output", 2.0 * heads_ta * v, {}, {OM::kCoreAttn, OM::kAttnProj});
  if (o.cp_all_to_all_ranks() > 1) b.keep("head_sharded_output", 2.0 * heads_ta * v);
  if (o.software.fused_attention) {
    b.keep("log_sum_exp", 4.0 * heads_ta, {RM::kCoreAttn});
  } else {  // K and V are repeated to one per query head; the originals are freed.
    b.keep("probabilities", score_bytes, {RM::kCoreAttn});
    b.keep("repeated_key_value", 2.0 * heads_ta * (qk + v), {RM::kCoreAttn});
  }
  // Gradients of output, query, key and value. Unfused: the in-place mask makes autograd clone the gradient of the
  // scores.
  const std::vector<MemoryWork> passes = attention_backward_passes(heads_ta, groups_ta, qk, v);
  b.backward("core_attention", Phase::kDgrad, passes.front());
  b.backward_transient({2.0 * heads_ta * qk, 2.0 * groups_ta * qk, 2.0 * groups_ta * v, 2.0 * heads_ta * v});
  for (int copy = 0; !o.software.fused_attention && copy < kScoreCopies; ++copy) b.backward_transient({score_bytes});
  for (int step = 0; step < steps; ++step)
    b.backward("core_attention", Phase::kDgrad,
               AttentionWork{a.qk_dim, Flops{2.0 * pairs * (3.0 * qk + 2.0 * v) / steps}, heads_ta, true,
                             o.fp8_attention, window},
               2)
        .modules = te && step == 0 ? 1 : 0;
  if (ring)
    b.backward("merge_steps", Phase::kDgrad,
               MemoryWork{MemoryOp::kElementwise, Bytes{6.0 * (steps - 1) * heads_ta * qk}}, steps);
  b.backward("core_attention", Phase::kDgrad, passes.at(1));
  if (passes.size() > 2) b.backward("core_attention", Phase::kDgrad, passes.at(2), 2);
  if (!o.software.fused_attention)
    b.backward("scores", Phase::kDgrad, MemoryWork{MemoryOp::kElementwise, Bytes{14.0 * score_bytes}}, 9);
  b.overlap(Overlap::kNone);
  context_parallel(b, a, Phase::kDgrad);
  b.inside_module(false);
  b.recompute({});
}

// Norm in front of the mixer, its kept input and output. `fused`: inside the following TE linear, which then keeps the
// output in its own format and cannot have it recomputed by the "layernorm" module.
void input_norm(Builder& b, std::string_view name, bool fused, double output_bytes) {
  const double t = b.shape().tokens, h = static_cast<double>(b.model().hidden_size);
  const BitSet<RM> modules =
      fused ? BitSet<RM>{RM::kAlternateMatmuls} : BitSet<RM>{RM::kLayerNorm, RM::kAlternateMatmuls};
  b.recompute(modules);
  b.inside_module(fused);
  b.norm(name, t, b.model().hidden_size);
  b.inside_module(false);
  b.keep_input(2.0 * t * h, fused ? BitSet<OM>{OM::kQkvLinear} : BitSet<OM>{OM::kAttnNorm}, false);
  b.keep_for_wgrad(1, "norm_output", output_bytes * t * h, modules, {OM::kQkvLinear});
  b.recompute({});
}

void rope(Builder& b, double elements) {
  // Unfused: multiplies, negation, concatenation of halves and an add: about six times the traffic of the fused kernel.
  // Megatron falls back to it where YaRN scales (apply_rotary_pos_emb in models/common/embeddings/rope_utils.py).
  const bool fused = b.options().software.transformer_engine && !b.model().scaled_rope;
  const double passes = fused ? 4.0 : 24.0;
  const int launches = fused ? 2 : 12;
  b.memory_op("rope", MemoryOp::kRope, passes * elements, MemoryOp::kRope, passes * elements, launches, launches);
}

void gqa(Builder& b, const LayerSpec& layer) {
  const GqaSpec& g = b.model().gqa;
  const LayerOptions& o = b.options();
  const std::int64_t tp = o.tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens, d = static_cast<double>(g.head_dim);
  const bool te = o.software.transformer_engine;
  const std::int64_t q_width = g.heads * g.head_dim, kv_width = g.query_groups * g.head_dim;
  const auto heads = static_cast<double>(g.heads) / b.tp();
  const double groups = std::max(1.0, static_cast<double>(g.query_groups) / b.tp());
  const bool bias = b.model().add_bias_linear;

  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  const std::int64_t qkv = q_width + 2 * kv_width + (g.output_gate ? q_width : 0);
  b.linear({.name = "linear_qkv",
            .lora = LoraModule::kLinearQkv,
            .split = Split::kColumn,
            .rows = ta,
            .out = qkv / tp,
            .in = h,
            .bias = g.qkv_bias || bias ? (q_width + 2 * kv_width) / tp : 0});
  b.memory_op("split_qkv", MemoryOp::kStridedCopy, 4.0 * ta * (heads + groups) * d, MemoryOp::kElementwise,
              4.0 * ta * (heads + 2.0 * groups) * d, 2, 1);
  if (g.qk_layernorm) {
    b.step();
    b.norm("q_layernorm", ta * heads, g.head_dim);
    b.keep("query_before_norm", 2.0 * ta * heads * d);
    b.norm("k_layernorm", ta * groups, g.head_dim);
    if (te) b.keep("key_before_norm", 2.0 * ta * groups * d);
  }
  rope(b, ta * (heads + groups) * d);
  if (!te) b.keep("rope_cos_sin", 8.0 * static_cast<double>(o.seq_len) / static_cast<double>(o.cp) * d);
  const CoreAttention core{.heads = heads,
                           .groups = groups,
                           .qk_dim = g.head_dim,
                           .v_dim = g.head_dim,
                           .window = static_cast<double>(layer.window)};
  core_attention(b, core);
  if (g.learnable_softmax) {
    b.weight("softmax_offset", g.heads / tp, false);
    // cuDNN sums its gradient with atomics in the kernel before the backward one: 1.66 ns a row of a head, as 12 bytes
    // (docs/measuring.md#software).
    b.backward("softmax_offset", Phase::kDgrad, MemoryWork{MemoryOp::kScan, Bytes{12.0 * ta * heads}}, 0);
  }
  if (!te && o.software.fused_attention)
    b.keep("qkv_view", 2.0 * ta * (heads + groups) * d);  // v is a view that keeps the whole QKV output.
  if (g.output_gate)
    b.memory_op("output_gate", MemoryOp::kActivationForward, 6.0 * ta * heads * d, MemoryOp::kActivationBackward,
                10.0 * ta * heads * d);
  if (g.output_gate) b.keep("gate", 2.0 * ta * heads * d);
  b.recompute({RM::kAlternateMatmuls});
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = q_width / tp,
            .bias = bias ? h : 0});
  b.recompute({});
  if (b.recipe().keeps_projection_input) b.keep("fp8_attention_output", ta * heads * d);
}

void mla(Builder& b, const LayerSpec&) {
  const MlaSpec& m = b.model().mla;
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
    const auto s = static_cast<double>(o.seq_len), ih = static_cast<double>(m.index_heads);
    b.linear({.name = "indexer_wq_b",
              .rows = t,
              .out = m.index_heads * m.index_head_dim,
              .in = std::max<std::int64_t>(m.q_lora_rank, 1)});
    b.linear({.name = "indexer_wk", .rows = t, .out = m.index_head_dim, .in = h});
    b.linear({.name = "indexer_weights_proj", .rows = t, .out = m.index_heads, .in = h, .quantised = false});
    b.norm("indexer_k_norm", t, m.index_head_dim);
    b.step();
    b.forward("indexer_scores",
              AttentionWork{m.index_head_dim,
                            Flops{2.0 * static_cast<double>(o.micro_batch) * ih * causal_pairs(s, 0, 0) *
                                  static_cast<double>(m.index_head_dim) / static_cast<double>(o.cp * o.tp)},
                            0.0, false, true},
              4);
    b.keep("indexer_query", 2.0 * t * ih * static_cast<double>(m.index_head_dim));
    b.keep("selected_keys", 4.0 * t * std::min(keys, s));
  }
  CoreAttention core{.heads = n, .groups = n, .qk_dim = qk, .v_dim = m.v_head_dim, .keys = keys};
  core.inputs_freed_by = {RM::kMlaUpProj};
  core_attention(b, core);
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = heads * m.v_head_dim});
}

// DeepSeek-V4: queries through a low rank, one shared key/value head, output through grouped low-rank blocks.
// First order: hyper-connection streams appear as extra residual traffic, compression as a limit of keys per query.
void compressed(Builder& b, const LayerSpec& layer) {
  const CompressedSpec& c = b.model().compressed;
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
    const bool indexed = layer.compress_ratio < 32 && c.index_heads > 0;
    keys += indexed ? std::min(compressed_keys, static_cast<double>(c.index_topk)) : compressed_keys / 2.0;
    b.linear({.name = "compressor", .rows = t, .out = 2 * c.head_dim, .in = h});
    if (indexed) {
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

// Mamba-2: in_proj, causal convolution, chunked scan, gated norm, out_proj.
void mamba(Builder& b, const LayerSpec&) {
  const MambaSpec& m = b.model().mamba;
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens;
  const std::int64_t inner = m.heads * m.head_dim, bc = 2 * m.groups * m.state;
  const auto conv = static_cast<double>(inner + bc) / b.tp(), x = static_cast<double>(inner) / b.tp();
  const bool te = b.options().software.transformer_engine;
  input_norm(b, "mamba_norm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "in_proj", .split = Split::kColumn, .rows = ta, .out = (2 * inner + bc + m.heads) / tp, .in = h});
  const double projected = static_cast<double>(2 * inner + bc + m.heads) / b.tp();
  b.keep("in_proj_output", 2.0 * ta * projected);
  // The scan wants sequences one after another, Megatron's rows alternate between those of a micro-batch
  // (ssm/mamba_mixer.py: _ssm_training).
  const double copied = b.options().micro_batch > 1 ? 4.0 * ta : 0.0;
  b.memory_op("sequence_major", MemoryOp::kStridedCopy, copied * projected, MemoryOp::kStridedCopy, copied * projected);
  // Backward runs the convolution again: only its input is kept.
  b.memory_op("conv1d", MemoryOp::kElementwise, 5.7 * ta * conv, MemoryOp::kElementwise, 17.3 * ta * conv);
  b.weight("conv1d", m.conv_kernel * (inner + bc) / tp, false);
  b.weight("conv1d", (inner + bc) / tp, false);
  // Kernels of mamba_ssm, at the rate of other kernels that fp32 arithmetic bounds (docs/measuring.md#software): tokens
  // in bf16, and the fp32 states of every chunk: made, passed on and read; backward makes them again and their
  // gradients.
  const double states = static_cast<double>(m.state) / static_cast<double>(m.chunk);
  b.memory_op("chunk_scan", MemoryOp::kActivationBackward, ta * x * (7.0 + 16.0 * states),
              MemoryOp::kActivationBackward, ta * x * (37.0 + 40.0 * states), 5, 36);
  b.weight("dt_bias_a_d", 3 * m.heads / tp, false, false, false, 3);
  // Its matrix products hide behind that.
  b.memory_op("batch_major", MemoryOp::kStridedCopy, copied * x, MemoryOp::kStridedCopy, copied * x);
  b.memory_op("gated_norm", MemoryOp::kNormForward, 6.0 * ta * x, MemoryOp::kActivationBackward, 16.0 * ta * x, 1, 3);
  b.weight("gated_norm", inner / tp, false);
  b.keep("scan_output", 2.0 * ta * x);
  b.linear({.name = "out_proj", .split = Split::kRow, .rows = ta, .out = h, .in = inner / tp});
  b.keep_for_wgrad(0, "gated_norm_output", b.recipe().saved_input_bytes() * ta * x);
}

// Gated delta net: in_proj, convolution over q, k, v, chunked delta rule, gated norm, out_proj.
void gated_delta_net(Builder& b, const LayerSpec&) {
  const GatedDeltaNetSpec& g = b.model().gdn;
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens;
  const std::int64_t qk = g.key_heads * g.key_head_dim, v = g.value_heads * g.value_head_dim;
  const std::int64_t in = 2 * qk + 2 * v + 2 * g.value_heads;
  const auto conv = static_cast<double>(2 * qk + v) / b.tp(), x = static_cast<double>(v) / b.tp();
  const bool te = b.options().software.transformer_engine;
  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "in_proj", .split = Split::kColumn, .rows = ta, .out = in / tp, .in = h});
  b.keep("in_proj_output", 2.0 * ta * static_cast<double>(in) / b.tp());
  b.memory_op("conv1d", MemoryOp::kElementwise, 4.0 * ta * conv, MemoryOp::kElementwise, 8.0 * ta * conv);
  b.weight("conv1d", g.conv_kernel * (2 * qk + v) / tp, false);
  b.keep("conv_output", 2.0 * ta * conv);
  b.step();
  const double rule = 2.0 * ta * static_cast<double>(g.value_heads) / b.tp() *
                      (4.0 * static_cast<double>(g.value_head_dim * g.key_head_dim));
  b.forward("chunk_delta_rule", AttentionWork{g.key_head_dim, Flops{rule}, 0.0, false, false}, 8);
  b.weight("dt_bias_a_log", 2 * g.value_heads / tp, false, false, false, 2);
  b.backward("chunk_delta_rule", Phase::kDgrad, AttentionWork{g.key_head_dim, Flops{2.0 * rule}, 0.0, true, false}, 14);
  b.memory_op("chunk_delta_rule", MemoryOp::kElementwise, 2.0 * ta * (3.0 * conv + x), MemoryOp::kElementwise,
              5.0 * ta * (3.0 * conv + x));
  b.memory_op("gated_norm", MemoryOp::kNormForward, 6.0 * ta * x, MemoryOp::kNormBackward, 10.0 * ta * x, 1, 3);
  b.weight("gated_norm", static_cast<std::int64_t>(b.norm_vectors()) * g.value_head_dim, false, false, tp > 1,
           static_cast<std::int64_t>(b.norm_vectors()));
  b.keep("rule_output", 2.0 * ta * x);
  b.linear({.name = "out_proj", .split = Split::kRow, .rows = ta, .out = h, .in = v / tp});
  b.keep_for_wgrad(0, "gated_norm_output", b.recipe().saved_input_bytes() * ta * x);
}

// Lightning attention (MiniMax-01): per-head linear attention with an output gate and norm.
void lightning(Builder& b, const LayerSpec&) {
  const GqaSpec& g = b.model().gqa;
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size, width = g.heads * g.head_dim;
  const double ta = b.shape().attention_tokens, x = static_cast<double>(width) / b.tp();
  const bool te = b.options().software.transformer_engine;
  constexpr double kBlock = 256;  // Tokens of a block of the kernel. Source: the public MiniMax-01 implementation.
  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "linear_qkv",
            .lora = LoraModule::kLinearQkv,
            .split = Split::kColumn,
            .rows = ta,
            .out = 3 * width / tp,
            .in = h});
  b.keep("qkv", 6.0 * ta * x);
  b.linear({.name = "output_gate",
            .split = Split::kColumn,
            .rows = ta,
            .out = width / tp,
            .in = h,
            .quantise_input = false});
  b.keep("gate", 2.0 * ta * x);
  b.step();
  const double work = 2.0 * ta * x * (kBlock + 2.0 * static_cast<double>(g.head_dim));
  b.forward("lightning_attention", AttentionWork{g.head_dim, Flops{work}, 0.0, false, false}, 4);
  b.backward("lightning_attention", Phase::kDgrad, AttentionWork{g.head_dim, Flops{2.5 * work}, 0.0, true, false}, 6);
  b.memory_op("gated_norm", MemoryOp::kNormForward, 6.0 * ta * x, MemoryOp::kNormBackward, 10.0 * ta * x, 2, 4);
  b.weight("gated_norm", width / tp, false);
  b.keep("attention_output", 4.0 * ta * x);
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = width / tp});
}

}  // namespace

OpList mixer_ops(const BuildContext& context, const LayerSpec& layer) {
  const bool is_mamba = layer.mixer == MixerKind::kMamba;
  Builder b(context, Module::kAttention,
            is_mamba ? BitSet<GraphModule>{GraphModule::kMamba} : BitSet<GraphModule>{GraphModule::kAttn});
  switch (layer.mixer) {
    case MixerKind::kNone:
      return {};
    case MixerKind::kGqa:
      gqa(b, layer);
      break;
    case MixerKind::kMla:
      mla(b, layer);
      break;
    case MixerKind::kMamba:
      mamba(b, layer);
      break;
    case MixerKind::kGatedDeltaNet:
      gated_delta_net(b, layer);
      break;
    case MixerKind::kLightning:
      lightning(b, layer);
      break;
    case MixerKind::kCompressed:
      compressed(b, layer);
      break;
  }
  b.residual_add("self_attn_bda");
  b.output_gradient(2.0 * b.shape().tokens * static_cast<double>(b.model().hidden_size));
  return b.take();
}

}  // namespace foldwise::costmodel

#include <algorithm>
#include <cmath>

#include "costmodel/ops/mixers/mixers.h"

// Ops that several kinds of attention share.
namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;

constexpr int kChunksOfRank = 2;  // Of the 2 cp chunks into which Megatron cuts a sequence to balance the ranks.

// Time of kernels for a chunk of queries with all keys before it, relative to a whole causal sequence with as many
// FLOPs. cuDNN kernels of Llama 3 8B at 16,384 tokens on two H200, with gathered keys (CP 2) and with heads (TP 2),
// took 270 and 258 ms forward, 890 and 773 backward. Source: benchmarks/accuracy/journal.md#gathered-keys.
constexpr double kGatheredForward = 1.048, kGatheredBackward = 1.151;

// Exchanges K/V, or all four tensors, over CP. Source: docs/formulas.md#context-parallel.
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
      // The ring is one op for all steps, beside the attention kernel.
      const double passes = phase == Phase::kForward ? 1.0 : 2.0;
      const std::int64_t ring = ranks / inner;
      b.overlap(Overlap::kCpAttention);
      b.collective("cp_p2p", phase, CollectiveKind::kSendRecv, Group::kCp, passes * static_cast<double>(ring - 1) * kv,
                   ring, inner);
      b.overlap(Overlap::kNone);
      break;
    }
    case CpComm::kAllGather: {
      // Keys and values are gathered and put in the order of the sequence, in both directions. Gradients of all of them
      // are zeroed, each chunk of queries adds to them, and they are put in the order of the ranks and scattered.
      // Source: AttnFuncWithCPAndKVAllGather in
      // transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py.
      const auto pass = [&](std::string_view name, MemoryOp op, double bytes, int launches) {
        const MemoryWork work{op, Bytes{bytes}, launches};
        phase == Phase::kForward ? b.forward(name, work, launches) : b.backward(name, phase, work, launches);
      };
      const double gathered = cp * kv;
      b.collective("cp_all_gather_k", phase, CollectiveKind::kAllGather, Group::kCp, cp * k);
      b.collective("cp_all_gather_v", phase, CollectiveKind::kAllGather, Group::kCp, cp * (kv - k));
      pass("cp_reorder", MemoryOp::kStridedCopy, 2.0 * gathered, 2);
      if (phase == Phase::kForward) {
        pass("cp_join_chunks", MemoryOp::kElementwise, 2.0 * o, kChunksOfRank);
        break;
      }
      // A rank has the r-th chunk and the r-th from the end. Together (2 cp + 1) / (2 cp) of all keys precede them.
      pass("cp_zero_gradients", MemoryOp::kFill, gathered, 2);
      pass("cp_add_gradients", MemoryOp::kElementwise, 3.0 * gathered * (2.0 * cp + 1.0) / (2.0 * cp),
           2 * kChunksOfRank);
      pass("cp_join_chunks", MemoryOp::kElementwise, 2.0 * q, kChunksOfRank);
      pass("cp_reorder", MemoryOp::kStridedCopy, 2.0 * gathered, 2);
      b.collective("cp_reduce_scatter_k", phase, CollectiveKind::kReduceScatter, Group::kCp, cp * k);
      b.collective("cp_reduce_scatter_v", phase, CollectiveKind::kReduceScatter, Group::kCp, cp * (kv - k));
      break;
    }
    case CpComm::kA2a:
      break;
  }
}

// Score matrices alive at once in the backward of unfused attention, beside the kept probabilities.
// Source: docs/memory.md#moments.
constexpr int kScoreCopies = 3;

// Whether keys are gathered over CP, for one chunk of queries after another.
bool gathers_keys(const LayerOptions& o) { return o.cp > 1 && o.cp_comm == CpComm::kAllGather; }

// Keeps the tensors that core attention needs in its backward.
void keep_attention(Builder& b, const CoreAttention& a, double score_bytes) {
  const LayerOptions& o = b.options();
  const double ta = b.shape().attention_tokens, heads_ta = a.heads * ta, groups_ta = a.groups * ta;
  const auto qk = static_cast<double>(a.qk_dim), v = static_cast<double>(a.v_dim);
  b.keep("query", kBf16 * heads_ta * qk, a.query_freed_by, {OM::kCoreAttn});
  if (o.software.fused_attention) {
    BitSet<RM> key_freed_by = a.keys_freed_by;
    key_freed_by = key_freed_by | RM::kAlternateMatmuls;
    b.keep("key", kBf16 * groups_ta * qk, key_freed_by, {OM::kCoreAttn});
    b.keep("value", kBf16 * groups_ta * v, a.keys_freed_by, {OM::kCoreAttn});
  }
  // Core attention keeps its output. So does the projection, whose input it is, unless the projection quantises it.
  // Offloading core_attn alone copies the output, and frees only query, key and value (forced_released_tensors in
  // megatron/core/transformer/attention.py).
  const bool projection_has_it = !b.recipe().keeps_projection_input;
  b.keep("attention_output", kBf16 * heads_ta * v, {},
         projection_has_it ? BitSet<OM>{OM::kAttnProj} : BitSet<OM>{OM::kCoreAttn});
  if (projection_has_it) b.copy_if_offloaded("attention_output", kBf16 * heads_ta * v, {OM::kCoreAttn});
  // If heads are exchanged, or two halves of the queries run one after another (context_parallel.py in TE), the joined
  // output is a separate tensor from the kernel's.
  if (o.cp_all_to_all_ranks() > 1 || gathers_keys(o)) b.keep("joined_output", kBf16 * heads_ta * v);
  if (o.software.fused_attention) {
    b.keep("log_sum_exp", kFp32 * heads_ta, {RM::kCoreAttn});
  } else {  // K and V are repeated, once per query head; the originals are freed.
    b.keep("probabilities", score_bytes, {RM::kCoreAttn});
    if (o.attention_dropout > 0.0)
      b.keep("dropped_probabilities_mask", 1.5 * score_bytes, {RM::kCoreAttn});  // 2 bytes, and 1 byte of mask.
    b.keep("repeated_key_value", kBf16 * heads_ta * (qk + v), {RM::kCoreAttn});
  }
}

}  // namespace

double causal_pairs(double s, double window, double keys) {
  double limit = s;
  if (window > 0) limit = std::min(limit, window);
  if (keys > 0) limit = std::min(limit, keys);
  return limit >= s ? s * s / 2.0 : s * limit - limit * limit / 2.0;
}

void select_keys(Builder& b, std::int64_t heads, std::int64_t head_dim, double keys, std::int64_t topk) {
  const double pairs = b.shape().attention_tokens * keys / b.tp();
  b.step();
  b.forward("indexer_scores",
            AttentionWork{head_dim, Flops{pairs * static_cast<double>(heads * head_dim)}, 0.0, false, true}, 4);
  b.forward("key_selection", SoftwareWork{SoftwareKernel::kKeySelection, pairs}, 21);
  b.keep("selected_keys", 4.0 * b.shape().tokens * std::min(keys, static_cast<double>(topk)));
}

void core_attention(Builder& b, const CoreAttention& a) {
  const LayerOptions& o = b.options();
  const auto s = static_cast<double>(o.seq_len), batch = static_cast<double>(o.micro_batch);
  const auto cp = static_cast<double>(o.cp), ta = b.shape().attention_tokens;
  const auto qk = static_cast<double>(a.qk_dim), v = static_cast<double>(a.v_dim);
  double pairs = batch * a.heads * causal_pairs(s, a.window, a.keys) / cp;
  const double window = o.software.fused_attention && a.window < s ? a.window : 0.0;
  if (!o.software.fused_attention) pairs *= 2.0;  // Unfused kernels also compute the masked half.
  const double heads_ta = a.heads * ta, groups_ta = a.groups * ta;

  b.recompute({RM::kCoreAttn});
  const bool te = o.software.transformer_engine;
  b.inside_module(te);
  b.step();
  context_parallel(b, a, Phase::kForward);
  const bool dropout = o.attention_dropout > 0.0;  // Fused kernels draw again in backward and keep no mask.
  const double score_bytes = kBf16 * batch * a.heads * s * s / cp;
  const bool ring =
      o.cp_comm != CpComm::kAllGather && o.cp_all_to_all_ranks() < o.cp;  // Some ranks are left for the ring.
  if (ring) b.overlap(Overlap::kCpAttention);
  // A ring runs one kernel per step and rescales the output so far (FP32 read, BF16 read, FP32 write). With gathered
  // keys there is one kernel per chunk of queries.
  const bool gathers = gathers_keys(o);
  const int steps = ring ? static_cast<int>(o.cp / o.cp_all_to_all_ranks()) : gathers ? kChunksOfRank : 1;
  const double rows = gathers ? heads_ta / kChunksOfRank : heads_ta;
  const auto enter = [&](Op& op, int step) {
    op.modules = te && step == 0 ? 1 : 0;
    op.cp_attentions = o.cp > 1 ? op.modules : 0;
  };
  for (int step = 0; step < steps; ++step)
    enter(b.forward("core_attention",
                    AttentionWork{a.qk_dim, Flops{2.0 * pairs * (qk + v) / steps}, rows, false, o.fp8_attention, window,
                                  gathers ? kGatheredForward : 1.0},
                    2),
          step);
  if (ring)
    b.forward("merge_steps", MemoryWork{MemoryOp::kElementwise, Bytes{10.0 * (steps - 1) * heads_ta * v}}, steps);
  // Mask, softmax, scale and copies: 11 of the 25 passes over the scores are in forward.
  if (!o.software.fused_attention)
    b.forward("scores", MemoryWork{MemoryOp::kElementwise, Bytes{(dropout ? 13.5 : 11.0) * score_bytes}},
              dropout ? 7 : 6);
  keep_attention(b, a, score_bytes);
  // Gradients of output, query, key and value. Unfused: the in-place mask makes autograd clone the scores' gradient.
  const std::vector<MemoryWork> passes = attention_backward_passes(heads_ta, groups_ta, qk, v);
  b.backward("core_attention", Phase::kDgrad, passes.front());
  b.backward_transient({2.0 * heads_ta * qk, 2.0 * groups_ta * qk, 2.0 * groups_ta * v, 2.0 * heads_ta * v});
  for (int copy = 0; !o.software.fused_attention && copy < kScoreCopies; ++copy) b.backward_transient({score_bytes});
  for (int step = 0; step < steps; ++step)
    enter(b.backward("core_attention", Phase::kDgrad,
                     AttentionWork{a.qk_dim, Flops{2.0 * pairs * (3.0 * qk + 2.0 * v) / steps}, rows, true,
                                   o.fp8_attention, window, gathers ? kGatheredBackward : 1.0},
                     2),
          step);
  if (ring)
    b.backward("merge_steps", Phase::kDgrad,
               MemoryWork{MemoryOp::kElementwise, Bytes{6.0 * (steps - 1) * heads_ta * qk}}, steps);
  b.backward("core_attention", Phase::kDgrad, passes.at(1));
  if (passes.size() > 2) b.backward("core_attention", Phase::kDgrad, passes.at(2), 2);
  if (!o.software.fused_attention)
    b.backward("scores", Phase::kDgrad,
               MemoryWork{MemoryOp::kElementwise, Bytes{(dropout ? 16.5 : 14.0) * score_bytes}}, dropout ? 10 : 9);
  b.overlap(Overlap::kNone);
  context_parallel(b, a, Phase::kDgrad);
  b.inside_module(false);
  b.recompute({});
}

void sparse_attention(Builder& b, const CoreAttention& a, std::int64_t index_heads, std::int64_t index_dim) {
  const LayerOptions& o = b.options();
  const double ta = b.shape().attention_tokens, rows = static_cast<double>(o.seq_len) / static_cast<double>(o.cp);
  const auto qk = static_cast<double>(a.qk_dim), v = static_cast<double>(a.v_dim);
  const double pairs = ta * static_cast<double>(o.seq_len);
  const double scores = a.heads * pairs, index_scores = static_cast<double>(index_heads) * pairs;
  const double selected = ta * std::min(a.keys, static_cast<double>(o.seq_len));
  // Batched products. FP32 operands are multiplied as TF32, at half of BF16's rate, as NVIDIA's containers set it.
  const auto product = [](double batch, double m, std::int64_t n, std::int64_t k, bool fp32) {
    return GemmWork{
        .m = m, .n = n, .k = fp32 ? 2 * k : k, .groups = std::llround(batch), .grouping = Grouping::kOneKernel};
  };
  const double batch = static_cast<double>(o.micro_batch), heads = batch * a.heads;
  const auto passes = [](double bytes, std::int64_t kernels) {
    return MemoryWork{MemoryOp::kElementwise, Bytes{bytes}, kernels};
  };
  const GemmWork index_product = product(batch, rows * static_cast<double>(index_heads), o.seq_len, index_dim, true),
                 score_product = product(heads, rows, o.seq_len, a.qk_dim, true);
  const double layouts = ta * a.heads * ((3.0 * kBf16 + kFp32) * 2.0 * qk + 2.0 * kBf16 * v);  // Permuted, and in FP32.

  b.recompute({RM::kCoreAttn});
  b.step();
  context_parallel(b, a, Phase::kForward);
  b.forward("indexer_scores", index_product);
  b.forward("indexer_scores", passes(5.0 * kFp32 * index_scores, 3), 3);  // ReLU, weights and sum of the heads.
  b.keep("indexer_scores", kFp32 * index_scores, {RM::kCoreAttn});
  b.keep("indexer_query", kFp32 * ta * static_cast<double>(index_heads * index_dim), {RM::kCoreAttn});
  b.forward("key_selection", SoftwareWork{SoftwareKernel::kKeySelection, pairs}, 21);
  b.keep("selected_keys", 8.0 * selected, {RM::kCoreAttn});  // Indices of 8 bytes.
  b.forward("core_attention_layouts", passes(layouts, 5), 5);
  b.forward("core_attention", score_product);
  b.forward("scores", passes((7.0 * kFp32 + kBf16) * scores, 4), 4);  // Scale, mask, softmax and BF16.
  b.forward_transient({kFp32 * scores});
  b.forward("core_attention", product(heads, rows, a.v_dim, o.seq_len, false));
  b.keep("query_key", kFp32 * ta * a.heads * 2.0 * qk, {RM::kCoreAttn});
  b.keep("value", kBf16 * ta * a.heads * v, {RM::kCoreAttn});
  b.keep("probabilities", (kFp32 + kBf16) * scores, {RM::kCoreAttn});
  b.keep("attention_output", kBf16 * ta * a.heads * v, {}, {OM::kAttnProj});

  // The loss is computed where gradients are recorded: in forward, or when that is recomputed. So once in any case.
  const Phase back = Phase::kDgrad;
  b.backward("indexer_loss", back, score_product);
  b.backward("indexer_loss", back, passes(7.0 * kFp32 * scores, 4), 4);  // Scale, mask, softmax and sum of the heads.
  b.backward("indexer_loss", back, passes(20.0 * kFp32 * pairs, 12), 12);
  b.backward("core_attention", back,
             product(heads, static_cast<double>(o.seq_len), a.v_dim, std::llround(rows), false));
  b.backward("core_attention", back, product(heads, rows, o.seq_len, a.v_dim, false));
  b.backward("scores", back, passes((6.0 * kFp32 + kBf16) * scores, 3), 3);  // FP32, softmax and scale.
  b.backward_transient({kFp32 * scores, kFp32 * scores, kFp32 * scores});
  for (int operand = 0; operand < 2; ++operand)
    b.backward("core_attention", back, product(heads, rows, a.qk_dim, o.seq_len, true));
  b.backward("core_attention_layouts", back, passes(layouts, 5), 5);
  b.backward("indexer_scores", back, passes(8.0 * kFp32 * index_scores, 3), 3);  // Weights, their gradient, ReLU.
  for (int operand = 0; operand < 2; ++operand) b.backward("indexer_scores", back, index_product);
  context_parallel(b, a, back);
  b.recompute({});
}

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
  // Unfused: multiplies, negation, concatenation of halves and an add, with about six times the traffic of the fused
  // kernel. Megatron uses it if YaRN scales (apply_rotary_pos_emb in models/common/embeddings/rope_utils.py).
  const bool fused = b.options().software.transformer_engine && !b.model().scaled_rope;
  const double passes = fused ? 4.0 : 24.0;
  const int launches = fused ? 2 : 12;
  b.memory_op("rope", MemoryOp::kRope, passes * elements, MemoryOp::kRope, passes * elements, launches, launches);
}

}  // namespace foldwise::costmodel

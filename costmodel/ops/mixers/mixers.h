#pragma once
#include "costmodel/model/mixers.h"
#include "costmodel/ops/builder.h"

// The mixer of a layer with its norm and residual add. Tensors that backward keeps follow docs/memory.md; kernels and
// bytes follow docs/formulas.md#op-list. For the builders in ops/mixers.
namespace foldwise::costmodel {

/// Sizes in FLOP counts.
[[nodiscard]] inline double real(std::int64_t value) { return static_cast<double>(value); }

struct CoreAttention {
  double heads = 0, groups = 0;  ///< Per TP rank.
  std::int64_t qk_dim = 0, v_dim = 0;
  double window = 0;  ///< 0: full causal.
  double keys = 0;    ///< Sparse attention: keys per query; 0: all keys.
  BitSet<RecomputeModule> query_freed_by{},
      keys_freed_by{};  ///< Modules that rebuild the query; modules that rebuild keys and values.
};

/// Causal (query, key) pairs of one head and sequence, with a window or a limit of keys per query.
[[nodiscard]] double causal_pairs(double s, double window, double keys);
/// Scaled dot-product attention with its backward and the tensors that it keeps.
void core_attention(Builder& b, const CoreAttention& a);
/// Ops of an indexer with `heads` of `head_dim`. For each query it scores its `keys`, on average half of them earlier
/// ones, and selects the best `topk`. Backward keeps their indices.
void select_keys(Builder& b, std::int64_t heads, std::int64_t head_dim, double keys, std::int64_t topk);
/// DeepSeek sparse attention as Megatron runs it without --dsa-kernel-backend: `index_heads` of `index_dim` score all
/// keys, then attention computes all scores in FP32 and masks those that were not selected, and the indexer's loss
/// computes them once more.
/// Source: unfused_dsa_fn and compute_dsa_indexer_loss in transformer/experimental_attention_variant/dsa.py.
void sparse_attention(Builder& b, const CoreAttention& a, std::int64_t index_heads, std::int64_t index_dim);
/// Norm before the mixer, with its kept input and output. `fused`: it is part of the next TE linear, which keeps the
/// output in its own format, so the "layernorm" module cannot recompute it.
void input_norm(Builder& b, std::string_view name, bool fused, double output_bytes);
void rope(Builder& b, double elements);

void build(Builder& b, const GqaSpec& spec, const LayerSpec& layer);
void build(Builder& b, const MlaSpec& spec, const LayerSpec& layer);
void build(Builder& b, const CompressedSpec& spec, const LayerSpec& layer);
void build(Builder& b, const MambaSpec& spec, const LayerSpec& layer);
void build(Builder& b, const GatedDeltaNetSpec& spec, const LayerSpec& layer);
void build(Builder& b, const LightningSpec& spec, const LayerSpec& layer);

}  // namespace foldwise::costmodel

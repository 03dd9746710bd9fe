#pragma once
#include "costmodel/model/mixers.h"
#include "costmodel/ops/builder.h"

// The token-mixing half of a layer: norm, attention (or Mamba, delta net, ...), residual add. Which tensors backward
// keeps follows docs/memory.md; kernels and bytes follow docs/formulas.md#op-list. For the builders of ops/mixers.
namespace foldwise::costmodel {

/// Sizes in FLOP counts.
[[nodiscard]] inline double real(std::int64_t value) { return static_cast<double>(value); }

struct CoreAttention {
  double heads = 0, groups = 0;  ///< Per TP rank.
  std::int64_t qk_dim = 0, v_dim = 0;
  double window = 0;                                          ///< 0: full causal.
  double keys = 0;                                            ///< Sparse attention: keys per query; 0: all.
  BitSet<RecomputeModule> query_freed_by{}, keys_freed_by{};  ///< Modules that rebuild it; keys and values.
};

/// Causal (query, key) pairs of one head and sequence, under a window or a limit of keys per query.
[[nodiscard]] double causal_pairs(double s, double window, double keys);
/// Scaled dot-product attention with its backward, and what it keeps.
void core_attention(Builder& b, const CoreAttention& a);
/// What an indexer of `heads` of `head_dim` does for each query with its `keys`, half of them on average before it:
/// their scores, and the `topk` best, whose numbers backward keeps.
void select_keys(Builder& b, std::int64_t heads, std::int64_t head_dim, double keys, std::int64_t topk);
/// Norm in front of the mixer, its kept input and output. `fused`: inside the following TE linear, which then keeps the
/// output in its own format and cannot have it recomputed by the "layernorm" module.
void input_norm(Builder& b, std::string_view name, bool fused, double output_bytes);
void rope(Builder& b, double elements);

void build(Builder& b, const GqaSpec& spec, const LayerSpec& layer);
void build(Builder& b, const MlaSpec& spec, const LayerSpec& layer);
void build(Builder& b, const CompressedSpec& spec, const LayerSpec& layer);
void build(Builder& b, const MambaSpec& spec, const LayerSpec& layer);
void build(Builder& b, const GatedDeltaNetSpec& spec, const LayerSpec& layer);
void build(Builder& b, const LightningSpec& spec, const LayerSpec& layer);

}  // namespace foldwise::costmodel

#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace foldwise::costmodel {

/// What mixes tokens in a layer. Names are Megatron's.
enum class MixerKind {
  kNone,           ///< Hybrid MLP or MoE layer: no mixer.
  kGqa,            ///< (Grouped-query) self attention.
  kMla,            ///< Multi-latent attention, optionally with DeepSeek sparse attention.
  kMamba,          ///< Mamba-2.
  kGatedDeltaNet,  ///< Gated delta net (Qwen3-Next).
  kLightning,      ///< Lightning (linear) attention (MiniMax-M1).
  kCompressed,     ///< DeepSeek-V4: one shared KV head, compressed or windowed, grouped low-rank output.
};
enum class MlpKind { kNone, kDense, kMoe };

/// One decoder layer. A GPT layer has a mixer and an MLP, with a norm before each; a layer of a hybrid has one of them.
struct LayerSpec {
  MixerKind mixer = MixerKind::kGqa;
  MlpKind mlp = MlpKind::kDense;
  std::int64_t window = 0;          ///< Earlier tokens a token sees: Megatron's window_size[0]; 0 is full attention.
  std::int64_t compress_ratio = 0;  ///< kCompressed only: keys per compressed key; 0 is none.
  bool operator==(const LayerSpec&) const = default;
};

/// Attention with `query_groups` KV heads (`--num-query-groups`); `head_dim` is Megatron's kv_channels.
struct GqaSpec {
  std::int64_t heads = 0, query_groups = 0, head_dim = 0;
  bool qkv_bias = false;           ///< --add-qkv-bias
  bool qk_layernorm = false;       ///< One norm weight per head dim for q and for k.
  bool output_gate = false;        ///< Sigmoid gate: doubles the query projection (Qwen3-Next).
  bool learnable_softmax = false;  ///< Attention sinks: one parameter per head (GPT-OSS).
  bool operator==(const GqaSpec&) const = default;
};

/// Multi-latent attention. Query and key heads are qk_head_dim + qk_pos_emb_head_dim wide, value heads v_head_dim.
struct MlaSpec {
  std::int64_t heads = 0;
  std::int64_t q_lora_rank = 0;  ///< 0: queries are projected straight from the hidden state.
  std::int64_t kv_lora_rank = 0, qk_head_dim = 0, qk_pos_emb_head_dim = 0, v_head_dim = 0;
  bool qk_layernorm = true;
  std::int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;  ///< Sparse-attention indexer; 0 heads: none.
  bool operator==(const MlaSpec&) const = default;
};

/// DeepSeek-V4 attention: `heads` queries of `head_dim`, one KV head, output through `output_groups` low-rank blocks.
struct CompressedSpec {
  std::int64_t heads = 0, head_dim = 0, q_lora_rank = 0, output_lora_rank = 0, output_groups = 0;
  std::int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;
  std::int64_t residual_streams = 1;  ///< hc_mult: width of the hyper-connection residual.
  bool operator==(const CompressedSpec&) const = default;
};

struct MambaSpec {
  std::int64_t heads = 0, head_dim = 0, state = 0, groups = 0, conv_kernel = 4, chunk = 128;
  bool operator==(const MambaSpec&) const = default;
};

/// Gated delta net: `key_heads` x `key_head_dim` queries and keys, `value_heads` x `value_head_dim` values.
struct GatedDeltaNetSpec {
  std::int64_t key_heads = 0, key_head_dim = 0, value_heads = 0, value_head_dim = 0, conv_kernel = 4;
  bool operator==(const GatedDeltaNetSpec&) const = default;
};

struct MoeSpec {
  std::int64_t experts = 0;                 ///< --num-experts
  std::int64_t topk = 0;                    ///< --moe-router-topk
  std::int64_t router_groups = 1;           ///< --moe-router-num-groups
  std::int64_t router_group_topk = 1;       ///< --moe-router-group-topk: groups that a token may go to.
  std::int64_t ffn_hidden_size = 0;         ///< --moe-ffn-hidden-size
  std::int64_t shared_ffn_hidden_size = 0;  ///< --moe-shared-expert-intermediate-size: total over shared experts.
  bool shared_gate = false;                 ///< --moe-shared-expert-gate
  std::int64_t latent_size = 0;             ///< --moe-latent-size: width the routed experts run on; 0 is hidden_size.
  bool operator==(const MoeSpec&) const = default;
};

enum class Normalization { kRmsNorm, kLayerNorm };

/// A transformer as Megatron-Core builds it; filled by the Hugging Face reader in planner/models.
/// Source of every field: reference of Megatron's TransformerConfig, docs/formulas.md#model.
struct ModelSpec {
  std::string name;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  ///< Dense MLP; 0 if no layer is dense.
  bool gated_linear_unit = true;     ///< fc1 is twice as wide.
  bool swiglu = true;                ///< The gate is a SwiGLU (Megatron's FLOP count looks only at this).
  bool add_bias_linear = false;      ///< Biases on every linear (attention out, MLP, router, experts).
  bool clamped_activation = false;   ///< Quick GEGLU with --activation-func-clamp-value (GPT-OSS).
  bool scaled_rope = false;          ///< YaRN's factor on GQA's rotary embedding, which TE's kernel lacks (GPT-OSS).
  bool router_bias = false;          ///< --add-bias-linear reaches the router too (GPT-OSS).
  Normalization normalization = Normalization::kRmsNorm;
  std::int64_t vocab_size = 0;
  std::int64_t make_vocab_size_divisible_by = 128;
  bool share_embeddings_and_output_weights = false;
  std::int64_t max_position_embeddings = 0;
  bool learned_position_embedding = false;  ///< GPT of Megatron's weak-scaling table; else rotary or none.

  std::vector<LayerSpec> layers;        ///< Decoder layers in order.
  std::int64_t mtp_num_layers = 0;      ///< Depth of multi-token prediction in use.
  std::vector<LayerSpec> mtp_layers;    ///< Layers of one MTP depth (one for GPT models, a pattern for hybrids).
  bool mtp_use_repeated_layer = false;  ///< One physical layer serves all depths.
  bool hybrid = false;  ///< Built from a hybrid_layer_pattern: one norm a layer, stage boundaries from '|'.

  GqaSpec gqa;
  MlaSpec mla;
  CompressedSpec compressed;
  MambaSpec mamba;
  GatedDeltaNetSpec gdn;
  MoeSpec moe;

  [[nodiscard]] std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  [[nodiscard]] bool has_moe() const { return moe.experts > 0; }
  bool operator==(const ModelSpec&) const = default;
};

/// V = ceil(vocab / (divisor * tp)) * divisor * tp. Source: megatron/training/vocab_utils.py.
[[nodiscard]] std::int64_t padded_vocab_size(const ModelSpec& model, std::int64_t tp);

/// FLOPs that Megatron reports for one optimizer step: model FLOPs of forward and backward, causal attention at half of
/// s^2, windows, recomputation, padding and dropped tokens ignored. `tokens` = sum of lengths and `squared_tokens` =
/// sum of squared lengths over the global batch (packed sequences differ from batch * s). Source:
/// num_floating_point_operations in megatron/training/training.py.
[[nodiscard]] double megatron_flops(const ModelSpec& model, double tokens, double squared_tokens, std::int64_t tp = 1);

}  // namespace foldwise::costmodel

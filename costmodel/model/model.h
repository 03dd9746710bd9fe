#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/model/mixers.h"

namespace foldwise::costmodel {

enum class MlpKind { kNone, kDense, kMoe };

constexpr std::int32_t kNoMixer = -1;  ///< An MLP or MoE layer of a hybrid.

/// One decoder layer. A GPT layer has a mixer and an MLP, with a norm before each. A layer of a hybrid has one of them.
struct LayerSpec {
  std::int32_t mixer = 0;  ///< Index into ModelSpec::mixers, or kNoMixer.
  MlpKind mlp = MlpKind::kDense;
  std::int64_t window = 0;          ///< Earlier tokens that a token sees: Megatron's window_size[0]; 0: full attention.
  std::int64_t compress_ratio = 0;  ///< CompressedSpec only: keys per compressed key; 0: no compression.
  bool operator==(const LayerSpec&) const = default;
};

struct MoeSpec {
  std::int64_t experts = 0;                 ///< --num-experts
  std::int64_t topk = 0;                    ///< --moe-router-topk
  std::int64_t router_groups = 1;           ///< --moe-router-num-groups
  std::int64_t router_group_topk = 1;       ///< --moe-router-group-topk: groups that a token may use.
  std::int64_t ffn_hidden_size = 0;         ///< --moe-ffn-hidden-size
  std::int64_t shared_ffn_hidden_size = 0;  ///< --moe-shared-expert-intermediate-size: total over shared experts.
  bool shared_gate = false;                 ///< --moe-shared-expert-gate
  std::int64_t latent_size = 0;             ///< --moe-latent-size: width of the routed experts; 0: hidden_size.
  /// Experts that return their input. The router scores them; `topk` does not count them.
  std::int64_t zero_experts = 0;
  bool operator==(const MoeSpec&) const = default;
};

enum class Normalization { kRmsNorm, kLayerNorm };

/// Remarks of the reader of a model. They are no part of the model.
struct Remarks {
  std::vector<std::string> lines;
  bool operator==(const Remarks&) const { return true; }
};

/// A transformer as Megatron-Core builds it. The Hugging Face reader in planner/models fills it. Source of every field:
/// reference of Megatron's TransformerConfig, docs/formulas.md#model.
struct ModelSpec {
  std::string name;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  ///< Dense MLP; 0 if no layer has one.
  bool gated_linear_unit = true;     ///< fc1 is twice as wide.
  bool swiglu = true;                ///< The gate is a SwiGLU (Megatron's FLOP count looks only at this).
  bool add_bias_linear = false;      ///< Biases on every linear (attention output, MLP, router, experts).
  bool clamped_activation = false;   ///< Quick GEGLU with --activation-func-clamp-value (GPT-OSS).
  bool scaled_rope = false;  ///< YaRN's factor on GQA's rotary embedding, which TE's kernel does not support (GPT-OSS).
  bool router_bias = false;  ///< --add-bias-linear also applies to the router (GPT-OSS).
  Normalization normalization = Normalization::kRmsNorm;
  bool sandwich_norms = false;  ///< An additional norm after the mixer and after the MLP (Gemma, GLM-4).
  std::int64_t vocab_size = 0;
  std::int64_t make_vocab_size_divisible_by = 128;
  bool share_embeddings_and_output_weights = false;
  std::int64_t max_position_embeddings = 0;
  bool learned_position_embedding = false;  ///< GPT of Megatron's weak-scaling table; else rotary or none.

  std::vector<LayerSpec> layers;        ///< Decoder layers in order.
  std::int64_t mtp_num_layers = 0;      ///< Number of multi-token prediction depths in use.
  std::vector<LayerSpec> mtp_layers;    ///< Layers of one MTP depth (one for GPT models, a pattern for hybrids).
  bool mtp_use_repeated_layer = false;  ///< All depths share one physical layer.
  bool hybrid = false;  ///< Built from a hybrid_layer_pattern: one norm a layer, stage boundaries from '|'.

  std::vector<Mixer> mixers;  ///< The mixers that layers refer to.
  MoeSpec moe;

  /// Names of parts that the op list only approximates. No measured run gives the error of that.
  std::vector<std::string> approximated;
  Remarks notes;  ///< How the model's file was read.

  /// The layer's mixer; null if it has none.
  [[nodiscard]] const Mixer* mixer(const LayerSpec& layer) const;
  /// The first mixer of a kind for which `holds` is true, or null.
  template <typename Spec, typename Predicate>
  [[nodiscard]] const Spec* find(Predicate&& holds) const {
    for (const Mixer& candidate : mixers)
      if (const auto* spec = std::get_if<Spec>(&candidate); spec != nullptr && holds(*spec)) return spec;
    return nullptr;
  }
  template <typename Spec>
  [[nodiscard]] const Spec* find() const {
    return find<Spec>([](const Spec&) { return true; });
  }
  /// Most query heads of any layer with softmax or linear attention; 0 if there is none.
  [[nodiscard]] std::int64_t query_heads() const;
  [[nodiscard]] std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  [[nodiscard]] bool has_moe() const { return moe.experts > 0; }
  bool operator==(const ModelSpec&) const = default;
};

/// V = ceil(vocab / (divisor * tp)) * divisor * tp. Source: megatron/training/vocab_utils.py.
[[nodiscard]] std::int64_t padded_vocab_size(const ModelSpec& model, std::int64_t tp);

/// FLOPs that Megatron reports for one optimizer step: model FLOPs of forward and backward, with causal attention at
/// half of s^2. Windows, recomputation, padding and dropped tokens are ignored. `tokens` is the sum of sequence lengths
/// over the global batch, `squared_tokens` the sum of their squares (packed sequences differ from batch * s). Source:
/// num_floating_point_operations in megatron/training/training.py.
[[nodiscard]] double megatron_flops(const ModelSpec& model, double tokens, double squared_tokens, std::int64_t tp = 1);

}  // namespace foldwise::costmodel

#pragma once
#include <bit>
#include <cstdint>
#include <string_view>
#include <variant>

// Token mixers of a layer. Each kind is a type that knows its heads, FLOPs and ops (ops/mixers/*.cc). A model lists its
// mixers (ModelSpec::mixers) and its layers refer to them. Two geometries of one kind are two mixers.
namespace foldwise::costmodel {

struct LayerSpec;
struct ModelSpec;

/// FLOPs of one layer's mixer, forward and backward: `tokens * per_token + squared_tokens * per_squared_token`.
struct MixerFlops {
  double per_token = 0;
  double per_squared_token = 0;
};
/// Other values that the FLOPs depend on.
struct FlopsContext {
  const ModelSpec& model;
  const LayerSpec& layer;
  double tokens = 0, squared_tokens = 0;
};

// Every type below has
//   kName            its name in output;
//   query_heads()    --num-attention-heads of softmax attention, 0 without;
//   kv_heads()       heads of keys and values;
//   width()          width of all heads together;
//   low_rank()       width of the tensor that queries are projected from; 0: the hidden state;
//   flops()          as Megatron reports them;
//   fields(f)        calls f(name, value) for every size.

/// (Grouped-query) self attention with `query_groups` KV heads (`--num-query-groups`); `head_dim` is Megatron's
/// kv_channels.
struct GqaSpec {
  static constexpr std::string_view kName = "gqa";
  std::int64_t heads = 0, query_groups = 0, head_dim = 0;
  bool qkv_bias = false;           ///< --add-qkv-bias
  bool qk_layernorm = false;       ///< One norm weight per head dim for q and for k.
  bool output_gate = false;        ///< Sigmoid gate: doubles the query projection (Qwen3-Next).
  bool learnable_softmax = false;  ///< Attention sinks: one parameter per head (GPT-OSS).
  std::int64_t v_head_dim = 0;     ///< Width of values; 0: head_dim (MiMo-V2 has narrower ones).
  bool headwise_gate = false;      ///< Sigmoid gate with one value per head, from a projection of its own (Step-3.5).
  bool keys_are_values = false;    ///< One projection makes keys and values (Gemma 4's global layers).
  [[nodiscard]] std::int64_t value_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  [[nodiscard]] std::int64_t query_heads() const { return heads; }
  [[nodiscard]] std::int64_t kv_heads() const { return query_groups; }
  [[nodiscard]] double width() const { return static_cast<double>(heads) * static_cast<double>(head_dim); }
  [[nodiscard]] std::int64_t low_rank() const { return 0; }
  [[nodiscard]] MixerFlops flops(const FlopsContext& context) const;
  template <typename Visitor>
  void fields(Visitor&& f) const {
    f("heads", heads), f("query_groups", query_groups), f("head_dim", head_dim), f("qkv_bias", qkv_bias);
    f("qk_layernorm", qk_layernorm), f("output_gate", output_gate), f("learnable_softmax", learnable_softmax);
    f("v_head_dim", value_dim()), f("headwise_gate", headwise_gate), f("keys_are_values", keys_are_values);
  }
  bool operator==(const GqaSpec&) const = default;
};

/// Multi-latent attention, optionally with DeepSeek sparse attention. Query and key heads are qk_head_dim +
/// qk_pos_emb_head_dim wide, value heads v_head_dim.
struct MlaSpec {
  static constexpr std::string_view kName = "mla";
  std::int64_t heads = 0;
  std::int64_t q_lora_rank = 0;  ///< 0: queries are projected straight from the hidden state.
  std::int64_t kv_lora_rank = 0, qk_head_dim = 0, qk_pos_emb_head_dim = 0, v_head_dim = 0;
  bool qk_layernorm = true;
  std::int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;  ///< Sparse-attention indexer; 0 heads: none.
  [[nodiscard]] std::int64_t query_heads() const { return heads; }
  [[nodiscard]] std::int64_t kv_heads() const { return heads; }
  [[nodiscard]] double width() const {
    return static_cast<double>(heads) * static_cast<double>(qk_head_dim + qk_pos_emb_head_dim + v_head_dim);
  }
  [[nodiscard]] std::int64_t low_rank() const { return q_lora_rank; }
  /// Whether Megatron's fused kernels rotate queries and keys. They take widths that are powers of two (tl.arange in
  /// core/fusions/fused_mla_yarn_rope_apply.py:440, Core 0.16.1 to main of August 2026), and no sparse attention.
  [[nodiscard]] bool fuses_rope() const {
    const auto takes = [](std::int64_t width) { return std::has_single_bit(static_cast<std::uint64_t>(width)); };
    return index_heads == 0 && takes(qk_head_dim) && takes(v_head_dim) && takes(qk_pos_emb_head_dim);
  }
  [[nodiscard]] MixerFlops flops(const FlopsContext& context) const;
  template <typename Visitor>
  void fields(Visitor&& f) const {
    f("heads", heads), f("q_lora_rank", q_lora_rank), f("kv_lora_rank", kv_lora_rank), f("qk_head_dim", qk_head_dim);
    f("qk_pos_emb_head_dim", qk_pos_emb_head_dim), f("v_head_dim", v_head_dim), f("qk_layernorm", qk_layernorm);
    f("index_heads", index_heads), f("index_head_dim", index_head_dim), f("index_topk", index_topk);
  }
  bool operator==(const MlaSpec&) const = default;
};

/// DeepSeek-V4 attention: `heads` queries of `head_dim`, of which `qk_pos_emb_head_dim` are rotary, and one KV head.
/// Keys are compressed or windowed. The output goes through `output_groups` low-rank blocks.
struct CompressedSpec {
  static constexpr std::string_view kName = "compressed";
  std::int64_t heads = 0, head_dim = 0, qk_pos_emb_head_dim = 0;
  std::int64_t q_lora_rank = 0, output_lora_rank = 0, output_groups = 0;
  std::int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;
  std::int64_t residual_streams = 1;  ///< hc_mult: width of the hyper-connection residual.
  [[nodiscard]] std::int64_t query_heads() const { return heads; }
  [[nodiscard]] std::int64_t kv_heads() const { return 1; }
  [[nodiscard]] double width() const { return static_cast<double>(heads) * static_cast<double>(head_dim); }
  [[nodiscard]] std::int64_t low_rank() const { return q_lora_rank; }
  [[nodiscard]] MixerFlops flops(const FlopsContext& context) const;
  template <typename Visitor>
  void fields(Visitor&& f) const {
    f("heads", heads), f("head_dim", head_dim), f("qk_pos_emb_head_dim", qk_pos_emb_head_dim);
    f("q_lora_rank", q_lora_rank), f("output_lora_rank", output_lora_rank), f("output_groups", output_groups);
    f("index_heads", index_heads), f("index_head_dim", index_head_dim), f("index_topk", index_topk);
    f("residual_streams", residual_streams);
  }
  bool operator==(const CompressedSpec&) const = default;
};

/// Mamba-2. With `dt_rank` Mamba-1: a head is one channel wide and has its own state (Jamba).
struct MambaSpec {
  static constexpr std::string_view kName = "mamba";
  std::int64_t heads = 0, head_dim = 0, state = 0, groups = 0, conv_kernel = 4, chunk = 128;
  std::int64_t dt_rank = 0;  ///< Width from which Mamba-1 projects time steps; 0: Mamba-2.
  [[nodiscard]] std::int64_t query_heads() const { return 0; }
  [[nodiscard]] std::int64_t kv_heads() const { return 0; }
  [[nodiscard]] double width() const { return static_cast<double>(heads) * static_cast<double>(head_dim); }
  [[nodiscard]] std::int64_t low_rank() const { return 0; }
  [[nodiscard]] MixerFlops flops(const FlopsContext& context) const;
  /// Width of the input projection's output: z, x, B, C and dt. Mamba-1 makes the last three from x.
  [[nodiscard]] std::int64_t projection() const {
    return 2 * heads * head_dim + (dt_rank > 0 ? 0 : 2 * groups * state + heads);
  }
  template <typename Visitor>
  void fields(Visitor&& f) const {
    f("heads", heads), f("head_dim", head_dim), f("state", state), f("groups", groups);
    f("conv_kernel", conv_kernel), f("chunk", chunk), f("dt_rank", dt_rank);
  }
  bool operator==(const MambaSpec&) const = default;
};

/// Gated delta net (Qwen3-Next): `key_heads` x `key_head_dim` queries and keys, `value_heads` x `value_head_dim`
/// values. With `gate_rank` Kimi delta attention: a decay and an output gate per channel, each projected through that
/// width.
struct GatedDeltaNetSpec {
  static constexpr std::string_view kName = "gated_delta_net";
  std::int64_t key_heads = 0, key_head_dim = 0, value_heads = 0, value_head_dim = 0, conv_kernel = 4;
  std::int64_t gate_rank = 0;
  [[nodiscard]] std::int64_t query_heads() const { return 0; }
  [[nodiscard]] std::int64_t kv_heads() const { return 0; }
  [[nodiscard]] double width() const {
    return static_cast<double>(key_heads) * static_cast<double>(key_head_dim) +
           static_cast<double>(value_heads) * static_cast<double>(value_head_dim);
  }
  [[nodiscard]] std::int64_t low_rank() const { return 0; }
  [[nodiscard]] MixerFlops flops(const FlopsContext& context) const;
  template <typename Visitor>
  void fields(Visitor&& f) const {
    f("key_heads", key_heads), f("key_head_dim", key_head_dim), f("value_heads", value_heads);
    f("value_head_dim", value_head_dim), f("conv_kernel", conv_kernel), f("gate_rank", gate_rank);
  }
  bool operator==(const GatedDeltaNetSpec&) const = default;
};

/// Lightning (linear) attention (MiniMax-M1), with as many keys and values as queries.
struct LightningSpec {
  static constexpr std::string_view kName = "lightning";
  std::int64_t heads = 0, head_dim = 0;
  [[nodiscard]] std::int64_t query_heads() const { return heads; }
  [[nodiscard]] std::int64_t kv_heads() const { return heads; }
  [[nodiscard]] double width() const { return static_cast<double>(heads) * static_cast<double>(head_dim); }
  [[nodiscard]] std::int64_t low_rank() const { return 0; }
  [[nodiscard]] MixerFlops flops(const FlopsContext& context) const;
  template <typename Visitor>
  void fields(Visitor&& f) const {
    f("heads", heads), f("head_dim", head_dim);
  }
  bool operator==(const LightningSpec&) const = default;
};

/// All kinds of mixers. A new kind needs a type, an entry here, and its ops and FLOPs in a file of ops/mixers.
using Mixer = std::variant<GqaSpec, MlaSpec, CompressedSpec, MambaSpec, GatedDeltaNetSpec, LightningSpec>;

}  // namespace foldwise::costmodel

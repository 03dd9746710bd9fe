#include "planner/launch/model_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "planner/launch/layer_lists.h"
#include "planner/models/models.h"

namespace foldwise::planner {

using config::Diagnostics;
using costmodel::GatedDeltaNetSpec;
using costmodel::GqaSpec;
using costmodel::LayerSpec;
using costmodel::MambaSpec;
using costmodel::MlaSpec;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using costmodel::Normalization;
using nlohmann::json;

namespace {

class Writer {
 public:
  Writer(const ModelSpec& model, const Release& release, Diagnostics& diagnostics)
      : model_(model), release_(release), diagnostics_(diagnostics) {}

  Settings write() {
    trunk();
    attention();
    if (model_.has_moe()) experts();
    if (model_.hybrid) pattern();
    if (!model_.hybrid) layers();
    if (model_.mtp_num_layers > 0) set("mtp_num_layers", model_.mtp_num_layers);
    return std::move(settings_);
  }

 private:
  void set(const std::string& dest, json value) { settings_.set(dest, std::move(value)); }
  void refuse(std::string message) {
    diagnostics_.error({"", 0, "/model"}, fmt::format("{}: {}", model_.name, message));
  }

  void trunk() {
    set("num_layers", model_.num_layers());
    set("hidden_size", model_.hidden_size);
    if (model_.ffn_hidden_size > 0) set("ffn_hidden_size", model_.ffn_hidden_size);
    set("normalization", model_.normalization == Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm");
    if (!model_.add_bias_linear) set("add_bias_linear", false);
    if (model_.clamped_activation) {
      set("quick_geglu", true);
      set("activation_func_clamp_value", 7.0);  // GPT-OSS is the only family with it.
      set("glu_linear_offset", 1.0);
    } else if (model_.gated_linear_unit) {
      set("swiglu", true);
    } else if (!model_.add_bias_linear) {
      set("squared_relu",
          true);  // Nemotron. Without a gate Megatron has no GELU without bias (bias_activation_fusion).
    }
    set("position_embedding_type", model_.learned_position_embedding ? "learned_absolute"
                                   : model_.hybrid                   ? "none"
                                   : has_yarn()                      ? "yarn"
                                                                     : "rope");
    if (model_.max_position_embeddings > 0) set("max_position_embeddings", model_.max_position_embeddings);
    if (!model_.share_embeddings_and_output_weights) set("untie_embeddings_and_output_weights", true);
    set("vocab_size", model_.vocab_size);
    set("make_vocab_size_divisible_by", model_.make_vocab_size_divisible_by);
  }

  /// YaRN of attention with grouped queries. Releases had the flag's choice earlier, but in 0.18 nothing sets its
  /// parameters (gpt_model.py:180). Otherwise plain rotary embeddings are written, which cost the same.
  [[nodiscard]] bool has_yarn() const {
    return model_.scaled_rope && model_.mtp_num_layers == 0 && in_releases("0.19.0").has(release_);
  }

  void attention() {
    int softmax = 0;
    for (const costmodel::Mixer& mixer : model_.mixers) {
      if (const auto* gqa = std::get_if<GqaSpec>(&mixer)) {
        write_gqa(*gqa), ++softmax;
        if (gqa->headwise_gate || gqa->keys_are_values || gqa->value_dim() != gqa->head_dim)
          refuse("no argument of Megatron-LM sets gates of heads, nor values of another width than keys");
      }
      if (const auto* mla = std::get_if<MlaSpec>(&mixer)) write_mla(*mla), ++softmax;
      if (const auto* gdn = std::get_if<GatedDeltaNetSpec>(&mixer)) write_gdn(*gdn);
      if (const auto* mamba = std::get_if<MambaSpec>(&mixer)) write_mamba(*mamba);
      if (std::holds_alternative<costmodel::LightningSpec>(mixer)) refuse("Megatron-Core has no lightning attention");
      if (std::holds_alternative<costmodel::CompressedSpec>(mixer))
        refuse("no argument of Megatron-LM sets compressed attention");
    }
    for (const std::string& part : model_.approximated)
      if (part != kSparseAttention && part != kUnreadKeys) refuse(fmt::format("Megatron-Core has no {}", part));
    if (model_.sandwich_norms) refuse("no argument of Megatron-LM sets norms behind attention and MLP");
    if (softmax > 1) refuse("Megatron's arguments give all layers one geometry of attention");
  }

  void write_gqa(const GqaSpec& gqa) {
    set("num_attention_heads", gqa.heads);
    set("kv_channels", gqa.head_dim);
    if (gqa.query_groups != gqa.heads) {
      set("group_query_attention", true);
      set("num_query_groups", gqa.query_groups);
    }
    if (gqa.qkv_bias && !model_.add_bias_linear) set("add_qkv_bias", true);
    if (gqa.qk_layernorm) set("qk_layernorm", true);
    if (gqa.output_gate) set("attention_output_gate", true);
    if (gqa.learnable_softmax) set("softmax_type", "learnable");
    if (!gqa.qkv_bias && model_.add_bias_linear) refuse("--add-bias-linear has biases on queries and keys too");
  }

  void write_mla(const MlaSpec& mla) {
    set("multi_latent_attention", true);
    set("num_attention_heads", mla.heads);
    // Nothing of latent attention reads it, but without it Megatron divides the hidden size by the heads and stops
    // where something is left (GLM-4.7-Flash: 2048 of 20; core_v0.19.0, training/arguments.py:1292).
    if (model_.hidden_size % mla.heads != 0) set("kv_channels", mla.v_head_dim);
    if (mla.q_lora_rank > 0) set("q_lora_rank", mla.q_lora_rank);
    set("kv_lora_rank", mla.kv_lora_rank);
    set("qk_head_dim", mla.qk_head_dim);
    set("qk_pos_emb_head_dim", mla.qk_pos_emb_head_dim);
    set("v_head_dim", mla.v_head_dim);
    if (mla.qk_layernorm) set("qk_layernorm", true);
    if (!mla.fuses_rope()) set("apply_rope_fusion", false);
    if (mla.index_heads == 0) return;
    set("experimental_attention_variant", "dsa");
    set("dsa_indexer_n_heads", mla.index_heads);
    set("dsa_indexer_head_dim", mla.index_head_dim);
    set("dsa_indexer_topk", mla.index_topk);
    // Until 0.18.2 Megatron's default, none, ends the first forward in a TypeError (core_v0.16.1,
    // transformer/experimental_attention_variant/dsa.py:250). This is Megatron-Bridge's of GLM-5 (glm5_bridge.py:140).
    set("dsa_indexer_loss_coeff", 0.001);
  }

  void write_gdn(const GatedDeltaNetSpec& gdn) {
    set("experimental_attention_variant",
        has_choice("--experimental-attention-variant", "gdn", release_) ? "gdn" : "gated_delta_net");
    set("linear_num_key_heads", gdn.key_heads);
    set("linear_key_head_dim", gdn.key_head_dim);
    set("linear_num_value_heads", gdn.value_heads);
    set("linear_value_head_dim", gdn.value_head_dim);
    set("linear_conv_kernel_dim", gdn.conv_kernel);
  }

  void write_mamba(const MambaSpec& mamba) {
    if (in_releases("", "0.16.1").has(release_))
      set("is_hybrid_model", true);  // Later releases derive it from the pattern.
    set("mamba_num_heads", mamba.heads);
    set("mamba_head_dim", mamba.head_dim);
    set("mamba_state_dim", mamba.state);
    set("mamba_num_groups", mamba.groups);
  }

  void experts() {
    const costmodel::MoeSpec& moe = model_.moe;
    set("num_experts", moe.experts);
    set("moe_router_topk", moe.topk);
    set("moe_ffn_hidden_size", moe.ffn_hidden_size);
    if (moe.shared_ffn_hidden_size > 0) set("moe_shared_expert_intermediate_size", moe.shared_ffn_hidden_size);
    if (moe.shared_gate) set("moe_shared_expert_gate", true);
    if (moe.latent_size > 0) set("moe_latent_size", moe.latent_size);
    if (moe.router_groups <= 1) return;
    set("moe_router_num_groups", moe.router_groups);
    set("moe_router_group_topk", moe.router_group_topk);
  }

  void layers() {
    std::vector<bool> moe, linear, windows;
    std::int64_t window = 0;
    for (const LayerSpec& layer : model_.layers) {
      const costmodel::Mixer* mixer = model_.mixer(layer);
      moe.push_back(layer.mlp == MlpKind::kMoe);
      linear.push_back(mixer != nullptr && std::holds_alternative<GatedDeltaNetSpec>(*mixer));
      windows.push_back(layer.window > 0);
      if (window > 0 && layer.window > 0 && layer.window != window) refuse("Megatron's windows are of one size");
      window = std::max(window, layer.window);
    }
    const auto all = [](const std::vector<bool>& list) { return std::ranges::count(list, false) == 0; };
    const auto none = [](const std::vector<bool>& list) { return std::ranges::count(list, true) == 0; };
    if (model_.has_moe() && !all(moe)) set("moe_layer_freq", list_text(moe));
    if (!none(linear)) set("linear_attention_freq", list_text(linear));
    if (!none(windows)) {
      set("window_size", fmt::format("{},0", window));
      if (!all(windows)) set("window_attn_skip_freq", list_text(windows));
    }
  }

  void pattern() {
    const auto symbols = [&](const std::vector<LayerSpec>& list) {
      std::string text;
      for (const LayerSpec& layer : list) {
        const costmodel::Mixer* mixer = model_.mixer(layer);
        const bool mamba = mixer != nullptr && std::holds_alternative<MambaSpec>(*mixer);
        text += mamba ? 'M' : mixer != nullptr ? '*' : layer.mlp == MlpKind::kMoe ? 'E' : '-';
      }
      return text;
    };
    const bool older = !find_flag("--hybrid-layer-pattern")->releases.has(release_);
    const bool mamba =
        in_releases("", "0.17.1").has(release_);  // The builders of these releases do not choose the layers themselves.
    set("spec", mamba ? json{"megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"}
                      : json{"megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"});
    set(older ? "hybrid_override_pattern" : "hybrid_layer_pattern", symbols(model_.layers));
    if (model_.mtp_num_layers == 0) return;
    if (older) refuse(fmt::format("multi-token prediction of a hybrid is not in Megatron-Core {}", release_.name));
    set("mtp_hybrid_override_pattern", symbols(model_.mtp_layers));
  }

  const ModelSpec& model_;
  const Release& release_;
  Diagnostics& diagnostics_;
  Settings settings_;
};

}  // namespace

Settings settings_of_model(const ModelSpec& model, const Release& release, Diagnostics& diagnostics) {
  return Writer(model, release, diagnostics).write();
}

}  // namespace foldwise::planner

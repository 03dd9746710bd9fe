#include <fmt/format.h>

#include <string>
#include <utility>

#include "planner/models/config_reader.h"

// A pattern of layers of one part each.
namespace foldwise::planner {
namespace {

using costmodel::LayerSpec;
using costmodel::MixerKind;
using costmodel::MlpKind;

// --- Hybrids --------------------------------------------------------------------------------------------------------

/// Nemotron-H and Nemotron-3. Bridge: squared ReLU without a gate, no position embedding, one physical layer for all
/// depths of multi-token prediction.
void read_nemotron_h(ConfigReader& c) {
  c.spec.hybrid = true;
  const std::string pattern = c.in.required_string("hybrid_override_pattern");
  const auto mtp_pattern = c.in.string("mtp_hybrid_override_pattern");
  const auto uses = [&](char symbol) {
    return pattern.find(symbol) != std::string::npos || (mtp_pattern && mtp_pattern->find(symbol) != std::string::npos);
  };
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  if (const auto head_dim = c.in.integer("attention_head_dim", 1, kMaxWidth); head_dim && c.spec.gqa.head_dim == 0)
    c.spec.gqa.head_dim = *head_dim;
  c.read_activation("mlp_hidden_act", /*gated_by_default=*/false);
  c.spec.add_bias_linear = c.in.boolean_or("use_bias", false);
  if (uses('M')) {
    c.spec.mamba = {.heads = c.in.required_integer("mamba_num_heads", 1, kMaxHeads),
                    .head_dim = c.width("mamba_head_dim"),
                    .state = c.width("ssm_state_size"),
                    .groups = c.in.required_integer("n_groups", 1, kMaxHeads),
                    .conv_kernel = c.in.integer_or("conv_kernel", 4, 1, 1024),
                    .chunk = c.in.integer_or("chunk_size", 128, 1, kMaxWidth)};
  }
  if (uses('-')) c.spec.ffn_hidden_size = c.width("intermediate_size");
  if (uses('E')) {
    c.read_experts("n_routed_experts", "moe_intermediate_size");
    c.spec.moe.latent_size = c.optional_width("moe_latent_size");
    // Hugging Face builds one shared MLP of this width, whatever the number of shared experts above zero.
    const std::int64_t shared = c.optional_width("moe_shared_expert_intermediate_size");
    if (c.in.integer_or("n_shared_experts", 1, 0, 1024) > 0) c.spec.moe.shared_ffn_hidden_size = shared;
  }
  c.spec.mtp_use_repeated_layer = c.in.boolean_or("mtp_use_repeated_layer", true);
  // Sizes of kinds of layers that the pattern lacks; `expand` is overruled by the Mamba heads.
  c.in.ignore({"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "chunk_size", "expand",
               "intermediate_size", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
               "moe_latent_size", "moe_shared_expert_intermediate_size", "n_shared_experts"});
  c.in.ignore({"mlp_bias", "use_conv_bias", "mamba_proj_bias", "mamba_hidden_act", "mamba_ssm_cache_dtype",
               "use_mamba_kernels", "residual_in_fp32", "sliding_window", "time_step_floor", "time_step_limit",
               "time_step_max", "time_step_min", "time_step_rank", "moe_shared_expert_overlap"});
  if (!c.clean()) return;
  c.check_gqa();
  if (uses('E')) c.check_experts();
  if (uses('M')) c.check_divides("mamba_num_heads", c.spec.mamba.heads, "n_groups", c.spec.mamba.groups);
  const auto layers = [&](std::string_view key, const std::string& symbols) {
    std::vector<LayerSpec> result;
    for (const char symbol : symbols) {
      switch (symbol) {
        case 'M':
          result.push_back({.mixer = MixerKind::kMamba, .mlp = MlpKind::kNone});
          break;
        case '*':
          result.push_back({.mixer = MixerKind::kGqa, .mlp = MlpKind::kNone});
          break;
        case '-':
          result.push_back({.mixer = MixerKind::kNone, .mlp = MlpKind::kDense});
          break;
        case 'E':
          result.push_back({.mixer = MixerKind::kNone, .mlp = MlpKind::kMoe});
          break;
        default:
          c.in.error(key,
                     fmt::format("expected only the symbols M (Mamba), * (attention), - (MLP) and E (MoE), found {}",
                                 symbol > ' ' && symbol < '\x7f' ? std::string(1, symbol) : "another character"));
          return result;
      }
    }
    return result;
  };
  c.spec.layers = layers("hybrid_override_pattern", pattern);
  if (c.clean()) (void)c.check_length("hybrid_override_pattern", c.spec.layers.size());
  if (mtp_pattern) c.spec.mtp_layers = layers("mtp_hybrid_override_pattern", *mtp_pattern);
  if (c.spec.mtp_num_layers > 0 && c.spec.mtp_layers.empty())
    c.in.error("mtp_hybrid_override_pattern",
               fmt::format("expected the layers of one depth, found nothing, but num_nextn_predict_layers is {}",
                           c.spec.mtp_num_layers));
}

}  // namespace

const std::vector<ModelFamily>& hybrid_families() {
  static const std::vector<ModelFamily> families{
      {"nemotron_h", read_nemotron_h},
  };
  return families;
}

}  // namespace foldwise::planner

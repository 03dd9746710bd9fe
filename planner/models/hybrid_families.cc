#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "planner/models/config_reader.h"

// Families with a pattern of single-part layers.
namespace foldwise::planner {
namespace {

using costmodel::LayerSpec;
using costmodel::MlpKind;

/// Mamba-2 in the keys of Granite 4 and Bamba, or Mamba-1 in those of Jamba.
costmodel::MambaSpec read_mamba(ConfigReader& c) {
  const std::int64_t expand = c.in.integer_or("mamba_expand", 2, 1, 64), inner = expand * c.spec.hidden_size;
  costmodel::MambaSpec mamba{.state = c.in.integer_or("mamba_d_state", 128, 1, kMaxWidth),
                             .conv_kernel = c.in.integer_or("mamba_d_conv", 4, 1, 1024)};
  if (c.in.has("mamba_dt_rank")) {
    const bool by_width = c.in.json().at("mamba_dt_rank").is_string();
    mamba.dt_rank = by_width ? (c.spec.hidden_size + 15) / 16 : c.width("mamba_dt_rank");
    if (by_width) c.in.ignore({"mamba_dt_rank"});
    mamba.heads = inner;
    mamba.head_dim = mamba.groups = 1;
    return mamba;
  }
  mamba.heads = c.in.required_integer("mamba_n_heads", 1, kMaxHeads);
  mamba.groups = c.in.integer_or("mamba_n_groups", 1, 1, kMaxHeads);
  mamba.chunk = c.in.integer_or("mamba_chunk_size", 256, 1, kMaxWidth);
  const bool by_heads = !c.in.has("mamba_d_head") || c.in.json().at("mamba_d_head").is_string();
  mamba.head_dim = by_heads ? std::max<std::int64_t>(1, inner / mamba.heads) : c.width("mamba_d_head");
  if (by_heads) c.in.ignore({"mamba_d_head"});
  return mamba;
}

/// Transformers 5 lists a word for every layer where its predecessors had a letter (NemotronHConfig).
std::optional<std::string> listed_pattern(ConfigReader& c, const char* key) {
  const auto words = c.in.strings(key);
  if (!words) return std::nullopt;
  static const std::map<std::string, char, std::less<>> letters = {
      {"mamba", 'M'}, {"attention", '*'}, {"mlp", '-'}, {"moe", 'E'}};
  std::string pattern;
  for (std::size_t i = 0; i < words->size(); ++i) {
    const auto letter = letters.find((*words)[i]);
    if (letter == letters.end())
      c.in.error(key, fmt::format(R"(expected "mamba", "attention", "mlp" or "moe", found "{}" for layer {})",
                                  (*words)[i], i));
    else
      pattern += letter->second;
  }
  return pattern;
}

}  // namespace

/// Nemotron-H and Nemotron-3. Bridge: squared ReLU without a gate, no position embedding, one physical layer for all
/// depths of multi-token prediction. A launch of pretrain_mamba.py may state others.
void read_nemotron_h(ConfigReader& c) {
  c.spec.hybrid = true;
  c.read_normalization(costmodel::Normalization::kRmsNorm);
  c.read_position_embedding(/*learned=*/false);
  const auto listed = listed_pattern(c, "layers_block_type");
  const std::string pattern = listed ? *listed : c.in.required_string("hybrid_override_pattern");
  const char* pattern_key = listed ? "layers_block_type" : "hybrid_override_pattern";
  auto mtp_pattern = listed_pattern(c, "mtp_layers_block_type");
  if (!mtp_pattern) mtp_pattern = c.in.string("mtp_hybrid_override_pattern");
  const auto uses = [&](char symbol) {
    return pattern.find(symbol) != std::string::npos || (mtp_pattern && mtp_pattern->find(symbol) != std::string::npos);
  };
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  if (const auto head_dim = c.in.integer("attention_head_dim", 1, kMaxWidth); head_dim && c.gqa.head_dim == 0)
    c.gqa.head_dim = *head_dim;
  c.gqa.output_gate = c.in.boolean_or("attn_output_gate", false);
  c.read_activation("mlp_hidden_act", c.in.boolean_or("gated_linear_unit", false));
  c.spec.add_bias_linear = c.in.boolean_or("use_bias", false);
  costmodel::MambaSpec mamba;
  if (uses('M')) {
    mamba = {.heads = c.in.required_integer("mamba_num_heads", 1, kMaxHeads),
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
    // Hugging Face builds one shared MLP of this width for any positive number of shared experts.
    const std::int64_t shared = c.optional_width("moe_shared_expert_intermediate_size");
    if (c.in.integer_or("n_shared_experts", 1, 0, 1024) > 0) c.spec.moe.shared_ffn_hidden_size = shared;
  }
  c.spec.mtp_use_repeated_layer = c.in.boolean_or("mtp_use_repeated_layer", true);
  // Sizes of layers that the pattern lacks. `expand` has no effect: the Mamba heads decide.
  c.in.ignore({"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "chunk_size", "expand",
               "intermediate_size", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
               "moe_latent_size", "moe_shared_expert_intermediate_size", "n_shared_experts"});
  c.in.ignore({"mlp_bias", "use_conv_bias", "hidden_act", "mamba_proj_bias", "mamba_hidden_act",
               "mamba_ssm_cache_dtype", "use_mamba_kernels", "residual_in_fp32", "sliding_window", "time_step_floor",
               "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "moe_shared_expert_overlap"});
  if (!c.clean()) return;
  c.check_gqa();
  if (uses('E')) c.check_experts();
  if (uses('M')) c.check_divides("mamba_num_heads", mamba.heads, "n_groups", mamba.groups);
  const auto layers = [&](std::string_view key, const std::string& symbols) {
    std::vector<LayerSpec> result;
    for (const char symbol : symbols) {
      switch (symbol) {
        case 'M':
          result.push_back({.mixer = c.mixer(mamba), .mlp = MlpKind::kNone});
          break;
        case '*':
          result.push_back({.mixer = c.mixer(c.gqa), .mlp = MlpKind::kNone});
          break;
        case '-':
          result.push_back({.mixer = costmodel::kNoMixer, .mlp = MlpKind::kDense});
          break;
        case 'E':
          result.push_back({.mixer = costmodel::kNoMixer, .mlp = MlpKind::kMoe});
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
  c.spec.layers = layers(pattern_key, pattern);
  if (c.clean()) (void)c.check_length(pattern_key, c.spec.layers.size());
  if (mtp_pattern) c.spec.mtp_layers = layers("mtp_hybrid_override_pattern", *mtp_pattern);
  if (c.spec.mtp_num_layers > 0 && c.spec.mtp_layers.empty())
    c.in.error("mtp_hybrid_override_pattern",
               fmt::format("expected the layers of one depth, found nothing, but num_nextn_predict_layers is {}",
                           c.spec.mtp_num_layers));
}

/// LongCat-Flash. A block is attention, MLP, attention, MLP. Its experts take the first attention's output and run
/// beside the last three. Megatron has no such block, so its parts become consecutive layers of a hybrid.
void read_shortcut(ConfigReader& c) {
  const costmodel::MlaSpec mla = c.read_latent();
  c.read_common();
  c.read_all_experts();
  c.spec.ffn_hidden_size = c.width("intermediate_size");
  const std::int64_t zero = c.in.integer_or("zero_expert_num", 0, 0, kMaxExperts);
  if (!c.clean()) return;
  c.check_experts();
  costmodel::MoeSpec& moe = c.spec.moe;
  const auto real = static_cast<double>(moe.experts);
  const double computed = static_cast<double>(moe.topk) * real / (real + static_cast<double>(zero));
  moe.zero_experts = zero;
  c.spec.notes.lines.push_back(fmt::format(
      "a block's experts run beside its second attention in the model; here after it. Of {} experts a token, {} of {} "
      "compute nothing: {:.1f} on average",
      moe.topk, zero, moe.experts + zero, computed));
  moe.topk = std::max<std::int64_t>(1, std::llround(computed));
  c.spec.approximated.insert(c.spec.approximated.end(), {"shortcut of experts", "zero-computation experts"});
  c.spec.hybrid = true;
  const std::int32_t attention = c.mixer(mla);
  for (std::size_t i = 0; i < c.layers; ++i) {
    for (int half = 0; half < 2; ++half) {
      c.spec.layers.push_back({.mixer = attention, .mlp = MlpKind::kNone});
      c.spec.layers.push_back({.mixer = costmodel::kNoMixer, .mlp = MlpKind::kDense});
    }
    c.spec.layers.push_back({.mixer = costmodel::kNoMixer, .mlp = MlpKind::kMoe});
  }
}

/// Layers with a mixer (Mamba or attention) and an MLP. In Megatron each is two layers of a hybrid.
void read_mamba_hybrid(ConfigReader& c) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  const costmodel::MambaSpec mamba = read_mamba(c);
  c.read_common();
  // A model without experts may state 0 or 1.
  const bool experts = c.in.integer_or("num_experts", 0, 0, kMaxExperts) > 1;
  const auto types = c.in.strings("layer_types");
  const auto listed = c.in.integers("attn_layer_indices", 0, kMaxLayers);
  const bool both = c.in.boolean_or("parallel_mixers", false);  // Falcon-H1: both in every layer, side by side.
  const std::int64_t period = c.in.integer_or("attn_layer_period", 8, 1, kMaxLayers),
                     offset = c.in.integer_or("attn_layer_offset", 4, 0, kMaxLayers),
                     expert_period = c.in.integer_or("expert_layer_period", 1, 1, kMaxLayers),
                     expert_offset = c.in.integer_or("expert_layer_offset", 0, 0, kMaxLayers);
  if (experts) {
    c.read_all_experts();
    c.spec.ffn_hidden_size = c.spec.moe.ffn_hidden_size;
  } else {
    c.in.ignore({"num_experts", "num_experts_per_tok"});
    const std::int64_t width = c.width("moe_intermediate_size");
    c.spec.ffn_hidden_size = c.in.integer_or("shared_expert_intermediate_size", width, 1, kMaxWidth);
  }
  if (!c.clean()) return;
  c.check_gqa();
  if (experts) c.check_experts();
  c.check_divides("mamba_n_heads", mamba.heads, "mamba_n_groups", mamba.groups);
  if (types && !c.check_length("layer_types", types->size())) return;
  c.spec.hybrid = true;
  const std::int32_t of_mamba = c.mixer(mamba), of_attention = c.mixer(c.gqa);
  for (std::size_t i = 0; i < c.layers; ++i) {
    const auto number = static_cast<std::int64_t>(i);
    const bool attention = types    ? (*types)[i] == "attention" || (*types)[i] == "full_attention"
                           : listed ? std::find(listed->begin(), listed->end(), number) != listed->end()
                                    : number % period == offset;
    const bool moe = experts && number % expert_period == expert_offset;
    if (both) c.spec.layers.push_back({.mixer = of_mamba, .mlp = MlpKind::kNone});
    c.spec.layers.push_back({.mixer = attention || both ? of_attention : of_mamba, .mlp = MlpKind::kNone});
    c.spec.layers.push_back({.mixer = costmodel::kNoMixer, .mlp = moe ? MlpKind::kMoe : MlpKind::kDense});
  }
}

}  // namespace foldwise::planner

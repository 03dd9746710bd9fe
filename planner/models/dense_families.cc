#include <algorithm>
#include <string>
#include <utility>

#include "planner/models/config_reader.h"

// Grouped-query attention and dense layers.
namespace foldwise::planner {
namespace {

using costmodel::MixerKind;
using costmodel::MlpKind;
using costmodel::Normalization;

// --- Dense ----------------------------------------------------------------------------------------------------------

void read_dense(ConfigReader& c, bool qkv_bias, bool qk_layernorm) {
  c.read_gqa(qkv_bias, qk_layernorm);
  c.read_activation("hidden_act", /*gated_by_default=*/true);
  c.spec.ffn_hidden_size = c.width("intermediate_size");
  c.spec.add_bias_linear = c.in.boolean_or("mlp_bias", false);
  const std::int64_t window = c.in.integer_or("sliding_window", 0, 0, kMaxPositions);
  const bool use_window = c.in.boolean_or("use_sliding_window", window > 0);
  const std::int64_t full_layers = c.in.integer_or("max_window_layers", 0, 0, kMaxLayers);
  const auto layer_types = c.in.strings("layer_types");
  if (!c.clean()) return;
  c.check_gqa();
  c.all_layers(MixerKind::kGqa, MlpKind::kDense);
  c.apply_windows("layer_types", layer_types, use_window ? window : 0);
  if (!layer_types)  // Qwen: the first layers are full.
    for (std::size_t i = 0; i < std::min(c.layers, static_cast<std::size_t>(full_layers)); ++i)
      c.spec.layers[i].window = 0;
}

/// A GPT as Megatron-LM itself builds it, written with Hugging Face's keys and some of Megatron's. What is missing
/// takes Megatron's defaults (learned positions and a bias on every linear), except with squared ReLU, which is
/// Nemotron-4 (arXiv:2402.16819: rotary positions, no biases).
void read_megatron_gpt(ConfigReader& c) {
  static const std::vector<std::pair<std::string, Normalization>> norms = {{"LayerNorm", Normalization::kLayerNorm},
                                                                           {"RMSNorm", Normalization::kRmsNorm}};
  static const std::vector<std::pair<std::string, bool>> positions = {
      {"learned_absolute", true}, {"rope", false}, {"none", false}};
  const bool nemotron = c.in.has("hidden_act") && c.in.json()["hidden_act"] == "relu2";
  c.spec.normalization = c.in.choice("normalization", norms).value_or(Normalization::kLayerNorm);
  c.spec.learned_position_embedding = c.in.choice("position_embedding_type", positions).value_or(!nemotron);
  c.spec.add_bias_linear = c.in.boolean_or("add_bias_linear", !nemotron);
  c.read_gqa(/*qkv_bias=*/c.spec.add_bias_linear, /*qk_layernorm=*/false);
  c.read_activation("hidden_act", c.in.boolean_or("gated_linear_unit", false));
  c.spec.ffn_hidden_size = c.in.integer_or("intermediate_size", 4 * c.spec.hidden_size, 1, kMaxWidth);
  if (!c.clean()) return;
  c.check_gqa();
  c.all_layers(MixerKind::kGqa, MlpKind::kDense);
}

}  // namespace

const std::vector<ModelFamily>& dense_families() {
  static const std::vector<ModelFamily> families{
      {"llama", [](ConfigReader& c) { read_dense(c, /*qkv_bias=*/false, /*qk_layernorm=*/false); }},
      {"megatron_gpt", read_megatron_gpt},
      {"mistral", [](ConfigReader& c) { read_dense(c, /*qkv_bias=*/false, /*qk_layernorm=*/false); }},
      {"qwen2", [](ConfigReader& c) { read_dense(c, /*qkv_bias=*/true, /*qk_layernorm=*/false); }},
      {"qwen3", [](ConfigReader& c) { read_dense(c, /*qkv_bias=*/false, /*qk_layernorm=*/true); }},
  };
  return families;
}

}  // namespace foldwise::planner

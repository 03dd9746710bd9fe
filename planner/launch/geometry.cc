#include "planner/launch/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "planner/launch/layer_lists.h"
#include "planner/models/models.h"

namespace foldwise::planner {

using config::Diagnostics;
using costmodel::LayerSpec;
using costmodel::ModelSpec;
using nlohmann::json;

namespace {

/// Reads a list of layers, or a number N that stands for the layers i (from 0) for which `of_number(N, i)` holds.
/// Nothing if the member is not given.
struct LayerList {
  std::vector<bool> layers;
  std::string mistake;
};
std::optional<LayerList> layer_list(const Settings& s, std::string_view dest,
                                    bool (*of_number)(std::int64_t n, std::int64_t layer)) {
  const json* value = s.find(dest);
  if (value == nullptr) return std::nullopt;
  const std::int64_t count = layers_of(s);
  std::string text;
  for (const std::string& word : s.names(dest)) text += (text.empty() ? "" : ", ") + word;
  if (value->is_array()) text = "[" + text + "]";
  if (!text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; })) {
    const std::int64_t n = text.size() < 9 ? std::stoll(text) : 0;
    LayerList list;
    if (n < 1) list.mistake = "expected at least 1, found " + text;
    for (std::int64_t i = 0; n > 0 && i < count; ++i) list.layers.push_back(of_number(n, i));
    return list;
  }
  const auto values = list_values(text);
  if (!values)
    return LayerList{.layers = {},
                     .mistake = fmt::format("expected a number or a list of 0 and 1, found \"{}\"", text)};
  if (static_cast<std::int64_t>(values->size()) != count)
    return LayerList{.layers = {},
                     .mistake = fmt::format("has {} layers, but --num-layers is {}", values->size(), count)};
  LayerList list;
  for (const std::int64_t v : *values) list.layers.push_back(v != 0);
  return list;
}

bool every_nth(std::int64_t n, std::int64_t layer) { return layer % n == 0; }          // --moe-layer-freq
bool all_but_nth(std::int64_t n, std::int64_t layer) { return (layer + 1) % n != 0; }  // The other two flags.

class ModelReader {
 public:
  ModelReader(const Settings& settings, const std::string& file, Diagnostics& diagnostics)
      : s_(settings), file_(file), diagnostics_(diagnostics) {}

  json read() {
    const std::size_t before = diagnostics_.list().size();
    config_ = {{"model_type", "megatron"}};
    trunk();
    if (s_.on("multi_latent_attention"))
      latent();
    else
      grouped();
    if (s_.has("num_experts")) experts();
    const std::string pattern = s_.text("hybrid_layer_pattern", s_.text("hybrid_override_pattern"));
    if (pattern.empty())
      layers();
    else
      hybrid(pattern);
    if (diagnostics_.list().size() > before) return nullptr;
    return known_or(config_);
  }

 private:
  void mistake(const std::string& dest, std::string message) {
    diagnostics_.error({file_, s_.line(dest), flag_name(dest)}, std::move(message));
  }
  static std::string flag_name(const std::string& dest) {
    return flags_of(dest).empty() ? dest : flags_of(dest).front()->flag;
  }
  /// Copies a member to Hugging Face's name.
  void copy(const std::string& key, const std::string& dest) {
    if (const json* value = s_.find(dest)) config_[key] = *value;
  }
  void required(const std::string& key, const std::string& dest) {
    if (s_.has(dest)) return copy(key, dest);
    mistake(dest, "expected a whole number, found nothing");
  }

  /// Megatron's default for a dense layer (arguments.py, validate_args).
  [[nodiscard]] std::int64_t default_ffn_hidden_size() const {
    const std::int64_t hidden = s_.integer("hidden_size", 0);
    return s_.on("swiglu") ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
  }

  /// Whether the file states the padded size, and not one that Megatron made of vocab_size, as a log has it. Megatron
  /// pads only what is not given (core_v0.16.1 megatron/training/tokenizer/tokenizer.py:111).
  [[nodiscard]] bool states_padded_vocabulary() const {
    if (!s_.has("padded_vocab_size") || !s_.has("vocab_size")) return s_.has("padded_vocab_size");
    const std::int64_t multiple = std::max<std::int64_t>(
        1, s_.integer("make_vocab_size_divisible_by", 128) * s_.integer("tensor_model_parallel_size", 1));
    const std::int64_t most = s_.integer("vocab_size", 0) + 1;  // NullTokenizer adds one.
    return s_.integer("padded_vocab_size", 0) > (most + multiple - 1) / multiple * multiple;
  }

  void trunk() {
    config_["num_hidden_layers"] = layers_of(s_);
    if (layers_of(s_) == 0) mistake("num_layers", "expected a whole number, found nothing");
    required("hidden_size", "hidden_size");
    if (states_padded_vocabulary()) {
      copy("vocab_size", "padded_vocab_size");
      config_["make_vocab_size_divisible_by"] = 1;
    } else if (s_.has("vocab_size")) {
      copy("vocab_size", "vocab_size");
      copy("make_vocab_size_divisible_by", "make_vocab_size_divisible_by");
    } else {
      mistake("vocab_size", "the tokenizer's size is not in the file: give --model NAME, or --vocab-size in the file");
    }
    if (s_.has("ffn_hidden_size"))
      copy("intermediate_size", "ffn_hidden_size");
    else
      config_["intermediate_size"] = default_ffn_hidden_size();
    config_["normalization"] = s_.text("normalization", "LayerNorm");
    const std::string position =
        s_.on("use_rotary_position_embeddings") ? "rope" : s_.text("position_embedding_type", "learned_absolute");
    config_["position_embedding_type"] = position == "yarn" || position == "mrope" ? "rope" : position;
    config_["scaled_rope"] = position == "yarn" && !s_.on("multi_latent_attention");
    config_["add_bias_linear"] = !s_.off("add_bias_linear");
    const bool gated = s_.on("swiglu") || s_.on("quick_geglu") || s_.on("gated_linear_unit");
    config_["gated_linear_unit"] = gated;
    config_["clamped_activation"] = s_.on("quick_geglu") && s_.has("activation_func_clamp_value");
    config_["tie_word_embeddings"] = !s_.on("untie_embeddings_and_output_weights");
    copy("max_position_embeddings", "max_position_embeddings");
  }

  void grouped() {
    required("num_attention_heads", "num_attention_heads");
    copy("head_dim", "kv_channels");
    if (s_.on("group_query_attention")) copy("num_key_value_heads", "num_query_groups");
    if (s_.on("group_query_attention") && !s_.has("num_query_groups")) config_["num_key_value_heads"] = 1;
    config_["attention_bias"] = s_.on("add_qkv_bias") || !s_.off("add_bias_linear");
    config_["use_qk_norm"] = s_.on("qk_layernorm");
    config_["attn_output_gate"] = s_.on("attention_output_gate");
    config_["learnable_softmax"] = s_.is("softmax_type", "learnable");
    const std::string variant = s_.text("experimental_attention_variant");
    if (variant != "gated_delta_net" && variant != "gdn") return;
    // Megatron's default sizes.
    config_["linear_num_key_heads"] = s_.integer("linear_num_key_heads", 16);
    config_["linear_key_head_dim"] = s_.integer("linear_key_head_dim", 128);
    config_["linear_num_value_heads"] = s_.integer("linear_num_value_heads", 32);
    config_["linear_value_head_dim"] = s_.integer("linear_value_head_dim", 128);
    config_["linear_conv_kernel_dim"] = s_.integer("linear_conv_kernel_dim", 4);
  }

  void latent() {
    required("num_attention_heads", "num_attention_heads");
    copy("q_lora_rank", "q_lora_rank");
    config_["kv_lora_rank"] = s_.integer("kv_lora_rank", 32);
    config_["qk_nope_head_dim"] = s_.integer("qk_head_dim", 128);
    config_["qk_rope_head_dim"] = s_.integer("qk_pos_emb_head_dim", 64);
    config_["v_head_dim"] = s_.integer("v_head_dim", 128);
    config_["use_qk_norm"] = s_.on("qk_layernorm");
    if (!s_.is("experimental_attention_variant", "dsa")) return;
    copy("index_n_heads", "dsa_indexer_n_heads");
    copy("index_head_dim", "dsa_indexer_head_dim");
    copy("index_topk", "dsa_indexer_topk");
  }

  void experts() {
    copy("num_experts", "num_experts");
    config_["num_experts_per_tok"] = s_.integer("moe_router_topk", 2);
    if (s_.has("moe_ffn_hidden_size"))
      copy("moe_intermediate_size", "moe_ffn_hidden_size");
    else  // Megatron's default is the width of a dense layer.
      config_["moe_intermediate_size"] = s_.integer("ffn_hidden_size", default_ffn_hidden_size());
    copy("moe_shared_expert_intermediate_size", "moe_shared_expert_intermediate_size");
    if (s_.on("moe_shared_expert_gate")) config_["moe_shared_expert_gate"] = true;
    copy("moe_latent_size", "moe_latent_size");
    if (s_.integer("moe_router_group_topk", 0) > 0) {  // Groups alone do not limit the choice.
      copy("n_group", "moe_router_num_groups");
      copy("topk_group", "moe_router_group_topk");
    }
  }

  void list(const std::string& key, const std::string& dest, bool (*of_number)(std::int64_t, std::int64_t)) {
    const auto found = layer_list(s_, dest, of_number);
    if (!found) return;
    if (!found->mistake.empty()) return mistake(dest, found->mistake);
    json layers = json::array();
    for (const bool layer : found->layers) layers.push_back(layer ? 1 : 0);
    config_[key] = std::move(layers);
  }

  void layers() {
    if (s_.has("num_experts")) list("moe_layers", "moe_layer_freq", every_nth);
    if (config_.contains("linear_num_key_heads")) list("linear_layers", "linear_attention_freq", all_but_nth);
    if (!s_.has("window_size")) return;
    // "(127, 0)" or "127,0": the first number is how many earlier tokens a token sees.
    const std::string text =
        s_.find("window_size")->is_array() ? word_of(s_.find("window_size")->front()) : s_.text("window_size");
    const std::size_t digit = text.find_first_of("0123456789");
    if (digit == std::string::npos)
      return mistake("window_size", fmt::format("expected two whole numbers, found {}", text));
    const std::size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
    config_["sliding_window"] = std::stoll(text.substr(digit, std::min<std::size_t>(9, end - digit))) + 1;
    list("window_layers", "window_attn_skip_freq", all_but_nth);
  }

  /// Converts the configuration to the form of the Nemotron-H family.
  void hybrid(const std::string& pattern) {
    json config = {
        {"model_type", "nemotron_h"}, {"hybrid_override_pattern", pattern}, {"num_hidden_layers", pattern.size()}};
    for (const char* key : {"hidden_size",
                            "vocab_size",
                            "make_vocab_size_divisible_by",
                            "intermediate_size",
                            "tie_word_embeddings",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "moe_shared_expert_intermediate_size",
                            "moe_latent_size",
                            "n_group",
                            "topk_group",
                            "gated_linear_unit",
                            "normalization",
                            "position_embedding_type",
                            "max_position_embeddings",
                            "attn_output_gate",
                            "attention_bias"})
      if (config_.contains(key)) config[key] = config_[key];
    if (config_.contains("num_experts")) config["n_routed_experts"] = config_["num_experts"];
    config["use_bias"] = config_["add_bias_linear"];
    // Without a number of heads, Mamba is twice as wide as the rest (core_v0.16.1
    // megatron/core/ssm/mamba_mixer.py:239).
    const std::int64_t head_dim = s_.integer("mamba_head_dim", 64);
    config["mamba_num_heads"] =
        s_.integer("mamba_num_heads", s_.integer("hidden_size", 0) * 2 / std::max<std::int64_t>(1, head_dim));
    config["mamba_head_dim"] = head_dim;
    config["ssm_state_size"] = s_.integer("mamba_state_dim", 128);
    config["n_groups"] = s_.integer("mamba_num_groups", 8);
    if (s_.has("mtp_hybrid_override_pattern")) {
      config["mtp_hybrid_override_pattern"] = s_.text("mtp_hybrid_override_pattern");
      config["num_nextn_predict_layers"] = s_.integer("mtp_num_layers", 1);
    }
    config_ = std::move(config);
  }

  /// The model without values that other fields state or no argument can, for comparisons.
  static ModelSpec compared(ModelSpec spec) {
    spec.name.clear();
    spec.max_position_embeddings = 0;
    spec.mtp_num_layers = 0;
    spec.mtp_layers.clear();
    spec.mtp_use_repeated_layer = false;
    spec.swiglu = spec.gated_linear_unit;
    const auto used = [&](std::size_t number) {
      return std::ranges::any_of(
          spec.layers, [&](const LayerSpec& layer) { return layer.mixer == static_cast<std::int32_t>(number); });
    };
    while (!spec.mixers.empty() && !used(spec.mixers.size() - 1))
      spec.mixers.pop_back();  // Only for multi-token prediction.
    return spec;
  }

  json known_or(const json& config) {
    ModelSpec spec;
    try {
      spec = read_inline_model(config);
    } catch (const config::ConfigError& error) {
      for (const config::Diagnostic& diagnostic : error.diagnostics())
        diagnostics_.error({file_, 0, "model"}, fmt::format("{}: {}", diagnostic.where.field, diagnostic.message));
      return nullptr;
    }
    static const auto built_in = [] {
      std::vector<std::pair<std::string, ModelSpec>> list;
      for (const std::string& name : built_in_models()) list.emplace_back(name, compared(load_model(name)));
      return list;
    }();
    ModelSpec wanted = compared(spec);
    for (const auto& [name, known] : built_in)
      if (known == wanted) return name;
    if (!s_.is("tokenizer_type", "NullTokenizer")) return config;
    ++wanted.vocab_size;  // NullTokenizer adds one for the end of a document, so trials are given one less (export.cc).
    for (const auto& [name, known] : built_in)
      if (known == wanted) return name;
    return config;
  }

  const Settings& s_;
  const std::string& file_;
  Diagnostics& diagnostics_;
  json config_;
};

}  // namespace

json model_of(const Settings& settings, const std::string& file, Diagnostics& diagnostics) {
  return ModelReader(settings, file, diagnostics).read();
}

std::string model_but_for_vocabulary(const Settings& settings) {
  static const std::set<std::int64_t> sizes = [] {
    std::set<std::int64_t> all;
    for (const std::string& name : built_in_models()) all.insert(load_model(name).vocab_size);
    return all;
  }();
  std::string found;
  for (const std::int64_t size : sizes) {
    Settings sized = settings;
    sized.set("vocab_size", size);
    Diagnostics unsaid;
    const json model = model_of(sized, "", unsaid);
    if (!unsaid.ok() || !model.is_string()) continue;
    if (!found.empty()) return "";
    found = model;
  }
  return found;
}

std::int64_t layers_of(const Settings& settings) {
  const std::string pattern = settings.text("hybrid_layer_pattern", settings.text("hybrid_override_pattern"));
  if (!pattern.empty()) {  // Bars separate stages; layers of multi-token prediction follow a slash.
    const std::string_view decoder = std::string_view(pattern).substr(0, pattern.find('/'));
    return static_cast<std::int64_t>(decoder.size()) - std::ranges::count(decoder, '|');
  }
  const std::int64_t layers = settings.integer("num_layers", 0);
  return std::clamp<std::int64_t>(layers > 0 ? layers : settings.integer("encoder_num_layers", 0), 0,
                                  static_cast<std::int64_t>(kMostLayers));
}

const std::vector<std::string>& geometry_members() {
  static const std::vector<std::string> members = {"num_layers",
                                                   "tokenizer_type",
                                                   "encoder_num_layers",
                                                   "hidden_size",
                                                   "ffn_hidden_size",
                                                   "normalization",
                                                   "add_bias_linear",
                                                   "swiglu",
                                                   "quick_geglu",
                                                   "gated_linear_unit",
                                                   "squared_relu",
                                                   "activation_func_clamp_value",
                                                   "glu_linear_offset",
                                                   "position_embedding_type",
                                                   "use_rotary_position_embeddings",
                                                   "max_position_embeddings",
                                                   "untie_embeddings_and_output_weights",
                                                   "vocab_size",
                                                   "padded_vocab_size",
                                                   "make_vocab_size_divisible_by",
                                                   "num_attention_heads",
                                                   "kv_channels",
                                                   "group_query_attention",
                                                   "num_query_groups",
                                                   "add_qkv_bias",
                                                   "qk_layernorm",
                                                   "attention_output_gate",
                                                   "softmax_type",
                                                   "multi_latent_attention",
                                                   "q_lora_rank",
                                                   "kv_lora_rank",
                                                   "qk_head_dim",
                                                   "qk_pos_emb_head_dim",
                                                   "v_head_dim",
                                                   "experimental_attention_variant",
                                                   "dsa_indexer_n_heads",
                                                   "dsa_indexer_head_dim",
                                                   "dsa_indexer_topk",
                                                   "linear_num_key_heads",
                                                   "linear_key_head_dim",
                                                   "linear_num_value_heads",
                                                   "linear_value_head_dim",
                                                   "linear_conv_kernel_dim",
                                                   "linear_attention_freq",
                                                   "is_hybrid_model",
                                                   "mamba_num_heads",
                                                   "mamba_head_dim",
                                                   "mamba_state_dim",
                                                   "mamba_num_groups",
                                                   "num_experts",
                                                   "moe_router_topk",
                                                   "moe_ffn_hidden_size",
                                                   "moe_shared_expert_intermediate_size",
                                                   "moe_shared_expert_gate",
                                                   "moe_latent_size",
                                                   "moe_router_num_groups",
                                                   "moe_router_group_topk",
                                                   "moe_layer_freq",
                                                   "window_size",
                                                   "window_attn_skip_freq",
                                                   "hybrid_layer_pattern",
                                                   "hybrid_override_pattern",
                                                   "mtp_hybrid_override_pattern"};
  return members;
}

}  // namespace foldwise::planner

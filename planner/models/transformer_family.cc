#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/models/config_reader.h"

// Decoder layers with a mixer and an MLP each, in our keys (families.h). Mixers: grouped or latent softmax attention,
// with or without windows, and linear attention. MLPs: dense or experts.
namespace foldwise::planner {
namespace {

using costmodel::GatedDeltaNetSpec;
using costmodel::GqaSpec;
using costmodel::LayerSpec;
using costmodel::MlpKind;

constexpr const char* kWindow = "sliding_attention";
constexpr const char* kLinear = "linear_attention";
constexpr const char* kConvolution = "conv";

/// Kinds of attention in a model.
struct Attention {
  costmodel::Mixer full = GqaSpec{};
  std::optional<GqaSpec> windowed;  ///< Set if layers with windows have their own sizes.
  std::optional<GatedDeltaNetSpec> linear;
  std::int64_t window = 0;
};

/// Reads the attention sizes of layers with windows (Step-3.5, MiMo-V2) or without (Gemma 4) that differ from the
/// others.
void read_second_geometry(ConfigReader& c, Attention& attention) {
  GqaSpec other = c.gqa;
  other.heads = c.in.integer_or("swa_num_attention_heads", other.heads, 1, kMaxHeads);
  other.query_groups = c.in.integer_or("swa_num_key_value_heads", other.query_groups, 1, kMaxHeads);
  other.head_dim = c.in.integer_or("swa_head_dim", other.head_dim, 1, kMaxWidth);
  other.v_head_dim = c.in.integer_or("swa_v_head_dim", other.v_head_dim, 0, kMaxWidth);
  other.learnable_softmax = c.in.boolean_or("swa_attention_sinks", other.learnable_softmax);
  if (other != c.gqa) attention.windowed = other;
  if (const auto head_dim = c.in.integer("global_head_dim", 1, kMaxWidth)) {
    attention.windowed = c.gqa;
    c.gqa.head_dim = *head_dim;
    c.gqa.query_groups = c.in.integer_or("num_global_key_value_heads", c.gqa.query_groups, 1, kMaxHeads);
    c.gqa.keys_are_values = c.in.boolean_or("attention_k_eq_v", false);
  }
}

void read_grouped(ConfigReader& c, Attention& attention) {
  c.read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  c.gqa.v_head_dim = c.optional_width("v_head_dim");
  c.gqa.output_gate = c.in.boolean_or("attn_output_gate", false);
  c.gqa.headwise_gate = c.in.boolean_or("headwise_gate", false);
  c.gqa.learnable_softmax = c.in.boolean_or("attention_sinks", false);
  read_second_geometry(c, attention);
}

/// Kimi delta attention: as many key heads as value heads, and a decay per channel. The output gate is of low rank, as
/// the decay, or of full rank (Kimi-K3: g_proj in Megatron-Bridge's kimi_k3_bridge.py); the latter is a gated delta
/// net's, whose decay is one number a head.
GatedDeltaNetSpec read_kimi_delta(ConfigReader& c) {
  const std::int64_t heads = c.in.required_integer("kda_num_heads", 1, kMaxHeads), dim = c.width("kda_head_dim");
  const bool full_rank = c.in.boolean_or("kda_use_full_rank_gate", false);
  c.in.ignore({"kda_gate_lower_bound"});
  if (full_rank) {
    c.spec.notes.lines.emplace_back("the low-rank projection of the decay is left out");
    c.spec.approximated.emplace_back("decay of every channel");
  }
  return {.key_heads = heads,
          .key_head_dim = dim,
          .value_heads = heads,
          .value_head_dim = dim,
          .conv_kernel = c.in.integer_or("kda_short_conv_kernel_size", 4, 1, 1024),
          .gate_rank = full_rank ? 0 : dim};
}

void set_mlp(ConfigReader& c, std::size_t layer, bool moe) {
  c.spec.layers[layer].mlp = moe ? MlpKind::kMoe : MlpKind::kDense;
}

/// Layer numbers, from a list or from a text with commas.
std::optional<std::vector<std::int64_t>> numbers_of_layers(ConfigReader& c, const char* key) {
  if (!c.in.has(key) || !c.in.json().at(key).is_string()) return c.in.integers(key, 0, kMaxLayers);
  std::vector<std::int64_t> result;
  std::int64_t number = 0;
  bool digits = false;
  for (const char letter : c.in.string(key).value_or("") + ",") {
    if (letter >= '0' && letter <= '9' && number < kMaxLayers) {
      number = 10 * number + (letter - '0');
      digits = true;
    } else if (letter == ',' && digits) {
      result.push_back(std::exchange(number, 0));
      digits = false;
    } else if (letter != ' ') {
      c.in.error(key, "expected numbers of layers with commas between them");
      return std::nullopt;
    }
  }
  return result;
}

/// Decides which layers are MoE, from the keys of all families.
class ExpertLayers {
 public:
  explicit ExpertLayers(ConfigReader& c)
      : c_(c),
        types_(c.in.strings("mlp_layer_types")),
        listed_(numbers_of_layers(c, "moe_layers")),
        enumerated_(numbers_of_layers(c, "moe_layers_enum")),
        dense_(c.in.integers("mlp_only_layers", 0, kMaxLayers)),
        by_layer_(c.in.has("moe_layer_freq") && c.in.json().at("moe_layer_freq").is_array()
                      ? c.in.integers("moe_layer_freq", 0, 1)
                      : std::nullopt),
        frequency_(by_layer_ ? 1 : c.in.integer_or("moe_layer_freq", 1, 1, kMaxLayers)),
        step_(c.in.integer_or("decoder_sparse_step", 1, 1, kMaxLayers)),
        first_(c.in.integer_or("first_k_dense_replace", 0, 0, kMaxLayers)),
        start_(c.in.integer_or("moe_layer_start_index", 0, 0, kMaxLayers)),
        end_(c.in.integer_or("moe_layer_end_index", -1, -1, kMaxLayers)),
        interval_(c.in.integer_or("moe_layer_interval", 1, 1, kMaxLayers)) {}

  void apply() {
    if (first_ > c_.num_layers())
      c_.in.error("first_k_dense_replace",
                  fmt::format("{} dense layers, but num_hidden_layers is {}", first_, c_.layers));
    if (types_ && !right_length("mlp_layer_types", types_->size())) return;
    if (by_layer_ && !right_length("moe_layer_freq", by_layer_->size())) return;
    const auto& numbered = listed_ ? listed_ : enumerated_;
    if (numbered) {
      for (std::size_t i = 0; i < c_.layers; ++i) set_mlp(c_, i, false);
      for (const std::int64_t layer : *numbered)
        if (layer < c_.num_layers())
          set_mlp(c_, static_cast<std::size_t>(layer), true);
        else if (layer >= c_.num_layers() + c_.spec.mtp_num_layers)
          c_.in.error(listed_ ? "moe_layers" : "moe_layers_enum",
                      fmt::format("layer {}, but num_hidden_layers is {}", layer, c_.layers));
      return;
    }
    for (std::size_t i = 0; i < c_.layers; ++i) set_mlp(c_, i, is_moe(i));
  }
  /// Sets the MLP of the depth of multi-token prediction if those lists include its layer number.
  void apply_to_depth() {
    const auto& numbered = listed_ ? listed_ : enumerated_;
    if (c_.spec.mtp_num_layers == 0 || !numbered) return;
    if (c_.spec.mtp_layers.empty()) c_.spec.mtp_layers = {c_.spec.layers.back()};
    const bool moe = std::find(numbered->begin(), numbered->end(), c_.num_layers()) != numbered->end();
    c_.spec.mtp_layers.front().mlp = moe ? MlpKind::kMoe : MlpKind::kDense;
  }

 private:
  [[nodiscard]] bool right_length(const char* key, std::size_t length) {
    return length == c_.layers + static_cast<std::size_t>(c_.spec.mtp_num_layers) || c_.check_length(key, length);
  }
  [[nodiscard]] bool is_moe(std::size_t layer) const {
    const auto i = static_cast<std::int64_t>(layer);
    if (types_) return (*types_)[layer] == "sparse";
    if (by_layer_) return (*by_layer_)[layer] != 0;
    if (dense_ && std::find(dense_->begin(), dense_->end(), i) != dense_->end()) return false;
    if ((i + 1) % step_ != 0 || i < first_ || i % frequency_ != 0) return false;
    return i >= start_ && (end_ < 0 || i <= end_) && (i - start_) % interval_ == 0;
  }

  ConfigReader& c_;
  std::optional<std::vector<std::string>> types_;
  std::optional<std::vector<std::int64_t>> listed_, enumerated_, dense_, by_layer_;
  std::int64_t frequency_, step_, first_, start_, end_, interval_;
};

/// Sets the attention of every layer, and of the depths of multi-token prediction if the file lists them.
class AttentionLayers {
 public:
  explicit AttentionLayers(ConfigReader& c)
      : c_(c),
        types_(c.in.strings("layer_types")),
        windows_(c.in.integers("layer_pattern", 0, 1)),
        full_(c.in.integers("full_attn_idxs", 0, kMaxLayers)),
        kimi_full_(c.in.integers("kda_full_attn_layers", 1, kMaxLayers)),
        kimi_linear_(c.in.integers("kda_kda_layers", 1, kMaxLayers)),
        interval_(c.in.integer_or("full_attention_interval", 4, 1, kMaxLayers)),
        pattern_(pattern(c)),
        full_first_(c.in.integer_or("max_window_layers", 0, 0, kMaxLayers)) {}

  void apply(const Attention& attention) {
    for (const auto& [key, size] : {std::pair{"layer_types", types_ ? types_->size() : c_.layers},
                                    std::pair{"layer_pattern", windows_ ? windows_->size() : c_.layers}})
      if (size != c_.layers + static_cast<std::size_t>(c_.spec.mtp_num_layers) && !c_.check_length(key, size)) return;
    for (std::size_t i = 0; i < c_.layers; ++i) set(attention, c_.spec.layers[i], kind(attention, i), i);
    if (c_.spec.mtp_num_layers == 0) return;
    LayerSpec depth = c_.spec.layers.back();
    const bool told = types_ && types_->size() > c_.layers;
    if (told || attention.linear) {
      set(attention, depth, told ? (*types_)[c_.layers] : "full_attention", c_.layers);
      c_.spec.mtp_layers = {depth};
    }
  }

 private:
  /// Period of full attention: a number, or a text with one letter per layer of a period ("LLLG").
  [[nodiscard]] static std::int64_t pattern(ConfigReader& c) {
    constexpr const char* kKey = "sliding_window_pattern";
    if (c.in.has(kKey) && c.in.json().at(kKey).is_string())
      return static_cast<std::int64_t>(c.in.string(kKey).value_or("").size());
    return c.in.integer_or(kKey, 0, 0, kMaxLayers);
  }
  [[nodiscard]] std::string kind(const Attention& attention, std::size_t layer) const {
    if (types_) return (*types_)[layer];
    if (full_)
      return std::find(full_->begin(), full_->end(), static_cast<std::int64_t>(layer)) != full_->end()
                 ? "full_attention"
                 : kConvolution;
    const auto number = static_cast<std::int64_t>(layer) + 1;
    if (kimi_linear_)
      return std::find(kimi_linear_->begin(), kimi_linear_->end(), number) != kimi_linear_->end() ? kLinear
                                                                                                  : "full_attention";
    if (attention.linear && !kimi_full_) return number % interval_ == 0 ? "full_attention" : kLinear;
    if (windows_) return (*windows_)[layer] != 0 ? kWindow : "full_attention";
    if (number <= full_first_ || (pattern_ > 0 && number % pattern_ == 0)) return "full_attention";
    return attention.window > 1 ? kWindow : "full_attention";
  }

  void set(const Attention& attention, LayerSpec& layer, const std::string& kind, std::size_t number) {
    const bool windowed = kind == kWindow || kind == kConvolution;
    if (kind == kLinear || kind == "kda") {
      if (attention.linear)
        layer.mixer = c_.mixer(*attention.linear);
      else
        unknown(kind, number);
      return;
    }
    if (!windowed && kind != "full_attention" && kind != "attention" && kind != "indexed_attention" &&
        kind != "minimax_m3_sparse" && kind != "deepseek_sparse_attention") {
      unknown(kind, number);
      return;
    }
    layer.mixer = windowed && attention.windowed ? c_.mixer(*attention.windowed) : c_.mixer(attention.full);
    layer.window = windowed && attention.window > 1 ? attention.window - 1 : 0;
  }
  void unknown(const std::string& kind, std::size_t layer) {
    c_.in.error(
        "layer_types",
        fmt::format(R"(expected "full_attention" or "sliding_attention", found "{}" for layer {})", kind, layer));
  }

  ConfigReader& c_;
  std::optional<std::vector<std::string>> types_;
  std::optional<std::vector<std::int64_t>> windows_, full_, kimi_full_, kimi_linear_;
  std::int64_t interval_, pattern_, full_first_;
};

/// Gemma 4: an MLP beside the experts adds its output, like a shared expert.
bool read_parallel_mlp(ConfigReader& c) {
  if (!c.in.boolean_or("enable_moe_block", false)) return false;
  c.spec.moe.shared_ffn_hidden_size = std::exchange(c.spec.ffn_hidden_size, 0);
  return true;
}

void refuse_unmodelled(ConfigReader& c) {
  for (const auto& [key, what] : {std::pair{"hidden_size_per_layer_input", "embeddings of every layer"},
                                  std::pair{"num_kv_shared_layers", "layers that share keys and values"}})
    if (c.in.integer_or(key, 0, 0, kMaxWidth) > 0) c.in.error(key, fmt::format("{} are not modelled", what));
  if (c.in.boolean_or("use_double_wide_mlp", false)) c.in.error("use_double_wide_mlp", "expected false, found true");
}

/// MiniMax-M3: in some layers an indexer selects blocks of keys. Modelled as full attention plus the indexer's weights.
void read_block_sparse(ConfigReader& c) {
  const auto where = c.in.integers("sparse_sparse_attention_freq", 0, 1);
  c.in.ignore({"sparse_sparse_num_index_heads", "sparse_sparse_index_dim", "sparse_sparse_block_size",
               "sparse_sparse_topk_blocks", "sparse_sparse_local_block", "sparse_sparse_init_block",
               "sparse_use_sparse_attention", "sparse_sparse_disable_index_value", "sparse_sparse_score_type",
               "index_block_size", "index_topk_blocks", "index_local_blocks", "index_n_heads", "index_head_dim"});
  if (!where && !c.in.has("index_block_size")) return;
  c.spec.approximated.emplace_back("block-sparse attention");
  c.spec.notes.lines.emplace_back("layers with block-sparse attention are priced with full attention");
}

/// Its width itself, or as a multiple of the hidden size (GPT-2), of gate and up together (Qwen 1), or before a gate
/// takes two thirds (LFM2).
void read_mlp_width(ConfigReader& c, bool experts) {
  const std::int64_t multiple = c.in.integer_or("ffn_per_hidden", 0, 0, 64);
  const bool adjusted = c.in.boolean_or("block_auto_adjust_ff_dim", false);
  const std::int64_t rounded = c.in.integer_or("block_multiple_of", 1, 1, kMaxWidth);
  const double factor = c.in.number_or("block_ffn_dim_multiplier", 1.0, 0.0, 64.0);
  if (experts || (multiple > 0 && !c.in.has("intermediate_size")))
    c.spec.ffn_hidden_size = experts ? c.optional_width("intermediate_size") : multiple * c.spec.hidden_size;
  else
    c.spec.ffn_hidden_size = c.width("intermediate_size");
  c.in.ignore({"intermediate_size"});
  if (c.in.boolean_or("ffn_of_both_halves", false)) c.spec.ffn_hidden_size /= 2;
  if (!adjusted) return;
  const auto width = static_cast<std::int64_t>(factor * static_cast<double>(2 * c.spec.ffn_hidden_size / 3));
  c.spec.ffn_hidden_size = (width + rounded - 1) / rounded * rounded;
}

/// LFM2: its convolution has the weights of attention with as many keys as queries, and sees as few tokens as a window.
void read_short_convolution(ConfigReader& c, Attention& attention) {
  const std::int64_t kernel = c.in.integer_or("short_conv_kernel", 0, 0, kMaxPositions);
  if (kernel < 2 || c.gqa.heads < 1) return;
  attention.window = kernel;
  attention.windowed = GqaSpec{.heads = c.gqa.heads, .query_groups = c.gqa.heads, .head_dim = c.gqa.head_dim};
}

}  // namespace

void read_transformer(ConfigReader& c, bool latent, bool experts) {
  Attention attention;
  if (latent)
    attention.full = c.read_latent();
  else
    read_grouped(c, attention);
  if (c.in.has("kda_num_heads")) attention.linear = read_kimi_delta(c);
  if (c.in.has("linear_num_key_heads")) attention.linear = c.read_gated_delta_net();
  c.read_common();
  refuse_unmodelled(c);
  experts = experts || c.in.boolean_or("enable_moe_block", false);
  if (experts) c.read_all_experts();
  read_mlp_width(c, experts);
  c.spec.learned_position_embedding = c.in.boolean_or("learned_positions", false);
  read_short_convolution(c, attention);
  const bool parallel = experts && read_parallel_mlp(c);
  attention.window = c.in.integer_or("sliding_window", attention.window, 0, kMaxPositions);
  if (!c.in.boolean_or("use_sliding_window", true)) attention.window = 0;
  if (!c.in.boolean_or("use_mtp", true)) c.spec.mtp_num_layers = 0;
  if (!latent) read_block_sparse(c);
  AttentionLayers kinds(c);
  std::optional<ExpertLayers> moe_layers;
  if (experts) moe_layers.emplace(c);
  if (!c.clean()) return;
  if (!latent) {
    c.check_gqa();
    attention.full = c.gqa;
  }
  if (attention.windowed) {
    if (attention.windowed->head_dim == 0) attention.windowed->head_dim = c.gqa.head_dim;
    c.check_divides("swa_num_attention_heads", attention.windowed->heads, "swa_num_key_value_heads",
                    attention.windowed->query_groups);
  }
  if (attention.linear)
    c.check_divides("linear_num_value_heads", attention.linear->value_heads, "linear_num_key_heads",
                    attention.linear->key_heads);
  if (experts) c.check_experts();
  if (!c.clean()) return;
  c.all_layers(c.mixer(attention.full), experts ? MlpKind::kMoe : MlpKind::kDense);
  if (moe_layers && !parallel) moe_layers->apply();
  kinds.apply(attention);
  if (moe_layers && !parallel) moe_layers->apply_to_depth();
  const auto dense = std::find_if(c.spec.layers.begin(), c.spec.layers.end(),
                                  [](const LayerSpec& layer) { return layer.mlp == MlpKind::kDense; });
  if (experts && dense != c.spec.layers.end() && c.spec.ffn_hidden_size == 0)
    c.in.error("intermediate_size",
               fmt::format("expected a whole number, found nothing: layer {} is dense", dense - c.spec.layers.begin()));
}

}  // namespace foldwise::planner

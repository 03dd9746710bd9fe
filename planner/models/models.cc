#include "planner/models/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

// Hugging Face keys to Megatron's fields. Keys that all families share are read by `read_trunk` and `read_gqa`; every
// family adds its own keys and what Megatron-Bridge sets for it (docs/formulas.md#model). Each family reads in two
// steps: first the accessors, which report single values; then, if those were clean, checks of values against each
// other.
namespace foldwise::planner {

[[nodiscard]] const std::vector<std::pair<std::string, std::string>>&
embedded_files();  // Made by hwprofiles/embed.cmake.

namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::LayerSpec;
using costmodel::MixerKind;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using costmodel::Normalization;

// Bounds of what anybody could mean. With them products of two widths and the layers fit 63 bits; the whole is checked
// by `check_total`.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = std::int64_t{1} << 14;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
constexpr std::int64_t kMaxExperts = std::int64_t{1} << 16;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;
constexpr double kMaxParameters = 1e16;  // A thousand times the largest model anybody announced.

class ConfigReader {
 public:
  ConfigReader(ObjectReader in, ModelSpec& spec, Diagnostics& diagnostics)
      : in_(std::move(in)), spec_(spec), diagnostics_(diagnostics), errors_before_(diagnostics.list().size()) {}

  void read();

 private:
  using Family = void (ConfigReader::*)();

  // --- Families: one function per way of writing a config.
  void read_llama() { read_dense(/*qkv_bias=*/false, /*qk_layernorm=*/false); }
  void read_qwen2() { read_dense(/*qkv_bias=*/true, /*qk_layernorm=*/false); }
  void read_qwen3() { read_dense(/*qkv_bias=*/false, /*qk_layernorm=*/true); }
  void read_dense(bool qkv_bias, bool qk_layernorm);
  void read_megatron_gpt();
  void read_mixtral();
  void read_olmoe();
  void read_phimoe();
  void read_dbrx();
  void read_minimax();
  void read_gpt_oss();
  void read_llama4();
  void read_qwen2_moe() { read_qwen_moe(/*second_generation=*/true); }
  void read_qwen3_moe() { read_qwen_moe(/*second_generation=*/false); }
  void read_qwen_moe(bool second_generation);
  void read_qwen3_next();
  void read_glm4_moe();
  void read_bailing();
  void read_deepseek() { read_mla(/*sparse=*/false); }
  void read_deepseek_sparse() { read_mla(/*sparse=*/true); }
  void read_mla(bool sparse);
  void read_deepseek_v4();
  void read_nemotron_h();

  // --- Parts of a config.
  void read_trunk();
  void read_gqa(bool qkv_bias, bool qk_layernorm);
  void read_activation(std::string_view key, bool gated_by_default);
  void read_experts(std::string_view experts_key, std::string_view ffn_key);
  void read_gated_delta_net();
  void read_mtp();
  [[nodiscard]] std::int64_t width(std::string_view key) { return in_.required_integer(key, 1, kMaxWidth); }
  [[nodiscard]] std::int64_t optional_width(std::string_view key) { return in_.integer_or(key, 0, 0, kMaxWidth); }
  [[nodiscard]] std::int64_t spelled(std::string_view key, std::string_view dbrx_key, std::int64_t high);
  void ignore_irrelevant();

  // --- Values against each other; each reports at the key that a user would change.
  void check_divides(std::string_view whole_key, std::int64_t whole, std::string_view part_key, std::int64_t part);
  void check_gqa();
  void check_experts();
  [[nodiscard]] bool check_length(std::string_view key, std::size_t length);
  void check_total();

  // --- Layers, once all is read.
  void all_layers(MixerKind mixer, MlpKind mlp) { spec_.layers.assign(layers_, {.mixer = mixer, .mlp = mlp}); }
  void dense_first(MixerKind mixer, std::int64_t dense, std::int64_t frequency);
  void apply_windows(std::string_view key, const std::optional<std::vector<std::string>>& layer_types,
                     std::int64_t sliding_window);
  void finish_layers();

  [[nodiscard]] bool clean() const { return diagnostics_.list().size() == errors_before_; }
  [[nodiscard]] std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_); }

  ObjectReader in_;
  ModelSpec& spec_;
  Diagnostics& diagnostics_;
  std::size_t errors_before_;
  std::size_t layers_ = 0;
  bool dbrx_ = false;
  std::string experts_key_;  ///< Which of the three spellings this family uses.
};

void ConfigReader::read() {
  static const std::vector<std::pair<std::string, Family>> families = {
      {"bailing_moe", &ConfigReader::read_bailing},
      {"bailing_moe_v2", &ConfigReader::read_bailing},
      {"dbrx", &ConfigReader::read_dbrx},
      {"deepseek_v2", &ConfigReader::read_deepseek},
      {"deepseek_v3", &ConfigReader::read_deepseek},
      {"deepseek_v32", &ConfigReader::read_deepseek_sparse},
      {"deepseek_v4", &ConfigReader::read_deepseek_v4},
      {"glm4_moe", &ConfigReader::read_glm4_moe},
      {"glm_moe_dsa", &ConfigReader::read_deepseek_sparse},
      {"gpt_oss", &ConfigReader::read_gpt_oss},
      {"grok-1", &ConfigReader::read_mixtral},
      {"kimi_k2", &ConfigReader::read_deepseek},
      {"llama", &ConfigReader::read_llama},
      {"llama4_text", &ConfigReader::read_llama4},
      {"megatron_gpt", &ConfigReader::read_megatron_gpt},
      {"minimax_m1", &ConfigReader::read_minimax},
      {"minimax_m2", &ConfigReader::read_minimax},
      {"mistral", &ConfigReader::read_llama},
      {"mixtral", &ConfigReader::read_mixtral},
      {"nemotron_h", &ConfigReader::read_nemotron_h},
      {"olmoe", &ConfigReader::read_olmoe},
      {"phimoe", &ConfigReader::read_phimoe},
      {"qwen2", &ConfigReader::read_qwen2},
      {"qwen2_moe", &ConfigReader::read_qwen2_moe},
      {"qwen3", &ConfigReader::read_qwen3},
      {"qwen3_5_moe_text", &ConfigReader::read_qwen3_next},
      {"qwen3_moe", &ConfigReader::read_qwen3_moe},
      {"qwen3_next", &ConfigReader::read_qwen3_next},
  };
  if (!in_.has("model_type")) {
    in_.error("model_type", R"(expected the family of the model, such as "llama" or "deepseek_v3", found nothing)");
    return;
  }
  const auto family = in_.choice("model_type", families);
  if (!family) return;
  dbrx_ = *family == &ConfigReader::read_dbrx;
  ignore_irrelevant();
  read_trunk();
  (this->*(*family))();
  if (clean()) {
    finish_layers();
    check_total();
  }
  in_.finish();
}

/// Keys that change neither the number of operations nor the bytes of a training step at the accuracy that we model.
void ConfigReader::ignore_irrelevant() {
  in_.ignore_prefix('_');  // Comments of ours, private fields of Hugging Face.
  // Bookkeeping of Hugging Face.
  in_.ignore({"architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "use_cache",
              "tokenizer_class", "output_attentions", "output_hidden_states", "return_dict", "is_decoder",
              "is_encoder_decoder", "chunk_size_feed_forward", "tie_encoder_decoder", "id2label", "label2id",
              "task_specific_params"});
  // Tokens of the vocabulary, initial values, numerical guards, regularisation.
  in_.ignore({"bos_token_id",       "eos_token_id",       "pad_token_id",      "sep_token_id",
              "initializer_range",  "initializer_factor", "rms_norm_eps",      "layer_norm_eps",
              "layer_norm_epsilon", "norm_eps",           "attention_dropout", "hidden_dropout",
              "embd_pdrop",         "emb_pdrop",          "resid_pdrop",       "attn_pdrop",
              "swiglu_limit",       "output_dropout",     "embedding_dropout", "rescale_prenorm_residual"});
  // Rotary embeddings: elementwise, the same work whatever the angles.
  in_.ignore({"rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "rope_type", "partial_rotary_factor",
              "rotary_dim", "rotary_emb_base", "compress_rope_theta", "no_rope_layers", "no_rope_layer_interval",
              "mrope_section", "original_max_position_embeddings", "initial_context_length"});
  // How the router scores and balances: elementwise over tokens x experts.
  in_.ignore({"topk_method", "scoring_func", "score_function", "norm_topk_prob", "routed_scaling_factor",
              "moe_router_enable_expert_bias", "moe_router_topk_scaling_factor", "aux_loss_alpha", "seq_aux",
              "router_aux_loss_coef", "router_jitter_noise", "input_jitter_noise", "router_z_loss_coef",
              "output_router_logits", "use_routing_bias", "router_dtype", "num_hash_layers"});
  // Inference, checkpoints and storage.
  in_.ignore({"quantization_config", "expert_dtype", "pretraining_tp", "ep_size", "model_max_length",
              "max_position_embeddings_inference", "num_logits_to_keep", "logits_to_keep"});
  // A bias on the output head: one vector.
  in_.ignore({"lm_head_bias"});
}

void ConfigReader::read_trunk() {
  spec_.hidden_size = spelled("hidden_size", "d_model", kMaxWidth);
  layers_ = static_cast<std::size_t>(spelled("num_hidden_layers", "n_layers", kMaxLayers));
  spec_.vocab_size = width("vocab_size");
  spec_.make_vocab_size_divisible_by = in_.integer_or("make_vocab_size_divisible_by", 128, 1, std::int64_t{1} << 16);
  spec_.share_embeddings_and_output_weights = in_.boolean_or("tie_word_embeddings", false);
  spec_.max_position_embeddings = in_.integer_or("max_position_embeddings", 0, 0, kMaxPositions);
  read_mtp();
}

/// Spellings of the depth of multi-token prediction: DeepSeek, GLM, Kimi, Ling and Nemotron; Qwen3.5; MiniMax-M2.
void ConfigReader::read_mtp() {
  constexpr std::int64_t kMaxDepth = 64;
  for (const std::string_view key : {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"})
    if (const auto depth = in_.integer(key, 0, kMaxDepth))
      spec_.mtp_num_layers = std::max(spec_.mtp_num_layers, *depth);
}

void ConfigReader::read_gqa(bool qkv_bias, bool qk_layernorm) {
  spec_.gqa.heads = spelled("num_attention_heads", "n_heads", kMaxHeads);
  spec_.gqa.query_groups = in_.integer_or("num_key_value_heads", spec_.gqa.heads, 1, kMaxHeads);
  spec_.gqa.head_dim = optional_width("head_dim");
  spec_.gqa.qkv_bias = in_.boolean_or("attention_bias", qkv_bias);
  spec_.gqa.qk_layernorm = in_.boolean_or("use_qk_norm", qk_layernorm);
}

void ConfigReader::read_activation(std::string_view key, bool gated_by_default) {
  static const std::vector<std::pair<std::string, bool>> activations = {
      {"silu", true},
      {"swish", true},
      {"swiglu", true},
      {"gelu", true},
      {"gelu_new", true},
      {"gelu_fast", true},
      {"gelu_pytorch_tanh", true},
      {"relu", true},
      {"relu2", true},
  };
  (void)in_.choice(key, activations);  // All cost the same; the spelling is checked.
  spec_.gated_linear_unit = gated_by_default;
  // Megatron's FLOP count asks for SwiGLU, Megatron-Bridge's for any gate; a GeGLU (Grok-1) counts as one here.
  spec_.swiglu = spec_.gated_linear_unit;
}

void ConfigReader::read_experts(std::string_view experts_key, std::string_view ffn_key) {
  experts_key_ = experts_key;
  spec_.moe.experts = in_.required_integer(experts_key, 1, kMaxExperts);
  spec_.moe.topk = in_.required_integer("num_experts_per_tok", 1, kMaxExperts);
  spec_.moe.ffn_hidden_size = width(ffn_key);
  spec_.moe.router_groups = in_.integer_or("n_group", 1, 1, kMaxExperts);
  spec_.moe.router_group_topk = in_.integer_or("topk_group", 1, 1, kMaxExperts);
}

void ConfigReader::read_gated_delta_net() {
  spec_.gdn = {.key_heads = in_.required_integer("linear_num_key_heads", 1, kMaxHeads),
               .key_head_dim = width("linear_key_head_dim"),
               .value_heads = in_.required_integer("linear_num_value_heads", 1, kMaxHeads),
               .value_head_dim = width("linear_value_head_dim"),
               .conv_kernel = in_.integer_or("linear_conv_kernel_dim", 4, 1, 1024)};
}

/// The value of `key`, which DBRX spells `dbrx_key`; where both are given they must agree.
std::int64_t ConfigReader::spelled(std::string_view key, std::string_view dbrx_key, std::int64_t high) {
  if (!dbrx_) return in_.required_integer(key, 1, high);
  const std::int64_t value = in_.required_integer(dbrx_key, 1, high);
  if (const auto common = in_.integer(key, 1, high); common && *common != value)
    in_.error(key, fmt::format("{} is {}, but {} is {}; they mean the same", key, *common, dbrx_key, value));
  return value;
}

void ConfigReader::check_divides(std::string_view whole_key, std::int64_t whole, std::string_view part_key,
                                 std::int64_t part) {
  if (whole % part != 0)
    in_.error(part_key, fmt::format("{} {} does not divide {} {}", part_key, part, whole_key, whole));
}

void ConfigReader::check_gqa() {
  check_divides("num_attention_heads", spec_.gqa.heads, "num_key_value_heads", spec_.gqa.query_groups);
  if (spec_.gqa.head_dim > 0) return;
  if (spec_.hidden_size % spec_.gqa.heads != 0)
    in_.error("num_attention_heads",
              fmt::format("hidden_size {} cannot be divided over {} attention heads, and there is "
                          "no head_dim",
                          spec_.hidden_size, spec_.gqa.heads));
  spec_.gqa.head_dim = spec_.hidden_size / spec_.gqa.heads;
}

void ConfigReader::check_experts() {
  if (spec_.moe.topk > spec_.moe.experts)
    in_.error("num_experts_per_tok",
              fmt::format("{} experts per token, but {} is {}", spec_.moe.topk, experts_key_, spec_.moe.experts));
  if (spec_.moe.experts % spec_.moe.router_groups != 0)
    in_.error("n_group",
              fmt::format("{} groups do not divide the {} experts", spec_.moe.router_groups, spec_.moe.experts));
  else if (spec_.moe.router_group_topk > spec_.moe.router_groups)
    in_.error("topk_group", fmt::format("expected at most the {} groups of n_group, found {}", spec_.moe.router_groups,
                                        spec_.moe.router_group_topk));
  else if (spec_.moe.router_groups > 1 &&
           spec_.moe.topk > spec_.moe.experts / spec_.moe.router_groups * spec_.moe.router_group_topk)
    in_.error("topk_group", fmt::format("{} of {} groups hold fewer experts than the {} of num_experts_per_tok",
                                        spec_.moe.router_group_topk, spec_.moe.router_groups, spec_.moe.topk));
}

bool ConfigReader::check_length(std::string_view key, std::size_t length) {
  if (length == layers_) return true;
  in_.error(key, fmt::format("{} layers, but num_hidden_layers is {}", length, layers_));
  return false;
}

/// Rough parameter count in floating point: guards everything that later multiplies these sizes as whole numbers.
void ConfigReader::check_total() {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double h = real(spec_.hidden_size);
  const double heads =
      4 *
      (real(spec_.gqa.heads) * real(spec_.gqa.head_dim) +
       real(spec_.mla.heads) * real(spec_.mla.qk_head_dim + spec_.mla.qk_pos_emb_head_dim + spec_.mla.v_head_dim) +
       real(spec_.compressed.heads) * real(spec_.compressed.head_dim) +
       real(spec_.mamba.heads) * real(spec_.mamba.head_dim) + real(spec_.gdn.key_heads) * real(spec_.gdn.key_head_dim) +
       real(spec_.gdn.value_heads) * real(spec_.gdn.value_head_dim));
  const double widest = std::max({h, real(spec_.mla.q_lora_rank), real(spec_.compressed.q_lora_rank)});
  const double mlp = 3 * h *
                     (real(spec_.ffn_hidden_size) + real(spec_.moe.shared_ffn_hidden_size) +
                      real(spec_.moe.experts) * real(spec_.moe.ffn_hidden_size));
  const double depth = real(num_layers() + spec_.mtp_num_layers);
  const double parameters = depth * (widest * heads + mlp) + 2 * h * real(spec_.vocab_size);
  if (parameters > kMaxParameters)
    in_.error("", fmt::format("these sizes make a model of about {:.1e} parameters; the limit is {:.0e}", parameters,
                              kMaxParameters));
}

/// Hugging Face's rule: the first `dense` layers are dense, then every layer whose index `frequency` divides is MoE.
void ConfigReader::dense_first(MixerKind mixer, std::int64_t dense, std::int64_t frequency) {
  if (dense > num_layers()) {
    in_.error("first_k_dense_replace", fmt::format("{} dense layers, but num_hidden_layers is {}", dense, layers_));
    return;
  }
  for (std::int64_t i = 0; i < num_layers(); ++i)
    spec_.layers.push_back({.mixer = mixer, .mlp = i >= dense && i % frequency == 0 ? MlpKind::kMoe : MlpKind::kDense});
}

/// LayerSpec::window is Megatron's window_size[0]: a window of n tokens holds the token itself and n - 1 before it.
/// `layer_types` says which layers have it; without it, all have.
void ConfigReader::apply_windows(std::string_view key, const std::optional<std::vector<std::string>>& layer_types,
                                 std::int64_t sliding_window) {
  if (layer_types && !check_length(key, layer_types->size())) return;
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    if (layer_types && (*layer_types)[i] != "sliding_attention") {
      if ((*layer_types)[i] != "full_attention")
        in_.error(key, fmt::format(R"(expected "full_attention" or "sliding_attention", found "{}" for layer {})",
                                   (*layer_types)[i], i));
      continue;
    }
    if (sliding_window > 1) spec_.layers[i].window = sliding_window - 1;
  }
}

/// What follows from the layers: the sizes that none of them uses are zero, and a depth of multi-token prediction is a
/// layer like the last one, unless the family says otherwise.
void ConfigReader::finish_layers() {
  const auto any = [&](MlpKind kind) {
    return std::any_of(spec_.layers.begin(), spec_.layers.end(), [&](const LayerSpec& l) { return l.mlp == kind; });
  };
  if (!any(MlpKind::kDense)) spec_.ffn_hidden_size = 0;
  if (!any(MlpKind::kMoe)) spec_.moe = {};
  if (spec_.mtp_layers.empty() && !spec_.hybrid) spec_.mtp_layers = {spec_.layers.back()};
  spec_.router_bias = spec_.add_bias_linear && spec_.has_moe();
}

// --- Dense ----------------------------------------------------------------------------------------------------------

void ConfigReader::read_dense(bool qkv_bias, bool qk_layernorm) {
  read_gqa(qkv_bias, qk_layernorm);
  read_activation("hidden_act", /*gated_by_default=*/true);
  spec_.ffn_hidden_size = width("intermediate_size");
  spec_.add_bias_linear = in_.boolean_or("mlp_bias", false);
  const std::int64_t window = in_.integer_or("sliding_window", 0, 0, kMaxPositions);
  const bool use_window = in_.boolean_or("use_sliding_window", window > 0);
  const std::int64_t full_layers = in_.integer_or("max_window_layers", 0, 0, kMaxLayers);
  const auto layer_types = in_.strings("layer_types");
  if (!clean()) return;
  check_gqa();
  all_layers(MixerKind::kGqa, MlpKind::kDense);
  apply_windows("layer_types", layer_types, use_window ? window : 0);
  if (!layer_types)  // Qwen: the first layers are full.
    for (std::size_t i = 0; i < std::min(layers_, static_cast<std::size_t>(full_layers)); ++i)
      spec_.layers[i].window = 0;
}

/// A GPT as Megatron-LM itself builds it, written with Hugging Face's keys and some of Megatron's. What is missing
/// takes Megatron's defaults (learned positions and a bias on every linear), except with squared ReLU, which is
/// Nemotron-4 (arXiv:2402.16819: rotary positions, no biases).
void ConfigReader::read_megatron_gpt() {
  static const std::vector<std::pair<std::string, Normalization>> norms = {{"LayerNorm", Normalization::kLayerNorm},
                                                                           {"RMSNorm", Normalization::kRmsNorm}};
  static const std::vector<std::pair<std::string, bool>> positions = {
      {"learned_absolute", true}, {"rope", false}, {"none", false}};
  const bool nemotron = in_.has("hidden_act") && in_.json()["hidden_act"] == "relu2";
  spec_.normalization = in_.choice("normalization", norms).value_or(Normalization::kLayerNorm);
  spec_.learned_position_embedding = in_.choice("position_embedding_type", positions).value_or(!nemotron);
  spec_.add_bias_linear = in_.boolean_or("add_bias_linear", !nemotron);
  read_gqa(/*qkv_bias=*/spec_.add_bias_linear, /*qk_layernorm=*/false);
  read_activation("hidden_act", in_.boolean_or("gated_linear_unit", false));
  spec_.ffn_hidden_size = in_.integer_or("intermediate_size", 4 * spec_.hidden_size, 1, kMaxWidth);
  if (!clean()) return;
  check_gqa();
  all_layers(MixerKind::kGqa, MlpKind::kDense);
}

// --- All layers MoE, grouped-query attention ------------------------------------------------------------------------

void ConfigReader::read_mixtral() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_local_experts", "intermediate_size");
  const std::int64_t window = in_.integer_or("sliding_window", 0, 0, kMaxPositions);
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
  apply_windows("sliding_window", std::nullopt, window);
}

void ConfigReader::read_phimoe() {
  spec_.normalization = Normalization::kLayerNorm;
  read_mixtral();
}

void ConfigReader::read_olmoe() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/true);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_experts", "intermediate_size");
  in_.ignore({"clip_qkv"});
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
}

/// DBRX nests its sizes and has its own names; our built-in file adds the common ones, which must agree.
void ConfigReader::read_dbrx() {
  spec_.normalization = Normalization::kLayerNorm;
  spec_.max_position_embeddings = in_.integer_or("max_seq_len", spec_.max_position_embeddings, 0, kMaxPositions);
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  read_activation("hidden_act", /*gated_by_default=*/true);
  experts_key_ = "moe_num_experts";
  const auto nested = [&](ObjectReader& inside, std::string_view key, std::string_view common, std::int64_t high) {
    const std::int64_t value = inside.required_integer(key, 1, high);
    if (const auto other = in_.integer(common, 1, high); other && *other != value)
      inside.error(key, fmt::format("{} is {}, but {} is {}; they mean the same", key, value, common, *other));
    return value;
  };
  if (auto attention = in_.object("attn_config")) {
    attention->ignore({"clip_qkv", "rope_theta", "attn_pdrop", "attn_impl", "model_type"});
    spec_.gqa.query_groups = nested(*attention, "kv_n_heads", "num_key_value_heads", kMaxHeads);
    attention->finish();
  } else if (!in_.has("attn_config")) {
    in_.error("attn_config", "expected an object, found nothing");
  }
  if (auto ffn = in_.object("ffn_config")) {
    ffn->ignore({"ffn_act_fn", "moe_loss_weight", "moe_jitter_eps", "moe_normalize_expert_weights",
                 "uniform_expert_assignment", "model_type"});
    spec_.moe.ffn_hidden_size = nested(*ffn, "ffn_hidden_size", "intermediate_size", kMaxWidth);
    spec_.moe.experts = nested(*ffn, "moe_num_experts", "num_local_experts", kMaxExperts);
    spec_.moe.topk = nested(*ffn, "moe_top_k", "num_experts_per_tok", kMaxExperts);
    ffn->finish();
  } else if (!in_.has("ffn_config")) {
    in_.error("ffn_config", "expected an object, found nothing");
  }
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
}

/// MiniMax-M1 (mostly lightning attention) and M2 (softmax only).
void ConfigReader::read_minimax() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_local_experts", "intermediate_size");
  spec_.moe.shared_ffn_hidden_size = optional_width("shared_intermediate_size");
  const auto softmax_layers = in_.integers("attn_type_list", 0, 1);
  if (!in_.boolean_or("use_mtp", true)) spec_.mtp_num_layers = 0;
  in_.ignore({"qk_norm_type", "shared_moe_mode", "postnorm", "mtp_transformer_layers", "sliding_window",
              "attn_window_size", "layernorm_full_attention_alpha", "layernorm_full_attention_beta",
              "layernorm_linear_attention_alpha", "layernorm_linear_attention_beta", "layernorm_mlp_alpha",
              "layernorm_mlp_beta", "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor",
              "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor"});
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
  if (!softmax_layers || !check_length("attn_type_list", softmax_layers->size())) return;
  for (std::size_t i = 0; i < layers_; ++i)
    if ((*softmax_layers)[i] == 0) spec_.layers[i].mixer = MixerKind::kLightning;
}

/// Bridge: biases everywhere, a learned sink per head, window_size (sliding_window - 1, 0) on every second layer.
void ConfigReader::read_gpt_oss() {
  read_gqa(/*qkv_bias=*/true, /*qk_layernorm=*/false);
  spec_.gqa.learnable_softmax = true;
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_local_experts", "intermediate_size");
  spec_.scaled_rope = true;
  spec_.clamped_activation = in_.number_or("swiglu_limit", 7.0, 0.0, 1e6) > 0.0;
  spec_.add_bias_linear = in_.boolean_or("mlp_bias", true);
  const std::int64_t window = in_.integer_or("sliding_window", 0, 0, kMaxPositions);
  auto layer_types = in_.strings("layer_types");
  in_.ignore({"experts_per_token"});
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
  if (!layer_types) {
    layer_types.emplace();
    for (std::size_t i = 0; i < layers_; ++i)
      layer_types->emplace_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  apply_windows("layer_types", layer_types, window);
}

/// One shared expert as wide as a routed one; every interleave_moe_layer_step-th layer is MoE, the others are dense and
/// intermediate_size_mlp wide. The norm of queries and keys has no weight. Chunked attention is not modelled: the text
/// model is trained with full causal attention in Megatron.
void ConfigReader::read_llama4() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  spec_.gqa.qk_layernorm = false;
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_local_experts", "intermediate_size");
  spec_.ffn_hidden_size = optional_width("intermediate_size_mlp");
  spec_.moe.shared_ffn_hidden_size =
      in_.integer_or("shared_expert_intermediate_size", spec_.moe.ffn_hidden_size, 0, kMaxWidth);
  const std::int64_t step = in_.integer_or("interleave_moe_layer_step", 1, 1, kMaxLayers);
  const auto moe_layers = in_.integers("moe_layers", 0, kMaxLayers);
  in_.ignore({"attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor",
              "layer_types"});
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, moe_layers ? MlpKind::kDense : MlpKind::kMoe);
  if (moe_layers) {
    for (const std::int64_t layer : *moe_layers) {
      if (layer < num_layers())
        spec_.layers[static_cast<std::size_t>(layer)].mlp = MlpKind::kMoe;
      else
        in_.error("moe_layers", fmt::format("layer {}, but num_hidden_layers is {}", layer, layers_));
    }
  } else {
    for (std::int64_t i = 0; i < num_layers(); ++i)
      if ((i + 1) % step != 0) spec_.layers[static_cast<std::size_t>(i)].mlp = MlpKind::kDense;
  }
  const bool dense = std::any_of(spec_.layers.begin(), spec_.layers.end(),
                                 [](const LayerSpec& layer) { return layer.mlp == MlpKind::kDense; });
  if (dense && spec_.ffn_hidden_size == 0)
    in_.error("intermediate_size_mlp", "expected a whole number, found nothing: some layers are dense");
}

// --- Qwen -----------------------------------------------------------------------------------------------------------

/// Qwen2-MoE has a shared expert behind a sigmoid gate and biases on the QKV projection, Qwen3-MoE norms of queries and
/// keys. Which layers are sparse follows Hugging Face (decoder_sparse_step, mlp_only_layers); Bridge makes all of them
/// MoE, which is the same for every published model.
void ConfigReader::read_qwen_moe(bool second_generation) {
  read_gqa(/*qkv_bias=*/second_generation, /*qk_layernorm=*/!second_generation);
  spec_.gqa.qkv_bias = in_.boolean_or("qkv_bias", spec_.gqa.qkv_bias);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_experts", "moe_intermediate_size");
  spec_.ffn_hidden_size = optional_width("intermediate_size");
  if (second_generation) {
    spec_.moe.shared_ffn_hidden_size = width("shared_expert_intermediate_size");
    spec_.moe.shared_gate = true;
  }
  const std::int64_t step = in_.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  const auto dense_layers = in_.integers("mlp_only_layers", 0, kMaxLayers);
  const std::int64_t window = in_.integer_or("sliding_window", 0, 0, kMaxPositions);
  const bool use_window = in_.boolean_or("use_sliding_window", false);
  const std::int64_t full_layers = in_.integer_or("max_window_layers", 0, 0, kMaxLayers);
  const auto layer_types = in_.strings("layer_types");
  if (!clean()) return;
  check_gqa();
  check_experts();
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
  apply_windows("layer_types", layer_types, use_window ? window : 0);
  for (std::int64_t i = 0; i < num_layers(); ++i) {
    LayerSpec& layer = spec_.layers[static_cast<std::size_t>(i)];
    const bool listed = dense_layers && std::find(dense_layers->begin(), dense_layers->end(), i) != dense_layers->end();
    if (listed || (i + 1) % step != 0) layer.mlp = MlpKind::kDense;
    if (layer.mlp == MlpKind::kDense && spec_.ffn_hidden_size == 0) {
      in_.error("intermediate_size", fmt::format("expected a whole number, found nothing: layer {} is dense", i));
      return;
    }
    if (!layer_types && i < full_layers) layer.window = 0;
  }
}

/// Qwen3-Next and the text backbone of Qwen3.5: gated delta net, and full attention with an output gate on every
/// full_attention_interval-th layer; shared expert behind a gate. A depth of multi-token prediction has full attention.
void ConfigReader::read_qwen3_next() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/true);
  spec_.gqa.output_gate = in_.boolean_or("attn_output_gate", true);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_experts", "moe_intermediate_size");
  read_gated_delta_net();
  spec_.moe.shared_ffn_hidden_size = width("shared_expert_intermediate_size");
  spec_.moe.shared_gate = true;
  const std::int64_t interval = in_.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  const auto layer_types = in_.strings("layer_types");
  (void)in_.integer_or("decoder_sparse_step", 1, 1, 1);  // Every layer is MoE, so intermediate_size is of no layer.
  const auto dense_layers = in_.integers("mlp_only_layers", 0, kMaxLayers);
  in_.ignore({"intermediate_size", "mamba_ssm_dtype", "mtp_use_dedicated_embeddings"});
  if (!clean()) return;
  check_gqa();
  check_experts();
  check_divides("linear_num_value_heads", spec_.gdn.value_heads, "linear_num_key_heads", spec_.gdn.key_heads);
  if (dense_layers && !dense_layers->empty()) in_.error("mlp_only_layers", "expected an empty list, found a list");
  if (layer_types && !check_length("layer_types", layer_types->size())) return;
  all_layers(MixerKind::kGqa, MlpKind::kMoe);
  for (std::size_t i = 0; i < layers_; ++i) {
    const bool full =
        layer_types ? (*layer_types)[i] == "full_attention" : (i + 1) % static_cast<std::size_t>(interval) == 0;
    if (layer_types && !full && (*layer_types)[i] != "linear_attention")
      in_.error("layer_types",
                fmt::format(R"(expected "full_attention" or "linear_attention", found "{}" for layer {})",
                            (*layer_types)[i], i));
    if (!full) spec_.layers[i].mixer = MixerKind::kGatedDeltaNet;
  }
  spec_.mtp_layers = {{.mixer = MixerKind::kGqa, .mlp = MlpKind::kMoe}};
}

// --- First layers dense, shared experts -----------------------------------------------------------------------------

/// Shared experts are as wide as routed ones; Bridge sets their sum.
void ConfigReader::read_glm4_moe() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("n_routed_experts", "moe_intermediate_size");
  spec_.ffn_hidden_size = width("intermediate_size");
  spec_.moe.shared_ffn_hidden_size = spec_.moe.ffn_hidden_size * in_.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t dense = in_.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  if (!clean()) return;
  check_gqa();
  check_experts();
  dense_first(MixerKind::kGqa, dense, 1);
}

/// Ling and Ring.
void ConfigReader::read_bailing() {
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/true);
  spec_.gqa.qkv_bias = in_.boolean_or("use_qkv_bias", spec_.gqa.qkv_bias);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("num_experts", "moe_intermediate_size");
  spec_.add_bias_linear = in_.boolean_or("use_bias", false);
  spec_.ffn_hidden_size = width("intermediate_size");
  const std::int64_t shared = in_.integer_or("num_shared_experts", 0, 0, 1024);
  spec_.moe.shared_ffn_hidden_size =
      shared * in_.integer_or("moe_shared_expert_intermediate_size", spec_.moe.ffn_hidden_size, 1, kMaxWidth);
  const std::int64_t dense = in_.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  in_.ignore({"use_rmsnorm", "moe_router_enable_shared_expert", "mtp_loss_scaling_factor", "max_window_layers"});
  if (!clean()) return;
  check_gqa();
  check_experts();
  dense_first(MixerKind::kGqa, dense, 1);
}

/// DeepSeek-V2, V3, Kimi-K2, Moonlight; with `sparse` DeepSeek-V3.2 and GLM-5 (an indexer on every layer).
/// Bridge: multi-latent attention with norms of the compressed tensors; shared size = sum over the shared experts.
void ConfigReader::read_mla(bool sparse) {
  auto& mla = spec_.mla;
  mla.heads = in_.required_integer("num_attention_heads", 1, kMaxHeads);
  const auto key_value_heads = in_.integer("num_key_value_heads", 1, kMaxHeads);
  mla.q_lora_rank = optional_width("q_lora_rank");
  mla.kv_lora_rank = width("kv_lora_rank");
  mla.qk_head_dim = width("qk_nope_head_dim");
  mla.qk_pos_emb_head_dim = width("qk_rope_head_dim");
  mla.v_head_dim = width("v_head_dim");
  mla.qk_layernorm = true;
  const auto whole_head = in_.integer("qk_head_dim", 1, kMaxWidth);
  if (sparse) {
    mla.index_heads = in_.required_integer("index_n_heads", 1, kMaxHeads);
    mla.index_head_dim = width("index_head_dim");
    mla.index_topk = in_.required_integer("index_topk", 1, kMaxPositions);
    in_.ignore({"indexer_rope_interleave"});
  }
  in_.ignore({"head_dim"});  // Some releases of Hugging Face write the rotary part or 192; the widths above hold.
  const bool bias = in_.boolean_or("attention_bias", false);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("n_routed_experts", "moe_intermediate_size");
  spec_.ffn_hidden_size = width("intermediate_size");
  spec_.moe.shared_ffn_hidden_size = spec_.moe.ffn_hidden_size * in_.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t dense = in_.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  const std::int64_t frequency = in_.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  if (!clean()) return;
  if (bias) in_.error("attention_bias", "expected false, found true: multi-latent attention has no biases in Megatron");
  if (key_value_heads && *key_value_heads != mla.heads)
    in_.error("num_key_value_heads",
              fmt::format("num_key_value_heads is {}, but num_attention_heads is {}; multi-latent "
                          "attention has as many of either",
                          *key_value_heads, mla.heads));
  if (whole_head && *whole_head != mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    in_.error("qk_head_dim", fmt::format("qk_head_dim is {}, but qk_nope_head_dim + qk_rope_head_dim is {}",
                                         *whole_head, mla.qk_head_dim + mla.qk_pos_emb_head_dim));
  check_experts();
  dense_first(MixerKind::kMla, dense, frequency);
}

/// DeepSeek-V4: all layers MoE; every layer has a window, and compressed keys where its ratio is not 0. compress_ratios
/// lists the decoder layers and then the depths of multi-token prediction.
void ConfigReader::read_deepseek_v4() {
  auto& attention = spec_.compressed;
  attention.heads = in_.required_integer("num_attention_heads", 1, kMaxHeads);
  attention.head_dim = width("head_dim");
  attention.q_lora_rank = width("q_lora_rank");
  attention.output_lora_rank = width("o_lora_rank");
  attention.output_groups = in_.required_integer("o_groups", 1, kMaxHeads);
  attention.index_heads = in_.required_integer("index_n_heads", 1, kMaxHeads);
  attention.index_head_dim = width("index_head_dim");
  attention.index_topk = in_.required_integer("index_topk", 1, kMaxPositions);
  attention.residual_streams = in_.integer_or("hc_mult", 1, 1, 64);
  (void)in_.integer("num_key_value_heads", 1, 1);
  (void)in_.integer("qk_rope_head_dim", 1, kMaxWidth);
  read_activation("hidden_act", /*gated_by_default=*/true);
  read_experts("n_routed_experts", "moe_intermediate_size");
  spec_.moe.shared_ffn_hidden_size = spec_.moe.ffn_hidden_size * in_.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t window = in_.required_integer("sliding_window", 2, kMaxPositions);
  const auto ratios = in_.integers("compress_ratios", 0, kMaxPositions);
  if (!in_.has("compress_ratios")) in_.error("compress_ratios", "expected a list of whole numbers, found nothing");
  in_.ignore({"hc_sinkhorn_iters", "hc_eps", "attention_bias", "intermediate_size"});
  if (!clean()) return;
  check_experts();
  check_divides("num_attention_heads", attention.heads, "o_groups", attention.output_groups);
  const auto depths = static_cast<std::size_t>(spec_.mtp_num_layers);
  if (ratios->size() != layers_ && ratios->size() != layers_ + depths) {
    in_.error("compress_ratios",
              fmt::format("{} layers, but num_hidden_layers is {} and num_nextn_predict_layers is {}", ratios->size(),
                          layers_, depths));
    return;
  }
  const auto layer = [&](std::size_t i) {
    return LayerSpec{
        .mixer = MixerKind::kCompressed, .mlp = MlpKind::kMoe, .window = window - 1, .compress_ratio = (*ratios)[i]};
  };
  for (std::size_t i = 0; i < layers_; ++i) spec_.layers.push_back(layer(i));
  if (ratios->size() > layers_) spec_.mtp_layers = {layer(layers_)};
}

// --- Hybrids --------------------------------------------------------------------------------------------------------

/// Nemotron-H and Nemotron-3. Bridge: squared ReLU without a gate, no position embedding, one physical layer for all
/// depths of multi-token prediction.
void ConfigReader::read_nemotron_h() {
  spec_.hybrid = true;
  const std::string pattern = in_.required_string("hybrid_override_pattern");
  const auto mtp_pattern = in_.string("mtp_hybrid_override_pattern");
  const auto uses = [&](char symbol) {
    return pattern.find(symbol) != std::string::npos || (mtp_pattern && mtp_pattern->find(symbol) != std::string::npos);
  };
  read_gqa(/*qkv_bias=*/false, /*qk_layernorm=*/false);
  if (const auto head_dim = in_.integer("attention_head_dim", 1, kMaxWidth); head_dim && spec_.gqa.head_dim == 0)
    spec_.gqa.head_dim = *head_dim;
  read_activation("mlp_hidden_act", /*gated_by_default=*/false);
  spec_.add_bias_linear = in_.boolean_or("use_bias", false);
  if (uses('M')) {
    spec_.mamba = {.heads = in_.required_integer("mamba_num_heads", 1, kMaxHeads),
                   .head_dim = width("mamba_head_dim"),
                   .state = width("ssm_state_size"),
                   .groups = in_.required_integer("n_groups", 1, kMaxHeads),
                   .conv_kernel = in_.integer_or("conv_kernel", 4, 1, 1024),
                   .chunk = in_.integer_or("chunk_size", 128, 1, kMaxWidth)};
  }
  if (uses('-')) spec_.ffn_hidden_size = width("intermediate_size");
  if (uses('E')) {
    read_experts("n_routed_experts", "moe_intermediate_size");
    spec_.moe.latent_size = optional_width("moe_latent_size");
    // Hugging Face builds one shared MLP of this width, whatever the number of shared experts above zero.
    const std::int64_t shared = optional_width("moe_shared_expert_intermediate_size");
    if (in_.integer_or("n_shared_experts", 1, 0, 1024) > 0) spec_.moe.shared_ffn_hidden_size = shared;
  }
  spec_.mtp_use_repeated_layer = in_.boolean_or("mtp_use_repeated_layer", true);
  // Sizes of kinds of layers that the pattern lacks; `expand` is overruled by the Mamba heads.
  in_.ignore({"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "chunk_size", "expand",
              "intermediate_size", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
              "moe_latent_size", "moe_shared_expert_intermediate_size", "n_shared_experts"});
  in_.ignore({"mlp_bias", "use_conv_bias", "mamba_proj_bias", "mamba_hidden_act", "mamba_ssm_cache_dtype",
              "use_mamba_kernels", "residual_in_fp32", "sliding_window", "time_step_floor", "time_step_limit",
              "time_step_max", "time_step_min", "time_step_rank", "moe_shared_expert_overlap"});
  if (!clean()) return;
  check_gqa();
  if (uses('E')) check_experts();
  if (uses('M')) check_divides("mamba_num_heads", spec_.mamba.heads, "n_groups", spec_.mamba.groups);
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
          in_.error(key,
                    fmt::format("expected only the symbols M (Mamba), * (attention), - (MLP) and E (MoE), found {}",
                                symbol > ' ' && symbol < '\x7f' ? std::string(1, symbol) : "another character"));
          return result;
      }
    }
    return result;
  };
  spec_.layers = layers("hybrid_override_pattern", pattern);
  if (clean()) (void)check_length("hybrid_override_pattern", spec_.layers.size());
  if (mtp_pattern) spec_.mtp_layers = layers("mtp_hybrid_override_pattern", *mtp_pattern);
  if (spec_.mtp_num_layers > 0 && spec_.mtp_layers.empty())
    in_.error("mtp_hybrid_override_pattern",
              fmt::format("expected the layers of one depth, found nothing, but num_nextn_predict_layers is {}",
                          spec_.mtp_num_layers));
}

/// Reads `root`, which is `document`'s root or a copy of it with some keys replaced.
ModelSpec read_root(const Document& document, const nlohmann::json& root, const std::string& name,
                    Diagnostics& diagnostics) {
  ModelSpec spec;
  spec.name = name;
  ObjectReader outer(document, root, "", diagnostics);
  if (!root.is_object()) return spec;
  // Multimodal models keep the language model in text_config; the rest of such a file is not our business.
  auto text = outer.has("text_config") ? outer.object("text_config") : std::optional<ObjectReader>(outer);
  if (text) ConfigReader(std::move(*text), spec, diagnostics).read();
  return spec;
}

}  // namespace

std::vector<std::string> built_in_models() {
  std::vector<std::string> names;
  for (const auto& [name, text] : embedded_files()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const std::string& built_in_model_text(const std::string& name) {
  for (const auto& [stem, text] : embedded_files())
    if (stem == name) return text;
  throw std::out_of_range("no built-in model \"" + name + "\"");
}

ModelSpec read_huggingface(const Document& document, const std::string& name, Diagnostics& diagnostics) {
  return read_root(document, document.root(), name, diagnostics);
}

ModelSpec load_model(const std::string& name, const nlohmann::json* overrides) {
  Diagnostics diagnostics;
  const std::vector<std::string> names = built_in_models();
  const bool built_in = std::binary_search(names.begin(), names.end(), name);
  std::error_code error;
  if (!built_in && !std::filesystem::exists(name, error)) {
    const std::string suggestion = config::nearest(name, names);
    diagnostics.error(
        {name, 0, ""},
        suggestion.empty()
            ? "neither a built-in model nor a file"
            : fmt::format("neither a built-in model nor a file; the nearest built-in is \"{}\"", suggestion));
    diagnostics.throw_if_any();
  }
  const Document document =
      built_in ? Document::parse(built_in_model_text(name), "built-in model " + name) : Document::load(name);
  if (overrides == nullptr || overrides->is_null()) {
    ModelSpec spec = read_huggingface(document, name, diagnostics);
    diagnostics.throw_if_any();
    return spec;
  }

  const std::string overrides_name =
      "model overrides";  // What messages call them: they have no file and no lines here.
  if (!overrides->is_object()) {
    diagnostics.error({overrides_name, 0, ""}, "expected an object that replaces keys of the model's config.json");
    diagnostics.throw_if_any();
  }
  nlohmann::json root = document.root();
  const bool nested = root.is_object() && root.contains("text_config") && root["text_config"].is_object();
  nlohmann::json& target = nested ? root["text_config"] : root;
  if (target.is_object())
    for (const auto& [key, value] : overrides->items()) target[key] = value;
  ModelSpec spec = read_root(document, root, name, diagnostics);
  Diagnostics placed;
  for (const config::Diagnostic& diagnostic : diagnostics.list()) {
    std::string field = diagnostic.where.field;
    if (nested && field.rfind("/text_config", 0) == 0) field.erase(0, std::string_view("/text_config").size());
    const std::string key = field.empty() ? field : field.substr(1, field.find('/', 1) - 1);
    if (overrides->contains(key))
      placed.error({overrides_name, 0, field}, diagnostic.message);
    else
      placed.error(diagnostic.where, diagnostic.message);
  }
  placed.throw_if_any();
  return spec;
}

}  // namespace foldwise::planner

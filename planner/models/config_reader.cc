#include "planner/models/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "planner/models/families.h"
#include "planner/models/models.h"

namespace foldwise::planner {

using costmodel::LayerSpec;
using costmodel::MlpKind;

namespace {

constexpr double kMaxParameters = 1e16;  // A thousand times the largest announced model.

/// Keys that do not change the FLOPs or bytes of a training step at the accuracy of the model.
void ignore_irrelevant(ConfigReader& c) {
  c.in.ignore_prefix('_');  // Our comments, and private fields of Hugging Face.
  // Bookkeeping by Hugging Face.
  c.in.ignore({"architectures",
               "auto_map",
               "torch_dtype",
               "dtype",
               "transformers_version",
               "use_cache",
               "tokenizer_class",
               "output_attentions",
               "output_hidden_states",
               "return_dict",
               "is_decoder",
               "is_composition",
               "is_encoder_decoder",
               "chunk_size_feed_forward",
               "tie_encoder_decoder",
               "id2label",
               "label2id",
               "task_specific_params",
               "image_token_id",
               "image_start_token_id",
               "image_end_token_id",
               "video_token_id",
               "video_start_token_id",
               "video_end_token_id"});
  // Generation, which transformers wrote into config.json before 4.50.
  c.in.ignore({"temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "max_length",
               "min_length", "num_beams", "num_beam_groups", "num_return_sequences", "do_sample", "early_stopping",
               "diversity_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"});
  // Special tokens, initialisation, numerical guards, regularisation.
  c.in.ignore({"bos_token_id",       "eos_token_id",       "pad_token_id",      "sep_token_id",
               "initializer_range",  "initializer_factor", "rms_norm_eps",      "layer_norm_eps",
               "layer_norm_epsilon", "norm_eps",           "attention_dropout", "hidden_dropout",
               "embd_pdrop",         "emb_pdrop",          "resid_pdrop",       "attn_pdrop",
               "swiglu_limit",       "output_dropout",     "embedding_dropout", "rescale_prenorm_residual"});
  // Rotary embeddings: elementwise, with the same work for all angles.
  c.in.ignore({"rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "rope_type", "partial_rotary_factor",
               "rotary_dim", "rotary_emb_base", "compress_rope_theta", "no_rope_layers", "no_rope_layer_interval",
               "mrope_section", "original_max_position_embeddings", "initial_context_length"});
  // Scoring and balancing in the router: elementwise over tokens x experts.
  c.in.ignore({"topk_method", "scoring_func", "score_function", "norm_topk_prob", "routed_scaling_factor",
               "moe_router_enable_expert_bias", "moe_router_topk_scaling_factor", "aux_loss_alpha", "seq_aux",
               "router_aux_loss_coef", "router_jitter_noise", "input_jitter_noise", "router_z_loss_coef",
               "output_router_logits", "use_routing_bias", "router_dtype", "moe_router_dtype", "num_hash_layers"});
  // Inference, checkpoints and storage.
  c.in.ignore({"quantization_config", "expert_dtype", "pretraining_tp", "ep_size", "model_max_length",
               "max_position_embeddings_inference", "num_logits_to_keep", "logits_to_keep"});
  // A bias on the output head: one vector.
  c.in.ignore({"lm_head_bias"});
}

/// Keys for the depth of multi-token prediction: DeepSeek, GLM, Kimi, Ling and Nemotron; Qwen3.5; MiniMax-M2.
void read_mtp(ConfigReader& c) {
  constexpr std::int64_t kMaxDepth = 64;
  for (const std::string_view key : {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"})
    if (const auto depth = c.in.integer(key, 0, kMaxDepth))
      c.spec.mtp_num_layers = std::max(c.spec.mtp_num_layers, *depth);
}

void read_trunk(ConfigReader& c) {
  c.spec.hidden_size = c.width("hidden_size");
  if (const auto listed = c.in.strings("layers_block_type"); listed && !c.in.has("num_hidden_layers"))
    c.layers = listed->size();  // Nemotron-H since transformers 5.
  else
    c.layers = static_cast<std::size_t>(c.in.required_integer("num_hidden_layers", 1, kMaxLayers));
  c.spec.vocab_size = c.width("vocab_size");
  c.spec.make_vocab_size_divisible_by = c.in.integer_or("make_vocab_size_divisible_by", 128, 1, std::int64_t{1} << 16);
  c.spec.share_embeddings_and_output_weights = c.in.boolean_or("tie_word_embeddings", false);
  c.spec.max_position_embeddings = c.in.integer_or("max_position_embeddings", 0, 0, kMaxPositions);
  read_mtp(c);
}

/// Bounds the rough parameter count, in floating point: later code multiplies these sizes as integers.
void check_total(ConfigReader& c) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double h = real(c.spec.hidden_size);
  double heads = 0, widest = h;
  for (const costmodel::Mixer& mixer : c.spec.mixers)
    std::visit(
        [&](const auto& sizes) {
          heads += 4 * sizes.width();
          widest = std::max(widest, real(sizes.low_rank()));
        },
        mixer);
  const double mlp = 3 * h *
                     (real(c.spec.ffn_hidden_size) + real(c.spec.moe.shared_ffn_hidden_size) +
                      real(c.spec.moe.experts) * real(c.spec.moe.ffn_hidden_size));
  const double depth = real(c.num_layers() + c.spec.mtp_num_layers);
  const double parameters = depth * (widest * heads + mlp) + 2 * h * real(c.spec.vocab_size);
  if (parameters > kMaxParameters)
    c.in.error("", fmt::format("these sizes make a model of about {:.1e} parameters; the limit is {:.0e}", parameters,
                               kMaxParameters));
}

/// Sizes that no layer uses become zero. A depth of multi-token prediction gets a layer like the last one unless the
/// family sets another.
void finish_layers(ConfigReader& c) {
  const auto any = [&](MlpKind kind) {
    return std::any_of(c.spec.layers.begin(), c.spec.layers.end(), [&](const LayerSpec& l) { return l.mlp == kind; });
  };
  if (!any(MlpKind::kDense)) c.spec.ffn_hidden_size = 0;
  if (!any(MlpKind::kMoe)) c.spec.moe = {};
  if (c.spec.mtp_layers.empty() && !c.spec.hybrid) c.spec.mtp_layers = {c.spec.layers.back()};
  c.spec.router_bias = c.spec.add_bias_linear && c.spec.has_moe();
}

}  // namespace

void ConfigReader::read_gqa(bool qkv_bias, bool qk_layernorm) {
  gqa.heads = in.required_integer("num_attention_heads", 1, kMaxHeads);
  gqa.query_groups = in.integer_or("num_key_value_heads", gqa.heads, 1, kMaxHeads);
  const bool one_group = in.boolean_or("multi_query", false),  // Falcon-7B has one, Falcon-40B as many as it states.
      new_decoder = in.boolean_or("new_decoder_architecture", false);
  if (one_group && !new_decoder) gqa.query_groups = 1;
  gqa.head_dim = optional_width("head_dim");
  gqa.qkv_bias = in.boolean_or("attention_bias", qkv_bias);
  gqa.qk_layernorm = in.boolean_or("use_qk_norm", qk_layernorm);
}

void ConfigReader::read_activation(std::string_view key, bool gated_by_default) {
  static const std::vector<std::pair<std::string, bool>> activations = [] {
    std::vector<std::pair<std::string, bool>> names;
    for (const char* name : {"silu", "swish", "swiglu", "swigluoai", "situ", "xielu", "gelu", "gelu_new", "gelu_fast",
                             "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2"})
      names.emplace_back(name, true);
    return names;
  }();
  (void)in.choice(key, activations);  // All cost the same; only the spelling is checked.
  spec.gated_linear_unit = gated_by_default;
  // Megatron's FLOP count requires SwiGLU, Megatron-Bridge's any gate. A GeGLU (Grok-1) counts as SwiGLU here.
  spec.swiglu = spec.gated_linear_unit;
}

void ConfigReader::read_normalization(costmodel::Normalization otherwise) {
  static const std::vector<std::pair<std::string, costmodel::Normalization>> norms = {
      {"LayerNorm", costmodel::Normalization::kLayerNorm}, {"RMSNorm", costmodel::Normalization::kRmsNorm}};
  spec.normalization = in.choice("normalization", norms).value_or(otherwise);
}

void ConfigReader::read_position_embedding(bool learned) {
  static const std::vector<std::pair<std::string, bool>> positions = {
      {"learned_absolute", true}, {"rope", false}, {"none", false}};
  spec.learned_position_embedding = in.choice("position_embedding_type", positions).value_or(learned);
}

void ConfigReader::read_experts(std::string_view key, std::string_view ffn_key) {
  experts_key = in.spelling(key);
  spec.moe.experts = in.required_integer(key, 1, kMaxExperts);
  spec.moe.topk = in.required_integer("num_experts_per_tok", 1, kMaxExperts);
  spec.moe.ffn_hidden_size = width(ffn_key);
  spec.moe.router_groups = in.integer_or("n_group", 1, 1, kMaxExperts);
  spec.moe.router_group_topk = in.integer_or("topk_group", 1, 1, kMaxExperts);
}

void ConfigReader::read_indexer(costmodel::MlaSpec& mla) {
  mla.index_heads = in.required_integer("index_n_heads", 1, kMaxHeads);
  mla.index_head_dim = width("index_head_dim");
  mla.index_topk = in.required_integer("index_topk", 1, kMaxPositions);
  spec.approximated.emplace_back(kSparseAttention);
}

/// Bridge: multi-latent attention with norms of the compressed tensors. DeepSeek-V3.2 and GLM-5 add an indexer.
costmodel::MlaSpec ConfigReader::read_latent() {
  costmodel::MlaSpec mla{.heads = in.required_integer("num_attention_heads", 1, kMaxHeads),
                         .q_lora_rank = optional_width("q_lora_rank"),
                         .kv_lora_rank = width("kv_lora_rank"),
                         .qk_head_dim = width("qk_nope_head_dim"),
                         .qk_pos_emb_head_dim = width("qk_rope_head_dim"),
                         .v_head_dim = width("v_head_dim"),
                         .qk_layernorm = true};
  const auto key_value_heads = in.integer("num_key_value_heads", 1, kMaxHeads);
  const auto whole_head = in.integer("qk_head_dim", 1, kMaxWidth);
  if (in.boolean_or("sparse_attention", in.has("index_n_heads"))) read_indexer(mla);
  if (in.boolean_or("mla_use_output_gate", false)) {  // Kimi-K3.
    spec.notes.lines.emplace_back("the output gate of multi-latent attention is left out");
    spec.approximated.emplace_back("output gate of latent attention");
  }
  if (const auto kinds = in.strings("indexer_types"); kinds && mla.index_heads > 0) {  // GLM-5.2.
    const auto shared = std::count(kinds->begin(), kinds->end(), "shared");
    if (shared > 0) {
      spec.notes.lines.push_back(
          fmt::format("{} of {} layers take the keys that an earlier layer's indexer picked; "
                      "they are priced with an indexer of their own",
                      shared, kinds->size()));
      spec.approximated.emplace_back("shared indexers");
    }
  }
  if (in.boolean_or("attention_bias", false) && clean())
    in.error("attention_bias", "expected false, found true: multi-latent attention has no biases in Megatron");
  if (key_value_heads && *key_value_heads != mla.heads && clean())
    in.error("num_key_value_heads",
             fmt::format("num_key_value_heads is {}, but num_attention_heads is {}; multi-latent "
                         "attention has as many of either",
                         *key_value_heads, mla.heads));
  if (whole_head && *whole_head != mla.qk_head_dim + mla.qk_pos_emb_head_dim && clean())
    in.error("qk_head_dim", fmt::format("qk_head_dim is {}, but qk_nope_head_dim + qk_rope_head_dim is {}", *whole_head,
                                        mla.qk_head_dim + mla.qk_pos_emb_head_dim));
  return mla;
}

void ConfigReader::read_all_experts() {
  costmodel::MoeSpec& moe = spec.moe;
  read_experts("num_experts", "moe_intermediate_size");
  moe.latent_size = optional_width("moe_latent_size");
  moe.shared_gate = in.boolean_or("shared_expert_gate", false);
  // Width of the shared experts: that of the routed ones, or the file's, per shared expert or in total.
  const std::int64_t shared = in.integer_or("n_shared_experts", 0, 0, 1024);
  const std::int64_t each = in.integer_or("moe_shared_expert_intermediate_size", moe.ffn_hidden_size, 1, kMaxWidth);
  moe.shared_ffn_hidden_size = in.integer_or("shared_expert_intermediate_size", shared * each, 0, kMaxWidth);
}

void ConfigReader::read_common() {
  read_normalization(costmodel::Normalization::kRmsNorm);
  spec.sandwich_norms = in.boolean_or("sandwich_norms", false);
  read_activation("hidden_act", in.boolean_or("gated_linear_unit", true));
  spec.add_bias_linear = in.boolean_or("mlp_bias", false);
  spec.scaled_rope = in.boolean_or("scaled_rope", false);
  spec.clamped_activation = spec.scaled_rope && in.number_or("swiglu_limit", 7.0, 0.0, 1e6) > 0.0;
}

costmodel::GatedDeltaNetSpec ConfigReader::read_gated_delta_net() {
  return {.key_heads = in.required_integer("linear_num_key_heads", 1, kMaxHeads),
          .key_head_dim = width("linear_key_head_dim"),
          .value_heads = in.required_integer("linear_num_value_heads", 1, kMaxHeads),
          .value_head_dim = width("linear_value_head_dim"),
          .conv_kernel = in.integer_or("linear_conv_kernel_dim", 4, 1, 1024)};
}

void ConfigReader::check_divides(std::string_view whole_key, std::int64_t whole, std::string_view part_key,
                                 std::int64_t part) {
  if (whole % part != 0)
    in.error(part_key, fmt::format("{} {} does not divide {} {}", part_key, part, whole_key, whole));
}

void ConfigReader::check_gqa() {
  check_divides("num_attention_heads", gqa.heads, "num_key_value_heads", gqa.query_groups);
  if (gqa.head_dim > 0) return;
  if (spec.hidden_size % gqa.heads != 0)
    in.error("num_attention_heads",
             fmt::format("hidden_size {} cannot be divided over {} attention heads, and there is "
                         "no head_dim",
                         spec.hidden_size, gqa.heads));
  gqa.head_dim = spec.hidden_size / gqa.heads;
}

void ConfigReader::check_experts() {
  if (spec.moe.topk > spec.moe.experts)
    in.error("num_experts_per_tok",
             fmt::format("{} experts per token, but {} is {}", spec.moe.topk, experts_key, spec.moe.experts));
  if (spec.moe.experts % spec.moe.router_groups != 0)
    in.error("n_group",
             fmt::format("{} groups do not divide the {} experts", spec.moe.router_groups, spec.moe.experts));
  else if (spec.moe.router_group_topk > spec.moe.router_groups)
    in.error("topk_group", fmt::format("expected at most the {} groups of n_group, found {}", spec.moe.router_groups,
                                       spec.moe.router_group_topk));
  else if (spec.moe.router_groups > 1 &&
           spec.moe.topk > spec.moe.experts / spec.moe.router_groups * spec.moe.router_group_topk)
    in.error("topk_group", fmt::format("{} of {} groups hold fewer experts than the {} of num_experts_per_tok",
                                       spec.moe.router_group_topk, spec.moe.router_groups, spec.moe.topk));
}

bool ConfigReader::check_length(std::string_view key, std::size_t length) {
  if (length == layers) return true;
  in.error(key, fmt::format("{} layers, but num_hidden_layers is {}", length, layers));
  return false;
}

std::int32_t ConfigReader::mixer(const costmodel::Mixer& sizes) {
  std::vector<costmodel::Mixer>& list = spec.mixers;
  const auto found = std::find(list.begin(), list.end(), sizes);
  const auto number = static_cast<std::int32_t>(found - list.begin());
  if (found == list.end()) list.push_back(sizes);
  return number;
}

namespace {

/// Families with keys of their own.
const std::vector<std::pair<std::string, void (*)(ConfigReader&)>>& other_families() {
  static const std::vector<std::pair<std::string, void (*)(ConfigReader&)>> families{
      {"deepseek_ref", read_deepseek_v4},  // sgl-project's DeepSeek-V4, with the same keys.
      {"deepseek_v4", read_deepseek_v4},  {"megatron", read_megatron},  {"megatron_gpt", read_megatron_gpt},
      {"minimax_m1", read_minimax},       {"minimax_m2", read_minimax}, {"nemotron_h", read_nemotron_h}};
  return families;
}

void read_parts(ConfigReader& c, const Family& family) {
  if (family.has("hybrid"))
    read_mamba_hybrid(c);
  else if (family.has("shortcut"))
    read_shortcut(c);
  else
    read_transformer(c, family.has("latent"), family.has("moe"));
}

template <typename Read>
void read_with(ConfigReader& c, const Read& read) {
  ignore_irrelevant(c);
  read_trunk(c);
  read();
  if (c.clean()) {
    finish_layers(c);
    check_total(c);
  }
  c.in.finish();
}

void read_family(config::ObjectReader in, const Family& family, costmodel::ModelSpec& spec,
                 config::Diagnostics& diagnostics) {
  Respelled ours = respelled(in, family);
  ConfigReader c{in.of(ours.config), spec, diagnostics};
  c.in.spell(std::move(ours.spellings));
  c.in.ignore({"model_type"});
  spec.notes.lines.insert(spec.notes.lines.end(), family.notes.begin(), family.notes.end());
  spec.approximated = family.approximated;
  read_with(c, [&] { read_parts(c, family); });
}

/// Reads an unknown family if all of its keys are those of a known one.
void read_unknown(config::ObjectReader in, const std::string& type, costmodel::ModelSpec& spec,
                  config::Diagnostics& diagnostics) {
  const Family family = family_by_keys(in.json());
  config::Diagnostics mistakes;
  costmodel::ModelSpec read;
  read.name = spec.name;
  read_family(in.reporting_to(mistakes), family, read, mistakes);
  if (mistakes.ok()) {
    read.notes.lines.insert(
        read.notes.lines.begin(),
        fmt::format(R"(model_type "{}" is not known; its keys are those of "{}", as which it is read)", type,
                    family.model_type));
    spec = std::move(read);
    return;
  }
  std::vector<std::string> known;
  for (const auto& [name, its] : known_families()) known.push_back(name);
  for (const auto& [name, its] : other_families()) known.push_back(name);
  std::sort(known.begin(), known.end());
  in.error(
      "model_type",
      fmt::format("\"{}\" is not known, nor can it be read by its keys as \"{}\": what follows{}. A model can also be "
                  "written as Megatron's arguments have it: \"model_type\": \"megatron\" (docs/run-file.md#model)",
                  type, family.model_type, config::nearest_hint(type, known, "family")));
  for (const config::Diagnostic& mistake : mistakes.list()) diagnostics.error(mistake.where, mistake.message);
}

}  // namespace

void read_config(config::ObjectReader in, costmodel::ModelSpec& spec, config::Diagnostics& diagnostics) {
  if (!in.has("model_type")) {
    in.error("model_type", R"(expected the family of the model, such as "llama" or "deepseek_v3", found nothing)");
    return;
  }
  const auto type = in.string("model_type");
  if (!type) return;
  for (const auto& [name, read] : other_families())
    if (name == *type) {
      ConfigReader c{std::move(in), spec, diagnostics};
      read_with(c, [&, read = read] { read(c); });
      return;
    }
  if (const auto refused = unmodelled_families().find(*type); refused != unmodelled_families().end()) {
    in.error("model_type", fmt::format("\"{}\" is not modelled: {}. A model without that part can be written as "
                                       "Megatron's arguments have it: \"model_type\": \"megatron\" "
                                       "(docs/run-file.md#model)",
                                       *type, refused->second));
    return;
  }
  if (const auto family = known_families().find(*type); family != known_families().end())
    read_family(std::move(in), family->second, spec, diagnostics);
  else
    read_unknown(std::move(in), *type, spec, diagnostics);
}

}  // namespace foldwise::planner

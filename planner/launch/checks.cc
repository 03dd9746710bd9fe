#include "planner/launch/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "costmodel/model/mixers.h"
#include "costmodel/pipeline/schedule.h"
#include "planner/launch/geometry.h"

// Sources: megatron/training/arguments.py (validate_args), TransformerConfig, ModelParallelConfig, OptimizerConfig and
// DistributedDataParallelConfig of core_v0.16.1, and docs/rules.md, which has the ids.
namespace foldwise::planner {
namespace {

std::int64_t tp(const Settings& s) { return s.integer("tensor_model_parallel_size", 1); }
std::int64_t pp(const Settings& s) { return s.integer("pipeline_model_parallel_size", 1); }
std::int64_t cp(const Settings& s) { return s.integer("context_parallel_size", 1); }
std::int64_t ep(const Settings& s) { return s.integer("expert_model_parallel_size", 1); }
std::int64_t etp(const Settings& s) { return s.integer("expert_tensor_parallel_size", tp(s)); }
bool splits_sequence(const Settings& s) { return s.on("sequence_parallel") && tp(s) > 1; }

bool has_split_flags(const Settings& s) {
  return s.has("decoder_first_pipeline_num_layers") || s.has("decoder_last_pipeline_num_layers");
}
bool has_accounting(const Settings& s) {
  return s.on("account_for_embedding_in_pipeline_split") || s.on("account_for_loss_in_pipeline_split");
}
int vpp_flags(const Settings& s) {
  return static_cast<int>(s.has("num_layers_per_virtual_pipeline_stage")) +
         static_cast<int>(s.has("num_virtual_stages_per_pipeline_rank")) +
         static_cast<int>(s.has("pipeline_model_parallel_layout"));
}
/// Defaults: MLATransformerConfig.
bool fused_rope_of_other_widths(const Settings& s) {
  const costmodel::MlaSpec mla{.qk_head_dim = s.integer("qk_head_dim", 128),
                               .qk_pos_emb_head_dim = s.integer("qk_pos_emb_head_dim", 64),
                               .v_head_dim = s.integer("v_head_dim", 128)};
  return s.on("multi_latent_attention") && !s.off("apply_rope_fusion") && !mla.fuses_rope();
}
/// Chunks of a rank; 1 if the layout is invalid.
std::int64_t vpp(const Settings& s) {
  const std::int64_t ranks = std::max<std::int64_t>(1, pp(s));
  if (const std::string layout = s.text("pipeline_model_parallel_layout"); !layout.empty()) {
    const auto parsed = costmodel::parse_layout(layout, layers_of(s), s.integer("mtp_num_layers", 0));
    return parsed.stages ? static_cast<std::int64_t>(parsed.stages->stages.size()) / ranks : 1;
  }
  const std::int64_t of_chunk = s.integer("num_layers_per_virtual_pipeline_stage", 0);
  return of_chunk > 0 ? layers_of(s) / ranks / of_chunk : s.integer("num_virtual_stages_per_pipeline_rank", 1);
}

bool has_experts(const Settings& s) { return s.has("num_experts"); }
bool flex(const Settings& s) { return s.is("moe_token_dispatcher_type", "flex"); }
bool allgather(const Settings& s) { return s.text("moe_token_dispatcher_type", "allgather") == "allgather"; }
bool has_capacity(const Settings& s) { return s.number("moe_expert_capacity_factor", -1.0) >= 0.0; }
bool pads_router(const Settings& s) {
  return s.on("moe_router_padding_for_quantization") || s.on("moe_router_padding_for_fp8");
}
bool drops_tokens_by_balancing(const Settings& s) {
  const std::vector<std::string> types = s.names("moe_router_load_balancing_type");
  return std::ranges::any_of(types, [](const std::string& type) {
    return type != "aux_loss" && type != "seq_aux_loss" && type != "global_aux_loss" && type != "none";
  });
}

bool quantized(const Settings& s) { return s.has("fp8") || s.has("fp4"); }
std::string fp8_recipe(const Settings& s) { return s.text("fp8_recipe", "delayed"); }
std::int64_t layers_of_rank(const Settings& s) { return layers_of(s) / std::max<std::int64_t>(1, pp(s)); }
bool bf16_layers_out_of_range(const Settings& s, std::string_view dest) {
  const std::int64_t layers = s.integer(dest, 1);
  return s.has("fp8") && s.on("first_last_layers_bf16") && (layers < 0 || layers > layers_of_rank(s));
}

std::string graph_impl(const Settings& s) {
  return s.on("enable_cuda_graph")     ? "local"
         : s.on("external_cuda_graph") ? "transformer_engine"
                                       : s.text("cuda_graph_impl", "none");
}
bool graphs(const Settings& s) { return graph_impl(s) != "none"; }
std::vector<std::string> scopes(const Settings& s) {
  std::vector<std::string> list = s.names(s.has("cuda_graph_modules") ? "cuda_graph_modules" : "cuda_graph_scope");
  std::erase(list, "full");
  return list;
}
bool captures(const Settings& s, std::string_view scope) {
  return graphs(s) && std::ranges::count(scopes(s), scope) > 0;
}
bool captures_whole_layers(const Settings& s) {
  return graphs(s) && (scopes(s).empty() || captures(s, "full_iteration"));
}

bool selective(const Settings& s) {
  return s.is("recompute_granularity", "selective") || s.on("recompute_activations") || s.on("moe_layer_recompute");
}
bool full(const Settings& s) { return s.is("recompute_granularity", "full"); }
bool recomputes(const Settings& s, std::string_view module) {
  if (!selective(s)) return false;
  if (module == "moe" && s.on("moe_layer_recompute")) return true;
  return s.has("recompute_modules") ? s.lists("recompute_modules", module) : module == "core_attn";
}
bool lists_other_than(const Settings& s, std::string_view dest, const std::vector<std::string_view>& known) {
  const std::vector<std::string> names = s.names(dest);
  return std::ranges::any_of(names, [&](const std::string& name) { return std::ranges::count(known, name) == 0; });
}

bool cpu_offload(const Settings& s) { return s.integer("cpu_offloading_num_layers", 0) > 0; }
bool fine_grained(const Settings& s) { return s.on("fine_grained_activation_offloading"); }
bool fsdp(const Settings& s) { return s.on("use_megatron_fsdp"); }
bool sharded_optimizer(const Settings& s) { return s.on("use_distributed_optimizer") || fsdp(s); }
bool muon(const Settings& s) { return s.text("optimizer").find("muon") != std::string::npos; }
bool epov(const Settings& s) { return s.on("overlap_moe_expert_parallel_comm"); }
bool other_than_fp32(const Settings& s, std::string_view dest) { return s.text(dest, "fp32") != "fp32"; }
/// The effect of --bf16 and of the flags that override it.
bool accumulates_in_fp32(const Settings& s) {
  if (s.on("grad_reduce_in_bf16")) return false;
  return s.on("accumulate_allreduce_grads_in_fp32") || (s.on("bf16") && !s.is("main_grads_dtype", "bf16"));
}

std::string variable(const Start& start, const char* name) {
  const auto found = start.environment.find(name);
  return found == start.environment.end() ? "" : found->second;
}
bool expandable(const Start& start) {
  return variable(start, "PYTORCH_CUDA_ALLOC_CONF").find("expandable_segments:True") != std::string::npos;
}

std::int64_t product_of(const Settings& s, std::string_view dest) {
  std::int64_t product = 1;
  for (const nlohmann::json& item : *s.find(dest)) product *= item.is_number_integer() ? item.get<std::int64_t>() : 0;
  return product;
}

/// Checks --num-layers-per-virtual-pipeline-stage if no flag makes ranks unequal.
bool chunks_do_not_divide(const Settings& s) {
  if (!s.has("num_layers_per_virtual_pipeline_stage") || has_split_flags(s) || pp(s) < 1) return false;
  const std::int64_t slots = layers_of(s) + (s.on("account_for_embedding_in_pipeline_split") ? 1 : 0) +
                             (s.on("account_for_loss_in_pipeline_split") ? 1 : 0);
  const std::int64_t chunk = s.integer("num_layers_per_virtual_pipeline_stage", 1);
  return slots % pp(s) != 0 || chunk < 1 || slots / pp(s) % chunk != 0;
}

bool groups_limit_wrongly(const Settings& s) {
  const std::int64_t topk = s.integer("moe_router_group_topk", 0), groups = s.integer("moe_router_num_groups", 0);
  return topk != 0 && (groups < 1 || s.integer("num_experts", 1) % groups != 0 || !has_experts(s) || topk > groups);
}

/// A graph replays the same random numbers, so it must not recompute dropout.
bool recomputes_random_in_graph(const Settings& s) {
  const bool whole = captures_whole_layers(s);
  const auto recomputed = [&](std::string_view scope, std::string_view module) {
    return (whole || captures(s, scope)) && recomputes(s, module);
  };
  return graphs(s) && ((s.number("attention_dropout", kDefaultDropout) != 0.0 && recomputed("attn", "core_attn")) ||
                       (s.number("hidden_dropout", kDefaultDropout) != 0.0 &&
                        (recomputed("mlp", "mlp") || recomputed("moe", "moe"))) ||
                       (s.has("moe_input_jitter_eps") && recomputed("moe", "moe")));
}

bool mtp_without_rope(const Settings& s) {
  const std::string position = s.text("position_embedding_type", "learned_absolute");
  return s.integer("mtp_num_layers", 0) > 0 && position != "rope" && position != "none";
}

bool instances_do_not_divide(const Start& start) {
  const Settings& s = start.settings;
  const std::int64_t instances = s.integer("num_distributed_optimizer_instances", 1);
  if (instances == 1 || std::min({tp(s), pp(s), ep(s), etp(s), instances}) < 1) return instances < 1;
  return start.world / (tp(s) * pp(s)) % instances != 0 || start.world / (etp(s) * ep(s) * pp(s)) % instances != 0;
}

#define FW_IF(condition)                \
  [](const Start& start) -> bool {      \
    const Settings& s = start.settings; \
    (void)s;                            \
    return condition;                   \
  }

std::vector<ArgumentCheck> make_checks() {
  return {
      // ---- Sizes ----
      {"grid.sizes", "micro_batch_size", FW_IF(s.integer("micro_batch_size", 0) < 1),
       "--micro-batch-size of at least 1 is required"},
      {"grid.sizes", "global_batch_size", FW_IF(s.has("global_batch_size") && s.integer("global_batch_size", 1) < 1),
       "--global-batch-size must be at least 1"},
      {"grid.world_dense", "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size",
       FW_IF(std::min({tp(s), pp(s), cp(s), ep(s), etp(s)}) < 1 || start.world % (tp(s) * pp(s) * cp(s)) != 0),
       "--tensor-model-parallel-size x --pipeline-model-parallel-size x --context-parallel-size does not divide the "
       "GPUs"},
      {"grid.removed", "batch_size", FW_IF(s.has("batch_size")),
       "--batch-size is no longer valid: give --micro-batch-size"},
      {"grid.removed", "warmup", FW_IF(s.has("warmup")), "--warmup is no longer valid: give --lr-warmup-fraction"},
      {"grid.removed", "model_parallel_size", FW_IF(s.has("model_parallel_size")),
       "--model-parallel-size is no longer valid: give --tensor-model-parallel-size"},
      {"grid.removed", "checkpoint_activations", FW_IF(s.on("checkpoint_activations")),
       "--checkpoint-activations is no longer valid: give --recompute-activations, or --recompute-granularity"},
      {"grid.seq", "seq_length", FW_IF(s.integer("seq_length", 0) < 1), "--seq-length is required"},
      {"grid.maxpos", "max_position_embeddings seq_length",
       FW_IF(s.integer("max_position_embeddings", 0) < s.integer("seq_length", 0)),
       "--max-position-embeddings of at least --seq-length is required"},
      {"grid.heads", "num_attention_heads", FW_IF(s.integer("num_attention_heads", 0) < 1),
       "--num-attention-heads is required"},
      {"grid.layers", "num_layers", FW_IF(layers_of(s) < 1), "--num-layers is required"},
      {"attn.kv_channels", "hidden_size num_attention_heads",
       FW_IF(!s.has("kv_channels") && s.integer("num_attention_heads", 0) > 0 &&
             s.integer("hidden_size", 0) % s.integer("num_attention_heads", 1) != 0),
       "without --kv-channels --hidden-size must be a multiple of --num-attention-heads"},
      {"mlp.one_activation", "swiglu squared_relu quick_geglu",
       FW_IF(s.on("swiglu") && (s.on("squared_relu") || s.on("quick_geglu"))),
       "--swiglu excludes --squared-relu and --quick-geglu"},
      {"grid.lr", "min_lr lr", FW_IF(s.has("lr") && s.number("min_lr", 0.0) > s.number("lr", 0.0)),
       "--min-lr must not exceed --lr"},
      {"grid.rampup", "rampup_batch_size train_iters", FW_IF(s.has("rampup_batch_size") && s.has("train_iters")),
       "--rampup-batch-size needs --train-samples, not --train-iters"},
      {"grid.pp_not_last", "use_tp_pp_dp_mapping",
       FW_IF(s.on("use_tp_pp_dp_mapping") && pp(s) > 1 && tp(s) * cp(s) != etp(s) * ep(s)),
       "--use-tp-pp-dp-mapping needs the same data-parallel size of attention and experts"},
      {"grid.ep_needs_moe", "expert_model_parallel_size", FW_IF(ep(s) > 1 && !has_experts(s)),
       "--expert-model-parallel-size above 1 needs --num-experts"},

      // ---- Context parallelism ----
      {"cp.hier_prod", "hierarchical_context_parallel_sizes",
       FW_IF(s.has("hierarchical_context_parallel_sizes") &&
             product_of(s, "hierarchical_context_parallel_sizes") != cp(s)),
       "the product of --hierarchical-context-parallel-sizes must be --context-parallel-size"},
      {"cp.hier", "cp_comm_type hierarchical_context_parallel_sizes",
       FW_IF(s.lists("cp_comm_type", "a2a+p2p") && !s.has("hierarchical_context_parallel_sizes")),
       "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes"},
      {"cp.list_len", "cp_comm_type",
       FW_IF(cp(s) > 1 && s.names("cp_comm_type").size() > 1 &&
             static_cast<std::int64_t>(s.names("cp_comm_type").size()) != layers_of(s)),
       "--cp-comm-type takes one for all layers, or one for each"},
      {"cp.hybrid", "hybrid_context_parallel",
       FW_IF(s.on("hybrid_context_parallel") &&
             (pp(s) > 1 || s.on("enable_cuda_graph") || s.on("external_cuda_graph") || fsdp(s) ||
              !s.on("calculate_per_token_loss") || s.text("dataloader_type", "single") != "single")),
       "--hybrid-context-parallel needs --pipeline-model-parallel-size 1, --calculate-per-token-loss and the single "
       "dataloader, and excludes CUDA graphs and Megatron-FSDP"},

      // ---- Pipeline ----
      {"pp.one_vpp_flag",
       "num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank pipeline_model_parallel_layout",
       FW_IF(vpp_flags(s) > 1),
       "only one of --num-layers-per-virtual-pipeline-stage, --num-virtual-stages-per-pipeline-rank and "
       "--pipeline-model-parallel-layout may be given"},
      {"pp.uneven_flag", "num_layers_per_virtual_pipeline_stage",
       FW_IF(s.has("num_layers_per_virtual_pipeline_stage") && has_split_flags(s)),
       "with --decoder-first-pipeline-num-layers or the last's VPP is given by --num-virtual-stages-per-pipeline-rank"},
      {"pp.vpp_even", "num_layers_per_virtual_pipeline_stage pipeline_model_parallel_size num_layers",
       FW_IF(chunks_do_not_divide(s)),
       "--num-layers-per-virtual-pipeline-stage must divide the layers of a rank, embedding and loss counted where "
       "they "
       "take a place, and --pipeline-model-parallel-size all of them"},
      {"pp.layout_excl", "pipeline_model_parallel_layout",
       FW_IF(s.has("pipeline_model_parallel_layout") && (has_split_flags(s) || has_accounting(s))),
       "--pipeline-model-parallel-layout excludes the other flags that place layers"},
      {"pp.first_last_vs_account", "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers",
       FW_IF(has_split_flags(s) && has_accounting(s)),
       "--decoder-first-pipeline-num-layers and the last's exclude --account-for-embedding-in-pipeline-split and the "
       "loss's"},
      {"pp.first_last_pos", "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers",
       FW_IF((s.has("decoder_first_pipeline_num_layers") && s.integer("decoder_first_pipeline_num_layers", 1) < 1) ||
             (s.has("decoder_last_pipeline_num_layers") && s.integer("decoder_last_pipeline_num_layers", 1) < 1)),
       "the first and the last stage have at least one layer"},
      {"pp.vpp_pp_nooverlap", "overlap_p2p_comm num_virtual_stages_per_pipeline_rank",
       FW_IF(s.off("overlap_p2p_comm") && vpp(s) > 1 && pp(s) <= 2),
       "--no-overlap-p2p-communication with interleaving needs --pipeline-model-parallel-size above 2"},
      {"pp.p2p_warmup_flush", "overlap_p2p_comm_warmup_flush",
       FW_IF(s.on("overlap_p2p_comm_warmup_flush") && (vpp(s) <= 1 || s.off("overlap_p2p_comm"))),
       "--overlap-p2p-communication-warmup-flush needs interleaving with overlapped communication"},
      {"pp.defer_emb", "defer_embedding_wgrad_compute",
       FW_IF(s.on("defer_embedding_wgrad_compute") &&
             (pp(s) == 1 || s.off("gradient_accumulation_fusion") || s.integer("wgrad_deferral_limit", 0) < 0)),
       "--defer-embedding-wgrad-compute needs --pipeline-model-parallel-size above 1, gradient accumulation fusion and "
       "a "
       "--wgrad-deferral-limit of at least 0"},
      {"pp.mtp_rope", "mtp_num_layers position_embedding_type", FW_IF(mtp_without_rope(s)),
       "--mtp-num-layers needs --position-embedding-type rope or none", in_releases("0.17.1")},
      // In this release --use-rotary-position-embeddings counts, because arguments.py:991 comes before the check.
      {"pp.mtp_rope", "mtp_num_layers position_embedding_type",
       FW_IF(mtp_without_rope(s) && !s.on("use_rotary_position_embeddings")),
       "--mtp-num-layers needs --position-embedding-type rope or none", in_releases("", "0.16.1")},

      // ---- Attention ----
      {"attn.mla_no_gqa", "multi_latent_attention group_query_attention",
       FW_IF(s.on("multi_latent_attention") && s.on("group_query_attention")),
       "--multi-latent-attention excludes --group-query-attention"},
      {"attn.mla_interleaved", "rotary_interleaved",
       FW_IF(s.on("multi_latent_attention") && s.on("rotary_interleaved")),
       "--multi-latent-attention excludes --rotary-interleaved"},
      {"attn.mla_rope", "rope_type",
       FW_IF(s.on("multi_latent_attention") && s.is("rope_type", "rope") && !s.off("apply_rope_fusion")),
       "--rope-type rope with --multi-latent-attention needs --no-rope-fusion"},
      {"attn.mla_rope_width", "qk_head_dim v_head_dim qk_pos_emb_head_dim", FW_IF(fused_rope_of_other_widths(s)),
       "the fused rotation of --multi-latent-attention takes widths that are powers of two: others need "
       "--no-rope-fusion"},
      {"attn.rope_type", "rope_type", FW_IF(!s.on("multi_latent_attention") && s.is("rope_type", "yarn")),
       "--rope-type yarn needs --multi-latent-attention"},
      {"cp.cdmc_local", "attention_backend", FW_IF(s.is("attention_backend", "local") && s.names("spec").empty()),
       "--attention-backend local needs --spec local"},

      // ---- Loss ----
      {"loss.te", "cross_entropy_fusion_impl cross_entropy_loss_fusion",
       FW_IF(s.on("cross_entropy_loss_fusion") && s.is("cross_entropy_fusion_impl", "te")),
       "--cross-entropy-fusion-impl te is refused since Megatron-Core 0.18 (arguments.py:1528 of core_v0.18.2): give "
       "native",
       in_releases("0.18.2")},

      // ---- MoE ----
      {"moe.ffn_dense", "moe_ffn_hidden_size", FW_IF(s.has("moe_ffn_hidden_size") && !has_experts(s)),
       "--moe-ffn-hidden-size needs --num-experts"},
      {"moe.deepep_flag", "moe_enable_deepep",
       FW_IF(s.on("moe_enable_deepep") && (!flex(s) || s.is("moe_flex_dispatcher_backend", "hybridep"))),
       "--moe-enable-deepep needs --moe-token-dispatcher-type flex and no other backend"},
      {"moe.shared_size", "moe_shared_expert_intermediate_size",
       FW_IF(s.has("moe_shared_expert_intermediate_size") && s.integer("moe_shared_expert_intermediate_size", 1) < 1),
       "--moe-shared-expert-intermediate-size must be at least 1"},
      {"moe.shared_overlap_disp", "moe_shared_expert_overlap moe_token_dispatcher_type",
       FW_IF(s.has("moe_shared_expert_intermediate_size") && s.on("moe_shared_expert_overlap") &&
             !s.is("moe_token_dispatcher_type", "alltoall")),
       "--moe-shared-expert-overlap needs --moe-token-dispatcher-type alltoall before Megatron-Core 0.18",
       in_releases("", "0.17.1")},
      {"moe.lb_list", "moe_aux_loss_coeff moe_router_load_balancing_type",
       FW_IF(s.names("moe_router_load_balancing_type").size() > 1 &&
             s.names("moe_aux_loss_coeff").size() != s.names("moe_router_load_balancing_type").size()),
       "--moe-aux-loss-coeff needs a value for each --moe-router-load-balancing-type"},
      {"moe.cap_lb", "moe_expert_capacity_factor moe_router_load_balancing_type",
       FW_IF(s.has("moe_expert_capacity_factor") && drops_tokens_by_balancing(s)),
       "--moe-expert-capacity-factor needs balancing by aux_loss, seq_aux_loss, global_aux_loss or none"},
      {"moe.expert_bias", "moe_router_enable_expert_bias moe_router_score_function",
       FW_IF(s.on("moe_router_enable_expert_bias") && s.text("moe_router_score_function", "softmax") == "softmax"),
       "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid"},
      {"moe.pad_quant", "moe_router_padding_for_quantization moe_router_padding_for_fp8",
       FW_IF(pads_router(s) && (!quantized(s) || allgather(s))),
       "--moe-router-padding-for-quantization needs FP8 or FP4, and another dispatcher than allgather"},
      {"moe.topk1", "moe_router_topk",
       FW_IF(s.integer("moe_router_topk", 2) == 1 && s.text("moe_router_score_function", "softmax") == "softmax" &&
             !s.on("moe_router_pre_softmax") && !s.lists("moe_router_load_balancing_type", "sinkhorn")),
       "--moe-router-topk 1 needs --moe-router-pre-softmax"},
      {"moe.group_limit", "moe_router_group_topk moe_router_num_groups", FW_IF(groups_limit_wrongly(s)),
       "--moe-router-group-topk needs --moe-router-num-groups of at least as many, which divides --num-experts"},

      // ---- Data parallelism ----
      {"dp.fsdp2", "use_torch_fsdp2",
       FW_IF(s.on("use_torch_fsdp2") &&
             (pp(s) > 1 || ep(s) > 1 || s.on("use_distributed_optimizer") || !s.off("gradient_accumulation_fusion") ||
              (!s.is("ckpt_format", "torch_dcp") && !s.is("ckpt_format", "torch_dist") && s.has("ckpt_format")) ||
              !s.on("untie_embeddings_and_output_weights") || s.on("fp16"))),
       "--use-torch-fsdp2 needs --pipeline-model-parallel-size 1, --expert-model-parallel-size 1, "
       "--no-gradient-accumulation-fusion, --untie-embeddings-and-output-weights and a sharded checkpoint, and "
       "excludes "
       "--use-distributed-optimizer"},
      {"env.cdmc_fsdp", "use_torch_fsdp2 use_megatron_fsdp",
       FW_IF((s.on("use_torch_fsdp2") ||
              (fsdp(s) && s.text("data_parallel_sharding_strategy", "no_shard") != "no_shard")) &&
             variable(start, "CUDA_DEVICE_MAX_CONNECTIONS") == "1"),
       "FSDP needs CUDA_DEVICE_MAX_CONNECTIONS above 1"},
      {"dp.fsdp_ckpt", "ckpt_format",
       FW_IF(fsdp(s) && s.text("ckpt_format", "torch_dist") != "fsdp_dtensor" &&
             s.text("data_parallel_sharding_strategy", "no_shard") != "no_shard"),
       "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor"},
      {"dp.ckpt", "ckpt_format",
       FW_IF((s.is("ckpt_format", "fsdp_dtensor") && !fsdp(s)) ||
             (s.is("ckpt_format", "torch_dcp") && !s.on("use_torch_fsdp2"))),
       "--ckpt-format fsdp_dtensor belongs to --use-megatron-fsdp, torch_dcp to --use-torch-fsdp2"},
      {"dp.fsdp_registration", "fsdp_manual_registration",
       FW_IF(s.on("fsdp_manual_registration") && (!fsdp(s) || !s.on("nccl_ub"))),
       "--fsdp-manual-registration needs --use-megatron-fsdp and --use-nccl-ub"},
      {"grid.distopt_instances", "num_distributed_optimizer_instances", FW_IF(instances_do_not_divide(start)),
       "--num-distributed-optimizer-instances must divide data x context parallel, and the experts' data parallel"},
      {"dp.weight_hash", "check_weight_hash_across_dp_replicas_interval",
       FW_IF(s.has("check_weight_hash_across_dp_replicas_interval") &&
             s.is("data_parallel_sharding_strategy", "optim_grads_params")),
       "--check-weight-hash-across-dp-replicas-interval excludes --data-parallel-sharding-strategy optim_grads_params"},
      {"dp.opg", "overlap_param_gather",
       FW_IF(s.on("overlap_param_gather") &&
             (!s.on("overlap_grad_reduce") || (!sharded_optimizer(s) && !s.is("optimizer", "dist_muon")))),
       "--overlap-param-gather needs --overlap-grad-reduce and --use-distributed-optimizer or --use-megatron-fsdp"},
      {"dp.opg_step", "overlap_param_gather_with_optimizer_step",
       FW_IF(s.on("overlap_param_gather_with_optimizer_step") && s.text("ckpt_format", "torch_dist") != "torch"),
       "--overlap-param-gather-with-optimizer-step needs --ckpt-format torch"},
      {"dp.nccl_ub", "nccl_ub", FW_IF(s.on("nccl_ub") && expandable(start)),
       "--use-nccl-ub excludes PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
      {"dp.muon", "optimizer",
       FW_IF(muon(s) &&
             (s.on("use_distributed_optimizer") || s.on("use_torch_fsdp2") || fsdp(s) ||
              (s.has("ckpt_format") && !s.is("ckpt_format", "torch") && !s.is("ckpt_format", "torch_dist")))),
       "Muon excludes --use-distributed-optimizer (--optimizer dist_muon shards it) and FSDP before Megatron-Core 0.18",
       in_releases("", "0.17.1")},
      {"dp.delayed_masters", "use_precision_aware_optimizer fp8_param_gather",
       FW_IF(start.trains && s.on("use_precision_aware_optimizer") && s.on("fp8_param_gather") && s.has("fp8") &&
             fp8_recipe(s) == "delayed" && !other_than_fp32(s, "main_params_dtype") && !s.on("optimizer_cpu_offload") &&
             !fsdp(s)),
       "--use-precision-aware-optimizer with --fp8-param-gather and --fp8-recipe delayed stops in the first step: "
       "Transformer Engine keeps half of a master beside an FP8 weight, and its kernel takes whole ones"},
      {"dp.fp32_accum", "main_grads_dtype", FW_IF(accumulates_in_fp32(s) && other_than_fp32(s, "main_grads_dtype")),
       "--accumulate-allreduce-grads-in-fp32 needs --main-grads-dtype fp32"},
      {"dp.precision_aware", "use_precision_aware_optimizer",
       FW_IF(s.on("use_precision_aware_optimizer") && (s.text("optimizer", "adam") != "adam" || !sharded_optimizer(s))),
       "--use-precision-aware-optimizer needs --optimizer adam and --use-distributed-optimizer"},
      {"dp.state_types", "exp_avg_dtype exp_avg_sq_dtype main_params_dtype main_grads_dtype",
       FW_IF(!s.on("use_precision_aware_optimizer") &&
             (other_than_fp32(s, "exp_avg_dtype") || other_than_fp32(s, "exp_avg_sq_dtype") ||
              other_than_fp32(s, "main_params_dtype") || other_than_fp32(s, "main_grads_dtype"))),
       "types of the optimizer's states other than fp32 need --use-precision-aware-optimizer"},
      {"dp.tpovl", "tp_comm_overlap", FW_IF(s.on("tp_comm_overlap") && !splits_sequence(s)),
       "--tp-comm-overlap needs --sequence-parallel, and so --tensor-model-parallel-size above 1"},
      {"env.cdmc", "tensor_model_parallel_size context_parallel_size",
       FW_IF(start.hopper_or_older && (tp(s) > 1 || cp(s) > 1) && !fsdp(s) && !s.on("use_torch_fsdp2") && !epov(s) &&
             variable(start, "CUDA_DEVICE_MAX_CONNECTIONS") != "1"),
       "tensor and context parallelism before Blackwell need CUDA_DEVICE_MAX_CONNECTIONS=1"},

      // ---- Precision ----
      {"q.fp16_bf16", "fp16", FW_IF(s.on("fp16") && s.on("bf16")), "--fp16 excludes --bf16"},
      {"q.fp8_fp4", "fp4", FW_IF(s.has("fp8") && s.has("fp4")), "--fp4-format excludes --fp8-format"},
      {"q.fp4_param", "fp4_param_gather", FW_IF(s.on("fp4_param_gather") && !s.has("fp4")),
       "--fp4-param-gather needs --fp4-format"},
      {"q.param_gather", "fp8_param_gather",
       FW_IF(start.trains && s.on("fp8_param_gather") && !sharded_optimizer(s) && !s.on("use_torch_fsdp2")),
       "--fp8-param-gather needs --use-distributed-optimizer or FSDP"},
      {"q.fp8_param", "fp8_param_gather", FW_IF(s.on("fp8_param_gather") && !s.has("fp8")),
       "--fp8-param-gather needs --fp8-format"},
      {"q.reuse_buf", "reuse_grad_buf_for_mxfp8_param_ag",
       FW_IF(s.on("reuse_grad_buf_for_mxfp8_param_ag") && !s.on("fp8_param_gather")),
       "--reuse-grad-buf-for-mxfp8-param-ag needs --fp8-param-gather"},
      {"q.first_last", "first_last_layers_bf16",
       FW_IF(s.has("fp8") && s.on("first_last_layers_bf16") && fp8_recipe(s) == "delayed"),
       "--first-last-layers-bf16 excludes --fp8-recipe delayed"},
      {"q.first_last", "num_layers_at_start_in_bf16 num_layers_at_end_in_bf16",
       FW_IF(bf16_layers_out_of_range(s, "num_layers_at_start_in_bf16") ||
             bf16_layers_out_of_range(s, "num_layers_at_end_in_bf16")),
       "the layers at the start and the end in bf16 must be 0 to the layers of a pipeline rank"},
      {"q.custom", "fp8_recipe", FW_IF(s.has("fp8") && fp8_recipe(s) == "custom" && !s.has("fp8_quantizer_factory")),
       "--fp8-recipe custom needs --fp8-quantizer-factory"},
      {"q.custom", "fp4_recipe", FW_IF(s.has("fp4") && s.is("fp4_recipe", "custom") && !s.has("fp4_quantizer_factory")),
       "--fp4-recipe custom needs --fp4-quantizer-factory"},

      // ---- Recomputation and offloading ----
      {"rc.dsa", "distribute_saved_activations",
       FW_IF(s.on("distribute_saved_activations") &&
             (tp(s) == 1 || !full(s) || !s.has("recompute_method") || splits_sequence(s))),
       "--distribute-saved-activations needs tensor parallelism without --sequence-parallel, and full recomputation "
       "with a method"},
      {"rc.selective", "recompute_method recompute_num_layers",
       FW_IF((s.is("recompute_granularity", "selective") || s.on("recompute_activations")) &&
             (s.has("recompute_method") || s.has("recompute_num_layers"))),
       "selective recomputation takes neither --recompute-method nor --recompute-num-layers"},
      {"rc.full", "recompute_granularity",
       FW_IF(full(s) && (!s.has("recompute_method") || !s.has("recompute_num_layers"))),
       "--recompute-granularity full needs --recompute-method and --recompute-num-layers"},
      {"rc.modules", "recompute_modules",
       FW_IF(selective(s) && lists_other_than(s, "recompute_modules",
                                              {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe",
                                               "shared_experts", "gdn_norm_out"})),
       "--recompute-modules takes core_attn, moe_act, layernorm, mla_up_proj, mlp, moe and shared_experts"},
      {"rc.moe_layer", "moe_layer_recompute", FW_IF(s.on("moe_layer_recompute") && full(s)),
       "--moe-layer-recompute excludes full recomputation"},
      {"rc.cpu_off", "cpu_offloading_num_layers",
       FW_IF(cpu_offload(s) && (full(s) || selective(s) || graphs(s) || fine_grained(s))),
       "--cpu-offloading-num-layers excludes recomputation, CUDA graphs and --fine-grained-activation-offloading"},
      {"off.modules", "fine_grained_activation_offloading",
       FW_IF(fine_grained(s) && (s.text("transformer_impl", "transformer_engine") != "transformer_engine" ||
                                 s.names("offload_modules").empty())),
       "--fine-grained-activation-offloading needs Transformer Engine's layers and --offload-modules"},
      {"off.modules", "offload_modules",
       FW_IF(fine_grained(s) && lists_other_than(s, "offload_modules",
                                                 {"core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm",
                                                  "mlp_norm", "qkv_linear", "fused_group_mlp", "gdp_qkv"})),
       "--offload-modules takes core_attn, attn_proj, expert_fc1, moe_act, attn_norm, mlp_norm and qkv_linear"},
      {"off.cg_full", "fine_grained_activation_offloading",
       FW_IF(fine_grained(s) && (graph_impl(s) == "full_iteration" || captures(s, "full_iteration")) &&
             !s.has("fine_grained_offloading_max_inflight_offloads")),
       "--fine-grained-activation-offloading in a graph of the full iteration needs "
       "--fine-grained-offloading-max-inflight-offloads",
       in_releases("0.18.2")},
      {"off.env", "fine_grained_activation_offloading",
       FW_IF(fine_grained(s) && variable(start, "NVTE_CPU_OFFLOAD_V1") != "1"),
       "--fine-grained-activation-offloading with Transformer Engine from 2.10 needs NVTE_CPU_OFFLOAD_V1=1"},
      {"off.optim", "optimizer_cpu_offload fp8_param_gather",
       FW_IF(s.on("optimizer_cpu_offload") &&
             (!s.on("use_precision_aware_optimizer") || (s.on("fp8_param_gather") && fp8_recipe(s) != "delayed"))),
       "--optimizer-cpu-offload needs --use-precision-aware-optimizer, and --fp8-param-gather with it --fp8-recipe "
       "delayed"},

      // ---- Overlap of the experts' exchange ----
      {"epov.recompute", "recompute_method recompute_num_layers",
       FW_IF(epov(s) && (s.has("recompute_method") || s.has("recompute_num_layers"))),
       "--overlap-moe-expert-parallel-comm excludes --recompute-method and --recompute-num-layers"},
      {"epov.dtype", "overlap_moe_expert_parallel_comm", FW_IF(epov(s) && !s.on("bf16") && !s.on("fp16")),
       "--overlap-moe-expert-parallel-comm needs --bf16 or --fp16"},
      {"epov.mtp_pp", "mtp_num_layers", FW_IF(epov(s) && s.integer("mtp_num_layers", 0) == 1 && pp(s) == 1),
       "--overlap-moe-expert-parallel-comm with --mtp-num-layers needs --pipeline-model-parallel-size above 1 before "
       "Megatron-Core 0.18",
       in_releases("", "0.17.1")},
      {"epov.cg_impl", "cuda_graph_impl", FW_IF(epov(s) && graph_impl(s) == "local"),
       "--overlap-moe-expert-parallel-comm takes Transformer Engine's graphs only before Megatron-Core 0.18",
       in_releases("", "0.17.1")},
      {"epov.early_release", "ep_overlap_early_attn_memory_release",
       FW_IF(s.on("ep_overlap_early_attn_memory_release") && !epov(s)),
       "--ep-overlap-early-attn-memory-release needs --overlap-moe-expert-parallel-comm"},
      {"epov.legacy_gemm", "moe_use_legacy_grouped_gemm",
       FW_IF(s.on("delay_wgrad_compute") && s.on("moe_use_legacy_grouped_gemm")),
       "--delay-wgrad-compute excludes --moe-use-legacy-grouped-gemm"},

      // ---- CUDA graphs ----
      {"cg.flags", "enable_cuda_graph external_cuda_graph",
       FW_IF(
           (s.on("enable_cuda_graph") || s.on("external_cuda_graph")) &&
           (s.text("cuda_graph_impl", "none") != "none" || (s.on("enable_cuda_graph") && s.on("external_cuda_graph")))),
       "give one of --enable-cuda-graph, --external-cuda-graph and --cuda-graph-impl"},
      {"cg.full_scope", "cuda_graph_scope",
       FW_IF(s.lists("cuda_graph_scope", "full") && s.names("cuda_graph_scope").size() > 1),
       "--cuda-graph-scope full excludes other scopes"},
      {"cg.full_mods", "cuda_graph_scope check_for_nan_in_loss_and_grad",
       FW_IF(captures(s, "full_iteration") && graph_impl(s) == "local" && !s.off("check_for_nan_in_loss_and_grad")),
       "graphs of the full iteration need --no-check-for-nan-in-loss-and-grad"},
      {"cg.full_impl", "cuda_graph_impl", FW_IF(captures(s, "full_iteration") && graph_impl(s) == "transformer_engine"),
       "--cuda-graph-scope full_iteration needs --cuda-graph-impl local"},
      {"cg.pad", "moe_pad_experts_for_cuda_graph_inference",
       FW_IF(graph_impl(s) == "local" && ep(s) > 1 && !captures(s, "full_iteration") &&
             !s.on("moe_pad_experts_for_cuda_graph_inference")),
       "local CUDA graphs with expert parallelism need --moe-pad-experts-for-cuda-graph-inference before "
       "Megatron-Core 0.18",
       in_releases("", "0.17.1")},
      {"cg.moe_prep", "cuda_graph_scope",
       FW_IF(captures(s, "moe_preprocess") && s.is("moe_token_dispatcher_type", "alltoall") &&
             (!has_capacity(s) || !s.on("moe_pad_expert_input_to_capacity")) &&
             (has_capacity(s) || s.on("moe_router_padding_for_fp8"))),
       "moe_preprocess is not captured with the alltoall dispatcher and a capacity that is not padded, or "
       "--moe-router-padding-for-fp8"},
      {"cg.dropout", "attention_dropout hidden_dropout moe_input_jitter_eps", FW_IF(recomputes_random_in_graph(s)),
       "what a graph recomputes takes no dropout and no --moe-input-jitter-eps"},
      {"cg.expandable", "cuda_graph_impl",
       FW_IF(graph_impl(s) == "transformer_engine" && expandable(start) &&
             variable(start, "NCCL_GRAPH_REGISTER") != "0"),
       "Transformer Engine's graphs with expandable_segments:True need NCCL_GRAPH_REGISTER=0"},
  };
}

#undef FW_IF

}  // namespace

const std::vector<ArgumentCheck>& argument_checks() {
  static const std::vector<ArgumentCheck> checks = make_checks();
  return checks;
}

void check_arguments(const Start& start, const std::string& file, config::Diagnostics& diagnostics) {
  for (const ArgumentCheck& check : argument_checks()) {
    if (!check.releases.has(start.release) || !check.violated(start)) continue;
    int line = 0;
    std::string first;
    for (std::string_view rest = check.members; !rest.empty() && line == 0;) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string dest(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (first.empty() || start.settings.line(dest) > 0) first = dest;
      line = start.settings.line(dest);
    }
    const std::string flag = flags_of(first).empty() ? first : flags_of(first).front()->flag;
    diagnostics.error({file, line, flag}, fmt::format("{}: {}", check.id, check.message));
  }
}

}  // namespace foldwise::planner

#include "planner/launch/forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "planner/launch/geometry.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

json given(const ArgumentReading& r, std::string_view dest) {
  const json* value = r.settings.find(dest);
  return value == nullptr ? json(nullptr) : *value;
}

/// Values of --fp8-recipe and --fp8-format, as in Megatron-Bridge's mixed-precision recipes.
struct Fp8Recipe {
  std::string_view precision, recipe, format;
};
constexpr Fp8Recipe kFp8Recipes[] = {{"fp8-delayed", "delayed", "hybrid"},
                                     {"fp8-current", "tensorwise", "hybrid"},
                                     {"fp8-blockwise", "blockwise", "e4m3"},
                                     {"mxfp8", "mxfp8", "e4m3"}};

void write_precision(ArgumentWriting& w) {
  const std::string name = name_of(w.options().layer.precision);
  w.settings.set(name == "fp16" ? "fp16" : "bf16", true);
  for (const Fp8Recipe& fp8 : kFp8Recipes)
    if (name == fp8.precision) {
      w.settings.set("fp8", std::string(fp8.format));
      w.settings.set("fp8_recipe", std::string(fp8.recipe));
    }
  if (name == "nvfp4") {
    w.settings.set("fp4", "e2m1");
    w.settings.set("fp4_recipe", "nvfp4");
  }
}

json read_precision(ArgumentReading& r) {
  const bool fp16 = r.settings.on("fp16");
  if (!r.settings.on("bf16") && !fp16) r.refuse("bf16", "training in fp32 is not modelled: expected --bf16 or --fp16");
  if (fp16 && (r.settings.has("fp8") || r.settings.has("fp4")))
    r.refuse("fp16", "quantised products beside FP16 are not modelled: expected --bf16");
  if (fp16) return "fp16";
  if (r.settings.has("fp4")) return "nvfp4";
  if (!r.settings.has("fp8")) return "bf16";
  const std::string recipe = r.settings.text("fp8_recipe", "delayed");
  if (!r.settings.has("fp8_recipe")) r.infer("precision", "--fp8-format without --fp8-recipe is delayed");
  for (const Fp8Recipe& fp8 : kFp8Recipes)
    if (recipe == fp8.recipe) return std::string(fp8.precision);
  r.refuse("fp8_recipe", fmt::format("{} is not modelled", recipe));
  return nullptr;
}

constexpr std::pair<std::string_view, std::string_view> kFsdpStrategies[] = {
    {"fsdp", "optim_grads_params"}, {"fsdp-optim-grads", "optim_grads"}, {"fsdp-optim", "optim"}};

/// Muon whose states are sharded layer by layer has a name of its own before it takes the distributed optimizer's flag
/// (core_v0.17.1 megatron/training/training.py:1600, core_v0.18.2 megatron/training/arguments.py:1560).
bool is_dist_muon(const ArgumentWriting& w) {
  static const ReleaseSpan own_name = in_releases("", "0.17.1");
  const auto& step = w.options().step;
  return step.optimizer.kind == costmodel::OptimizerKind::kMuon && own_name.has(w.release) &&
         step.sharding == costmodel::Sharding::kDdpDistributedOptimizer;
}

void write_sharding(ArgumentWriting& w) {
  const std::string name = name_of(w.options().step.sharding);
  if (name == "ddp" || is_dist_muon(w)) return;
  w.settings.set("use_distributed_optimizer", true);
  for (const auto& [sharding, strategy] : kFsdpStrategies)
    if (name == sharding) {
      w.settings.set("use_megatron_fsdp", true);
      w.settings.set("data_parallel_sharding_strategy", std::string(strategy));
      w.settings.set("ckpt_format", "fsdp_dtensor");  // The only format that Megatron-FSDP supports.
    }
}

json read_sharding(ArgumentReading& r) {
  if (r.settings.is("optimizer", "dist_muon")) return "ddp-distopt";
  if (!r.settings.has("use_megatron_fsdp") && !r.settings.has("use_torch_fsdp2") &&
      !r.settings.has("use_distributed_optimizer"))
    return nullptr;
  if (r.settings.on("use_torch_fsdp2")) {
    r.infer("sharding", "PyTorch's FSDP2 (--use-torch-fsdp2) is priced as Megatron-FSDP: it gathers and reduces alike");
    return "fsdp";
  }
  if (!r.settings.on("use_megatron_fsdp")) return r.settings.on("use_distributed_optimizer") ? "ddp-distopt" : "ddp";
  const std::string strategy = r.settings.text("data_parallel_sharding_strategy", "no_shard");
  for (const auto& [sharding, name] : kFsdpStrategies)
    if (strategy == name) return std::string(sharding);
  r.refuse("use_megatron_fsdp", fmt::format("--data-parallel-sharding-strategy {} is not modelled", strategy));
  return nullptr;
}

/// The flag takes the number of groups over which FSDP shards. DDP has another field for the same flag.
void write_fsdp_group(ArgumentWriting& w) {
  const auto& step = w.options().step;
  if (!is_fsdp(step.sharding) || step.fsdp_group == 0) return;
  w.settings.set("num_distributed_optimizer_instances", w.options().layout().dp_cp() / step.fsdp_group);
}

json read_fsdp_group(ArgumentReading& r) {
  const Settings& s = r.settings;
  const std::int64_t instances = s.integer("num_distributed_optimizer_instances", 1);
  if (!s.on("use_megatron_fsdp") || instances <= 1) return nullptr;
  const std::int64_t ranks =
      s.integer("world_size", 1) / std::max<std::int64_t>(1, s.integer("tensor_model_parallel_size", 1) *
                                                                 s.integer("pipeline_model_parallel_size", 1));
  return std::max<std::int64_t>(1, ranks / instances);
}

void write_graph(ArgumentWriting& w) {
  using costmodel::GraphImpl;
  const costmodel::CudaGraph& graph = w.options().layer.cuda_graph;
  if (graph.impl == GraphImpl::kNone) return;
  const bool whole = graph.impl == GraphImpl::kFullIteration;
  const bool scopes = !find_flag("--cuda-graph-modules")->releases.has(w.release);
  const char* modules = scopes ? "cuda_graph_scope" : "cuda_graph_modules";
  w.settings.set("cuda_graph_impl", whole && scopes ? "local" : name_of(graph.impl));
  if (whole) {
    w.settings.set("check_for_nan_in_loss_and_grad", false);  // Megatron requires it: cg.full_mods.
    if (scopes) w.settings.set(modules, json{"full_iteration"});
    return;
  }
  if (!graph.modules.empty()) w.settings.set(modules, names_of(graph.modules));
}

std::vector<std::string> graph_scopes(const Settings& s) {
  return s.has("cuda_graph_modules") ? s.names("cuda_graph_modules") : s.names("cuda_graph_scope");
}

json read_graph_impl(ArgumentReading& r) {
  const Settings& s = r.settings;
  if (s.on("enable_cuda_graph")) return "local";
  if (s.on("external_cuda_graph")) return "transformer_engine";
  if (!s.has("cuda_graph_impl")) return nullptr;
  const std::string impl = s.text("cuda_graph_impl");
  const std::vector<std::string> scopes = graph_scopes(s);
  const bool whole = std::ranges::count(scopes, "full_iteration") > 0;
  return impl == "local" && whole ? "full_iteration" : impl;
}

json read_graph_scope(ArgumentReading& r) {
  const json impl = read_graph_impl(r);
  if (impl.is_null() || impl == "none" || impl == "full_iteration") return nullptr;
  json modules = json::array();
  for (const std::string& scope : graph_scopes(r.settings))
    if (scope != "full" && scope != "full_iteration") modules.push_back(scope);
  // Megatron's local graphs capture router and preprocessing together.
  const bool router = std::ranges::count(modules, json("moe_router")) > 0;
  const bool preprocess = std::ranges::count(modules, json("moe_preprocess")) > 0;
  if (impl == "local" && router != preprocess) {
    modules.push_back(router ? "moe_preprocess" : "moe_router");
    r.infer("cuda_graph.scope", "local graphs hold moe_router and moe_preprocess together");
  }
  return modules;
}

void write_dispatcher(ArgumentWriting& w) {
  if (!w.run.model.has_moe()) return;
  const std::string name = name_of(w.options().layer.dispatcher);
  const bool flex = is_flex(w.options().layer.dispatcher);
  w.settings.set("moe_token_dispatcher_type", flex ? "flex" : name);
  if (flex) w.settings.set("moe_flex_dispatcher_backend", name);
}

json read_dispatcher(ArgumentReading& r) {
  if (!r.settings.has("num_experts") || !r.settings.has("moe_token_dispatcher_type")) return nullptr;
  const std::string type = r.settings.text("moe_token_dispatcher_type", "allgather");
  if (type != "flex") return type;
  const std::string backend = r.settings.text("moe_flex_dispatcher_backend", "deepep");
  if (backend == "ncclep") r.refuse("moe_flex_dispatcher_backend", "ncclep is not modelled");
  if (!r.settings.has("moe_flex_dispatcher_backend"))
    r.infer("dispatcher", "flex without --moe-flex-dispatcher-backend is deepep");
  return backend;
}

json read_granularity(ArgumentReading& r) {
  const bool of_moe = r.settings.on("moe_layer_recompute");
  if (!of_moe && !r.settings.on("recompute_activations")) return given(r, "recompute_granularity");
  r.infer("recompute.granularity", of_moe ? "--moe-layer-recompute is selective recomputation of moe"
                                          : "--recompute-activations is selective recomputation");
  return "selective";
}

json read_recompute_modules(ArgumentReading& r) {
  if (read_granularity(r) != "selective") return nullptr;
  json modules = r.settings.names("recompute_modules");
  if (modules.empty()) {
    modules = {"core_attn"};
    r.infer("recompute.modules", "selective recomputation without --recompute-modules is core_attn");
  }
  if (r.settings.on("moe_layer_recompute") && std::ranges::count(modules, json("moe")) == 0) modules.push_back("moe");
  return modules;
}

/// The value if full recomputation is on, else null.
json read_of_full(const ArgumentReading& r, std::string_view dest) {
  return r.settings.is("recompute_granularity", "full") ? given(r, dest) : json(nullptr);
}

void write_offload(ArgumentWriting& w) {
  const costmodel::LayerOptions& layer = w.options().layer;
  if (layer.offload_modules.contains(costmodel::OffloadModule::kLayer)) {
    w.settings.set("cpu_offloading_num_layers", w.options().pipeline.cpu_offloading_num_layers);
  } else if (!layer.offload_modules.empty()) {
    w.settings.set("fine_grained_activation_offloading", true);
    w.settings.set("offload_modules", names_of(layer.offload_modules));
  }
}

json read_offload_type(ArgumentReading& r) {
  if (r.settings.integer("cpu_offloading_num_layers", 0) > 0) return "layer-cpu-offload";
  return r.settings.on("fine_grained_activation_offloading") ? json("fine-grained-activation") : json(nullptr);
}

json read_offload_modules(ArgumentReading& r) {
  const bool on = r.settings.on("fine_grained_activation_offloading");
  return on ? json(r.settings.names("offload_modules")) : json(nullptr);
}

/// --bf16 switches it on, unless gradients in bf16 are asked for.
json read_grad_reduce(ArgumentReading& r) {
  const Settings& s = r.settings;
  if (s.on("grad_reduce_in_bf16")) return false;
  if (s.on("accumulate_allreduce_grads_in_fp32") || s.on("grad_reduce_in_fp32")) return true;
  // A log or a configuration gives the effective value. In a script the flag can only switch it on.
  if (s.off("accumulate_allreduce_grads_in_fp32") || s.off("grad_reduce_in_fp32")) return false;
  const bool switched_on = !s.is("main_grads_dtype", "bf16") && !s.on("fp16");
  if (switched_on) r.infer("optimizer.grad_reduce_in_fp32", "--bf16 switches on --accumulate-allreduce-grads-in-fp32");
  return switched_on;
}

void write_experts(ArgumentWriting& w) {
  const costmodel::Experts experts = w.options().layer.software.experts;
  if (!w.run.model.has_moe()) return;
  if (experts != costmodel::Experts::kSequential) w.settings.set("moe_grouped_gemm", true);
  if (experts != costmodel::Experts::kFused) return;
  w.settings.set("use_transformer_engine_op_fuser", true);
}

json read_experts(ArgumentReading& r) {
  if (!r.settings.has("num_experts") || !r.settings.has("moe_grouped_gemm")) return nullptr;
  if (!r.settings.on("moe_grouped_gemm")) return "sequential";
  return r.settings.on("use_transformer_engine_op_fuser") ? "fused" : "grouped";
}

void write_cross_entropy(ArgumentWriting& w) {
  using costmodel::CrossEntropy;
  const CrossEntropy loss = w.options().layer.software.cross_entropy;
  if (loss == CrossEntropy::kTorch) w.refuse("software.cross_entropy", "torch is no choice of Megatron's");
  if (loss != CrossEntropy::kNative && loss != CrossEntropy::kTransformerEngine) return;
  w.settings.set("cross_entropy_loss_fusion", true);
  w.settings.set("cross_entropy_fusion_impl", loss == CrossEntropy::kNative ? "native" : "te");
}

json read_cross_entropy(ArgumentReading& r) {
  if (!r.settings.has("cross_entropy_loss_fusion")) return nullptr;
  if (!r.settings.on("cross_entropy_loss_fusion")) return "unfused";
  return r.settings.text("cross_entropy_fusion_impl", "native");
}

/// Chunks of a rank; null if a layout string implies it.
json read_vpp(ArgumentReading& r) {
  const Settings& s = r.settings;
  if (s.has("pipeline_model_parallel_layout")) return nullptr;
  for (const char* dest : {"num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"})
    if (s.has(dest)) return std::max<std::int64_t>(1, s.integer(dest, 1));
  const std::int64_t in_chunk = s.integer("num_layers_per_virtual_pipeline_stage", 0);
  if (in_chunk < 1) return nullptr;
  const std::int64_t slots = layers_of(s) + (s.on("account_for_embedding_in_pipeline_split") ? 1 : 0) +
                             (s.on("account_for_loss_in_pipeline_split") ? 1 : 0);
  return std::max<std::int64_t>(
      1, slots / std::max<std::int64_t>(1, s.integer("pipeline_model_parallel_size", 1)) / in_chunk);
}

/// Megatron's own default is 0; null then.
json read_mtp_repeated(ArgumentReading& r) {
  return r.settings.integer("mtp_num_layers", 0) > 1 ? json(r.settings.on("mtp_use_repeated_layer")) : json(nullptr);
}

json read_etp(ArgumentReading& r) {
  if (r.settings.has("expert_tensor_parallel_size")) return given(r, "expert_tensor_parallel_size");
  if (!r.settings.has("num_experts")) return nullptr;
  r.infer("etp", "without --expert-tensor-parallel-size it is --tensor-model-parallel-size");
  return r.settings.integer("tensor_model_parallel_size", 1);
}

json read_sequence_parallel(ArgumentReading& r) {
  const bool split = r.settings.integer("tensor_model_parallel_size", 1) > 1,
             asked = r.settings.on("sequence_parallel");
  if (!split && asked) r.infer("sequence_parallel", "Megatron switches it off where --tensor-model-parallel-size is 1");
  return split && asked;
}

json read_optimizer_instances(ArgumentReading& r) {
  if (r.settings.on("use_megatron_fsdp")) return nullptr;
  if (r.settings.on("use_distributed_optimizer")) return given(r, "num_distributed_optimizer_instances");
  if (r.settings.integer("num_distributed_optimizer_instances", 1) > 1)
    r.infer("num_distributed_optimizer_instances", "does nothing without --use-distributed-optimizer");
  return nullptr;
}

json read_cp_comm(ArgumentReading& r) {
  const std::vector<std::string> types = r.settings.names("cp_comm_type");
  if (types.empty()) return nullptr;
  if (std::ranges::count(types, types.front()) != static_cast<std::ptrdiff_t>(types.size()))
    r.refuse("cp_comm_type", "one for each layer, not all the same, is not modelled");
  return types.front();
}

json hierarchical_sizes(const ArgumentWriting& w) {
  const costmodel::LayerOptions& layer = w.options().layer;
  const bool both = layer.cp > 1 && layer.cp_comm == costmodel::CpComm::kA2aP2p && layer.cp_a2a_size > 0;
  return both ? json{layer.cp_a2a_size, layer.cp / layer.cp_a2a_size} : json(nullptr);
}

json read_hierarchical_sizes(ArgumentReading& r) {
  const bool both = r.settings.lists("cp_comm_type", "a2a+p2p");
  return both ? given(r, "hierarchical_context_parallel_sizes") : json(nullptr);
}

json read_capacity(ArgumentReading& r) {
  if (r.settings.number("moe_expert_capacity_factor", 0.0) >= 0.0) return given(r, "moe_expert_capacity_factor");
  r.infer("capacity_factor", "a negative --moe-expert-capacity-factor is none");
  return nullptr;
}

void write_schedule(ArgumentWriting& w) {
  const std::string name = name_of(w.options().pipeline.schedule);
  if (w.options().pipeline.schedule != costmodel::Schedule::kOneF1B)
    w.refuse("schedule", fmt::format("{} is for study: Megatron runs 1f1b", name));
}

void write_recompute_modules(ArgumentWriting& w) {
  const auto& recompute = w.options().layer.recompute;
  if (recompute.granularity != costmodel::RecomputeGranularity::kSelective) return;
  if (recompute.modules.contains(costmodel::RecomputeModule::kAlternateMatmuls))
    w.refuse("recompute.modules", "alternate_matmuls is TorchTitan's, no module of Megatron");
  w.settings.set("recompute_modules", names_of(recompute.modules));
}

/// Whether embedding or loss counts as a layer. Megatron applies it only if there are several stages.
json read_account(ArgumentReading& r, std::string_view dest) {
  if (r.settings.integer("pipeline_model_parallel_size", 1) > 1) return given(r, dest);
  if (r.settings.on(dest)) r.infer(dest, "there is one stage");
  return nullptr;
}

json read_optimizer(ArgumentReading& r) {
  if (!r.settings.has("optimizer")) return nullptr;
  const std::string name = r.settings.text("optimizer", "adam");
  if (name == "lion" || name == "soap" || name == "adaptive_muon") r.refuse("optimizer", name + " is not modelled");
  return name == "dist_muon" ? "muon" : name;
}

json read_tp_overlap(ArgumentReading& r) {
  if (!r.settings.on("tp_comm_overlap") || !r.settings.on("multi_latent_attention")) return given(r, "tp_comm_overlap");
  r.infer("overlaps.tp", "multi-latent attention switches --tp-comm-overlap off (foldwise.tpovl_mla)");
  return false;
}

void write_optimizer(ArgumentWriting& w) {
  w.settings.set("optimizer", is_dist_muon(w) ? "dist_muon" : name_of(w.options().step.optimizer.kind));
}

void write_grad_reduce(ArgumentWriting& w) {
  const bool fp32 = w.options().layer.grad_reduce_in_fp32;
  if (!fp32 && w.options().layer.precision == costmodel::Precision::kFp16) return;  // This is Megatron's default.
  w.settings.set(fp32 ? "accumulate_allreduce_grads_in_fp32" : "grad_reduce_in_bf16", true);
}

json read_fp8_param_gather(ArgumentReading& r) {
  const bool asked = r.settings.on("fp8_param_gather"), fp8 = r.settings.has("fp8");
  if (asked && !fp8) r.infer("optimizer.fp8_param_gather", "nothing is kept in FP8 without --fp8-format");
  if (asked && r.settings.on("use_torch_fsdp2")) {
    r.infer("optimizer.fp8_param_gather", "Megatron switches it off under PyTorch's FSDP2");
    return false;
  }
  return fp8 ? given(r, "fp8_param_gather") : json(nullptr);
}

/// Reuse applies to MXFP8 parameters under DDP. Megatron switches it off under its FSDP.
bool reuses_grad_buffer(const TrainingOptions& o) {
  return o.step.optimizer.reuse_grad_buffer && o.step.optimizer.low_precision_param_gather &&
         o.layer.precision == costmodel::Precision::kMxfp8 && !is_fsdp(o.step.sharding);
}

json read_transformer_impl(ArgumentReading& r) {
  if (!r.settings.is("transformer_impl", "inference_optimized")) return given(r, "transformer_impl");
  r.infer("software.transformer_impl", "inference_optimized trains nothing: taken is transformer_engine");
  return "transformer_engine";
}

json read_attention(ArgumentReading& r) {
  if (!r.settings.has("attention_backend")) return nullptr;
  const std::string backend = r.settings.text("attention_backend", "auto");
  return backend == "unfused" || backend == "local" ? "unfused" : "fused";
}

/// True if the flag is given, else null.
json flag_if(bool given) { return given ? json(true) : json(nullptr); }
template <typename Value>
json value_if(bool given, Value value) {
  return given ? json(std::move(value)) : json(nullptr);
}

using costmodel::RecomputeGranularity;

#define FW_SAYS(value)                      \
  [](const ArgumentWriting& w) -> json {    \
    const TrainingOptions& o = w.options(); \
    (void)o;                                \
    return value;                           \
  }
#define FW_READS(value) [](ArgumentReading& r) -> json { return value; }

}  // namespace

const std::vector<Form>& forms() {
  static const std::vector<Form> table = {
      {.key = "mtp", .members = {"mtp_num_layers"}, .read = FW_READS(r.settings.integer("mtp_num_layers", 0))},
      {.key = "mtp_use_repeated_layer",
       .members = {"mtp_use_repeated_layer"},
       .says = FW_SAYS(flag_if(w.run.model.mtp_num_layers > 1 && w.run.model.mtp_use_repeated_layer)),
       .read = read_mtp_repeated},
      {.key = "precision",
       .members = {"bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe"},
       .write = write_precision,
       .read = read_precision},
      {.key = "hidden_dropout",
       .members = {"hidden_dropout"},
       .says = FW_SAYS(json(o.layer.hidden_dropout)),
       .read = FW_READS(r.settings.number("hidden_dropout", kDefaultDropout))},
      {.key = "attention_dropout",
       .members = {"attention_dropout"},
       .says = FW_SAYS(json(o.layer.attention_dropout)),
       .read = FW_READS(r.settings.number("attention_dropout", kDefaultDropout))},
      {.key = "vpp",
       .members = {"num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage",
                   "virtual_pipeline_model_parallel_size"},
       .says = FW_SAYS(value_if(o.pipeline.vpp > 1 && o.pipeline.layout.empty(), o.pipeline.vpp)),
       .read = read_vpp},
      {.key = "ep",
       .members = {"expert_model_parallel_size"},
       .says = FW_SAYS(value_if(w.run.model.has_moe(), o.layer.ep))},
      {.key = "etp",
       .members = {"expert_tensor_parallel_size"},
       .says = FW_SAYS(value_if(w.run.model.has_moe() || o.layer.etp > 1, o.layer.etp)),
       .read = read_etp},
      {.key = "sequence_parallel",
       .members = {"sequence_parallel"},
       .says = FW_SAYS(flag_if(o.layer.splits_sequence())),
       .read = read_sequence_parallel},
      {.key = "sharding",
       .members = {"use_distributed_optimizer", "use_megatron_fsdp", "data_parallel_sharding_strategy",
                   "use_torch_fsdp2"},
       .write = write_sharding,
       .read = read_sharding},
      {.key = "fsdp_group",
       .members = {"num_distributed_optimizer_instances"},
       .write = write_fsdp_group,
       .read = read_fsdp_group},
      {.key = "fsdp_outer_optim",
       .members = {"outer_dp_sharding_strategy"},
       .says = FW_SAYS(value_if(is_fsdp(o.step.sharding) && o.step.fsdp_outer_optim, "optim")),
       .read = FW_READS(r.settings.is("outer_dp_sharding_strategy", "optim") ? json(true) : json(nullptr))},
      {.key = "num_distributed_optimizer_instances",
       .members = {"num_distributed_optimizer_instances"},
       .says =
           FW_SAYS(value_if(!is_fsdp(o.step.sharding) && o.step.optimizer_instances > 1, o.step.optimizer_instances)),
       .read = read_optimizer_instances},
      {.key = "cp_comm_type",
       .members = {"cp_comm_type"},
       .says = FW_SAYS(value_if(o.layer.cp > 1, json::array({name_of(o.layer.cp_comm)}))),
       .read = read_cp_comm},
      {.key = "hierarchical_context_parallel_sizes",
       .members = {"hierarchical_context_parallel_sizes"},
       .says = hierarchical_sizes,
       .read = read_hierarchical_sizes},
      {.key = "dispatcher",
       .members = {"moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep"},
       .write = write_dispatcher,
       .read = read_dispatcher},
      {.key = "capacity_factor",
       .members = {"moe_expert_capacity_factor"},
       .says = FW_SAYS(o.layer.capacity_factor ? json(*o.layer.capacity_factor) : json(nullptr)),
       .read = read_capacity},
      {.key = "schedule", .members = {}, .write = write_schedule},
      {.key = "microbatch_group_size",
       .members = {"microbatch_group_size_per_vp_stage"},
       .says = FW_SAYS(value_if(o.pipeline.microbatch_group_size > 0, o.pipeline.microbatch_group_size)),
       .read = FW_READS(given(r, "microbatch_group_size_per_vp_stage") == given(r, "pipeline_model_parallel_size")
                            ? json(nullptr)
                            : given(r, "microbatch_group_size_per_vp_stage"))},
      {.key = "account_for_embedding_in_pipeline_split",
       .members = {"account_for_embedding_in_pipeline_split"},
       .read = FW_READS(read_account(r, "account_for_embedding_in_pipeline_split"))},
      {.key = "account_for_loss_in_pipeline_split",
       .members = {"account_for_loss_in_pipeline_split"},
       .read = FW_READS(read_account(r, "account_for_loss_in_pipeline_split"))},
      {.key = "recompute.granularity",
       .members = {"recompute_granularity", "recompute_activations", "moe_layer_recompute"},
       .says = FW_SAYS(value_if(o.layer.recompute.granularity != RecomputeGranularity::kNone,
                                name_of(o.layer.recompute.granularity))),
       .read = read_granularity},
      {.key = "recompute.modules",
       .members = {"recompute_modules"},
       .write = write_recompute_modules,
       .read = read_recompute_modules},
      {.key = "recompute.method",
       .members = {"recompute_method"},
       .says = FW_SAYS(value_if(o.layer.recompute.granularity == RecomputeGranularity::kFull,
                                name_of(o.pipeline.recompute.method))),
       .read = FW_READS(read_of_full(r, "recompute_method"))},
      {.key = "recompute.num_layers",
       .members = {"recompute_num_layers"},
       .says = FW_SAYS(
           value_if(o.layer.recompute.granularity == RecomputeGranularity::kFull, o.pipeline.recompute.num_layers)),
       .read = FW_READS(read_of_full(r, "recompute_num_layers"))},
      {.key = "offload.type",
       .members = {"fine_grained_activation_offloading", "cpu_offloading_num_layers"},
       .write = write_offload,
       .read = read_offload_type},
      {.key = "offload.modules", .members = {"offload_modules"}, .read = read_offload_modules},
      {.key = "offload.num_layers",
       .members = {"cpu_offloading_num_layers"},
       .read = FW_READS(r.settings.integer("cpu_offloading_num_layers", 0) > 0 ? given(r, "cpu_offloading_num_layers")
                                                                               : json(nullptr))},
      {.key = "offload.fraction",
       .members = {"optimizer_offload_fraction"},
       .says = FW_SAYS(value_if(o.step.offload.optimizer_fraction > 0.0, o.step.offload.optimizer_fraction)),
       .read =
           FW_READS(r.settings.on("optimizer_cpu_offload") ? given(r, "optimizer_offload_fraction") : json(nullptr))},
      {.key = "offload.weights", .members = {}},
      {.key = "overlaps.tp",
       .members = {"tp_comm_overlap"},
       .says = FW_SAYS(flag_if(o.layer.overlaps.tp && o.layer.tp > 1)),
       .read = read_tp_overlap},
      {.key = "overlaps.pp_p2p", .members = {}},  // Follows from vpp.
      {.key = "cuda_graph.impl",
       .members = {"cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph"},
       .write = write_graph,
       .read = read_graph_impl},
      {.key = "cuda_graph.scope", .members = {"cuda_graph_scope", "cuda_graph_modules"}, .read = read_graph_scope},
      {.key = "optimizer.name", .members = {"optimizer"}, .write = write_optimizer, .read = read_optimizer},
      {.key = "optimizer.grad_reduce_in_fp32",
       .members = {"accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16"},
       .write = write_grad_reduce,
       .read = read_grad_reduce},
      {.key = "optimizer.fp8_param_gather",
       .members = {"fp8_param_gather"},
       .says = FW_SAYS(flag_if(o.step.optimizer.low_precision_param_gather && costmodel::is_fp8(o.layer.precision))),
       .read = read_fp8_param_gather},
      {.key = "optimizer.fp4_param_gather",
       .members = {"fp4_param_gather"},
       .says = FW_SAYS(
           flag_if(o.step.optimizer.low_precision_param_gather && o.layer.precision == costmodel::Precision::kNvfp4)),
       .read = FW_READS(r.settings.has("fp4") ? given(r, "fp4_param_gather") : json(nullptr))},
      {.key = "optimizer.reuse_grad_buffer",
       .members = {"reuse_grad_buf_for_mxfp8_param_ag"},
       .says = FW_SAYS(flag_if(reuses_grad_buffer(o)))},
      {.key = "software.attention",
       .members = {"attention_backend"},
       .says = FW_SAYS(o.layer.software.fused_attention ? "auto" : "unfused"),
       .read = read_attention},
      {.key = "software.transformer_impl",
       .members = {"transformer_impl"},
       .says = FW_SAYS(value_if(!o.layer.software.transformer_engine, "local")),
       .read = read_transformer_impl},
      {.key = "software.experts",
       .members = {"moe_grouped_gemm", "use_transformer_engine_op_fuser"},
       .write = write_experts,
       .read = read_experts},
      {.key = "software.permute",
       .members = {"moe_permute_fusion"},
       .says = FW_SAYS(flag_if(w.run.model.has_moe() && o.layer.software.fused_permute)),
       .read = FW_READS(r.settings.on("moe_permute_fusion") ? json("fused") : json(nullptr))},
      {.key = "software.router_fusion",
       .members = {"moe_router_fusion"},
       .says = FW_SAYS(flag_if(w.run.model.has_moe() && o.layer.software.fused_router))},
      {.key = "software.cross_entropy",
       .members = {"cross_entropy_loss_fusion", "cross_entropy_fusion_impl"},
       .write = write_cross_entropy,
       .read = read_cross_entropy},
      {.key = "software.router_dtype",
       .members = {"moe_router_dtype"},
       .says = FW_SAYS(value_if(w.run.model.has_moe() && o.layer.software.router_fp32, "fp32")),
       .read = FW_READS(given(r, "moe_router_dtype"))},
  };
  return table;
}

#undef FW_SAYS
#undef FW_READS

const Form* form_of(std::string_view key) {
  const auto found = std::ranges::find(forms(), key, &Form::key);
  return found == forms().end() ? nullptr : &*found;
}

}  // namespace foldwise::planner

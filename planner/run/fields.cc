#include "planner/run/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>
#include <stdexcept>
#include <utility>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/number.h"
#include "costmodel/ops/dispatcher.h"
#include "planner/run/count.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using costmodel::ModelSpec;
using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

using namespace costmodel;  // NOLINT(google-build-using-namespace): a table of its options.

// Bounds that only typing mistakes exceed. Products of three sizes fit 64 bits.
constexpr double kMostGpus = 1'000'000, kMostSequences = 16'777'216, kLongestSequence = 16'777'216, kMostRanks = 65'536;

// A function that returns the member at a path, for const and mutable options.
#define FW_AT(path) \
  [](auto& o) -> auto& { return o.path; }  // NOLINT(bugprone-macro-parentheses): a member's name.
#define FW_WHEN(condition) [](const TrainingOptions& o) -> bool { return condition; }
#define FW_MATTERS(condition)                                \
  [](const ModelSpec& m, const TrainingOptions& o) -> bool { \
    (void)m;                                                 \
    (void)o;                                                 \
    return condition;                                        \
  }

#define FW_TRIED(...)                           \
  [](const PlanFacts& f) -> std::vector<json> { \
    (void)f;                                    \
    return __VA_ARGS__;                         \
  }

// ---- Values --------------------------------------------------------------------------------------------------------

template <typename Member>
FieldValue integer(Member member, double low, double high) {
  return {.type = FieldType::kInteger,
          .low = low,
          .high = high,
          .get = [member](const TrainingOptions& o) { return json(member(o)); },
          .set = [member](TrainingOptions& o, const json& v) { member(o) = v.get<std::int64_t>(); }};
}

template <typename Member>
FieldValue number(Member member, double low, double high) {
  return {.type = FieldType::kNumber,
          .low = low,
          .high = high,
          .get = [member](const TrainingOptions& o) { return json(member(o)); },
          .set = [member](TrainingOptions& o, const json& v) { member(o) = v.get<double>(); }};
}

template <typename Member>
FieldValue optional_number(Member member, double low, double high) {
  return {.type = FieldType::kNumber,
          .low = low,
          .high = high,
          .get = [member](const TrainingOptions& o) { return member(o) ? json(*member(o)) : json(nullptr); },
          .set =
              [member](TrainingOptions& o, const json& v) {
                if (v.is_null())
                  member(o).reset();
                else
                  member(o) = v.get<double>();
              }};
}

template <typename Member>
FieldValue boolean(Member member) {
  return {.type = FieldType::kBoolean,
          .get = [member](const TrainingOptions& o) { return json(static_cast<bool>(member(o))); },
          .set = [member](TrainingOptions& o, const json& v) { member(o) = v.get<bool>(); }};
}

template <typename Member>
FieldValue text(Member member) {
  return {.type = FieldType::kText,
          .get = [member](const TrainingOptions& o) { return member(o).empty() ? json(nullptr) : json(member(o)); },
          .set = [member](TrainingOptions& o,
                          const json& v) { member(o) = v.is_null() ? std::string() : v.get<std::string>(); }};
}

template <typename Enum>
void take_names(FieldValue& value, const Names<Enum>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool first = std::none_of(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i),
                                    [&](const auto& earlier) { return earlier.second == names[i].second; });
    (first ? value.names : value.also).push_back(names[i].first);
  }
}

template <typename Enum>
Enum value_in(const Names<Enum>& names, const std::string& name) {
  for (const auto& [known, value] : names)
    if (known == name) return value;
  throw std::logic_error("no such name: " + name);
}

/// One of `names`, which lives as long as the program. `Get` and `Set` convert if the member has another type.
template <typename Enum, typename Get, typename Set>
FieldValue name(const Names<Enum>& names, Get get, Set set) {
  FieldValue value{.type = FieldType::kName,
                   .get = [&names, get](const TrainingOptions& o) { return json(name_in<Enum>(names, get(o))); },
                   .set = [&names, set](TrainingOptions& o,
                                        const json& v) { set(o, value_in(names, v.get_ref<const std::string&>())); }};
  take_names(value, names);
  return value;
}
template <typename Enum, typename Member>
FieldValue name(const Names<Enum>& names, Member member) {
  return name(
      names, [member](const TrainingOptions& o) { return static_cast<Enum>(member(o)); },
      [member](TrainingOptions& o, Enum v) { member(o) = v; });
}

/// A list of `names`. Bits of `kept` have no name, and setting a list keeps them.
template <typename Enum, typename Member>
FieldValue name_list(const Names<Enum>& names, Member member, BitSet<Enum> kept = {}) {
  FieldValue value{.type = FieldType::kNames,
                   .get = [&names, member](const TrainingOptions& o) { return json(names_in(names, member(o))); },
                   .set =
                       [&names, member, kept](TrainingOptions& o, const json& v) {
                         BitSet<Enum> bits = member(o) & kept;
                         for (const json& item : v) bits = bits | value_in(names, item.get_ref<const std::string&>());
                         member(o) = bits;
                       }};
  take_names(value, names);
  return value;
}

/// A key that fills no member. The reader's code interprets it.
FieldValue key_of(FieldType type, double low = 0.0, double high = 0.0) {
  return {.type = type, .low = low, .high = high, .get = {}, .set = {}};
}

/// A text that must match a pattern and fills no member.
FieldValue text_like(std::string pattern, std::string form) {
  FieldValue value = key_of(FieldType::kText);
  value.pattern = std::move(pattern);
  value.form = std::move(form);
  return value;
}

// ---- Names of values that are no enumeration of the cost model ------------------------------------------------------

enum class Task : std::uint8_t { kPretrain, kSft, kLora };
const Names<Task> task_names = {{"pretrain", Task::kPretrain}, {"sft", Task::kSft}, {"lora", Task::kLora}};
const Names<bool> transformer_impls = {{"transformer_engine", true}, {"local", false}};
const Names<bool> attention_names = {{"fused", true},
                                     {"unfused", false},
                                     {"cuDNN fused", true},
                                     {"torch SDPA, cuDNN kernel", true},
                                     {"unfused (baddbmm, softmax, bmm)", false}};
const Names<bool> permute_names = {{"fused", true}, {"unfused", false}};
const Names<bool> router_dtypes = {{"fp32", true}, {"bf16", false}, {"fp64", true}};
const Names<bool> router_operands = {{"fp32", true}, {"bf16", false}};
const Names<Experts> expert_names = {{"sequential", Experts::kSequential},
                                     {"grouped", Experts::kGrouped},
                                     {"cutlass", Experts::kCutlass},
                                     {"fused", Experts::kFused},
                                     {"sequential MLP per expert", Experts::kSequential},
                                     {"grouped GEMM", Experts::kGrouped},
                                     {"TEGroupedMLP", Experts::kGrouped},
                                     {"fused grouped MLP", Experts::kFused}};
const Names<CrossEntropy> loss_names = {{"unfused", CrossEntropy::kUnfused},
                                        {"native", CrossEntropy::kNative},
                                        {"te", CrossEntropy::kTransformerEngine},
                                        {"torch", CrossEntropy::kTorch},
                                        {"TE", CrossEntropy::kTransformerEngine},
                                        {"TE (Triton)", CrossEntropy::kTransformerEngine},
                                        {"torch.compile (native fusion)", CrossEntropy::kNative},
                                        {"torch, fp32 logits", CrossEntropy::kTorch}};

/// For the cost model, fine-tuning of all weights is pretraining. Run::task keeps the word.
FieldValue task() {
  return name(
      task_names, [](const TrainingOptions& o) { return o.layer.lora ? Task::kLora : Task::kPretrain; },
      [](TrainingOptions& o, Task v) { o.layer.lora = v == Task::kLora; });
}

/// Two flags set one member: low-precision parameters are FP4 in NVFP4 runs and FP8 in all others.
FieldValue param_gather(bool fp4) {
  return {
      .type = FieldType::kBoolean,
      .get =
          [fp4](const TrainingOptions& o) {
            return json(o.step.optimizer.low_precision_param_gather && (o.layer.precision == Precision::kNvfp4) == fp4);
          },
      .set =
          [fp4](TrainingOptions& o, const json& v) {
            const bool decides = (o.layer.precision == Precision::kNvfp4) == fp4;
            if (decides) o.step.optimizer.low_precision_param_gather = v.get<bool>();
          }};
}

FieldValue hierarchical_sizes() {
  FieldValue value = key_of(FieldType::kIntegers, 1, kMostGpus);
  value.get = [](const TrainingOptions& o) {
    const std::int64_t first = o.layer.cp_a2a_size;
    return first > 0 ? json{first, o.layer.cp / first} : json(nullptr);
  };
  // The second size follows from cp; derive.cc checks it.
  value.set = [](TrainingOptions& o, const json& v) {
    o.layer.cp_a2a_size = v.empty() ? 0 : v.front().get<std::int64_t>();
  };
  return value;
}

FieldValue offload_type() {
  return {.type = FieldType::kName,
          .names = {"fine-grained-activation", "layer-cpu-offload"},
          .get =
              [](const TrainingOptions& o) {
                if (o.layer.offload_modules.contains(OffloadModule::kLayer)) return json("layer-cpu-offload");
                return o.layer.offload_modules.empty() ? json(nullptr) : json("fine-grained-activation");
              },
          .set =
              [](TrainingOptions& o, const json& v) {
                if (v == "layer-cpu-offload") o.layer.offload_modules = o.layer.offload_modules | OffloadModule::kLayer;
                if (v.is_null()) {  // Clears the members that tell the two kinds apart.
                  o.layer.offload_modules = {};
                  o.pipeline.cpu_offloading_num_layers = 0;
                }
              }};
}

FieldValue optimizer_offload() {
  return {
      .type = FieldType::kBoolean,
      .get = [](const TrainingOptions& o) { return json(o.step.offload.optimizer_fraction > 0.0); },
      .set = [](TrainingOptions& o, const json& v) { o.step.offload.optimizer_fraction = v.get<bool>() ? 1.0 : 0.0; }};
}

/// Older releases spell whole-iteration and whole-layer graphs as scopes.
FieldValue graph_scope() {
  FieldValue value = name_list(graph_module_names(), FW_AT(layer.cuda_graph.modules));
  value.also = {"full", "full_iteration"};
  value.set = [set = value.set](TrainingOptions& o, const json& v) {
    json modules = json::array();
    for (const json& item : v) {
      if (item == "full_iteration" && o.layer.cuda_graph.impl != GraphImpl::kNone)
        o.layer.cuda_graph.impl = GraphImpl::kFullIteration;
      if (item != "full_iteration" && item != "full") modules.push_back(item);
    }
    set(o, modules);
  };
  return value;
}

bool bf16_moments(const costmodel::Optimizer& optimizer) {
  return optimizer.kind == OptimizerKind::kAdam && optimizer.precision_aware && optimizer.exp_avg == DataType::kBf16 &&
         optimizer.exp_avg_sq == DataType::kBf16;
}
bool quantized(const TrainingOptions& o) { return costmodel::is_quantised(o.layer.precision); }
bool recomputes(const TrainingOptions& o, RecomputeGranularity granularity) {
  return o.layer.recompute.granularity == granularity;
}

// ---- What a search tries -------------------------------------------------------------------------------------------

/// Divisors of n up to `most`, ascending.
std::vector<json> divisors(std::int64_t n, std::int64_t most) {
  std::vector<json> list;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) list.emplace_back(d);
  return list;
}

std::vector<json> counts(std::int64_t from, std::int64_t to, std::int64_t step = 1) {
  std::vector<json> list;
  for (std::int64_t n = from; n <= to; n += step) list.emplace_back(n);
  return list;
}

/// Up to 32 numbers of layers. For a larger model only every second, fourth, ... number.
std::vector<json> layer_counts(std::int64_t most) {
  constexpr std::int64_t kMost = 32;
  std::int64_t step = 1;
  while (most / step > kMost) step *= 2;
  return counts(step, most, step);
}

std::vector<json> either() { return {false, true}; }

/// Every subset of `names` that `legal` accepts, smaller ones first.
std::vector<json> subsets(const std::vector<std::string>& names,
                          const std::function<bool(const std::function<bool(std::string_view)>& has)>& legal) {
  std::vector<json> list;
  for (std::size_t size = 0; size <= names.size(); ++size)
    for (std::uint32_t bits = 0; bits < (1u << names.size()); ++bits) {
      json subset = json::array();
      for (std::size_t i = 0; i < names.size(); ++i)
        if ((bits >> i & 1u) != 0) subset.push_back(names[i]);
      const auto has = [&](std::string_view name) {
        return std::find(subset.begin(), subset.end(), name) != subset.end();
      };
      if (subset.size() == size && legal(has)) list.push_back(std::move(subset));
    }
  return list;
}

bool has_dense_mlp(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const LayerSpec& layer) { return layer.mlp == MlpKind::kDense; });
}
bool has_latent_attention(const ModelSpec& model) {
  return model.find<MlaSpec>() != nullptr || model.find<CompressedSpec>() != nullptr;
}

/// Subsets that free different tensors: moe includes what moe_act and shared_experts free.
std::vector<json> recompute_subsets(const PlanFacts& f) {
  std::vector<std::string> names = {"core_attn", "layernorm"};
  if (has_latent_attention(f.model)) names.emplace_back("mla_up_proj");
  if (has_dense_mlp(f.model)) names.emplace_back("mlp");
  if (f.model.has_moe()) names.insert(names.end(), {"moe_act", "moe"});
  if (f.model.moe.shared_ffn_hidden_size > 0) names.emplace_back("shared_experts");
  std::vector<json> list =
      subsets(names, [](const auto& has) { return !has("moe") || (!has("moe_act") && !has("shared_experts")); });
  list.erase(list.begin());  // The empty subset recomputes nothing.
  return list;
}

std::vector<json> offload_subsets(const PlanFacts& f) {
  std::vector<std::string> names = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"};
  if (f.model.has_moe()) names.insert(names.end(), {"expert_fc1", "moe_act"});
  if (f.model.has_moe() && f.hardware.supports(Precision::kMxfp8)) names.emplace_back("fused_group_mlp");
  return subsets(names, [](const auto& has) {
    return (!has("attn_proj") || has("core_attn")) &&
           (!has("fused_group_mlp") || (!has("expert_fc1") && !has("moe_act")));
  });
}

/// What Transformer Engine's or Megatron's per-layer graphs can capture if the number of tokens of an expert varies.
std::vector<json> graph_subsets(const PlanFacts& f) {
  std::vector<std::string> names;
  const auto has_attention = [](const Mixer& mixer) { return !std::holds_alternative<MambaSpec>(mixer); };
  if (std::any_of(f.model.mixers.begin(), f.model.mixers.end(), has_attention)) names.emplace_back("attn");
  if (f.model.find<MambaSpec>() != nullptr) names.emplace_back("mamba");
  if (has_dense_mlp(f.model)) names.emplace_back("mlp");
  if (f.model.has_moe()) names.insert(names.end(), {"moe_router", "moe_preprocess"});
  return subsets(names, [](const auto& has) { return !has("moe_preprocess") || has("moe_router"); });
}

std::vector<std::string> dispatcher_flags() {
  std::vector<std::string> flags;
  for (const costmodel::DispatcherSpec& spec : costmodel::dispatcher_specs()) flags.emplace_back(spec.flag);
  return flags;
}
std::vector<json> dispatchers(const PlanFacts& f) {
  std::vector<json> list = {"alltoall"};
  for (const Dispatcher flex : f.hardware.traits.flex_dispatchers) list.emplace_back(name_of(flex));
  list.emplace_back("allgather");
  return list;
}

/// "unfused" only where the release cannot fuse permutation beside every dispatcher (moe.allgather_permute).
std::vector<json> permutes(const PlanFacts& f) {
  std::vector<json> list = {"fused"};
  if (f.release != nullptr && in_releases("", "0.16.1").has(*f.release)) list.emplace_back("unfused");
  return list;
}

std::vector<json> experts_kernels(const PlanFacts& f) {
  std::vector<json> list = {"grouped"};
  if (f.hardware.gemm.at(static_cast<std::size_t>(costmodel::MathFormat::kBf16)).one_kernel_memory_share > 0.0)
    list.emplace_back("cutlass");
  if (f.hardware.supports(Precision::kMxfp8)) list.emplace_back("fused");
  return list;
}

/// --moe-expert-rank-capacity-factor in the recipes of Megatron-Bridge that capture the whole iteration
/// (src/megatron/bridge/perf_recipes/deepseek/common.py:63, qwen/common.py:45, gpt_oss/common.py:30 of August 2026).
constexpr double kRankCapacity = 1.5;

/// Experts in one fused kernel, captured in a graph of the whole iteration, need fixed shapes.
bool captures_fused_experts(const TrainingOptions& o) {
  return o.layer.cuda_graph.impl == GraphImpl::kFullIteration && o.layer.software.experts == Experts::kFused &&
         o.layer.dispatcher == Dispatcher::kHybridEp;
}

// Larger values gain nothing over smaller ones. A user may name any value.
constexpr std::int64_t kMostSequencesTried = 64, kMostTensorParallelTried = 32, kMostContextParallelTried = 64,
                       kMostStagesTried = 64, kMostChunksTried = 32;

// ---- The table -----------------------------------------------------------------------------------------------------

std::vector<Field> make_fields() {
  const json none = nullptr;
  std::vector<Field> table = {
      // ---- What is trained, on what ----
      {.key = "model",
       .value = key_of(FieldType::kText),
       .doc = "Built-in name, path of a Hugging Face config.json, or an object with its keys. Required"},
      {.key = "model_overrides", .value = key_of(FieldType::kObject), .doc = "Keys of that file to replace"},
      {.key = "mtp",
       .value = key_of(FieldType::kInteger, 0, 16),
       .flags = {"--mtp-num-layers"},
       .numerics = true,
       .doc =
           "Depth of multi-token prediction; true and false also. Silent: the model's, or none where pipeline_layout "
           "has no m"},
      {.key = "mtp_use_repeated_layer",
       .value = key_of(FieldType::kBoolean),
       .flags = {"--mtp-use-repeated-layer"},
       .releases = in_releases("0.17.1"),
       .numerics = true,
       .doc = "Depths share one layer's weights. Silent: the model's"},
      {.key = "system", .value = key_of(FieldType::kText), .doc = "Built-in name, or path of a profile. Required"},
      {.key = "system_overrides",
       .value = key_of(FieldType::kObject),
       .doc = R"(Numbers of that profile to replace, with their units: {"hbm.capacity": "192 GiB"})"},
      {.key = "num_gpus", .value = key_of(FieldType::kInteger, 1, kMostGpus), .unit = "GPUs", .doc = "Required"},
      {.key = "defaults",
       .value = key_of(FieldType::kText),
       .doc = "Set of defaults that silent fields take: a built-in name, or path of a file. Silent: megatron-lm-0.16"},
      {.key = "release",
       .value = {.type = FieldType::kName, .names = release_names()},
       .doc = "Of Megatron-Core, with the software that it is run with: what it has not, the run cannot have. Silent: "
              "none, and what holds in some releases alone is not asked"},
      {.key = "task",
       .value = task(),
       .megatron = "pretrain",
       .numerics = true,
       .doc = "lora freezes all but adapters"},
      {.key = "precision",
       .value = name(precision_names(), FW_AT(layer.precision)),
       .megatron = "bf16",
       .flags = {"--fp8-recipe", "--bf16", "--fp8-format", "--fp4-format", "--fp4-recipe"},
       .name_flags = {"bf16", "--fp8-recipe delayed", "--fp8-recipe tensorwise", "--fp8-recipe blockwise",
                      "--fp8-recipe mxfp8", "--fp4-recipe nvfp4", "--fp16"},
       .numerics = true,
       .limited = {{.value = "fp8-delayed",
                    .needs = "Transformer Engine 1.0",
                    .source = "core_v0.19.0 megatron/core/fp8_utils.py:732"},
                   {.value = "fp8-current",
                    .needs = "Transformer Engine 2.2",
                    .source = "core_v0.19.0 megatron/core/fp8_utils.py:739"},
                   {.value = "fp8-blockwise",
                    .needs = "Transformer Engine 2.3",
                    .source = "core_v0.19.0 megatron/core/fp8_utils.py:743"},
                   {.value = "mxfp8",
                    .needs = "Transformer Engine 2.1",
                    .source = "core_v0.19.0 megatron/core/fp8_utils.py:747"},
                   {.value = "nvfp4",
                    .needs = "Transformer Engine 2.7",
                    .source = "core_v0.19.0 megatron/training/arguments.py:1073"}},
       .doc = "Recipe of the linears' products; fp16 has loss scaling. fp8-unspecified is the GPU's usual FP8 recipe, "
              "fp8-rowwise is read as fp8-current",
       .matters = FW_MATTERS(true)},
      {.key = "fp8_attention",
       .value = boolean(FW_AT(layer.fp8_attention)),
       .megatron = false,
       .flags = {"--fp8-dot-product-attention"},
       .numerics = true,
       .doc = "Attention's two products in FP8",
       .when = "precision is one of FP8 or FP4",
       .applies = FW_WHEN(is_quantised(o.layer.precision)),
       .decided_by = {"precision"}},
      {.key = "hidden_dropout",
       .value = number(FW_AT(layer.hidden_dropout), 0.0, 1.0),
       .megatron = 0.0,
       .flags = {"--hidden-dropout"},
       .numerics = true,
       .doc =
           "Share of values that are set to zero behind attention, MLP and embedding; a mask of a byte each is kept. "
           "Megatron's own default is 0.1, which import writes"},
      {.key = "attention_dropout",
       .value = number(FW_AT(layer.attention_dropout), 0.0, 1.0),
       .megatron = 0.0,
       .flags = {"--attention-dropout"},
       .numerics = true,
       .doc =
           "Likewise of the scores: 3 bytes of each are kept without fused attention. What fused kernels lose is not "
           "measured. Megatron's own default is 0.1, which import writes"},

      // ---- Sizes ----
      {.key = "seq_len",
       .value = integer(FW_AT(layer.seq_len), 1, kLongestSequence),
       .unit = "tokens",
       .flags = {"--seq-length"},
       .numerics = true,
       .doc = "Of one sequence. Required"},
      {.key = "micro_batch",
       .value = integer(FW_AT(layer.micro_batch), 1, kMostRanks),
       .saves_time = true,
       .megatron = 1,
       .unit = "sequences",
       .flags = {"--micro-batch-size"},
       .doc = "Of one data-parallel rank at a time",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(divisors(f.global_batch, kMostSequencesTried))},
      {.key = "global_batch",
       .value = integer(FW_AT(pipeline.global_batch), 1, kMostSequences),
       .unit = "sequences",
       .flags = {"--global-batch-size"},
       .numerics = true,
       .doc = "Of one step. Silent: micro_batch x dp; required in a measured run"},
      {.key = "tp",
       .value = integer(FW_AT(layer.tp), 1, kMostRanks),
       .parallel = true,
       .megatron = 1,
       .unit = "ranks",
       .flags = {"--tensor-model-parallel-size"},
       .doc = "Tensor parallel: a layer's weights are split over them",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(divisors(f.num_gpus, kMostTensorParallelTried)),
       .plain = {.values = {1}, .without = "no tensor parallelism"}},
      {.key = "cp",
       .value = integer(FW_AT(layer.cp), 1, kMostRanks),
       .parallel = true,
       .megatron = 1,
       .unit = "ranks",
       .flags = {"--context-parallel-size"},
       .doc = "Context parallel: a sequence is split over them",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(
           divisors(f.num_gpus, std::min(kMostContextParallelTried, std::max<std::int64_t>(1, f.seq_len / 2)))),
       .plain = {.values = {1}, .without = "no context parallelism"}},
      {.key = "dp",
       .value = integer(FW_AT(step.dp), 1, kMostGpus),
       .level = Level::kStep,
       .unit = "ranks",
       .doc = "Data parallel. Silent: num_gpus / (tp x cp x pp)"},
      {.key = "pp",
       .value = integer(FW_AT(pipeline.pp), 1, kMostRanks),
       .level = Level::kPipeline,
       .parallel = true,
       .megatron = 1,
       .unit = "ranks",
       .flags = {"--pipeline-model-parallel-size"},
       .doc = "Pipeline parallel: layers are split over them",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(divisors(f.num_gpus, std::min(kMostStagesTried, f.model.num_layers() + 2))),
       .plain = {.values = {1}, .without = "no pipeline"}},
      {.key = "vpp",
       .value = integer(FW_AT(pipeline.vpp), 1, 1000),
       .level = Level::kPipeline,
       .saves_time = true,
       .megatron = 1,
       .unit = "chunks",
       .flags = {"--num-virtual-stages-per-pipeline-rank"},
       .bridge = {{"num_virtual_stages_per_pipeline_rank", "None"}},
       .doc = "Of the model on a pipeline rank; above 1 interleaves. Silent with pipeline_layout: its stages / pp",
       .matters = FW_MATTERS(o.pipeline.pp > 1),
       .tried = FW_TRIED(counts(1, std::min(kMostChunksTried, f.model.num_layers() + 2))),
       .plain = {.values = {1}, .without = "no interleaving"}},
      {.key = "use_tp_pp_dp_mapping",
       .value = boolean(FW_AT(pipeline.tp_pp_dp)),
       .level = Level::kPipeline,
       .megatron = false,
       .flags = {"--use-tp-pp-dp-mapping"},
       .bridge = {{"use_tp_pp_dp_mapping", "False"}},
       .doc = "Pipeline ranks are neighbours and data-parallel ranks lie apart, not the other way about",
       .tried = FW_TRIED(f.num_gpus > f.hardware.network.ranks_per_domain ? either() : std::vector<json>{false}),
       .differs = FW_WHEN(o.pipeline.pp > 1 && o.step.dp > 1),
       .decided_by = {"tp", "cp", "pp"},
       .plain = {.values = {false}, .without = "no tp-pp-dp mapping", .burden = 4}},
      {.key = "ep",
       .value = integer(FW_AT(layer.ep), 1, kMostRanks),
       .level = Level::kExperts,
       .parallel = true,
       .megatron = 1,
       .unit = "ranks",
       .flags = {"--expert-model-parallel-size"},
       .doc = "Expert parallel: a layer's experts are split over them",
       .matters = FW_MATTERS(m.has_moe()),
       .tried = FW_TRIED(f.model.has_moe() ? divisors(f.model.moe.experts, f.num_gpus) : std::vector<json>{1}),
       .plain = {.values = {1}, .without = "no expert parallelism"}},
      {.key = "etp",
       .value = integer(FW_AT(layer.etp), 1, kMostRanks),
       .level = Level::kExperts,
       .parallel = true,
       .megatron = "tp",
       .unit = "ranks",
       .flags = {"--expert-tensor-parallel-size"},
       .doc = "Tensor parallel within an expert",
       .matters = FW_MATTERS(m.has_moe()),
       .tried = FW_TRIED(f.model.has_moe() ? divisors(f.num_gpus, kMostTensorParallelTried) : std::vector<json>{1}),
       .plain = {.values = {1}, .without = "no tensor parallelism in experts"}},
      {.key = "sequence_parallel",
       .value = boolean(FW_AT(layer.sequence_parallel)),
       .megatron = true,
       .flags = {"--sequence-parallel"},
       .bridge = {{"sequence_parallel", "False"}},
       .doc = "Tensor-parallel ranks share out the tokens between the linears. Megatron's own default is false, which "
              "experts do not allow",
       .when = "tp > 1",
       .applies = FW_WHEN(o.layer.tp > 1),
       .decided_by = {"tp"}},

      // ---- Data parallelism ----
      {.key = "sharding",
       .value = name(sharding_names(), FW_AT(step.sharding)),
       .level = Level::kStep,
       .megatron = "ddp",
       .flags = {"--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy"},
       .name_flags = {"no --use-distributed-optimizer", "--use-distributed-optimizer",
                      "--data-parallel-sharding-strategy optim_grads_params", "--data-parallel-sharding-strategy optim",
                      "--data-parallel-sharding-strategy optim_grads"},
       .bridge = {{"data_parallel_sharding_strategy", "\"no_shard\""},
                  {"use_distributed_optimizer", "False"},
                  {"use_megatron_fsdp", "False"}},
       .doc = "What of parameters, gradients and optimizer states data-parallel ranks share out; zero1 is ddp-distopt",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED({"ddp-distopt", "ddp", "fsdp-optim", "fsdp-optim-grads", "fsdp"}),
       .plain = {.values = {"ddp", "ddp-distopt"}, .without = "no FSDP", .burden = 3},
       .usual = "ddp-distopt"},
      {.key = "fsdp_group",
       .value = integer(FW_AT(step.fsdp_group), 0, kMostGpus),
       .level = Level::kStep,
       .saves_time = true,
       .megatron = 0,
       .unit = "ranks",
       .flags = {"--num-distributed-optimizer-instances"},
       .doc = "Over which FSDP shards; 0 is dp x cp, less is HSDP",
       .tried = FW_TRIED({0, 2, 4, 8, 16, 32, 64}),
       .differs = FW_WHEN(is_fsdp(o.step.sharding)),
       .decided_by = {"sharding"}},
      {.key = "fsdp_outer_optim",
       .value = boolean(FW_AT(step.fsdp_outer_optim)),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--outer-dp-sharding-strategy"},
       .bridge = {{"outer_dp_sharding_strategy", "\"no_shard\""}},
       .doc = "HSDP shards the optimizer over its groups too",
       .tried = FW_TRIED(either()),
       .differs = FW_WHEN(is_fsdp(o.step.sharding) && o.step.fsdp_group > 0),
       .decided_by = {"sharding", "fsdp_group"}},
      {.key = "num_distributed_optimizer_instances",
       .value = integer(FW_AT(step.optimizer_instances), 1, kMostGpus),
       .level = Level::kStep,
       .saves_time = true,
       .megatron = 1,
       .flags = {"--num-distributed-optimizer-instances"},
       .bridge = {{"num_distributed_optimizer_instances", "1"}},
       .doc = "Copies of the optimizer's shards among the data-parallel ranks",
       .tried = FW_TRIED({1, 2, 4, 8}),
       .differs = FW_WHEN(o.step.sharding == Sharding::kDdpDistributedOptimizer),
       .decided_by = {"sharding"}},
      {.key = "ddp_pad_buckets_for_high_nccl_busbw",
       .value = boolean(FW_AT(step.pad_buckets_for_high_nccl_busbw)),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--ddp-pad-buckets-for-high-nccl-busbw"},
       .doc = "Buckets of gradients padded to multiples of 2^16 elements"},

      // ---- Context parallelism ----
      {.key = "cp_comm_type",
       .value = name(cp_comm_names(), FW_AT(layer.cp_comm)),
       .saves_time = true,
       .megatron = "p2p",
       .flags = {"--cp-comm-type"},
       .bridge = {{"cp_comm_type", "None"}},
       .limited = {{.value = "a2a+p2p",
                    .needs = "Transformer Engine 1.12",
                    .source = "core_v0.19.0 megatron/core/extensions/transformer_engine.py:1873"}},
       .doc = "How context-parallel ranks exchange keys and values",
       .matters = FW_MATTERS(o.layer.cp > 1),
       .tried = FW_TRIED({"p2p", "all_gather", "a2a", "a2a+p2p"})},
      {.key = "hierarchical_context_parallel_sizes",
       .value = hierarchical_sizes(),
       .unit = "ranks",
       .flags = {"--hierarchical-context-parallel-sizes"},
       .bridge = {{"hierarchical_context_parallel_sizes", "None"}},
       .doc = "With a2a+p2p: those of the all-to-all, those of the ring; their product is cp",
       .when = "cp_comm_type is a2a+p2p",
       .applies = FW_WHEN(o.layer.cp_comm == CpComm::kA2aP2p),
       .tried = FW_TRIED({json{2, 0}, json{4, 0}, json{8, 0}}),
       .differs = FW_WHEN(o.layer.cp > 1),
       .decided_by = {"cp_comm_type", "cp"}},

      // ---- Experts ----
      {.key = "dispatcher",
       .value = name(dispatcher_names(), FW_AT(layer.dispatcher)),
       .level = Level::kExperts,
       .saves_time = true,
       .megatron = "allgather",
       .flags = {"--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"},
       .name_flags = dispatcher_flags(),
       .limited = {{.value = "deepep",
                    .needs = "DeepEP",
                    .source = "core_v0.19.0 megatron/core/transformer/moe/fused_a2a.py:11"},
                   {.value = "hybridep",
                    .needs = "DeepEP of its branch hybrid-ep",
                    .source = "core_v0.19.0 megatron/core/transformer/moe/fused_a2a.py:271"}},
       .doc = "What takes tokens to their experts' ranks and back",
       .matters = FW_MATTERS(m.has_moe()),
       .tried = FW_TRIED(dispatchers(f)),
       .plain = {.values = {"alltoall"}, .without = "dispatcher alltoall", .burden = 11},
       .usual = "alltoall"},
      {.key = "token_drop",
       .value = key_of(FieldType::kBoolean),
       .doc = "Short for capacity_factor 1 with pad_to_capacity"},
      {.key = "capacity_factor",
       .value = optional_number(FW_AT(layer.capacity_factor), 0.01, 1000.0),
       .flags = {"--moe-expert-capacity-factor"},
       .bridge = {{"moe_expert_capacity_factor", "None"}},
       .numerics = true,
       .doc = "Most rows of an expert over those of balanced routing; none drops no token"},
      {.key = "pad_to_capacity",
       .value = boolean(FW_AT(layer.pad_to_capacity)),
       .level = Level::kExperts,
       .megatron = false,
       .flags = {"--moe-pad-expert-input-to-capacity"},
       .bridge = {{"moe_pad_expert_input_to_capacity", "False"}},
       .doc = "Every expert computes as many rows as it may take"},
      {.key = "rank_capacity_factor",
       .value = optional_number(FW_AT(layer.rank_capacity_factor), 0.01, 1000.0),
       .level = Level::kExperts,
       .flags = {"--moe-expert-rank-capacity-factor"},
       .releases = in_releases("0.18.2"),
       .bridge = {{"moe_expert_rank_capacity_factor", "None"}},
       .doc =
           "Rows that a rank's buffers hold over those of balanced routing, so that a graph's shapes are fixed; a step "
           "with more is run again without its graph. None: as many as arrive",
       .tried = FW_TRIED({kRankCapacity}),
       .differs = FW_WHEN(captures_fused_experts(o)),
       .decided_by = {"cuda_graph.impl", "software.experts", "dispatcher"}},
      {.key = "paged_stash",
       .value = boolean(FW_AT(layer.paged_stash)),
       .level = Level::kExperts,
       .megatron = false,
       .flags = {"--moe-paged-stash"},
       .releases = in_releases("0.18.2"),
       .bridge = {{"moe_paged_stash", "False"}},
       .doc =
           "What experts keep for backward lies in a pool of pages, 1.1 of the balanced rows large, not in buffers of "
           "the rank's capacity",
       .tried = FW_TRIED(either()),
       .differs = FW_WHEN(captures_fused_experts(o) && o.layer.rank_capacity_factor),
       .decided_by = {"cuda_graph.impl", "software.experts", "dispatcher", "rank_capacity_factor"}},
      {.key = "expert_load",
       .value = number(FW_AT(layer.expert_load), 0.01, 1000.0),
       .level = Level::kExperts,
       .megatron = 1.0,
       .doc = "Rows of the rank's experts over those of balanced routing, to see an imbalanced rank's time and memory"},

      // ---- Pipeline ----
      {.key = "schedule",
       .value = name(schedule_names(), FW_AT(pipeline.schedule)),
       .level = Level::kPipeline,
       .megatron = "1f1b",
       .flags = {"--schedule"},
       .doc = "Megatron runs 1f1b (interleaved where vpp > 1); the others are for study (docs/formulas.md#pipeline). "
              "The flag is ours"},
      {.key = "microbatch_group_size",
       .value = integer(FW_AT(pipeline.microbatch_group_size), 0, kMostRanks),
       .level = Level::kPipeline,
       .saves_time = true,
       .megatron = 0,
       .unit = "micro-batches",
       .flags = {"--microbatch-group-size-per-virtual-pipeline-stage"},
       .bridge = {{"microbatch_group_size_per_vp_stage", "None"}},
       .doc = "That pass a chunk before the next; 0 is pp",
       .tried = FW_TRIED({0, 4, 8, 16, 32, 64, 128}),
       .differs = FW_WHEN(o.pipeline.vpp > 1),
       .decided_by = {"vpp"}},
      {.key = "pipeline_layout",
       .value = text(FW_AT(pipeline.layout)),
       .level = Level::kPipeline,
       .flags = {"--pipeline-model-parallel-layout"},
       .bridge = {{"pipeline_model_parallel_layout", "None"}},
       .doc =
           "Stages as Megatron's string: E embedding, t layer, m MTP, L loss, | between stages. Silent: an even split"},
      {.key = "decoder_first_pipeline_num_layers",
       .value = key_of(FieldType::kInteger, 1, 100'000),
       .unit = "layers",
       .flags = {"--decoder-first-pipeline-num-layers"},
       .bridge = {{"decoder_first_pipeline_num_layers", "None"}},
       .doc = "Of the first pipeline rank; read as the layout that it comes to"},
      {.key = "decoder_last_pipeline_num_layers",
       .value = key_of(FieldType::kInteger, 1, 100'000),
       .unit = "layers",
       .flags = {"--decoder-last-pipeline-num-layers"},
       .bridge = {{"decoder_last_pipeline_num_layers", "None"}},
       .doc = "Of the last pipeline rank; likewise"},
      {.key = "account_for_embedding_in_pipeline_split",
       .value = key_of(FieldType::kBoolean),
       .flags = {"--account-for-embedding-in-pipeline-split"},
       .bridge = {{"account_for_embedding_in_pipeline_split", "False"}},
       .doc = "The embedding takes a layer's place; likewise"},
      {.key = "account_for_loss_in_pipeline_split",
       .value = key_of(FieldType::kBoolean),
       .flags = {"--account-for-loss-in-pipeline-split"},
       .bridge = {{"account_for_loss_in_pipeline_split", "False"}},
       .doc = "The loss takes a layer's place; likewise"},

      // ---- Recomputation and offloading ----
      {.key = "recompute.granularity",
       .value = name(granularity_names(), FW_AT(layer.recompute.granularity)),
       .level = Level::kMemory,
       .megatron = "none",
       .flags = {"--recompute-granularity"},
       .bridge = {{"recompute_granularity", "None"}},
       .doc = "What backward computes again instead of keeping it",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED({"none", "selective", "full"}),
       .plain = {.values = {"none"}, .without = "no recomputation", .burden = 9}},
      {.key = "recompute.modules",
       .value = name_list(recompute_module_names(), FW_AT(layer.recompute.modules)),
       .level = Level::kMemory,
       .megatron = {"core_attn"},
       .flags = {"--recompute-modules"},
       .bridge = {{"recompute_modules", "None"}},
       .doc =
           "Parts of a layer; alternate_matmuls is TorchTitan's policy by operator (per-op SAC), no module of Megatron",
       .when = "granularity is selective",
       .applies = FW_WHEN(recomputes(o, RecomputeGranularity::kSelective)),
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(recompute_subsets(f)),
       .decided_by = {"recompute.granularity"}},
      {.key = "recompute.method",
       .value = name(method_names(), FW_AT(pipeline.recompute.method)),
       .level = Level::kMemory,
       .megatron = "uniform",
       .flags = {"--recompute-method"},
       .bridge = {{"recompute_method", "None"}},
       .doc = "All layers in checkpoints of num_layers, or the first num_layers of a chunk",
       .when = "granularity is full",
       .applies = FW_WHEN(recomputes(o, RecomputeGranularity::kFull)),
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED({"uniform", "block"}),
       .decided_by = {"recompute.granularity"}},
      {.key = "recompute.num_layers",
       .value = integer(FW_AT(pipeline.recompute.num_layers), 0, 10'000),
       .level = Level::kMemory,
       .megatron = 1,
       .unit = "layers",
       .flags = {"--recompute-num-layers"},
       .bridge = {{"recompute_num_layers", "None"}},
       .doc = "Of a checkpoint, where 0 is 1; or those of a chunk that are recomputed",
       .when = "granularity is full",
       .applies = FW_WHEN(recomputes(o, RecomputeGranularity::kFull)),
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(layer_counts(f.model.num_layers())),
       .decided_by = {"recompute.granularity"}},
      {.key = "offload.type",
       .value = offload_type(),
       .level = Level::kMemory,
       .flags = {"--fine-grained-activation-offloading", "--cpu-offloading-num-layers"},
       .bridge = {{"cpu_offloading", "False"}, {"fine_grained_activation_offloading", "False"}},
       .doc = "What goes to the host between forward and backward",
       .tried = FW_TRIED({nullptr, "layer-cpu-offload"}),
       .plain = {.values = {nullptr}, .without = "no offloading of activations", .burden = 1}},
      {.key = "offload.modules",
       .value = name_list(offload_module_names(), FW_AT(layer.offload_modules),
                          BitSet<OffloadModule>{OffloadModule::kLayer}),
       .level = Level::kMemory,
       .megatron = json::array(),
       .flags = {"--offload-modules"},
       .bridge = {{"offload_modules", "None"}},
       .doc = "Whose activations go; with fine-grained-activation",
       .tried = FW_TRIED(offload_subsets(f)),
       .differs = FW_WHEN(!o.layer.offload_modules.contains(OffloadModule::kLayer)),
       .decided_by = {"offload.type"},
       .plain = {.values = {json::array()}, .without = "no offloading of activations", .burden = 1}},
      {.key = "offload.num_layers",
       .value = integer(FW_AT(pipeline.cpu_offloading_num_layers), 0, 10'000),
       .level = Level::kMemory,
       .megatron = 0,
       .unit = "layers",
       .flags = {"--cpu-offloading-num-layers"},
       .doc = "Whose activations go; with layer-cpu-offload",
       .tried = FW_TRIED(layer_counts(f.model.num_layers() - 1)),
       .differs = FW_WHEN(o.layer.offload_modules.contains(OffloadModule::kLayer)),
       .decided_by = {"offload.type"}},
      {.key = "offload.optimizer_cpu_offload",
       .value = optimizer_offload(),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--optimizer-cpu-offload"},
       .bridge = {{"optimizer_cpu_offload", "False"}},
       .doc = "Optimizer states live on the host, which updates them",
       .tried = FW_TRIED(either()),
       .plain = {.values = {false}, .without = "no offloading of the optimizer", .burden = 2}},
      {.key = "offload.fraction",
       .value = number(FW_AT(step.offload.optimizer_fraction), 0.0, 1.0),
       .level = Level::kStep,
       .megatron = 1.0,
       .flags = {"--optimizer-offload-fraction"},
       .doc = "Of the optimizer's states",
       .when = "optimizer_cpu_offload",
       .applies = FW_WHEN(o.step.offload.optimizer_fraction > 0.0),
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED({1.0, 0.75, 0.5, 0.25}),
       .decided_by = {"offload.optimizer_cpu_offload"}},
      {.key = "offload.overlap_d2h_h2d",
       .value = boolean(FW_AT(step.offload.overlap_optimizer_copies)),
       .level = Level::kStep,
       .saves_time = true,
       .megatron = false,
       .flags = {"--overlap-cpu-optimizer-d2h-h2d"},
       .bridge = {{"overlap_cpu_optimizer_d2h_h2d", "False"}},
       .doc = "Copies of gradients and parameters beside the host's update",
       .when = "optimizer_cpu_offload",
       .applies = FW_WHEN(o.step.offload.optimizer_fraction > 0.0),
       .tried = FW_TRIED(either()),
       .decided_by = {"offload.optimizer_cpu_offload", "offload.fraction"}},
      {.key = "offload.optimizer_states",
       .value = boolean(FW_AT(step.offload.optimizer_states)),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--offload-optimizer-states"},
       .doc = "Main parameters and optimizer states leave the GPU from one optimizer step to the next; in no release "
              "yet, so not searched"},
      {.key = "offload.weights",
       .value = key_of(FieldType::kBoolean),
       .flags = {"--cpu-offloading-weights"},
       .doc = "Not modelled: must not be true"},

      // ---- LoRA ----
      {.key = "lora.dim",
       .value = integer(FW_AT(layer.lora_dim), 1, 65'536),
       .megatron = 32,
       .numerics = true,
       .doc = "Width of the adapters. Default: megatron/bridge/peft/lora.py",
       .when = "task is lora",
       .applies = FW_WHEN(o.layer.lora),
       .matters = FW_MATTERS(true),
       .decided_by = {"task"}},
      {.key = "lora.target_modules",
       .value = name_list(lora_module_names(), FW_AT(layer.lora_modules)),
       .megatron = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"},
       .numerics = true,
       .doc = "Linears that have an adapter. Default: megatron/bridge/peft/lora.py",
       .when = "task is lora",
       .applies = FW_WHEN(o.layer.lora),
       .matters = FW_MATTERS(true),
       .decided_by = {"task"}},

      // ---- Overlaps ----
      {.key = "overlaps.tp",
       .value = boolean(FW_AT(layer.overlaps.tp)),
       .saves_time = true,
       .megatron = false,
       .flags = {"--tp-comm-overlap"},
       .bridge = {{"tp_comm_overlap", "False"}},
       .doc = "Tensor-parallel collectives beside the products",
       .when = "tp > 1",
       .applies = FW_WHEN(o.layer.tp > 1),
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED(either()),
       .decided_by = {"tp"},
       .plain = {.values = {false}, .without = "no overlap of TP", .burden = 12}},
      {.key = "overlaps.dp_grad",
       .value = boolean(FW_AT(step.overlaps.dp_grad)),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--overlap-grad-reduce"},
       .bridge = {{"overlap_grad_reduce", "False"}},
       .doc = "Reduction of gradients beside backward",
       .matters = FW_MATTERS(o.step.dp > 1),
       .tried = FW_TRIED({true, false}),
       .plain = {.values = {false}, .without = "no overlap of DP"},
       .usual = true},
      {.key = "overlaps.dp_param",
       .value = boolean(FW_AT(step.overlaps.dp_param)),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--overlap-param-gather"},
       .bridge = {{"overlap_param_gather", "False"}},
       .doc = "Gather of parameters beside forward",
       .matters = FW_MATTERS(o.step.dp > 1),
       .tried = FW_TRIED({true, false}),
       .plain = {.values = {false}, .without = "no overlap of DP"},
       .usual = true},
      {.key = "overlaps.param_gather_with_optimizer_step",
       .value = boolean(FW_AT(step.overlaps.param_gather_with_optimizer_step)),
       .level = Level::kStep,
       .saves_time = true,
       .megatron = false,
       .flags = {"--overlap-param-gather-with-optimizer-step"},
       .bridge = {{"overlap_param_gather_with_optimizer_step", "False"}},
       .doc = "Gather of parameters beside the optimizer",
       .tried = FW_TRIED(either()),
       .differs = FW_WHEN(o.step.dp > 1 && o.pipeline.vpp > 1),
       .decided_by = {"tp", "cp", "pp", "vpp"},
       .plain = {.values = {false}, .without = "no overlap of DP"}},
      {.key = "overlaps.ep_a2a",
       .value = boolean(FW_AT(pipeline.overlaps.ep_a2a)),
       .level = Level::kPipeline,
       .saves_time = true,
       .megatron = false,
       .flags = {"--overlap-moe-expert-parallel-comm"},
       .bridge = {{"overlap_moe_expert_parallel_comm", "False"}},
       .limited = {{.value = true,
                    .needs = "PyTorch 2.6",
                    .source = "core_v0.19.0 megatron/core/transformer/transformer_config.py:2671"}},
       .doc = "A micro-batch's exchange of tokens beside another's compute",
       .matters = FW_MATTERS(m.has_moe() && o.layer.ep > 1),
       .tried = FW_TRIED(either()),
       .plain = {.values = {false}, .without = "no overlap of EP", .burden = 8}},
      {.key = "overlaps.delay_wgrad",
       .value = boolean(FW_AT(pipeline.overlaps.delay_wgrad)),
       .level = Level::kPipeline,
       .megatron = false,
       .flags = {"--delay-wgrad-compute"},
       .bridge = {{"delay_wgrad_compute", "False"}},
       .limited = {{.value = true,
                    .needs = "Transformer Engine 2.8",
                    .source = "core_v0.19.0 megatron/training/arguments.py:1826"}},
       .doc = "Gradients of weights later, beside that exchange",
       .tried = FW_TRIED(either()),
       .differs = FW_WHEN(o.pipeline.overlaps.ep_a2a),
       .decided_by = {"overlaps.ep_a2a"},
       .plain = {.values = {false}, .without = "no delayed weight gradients", .burden = 6}},
      {.key = "overlaps.shared_expert",
       .value = boolean(FW_AT(layer.overlaps.shared_expert)),
       .level = Level::kExperts,
       .saves_time = true,
       .megatron = false,
       .flags = {"--moe-shared-expert-overlap"},
       .bridge = {{"moe_shared_expert_overlap", "False"}},
       .doc = "Shared experts beside the exchange of tokens",
       .matters = FW_MATTERS(m.has_moe() && m.moe.shared_ffn_hidden_size > 0),
       .tried = FW_TRIED(either()),
       .plain = {.values = {false}, .without = "no overlap of shared experts", .burden = 5}},
      {.key = "overlaps.pp_p2p",
       .value = key_of(FieldType::kBoolean),
       .flags = {"--no-overlap-p2p-communication"},
       .doc = "Follows from vpp in Megatron; read, not used"},

      // ---- CUDA graphs ----
      {.key = "cuda_graph.impl",
       .value = name(graph_impl_names(), FW_AT(layer.cuda_graph.impl)),
       .level = Level::kGraphs,
       .saves_time = true,
       .megatron = "none",
       .flags = {"--cuda-graph-impl", "--enable-cuda-graph", "--external-cuda-graph"},
       .bridge = {{"cuda_graph_impl", "\"none\""}},
       .limited = {{.value = "full_iteration",
                    .releases = in_releases("0.18.2"),
                    .instead = "none",
                    .source =
                        "core_v0.16.1 megatron/training/utils.py:563: pretrain_gpt.py copies lengths from the host "
                        "inside the capture"}},
       .doc = "Who captures launches as graphs",
       .matters = FW_MATTERS(true),
       .tried = FW_TRIED({"none", "transformer_engine", "local", "full_iteration"}),
       .plain = {.values = {"none"}, .without = "no CUDA graphs", .burden = 7}},
      {.key = "cuda_graph.scope",
       .value = graph_scope(),
       .level = Level::kGraphs,
       .megatron = json::array(),
       .flags = {"--cuda-graph-modules", "--cuda-graph-scope"},
       .bridge = {{"cuda_graph_scope", "[]"}},
       .doc =
           "Parts of a layer, none for the whole of it; older releases spell the whole iteration and the whole layer "
           "as scopes",
       .when = "impl is local or transformer_engine",
       .applies = FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kLocal ||
                          o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine),
       .tried = FW_TRIED(graph_subsets(f)),
       .decided_by = {"cuda_graph.impl"}},
      {.key = "check_for_nan_in_loss_and_grad",
       .value = boolean(FW_AT(layer.check_for_nan)),
       .megatron = true,
       .flags = {"--no-check-for-nan-in-loss-and-grad"},
       .bridge = {{"check_for_nan_in_loss_and_grad", "True"}},
       .doc =
           "The host waits for each micro-batch's loss and each bucket of gradients, to see whether it is NaN; never "
           "with a graph of the whole iteration"},

      // ---- Optimizer ----
      {.key = "optimizer.name",
       .value = name(optimizer_names(), FW_AT(step.optimizer.kind)),
       .megatron = "adam",
       .flags = {"--optimizer"},
       .numerics = true,
       .limited = {{.value = "muon",
                    .needs = "emerging_optimizers 0.1.0",
                    .source = "core_v0.19.0 megatron/core/optimizer/__init__.py:756"}},
       .doc = "muon: for matrices, Adam for the rest"},
      {.key = "optimizer.precision_aware",
       .value = boolean(FW_AT(step.optimizer.precision_aware)),
       .megatron = false,
       .flags = {"--use-precision-aware-optimizer"},
       .bridge = {{"use_precision_aware_optimizer", "False"}},
       .numerics = true,
       .doc = "States may be of other types than fp32",
       .matters = FW_MATTERS(true)},
  };
  const auto state = [&](const std::string& key, FieldValue value, std::string flag, std::string doc) {
    table.push_back({.key = "optimizer." + key,
                     .value = std::move(value),
                     .megatron = "fp32",
                     .flags = {std::move(flag)},
                     .bridge = {{key, "torch.float32"}},
                     .numerics = true,
                     .doc = std::move(doc),
                     .when = "precision_aware",
                     .applies = FW_WHEN(o.step.optimizer.precision_aware),
                     .matters = FW_MATTERS(true),
                     .decided_by = {"optimizer.precision_aware"}});
  };
  state("exp_avg_dtype", name(data_type_names(), FW_AT(step.optimizer.exp_avg)), "--exp-avg-dtype", "First moment");
  state("exp_avg_sq_dtype", name(data_type_names(), FW_AT(step.optimizer.exp_avg_sq)), "--exp-avg-sq-dtype",
        "Second moment");
  state("main_params_dtype", name(data_type_names(), FW_AT(step.optimizer.main_params)), "--main-params-dtype",
        "Main parameters");
  state("main_grads_dtype", name(data_type_names(), FW_AT(step.optimizer.main_grads)), "--main-grads-dtype",
        "Main gradients");
  std::vector<Field> rest = {
      {.key = "optimizer.grad_reduce_in_fp32",
       .value = boolean(FW_AT(layer.grad_reduce_in_fp32)),
       .megatron = true,
       .flags = {"--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"},
       .bridge = {{"accumulate_allreduce_grads_in_fp32", "False"}},
       .numerics = true,
       .doc = "Gradients are added up and reduced in fp32; --bf16 sets it",
       .matters = FW_MATTERS(true)},
      {.key = "optimizer.fp8_param_gather",
       .older_key = "fp8_param_gather",
       .value = param_gather(false),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--fp8-param-gather"},
       .bridge = {{"fp8_param_gather", "False"}},
       .doc = "Parameters are kept and gathered in FP8",
       .matters = FW_MATTERS(quantized(o))},
      {.key = "optimizer.fp4_param_gather",
       .value = param_gather(true),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--fp4-param-gather"},
       .limited = {{.value = true,
                    .releases = in_releases("0.17.1"),
                    .instead = false,
                    .needs = "Transformer Engine 2.14",
                    .source = "core_v0.17.1 megatron/core/fp4_utils.py:108"}},
       .doc = "Parameters are kept and gathered in FP4",
       .when = "precision is nvfp4",
       .applies = FW_WHEN(o.layer.precision == Precision::kNvfp4),
       .decided_by = {"precision"}},
      {.key = "optimizer.reuse_grad_buffer",
       .value = boolean(FW_AT(step.optimizer.reuse_grad_buffer)),
       .level = Level::kStep,
       .megatron = false,
       .flags = {"--reuse-grad-buf-for-mxfp8-param-ag"},
       .bridge = {{"reuse_grad_buf_for_mxfp8_param_ag", "False"}},
       .doc = "MXFP8 parameters are gathered in the gradients' buffer, not in one of their own"},

      // ---- Kernels behind the layers ----
      {.key = "software.transformer_impl",
       .value = name(transformer_impls, FW_AT(layer.software.transformer_engine)),
       .megatron = "transformer_engine",
       .flags = {"--transformer-impl"},
       .doc = "Transformer Engine's layers or Megatron's local ones",
       .matters = FW_MATTERS(true)},
      {.key = "software.attention",
       .value = name(attention_names, FW_AT(layer.software.fused_attention)),
       .megatron = "fused",
       .flags = {"--attention-backend"},
       .doc = "One kernel, or scores in memory",
       .matters = FW_MATTERS(true)},
      {.key = "software.experts",
       .value = name(expert_names, FW_AT(layer.software.experts)),
       .level = Level::kExperts,
       .megatron = "sequential",
       .flags = {"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"},
       .name_flags = {"no --moe-grouped-gemm", "--moe-grouped-gemm", "NVTE_USE_CUTLASS_GROUPED_GEMM=1",
                      "--use-transformer-engine-op-fuser"},
       .bridge = {{"moe_grouped_gemm", "False"}, {"use_transformer_engine_op_fuser", "False"}},
       .limited = {{.value = "fused",
                    .releases = in_releases("0.18.2"),
                    .instead = "grouped",
                    .needs = "Transformer Engine 2.14",
                    .source = "core_v0.18.2 megatron/core/transformer/moe/experts.py:315"}},
       .doc = "One product after another, a grouped one, that by one kernel of CUTLASS "
              "(NVTE_USE_CUTLASS_GROUPED_GEMM=1), or one kernel for both and the activation",
       .matters = FW_MATTERS(m.has_moe()),
       .tried = FW_TRIED(experts_kernels(f)),
       .plain = {.values = {"grouped"}, .without = "experts grouped", .burden = 10},
       .usual = "grouped"},
      {.key = "software.permute",
       .value = name(permute_names, FW_AT(layer.software.fused_permute)),
       .megatron = "unfused",
       .flags = {"--moe-permute-fusion"},
       .bridge = {{"moe_permute_fusion", "False"}},
       .limited = {{.value = "fused",
                    .needs = "Transformer Engine 2.1",
                    .source = "core_v0.19.0 megatron/core/transformer/transformer_config.py:2651"}},
       .doc = "Sorting rows by expert",
       .matters = FW_MATTERS(m.has_moe()),
       .tried = FW_TRIED(permutes(f)),
       .usual = "fused"},
      {.key = "software.router_fusion",
       .value = boolean(FW_AT(layer.software.fused_router)),
       .megatron = false,
       .flags = {"--moe-router-fusion"},
       .bridge = {{"moe_router_fusion", "False"}},
       .limited = {{.value = true,
                    .needs = "Transformer Engine 2.7",
                    .source = "core_v0.19.0 megatron/core/extensions/transformer_engine.py:3558"}},
       .doc = "Scores and their loss in few kernels",
       .matters = FW_MATTERS(m.has_moe()),
       .tried = FW_TRIED({true})},
      {.key = "software.cross_entropy",
       .value = name(loss_names, FW_AT(layer.software.cross_entropy)),
       .megatron = "unfused",
       .flags = {"--cross-entropy-fusion-impl", "--cross-entropy-loss-fusion"},
       .bridge = {{"cross_entropy_loss_fusion", "False"}},
       .limited = {{.value = "te",
                    .releases = in_releases("", "0.17.1"),
                    .instead = "native",
                    .source = "core_v0.18.2 megatron/training/arguments.py:1528"}},
       .doc =
           "te: in place on bf16 logits; native: Megatron's compiled one; unfused: step by step; torch: on fp32 logits",
       .matters = FW_MATTERS(true)},
      {.key = "software.wgrad_accumulation_fusion",
       .value = boolean(FW_AT(layer.software.gradient_accumulation_fusion)),
       .megatron = true,
       .flags = {"--no-gradient-accumulation-fusion"},
       .bridge = {{"gradient_accumulation_fusion", "True"}},
       .doc = "Products of weight gradients add to the buffer themselves"},
      {.key = "software.router_dtype",
       .value = name(router_dtypes, FW_AT(layer.software.router_fp32)),
       .megatron = "bf16",
       .flags = {"--moe-router-dtype"},
       .numerics = true,
       .doc = "Of routing scores; fp64 is read as fp32",
       .matters = FW_MATTERS(m.has_moe())},
      {.key = "software.router_operands",
       .value = name(router_operands, FW_AT(layer.software.router_fp32_operands)),
       .megatron = "bf16",
       .numerics = true,
       .doc =
           "fp32 where core_v0.16 with Transformer Engine from 2.10 casts the router's operands, without tensor cores",
       .when = "router_dtype is fp32",
       .applies = FW_WHEN(o.layer.software.router_fp32),
       .decided_by = {"software.router_dtype"}},
      {.key = "software.adam_reads_bf16",
       .value = boolean(FW_AT(step.optimizer.reads_bf16_moments)),
       .level = Level::kStep,
       .megatron = false,
       .megatron_in = {{.releases = in_releases("0.17.1"),
                        .value = true,
                        .source = "core_v0.17.1 uv.lock:5660 (Transformer Engine 2.14.1)"}},
       .limited = {{.value = true,
                    .releases = in_releases("0.17.1"),
                    .instead = false,
                    .needs = "Transformer Engine 2.13",
                    .source = "Transformer Engine 2.13 transformer_engine/pytorch/optimizers/fused_adam.py:219"}},
       .doc = "Adam's kernel reads moments in bf16, and makes no fp32 copies of them",
       .when = "both moments are bf16",
       .applies = FW_WHEN(bf16_moments(o.step.optimizer)),
       .decided_by = {"optimizer.name", "optimizer.precision_aware", "optimizer.exp_avg_dtype",
                      "optimizer.exp_avg_sq_dtype"}},
      {.key = "software.shared_expert_streams",
       .value = boolean(FW_AT(step.shared_expert_streams)),
       .level = Level::kStep,
       .megatron = true,
       .megatron_in = {{.releases = in_releases("0.18.2"),
                        .value = false,
                        .source = "core_v0.18.2 megatron/core/transformer/moe/shared_experts.py:185"}},
       .doc = "Overlapped shared experts of each layer have a CUDA stream, with its own memory, instead of one for all",
       .matters = FW_MATTERS(m.moe.shared_ffn_hidden_size > 0 && o.layer.overlaps.shared_expert),
       .differs = FW_WHEN(o.layer.overlaps.shared_expert),
       .decided_by = {"overlaps.shared_expert"}},
      {.key = "software.fsdp_head_gathers_ahead",
       .value = boolean(FW_AT(step.fsdp_head_gathers_ahead)),
       .level = Level::kStep,
       .megatron = true,
       .megatron_in = {{.releases = in_releases("0.18.2"),
                        .value = false,
                        .source =
                            "core_v0.18.2 megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py:905"}},
       .doc = "Megatron-FSDP's embedding and head gather layers ahead in every micro-batch, and what is gathered of "
              "them is freed before the optimizer step",
       .differs = FW_WHEN(o.step.sharding == costmodel::Sharding::kFsdp),
       .decided_by = {"sharding"}},
      {.key = "software.pytorch_cuda_alloc_conf",
       .value = text_like(R"([A-Za-z0-9_.:,\[\]> -]*)", "option:value,... as PyTorch's allocator reads it"),
       .doc = "PYTORCH_CUDA_ALLOC_CONF of the run; export writes it. Silent: unknown, and export writes "
              "expandable_segments:True"},
  };
  std::move(rest.begin(), rest.end(), std::back_inserter(table));
  return table;
}

/// Shorter names of keys on the command line.
const std::vector<std::pair<std::string_view, std::string_view>> other_keys = {
    {"ep_overlap", "overlaps.ep_a2a"}, {"recompute", "recompute.granularity"}, {"mtp_num_layers", "mtp"}};

bool is_whole(const json& value) { return value.is_number_integer(); }

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "\"" : ", \"") + name + "\"";
  return list;
}

std::string no_such_name(const FieldValue& value, const std::string& found) {
  std::vector<std::string> known = value.names;
  known.insert(known.end(), value.also.begin(), value.also.end());
  if (std::find(known.begin(), known.end(), found) != known.end()) return "";
  return fmt::format("expected one of {}, found \"{}\"{}", listed(value.names), found,
                     config::nearest_hint(found, known));
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

const Field* find_field(std::string_view key) {
  for (const auto& [other, own] : other_keys)
    if (other == key) key = own;
  for (const Field& candidate : fields())
    if (candidate.key == key || (!candidate.older_key.empty() && candidate.older_key == key)) return &candidate;
  return nullptr;
}

const Field& field(std::string_view key) {
  const Field* found = find_field(key);
  if (found == nullptr) throw std::logic_error(fmt::format("no field \"{}\"", key));
  return *found;
}

const std::string& flag(std::string_view key) {
  const Field& found = field(key);
  if (found.flags.empty()) throw std::logic_error(fmt::format("field \"{}\" has no flag", key));
  return found.flags.front();
}

std::string flag_of_name(std::string_view key, const TrainingOptions& options) {
  const Field& found = field(key);
  const auto name = found.value.get(options).get<std::string>();
  const auto& names = found.value.names;
  const auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  return at < found.name_flags.size() ? found.name_flags[at] : fmt::format("{} {}", flag(key), name);
}

std::string with_flags(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t open = text.find('[', at), close = text.find(']', open);
    if (open == std::string_view::npos || close == std::string_view::npos) return result.append(text.substr(at));
    const std::string_view name = text.substr(open + 1, close - open - 1);
    const std::size_t slash = name.find('/');
    const std::size_t which = slash == std::string_view::npos ? 0 : static_cast<std::size_t>(name[slash + 1] - '0');
    result.append(text.substr(at, open - at)).append(field(name.substr(0, slash)).flags.at(which));
    at = close + 1;
  }
  return result;
}

std::vector<std::string> keys_in(std::string_view text) {
  std::vector<std::string> keys;
  for (std::size_t open = text.find('['); open != std::string_view::npos; open = text.find('[', open + 1)) {
    const std::string_view name = text.substr(open + 1, text.find(']', open) - open - 1);
    keys.push_back(field(name.substr(0, name.find('/'))).key);
  }
  return keys;
}

bool Field::has_value_in(const Release& release, const json& found) const {
  if (!releases.has(release) && found != megatron) return false;
  const auto row = std::ranges::find(limited, found, &LimitedValue::value);
  return row == limited.end() || row->releases.has(release);
}

std::string Field::lacks(const Release& release, const TrainingOptions& options) const {
  if ((!releases.named && limited.empty()) || !applies_to(options)) return "";
  return lacks(release, value.get(options));
}

std::string Field::lacks(const Release& release, const json& found) const {
  if (has_value_in(release, found)) return "";
  const auto row = std::ranges::find(limited, found, &LimitedValue::value);
  const ReleaseSpan& span = row == limited.end() ? releases : row->releases;
  return fmt::format("{} {} is in Megatron-Core {}, not in {}{}", flags.empty() ? key : flags.front(),
                     value_text(found), span.text(), release.name,
                     row == limited.end() || row->source.empty() ? "" : fmt::format(" ({})", row->source));
}

const json& Field::instead_of(const json& found) const {
  const auto row = std::ranges::find(limited, found, &LimitedValue::value);
  return row == limited.end() || row->instead.is_null() ? megatron : row->instead;
}

std::string mistake_in(const Field& field, const json& value) {
  const FieldValue& v = field.value;
  const auto wrong = [&](std::string_view expected) {
    return fmt::format("expected {}, found {}", expected, value.dump());
  };
  const auto range = [&](const json& number) -> std::string {
    const auto found = number.get<double>();
    const std::string_view what = v.type == FieldType::kInteger    ? "a whole number"
                                  : v.type == FieldType::kIntegers ? "whole numbers"
                                                                   : "a number";
    if (found < v.low) return wrong(fmt::format("{} of at least {}", what, v.low));
    return found > v.high ? wrong(fmt::format("{} of at most {}", what, v.high)) : "";
  };
  switch (v.type) {
    case FieldType::kInteger:
      return is_whole(value) ? range(value) : wrong("a whole number");
    case FieldType::kNumber:
      if (value.is_null() && field.megatron.is_null()) return "";
      return value.is_number() ? range(value) : wrong("a number");
    case FieldType::kBoolean:
      return value.is_boolean() ? "" : wrong("true or false");
    case FieldType::kName:
      if (value.is_null() && field.megatron.is_null()) return "";
      return value.is_string() ? no_such_name(v, value.get<std::string>()) : wrong("a text in quotes");
    case FieldType::kNames: {
      if (!value.is_array()) return wrong("a list of names");
      for (const json& item : value) {
        std::string mistake = item.is_string() ? no_such_name(v, item.get<std::string>()) : wrong("names");
        if (!mistake.empty()) return mistake;
      }
      return "";
    }
    case FieldType::kText:
      if (!value.is_string()) return value.is_null() ? "" : wrong("a text in quotes");
      return v.pattern.empty() || std::regex_match(value.get_ref<const std::string&>(), std::regex(v.pattern))
                 ? ""
                 : wrong(v.form);
    case FieldType::kIntegers: {
      if (!value.is_array()) return wrong("a list of whole numbers");
      for (const json& item : value)
        if (std::string mistake = is_whole(item) ? range(item) : wrong("a list of whole numbers"); !mistake.empty())
          return mistake;
      return "";
    }
    case FieldType::kObject:
      return value.is_object() ? "" : wrong("an object");
  }
  return "";
}

const Override* override_of(std::string_view key) {
  static constexpr std::array<Override, 3> kOverrides = {{{"model_overrides.", "model_overrides"},
                                                          {"system_overrides.", "system_overrides"},
                                                          {"system.", "system_overrides"}}};
  const auto* found =
      std::ranges::find_if(kOverrides, [&](const Override& place) { return key.starts_with(place.prefix); });
  return found != kOverrides.end() ? found : nullptr;
}

json override_value(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json(text) : value;
}

json typed_value(const Field& field, std::string_view text) {
  if (text == "null") text = "none";  // Run files spell it "none".
  const auto whole = [&](std::string_view digits) -> json {
    auto number = config::number_in<std::int64_t>(digits);
    if (!number) number = count_in(digits, field.key == "seq_len" ? 1024 : 1000);
    return number ? json(*number) : json(digits);
  };
  switch (field.value.type) {
    case FieldType::kInteger:
      return whole(text);
    case FieldType::kNumber: {
      if (text == "none") return nullptr;
      const auto number = config::number_in<double>(text);
      return number && std::isfinite(*number) ? json(*number) : json(text);
    }
    case FieldType::kBoolean:
      return text == "true" ? json(true) : text == "false" ? json(false) : json(text);
    case FieldType::kName:
    case FieldType::kText:
    case FieldType::kObject:
      return text == "none" && field.megatron.is_null() ? json(nullptr) : json(text);
    case FieldType::kNames:
    case FieldType::kIntegers:
      break;
  }
  json list = json::array();
  for (std::size_t at = 0; at <= text.size() && text != "none";) {
    const std::size_t end = std::min(text.find('+', at), text.size());
    const std::string_view item = text.substr(at, end - at);
    list.push_back(field.value.type == FieldType::kIntegers ? whole(item) : json(item));
    at = end + 1;
  }
  return list;
}

std::string value_text(const json& value) {
  if (value.is_null() || (value.is_array() && value.empty())) return "none";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const json& item : value) items.push_back(value_text(item));
  return fmt::format("{}", fmt::join(items, "+"));
}

void settle(TrainingOptions& options) {
  static const TrainingOptions untouched;
  for (const Field& f : fields())
    if (f.value.set && !f.applies_to(options)) f.value.set(options, f.value.get(untouched));
}

}  // namespace foldwise::planner

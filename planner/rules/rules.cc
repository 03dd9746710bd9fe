#include "planner/rules/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "costmodel/ops/dispatcher.h"
#include "costmodel/pipeline/schedule.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/run/run_file.h"

// Ids without "foldwise." name checks of Megatron-LM, TransformerEngine or Megatron-Bridge; docs/rules.md gives the
// file of each. A reason shows the flags as a user types them, with the conflicting numbers. [key] stands for the flag
// of that field.
namespace foldwise::planner {
namespace {

/// Limit for micro-batches x stages. At this size a prediction takes seconds, and --trace writes 1 GiB.
constexpr std::int64_t kLongestSchedule = 500'000;

/// A run must not have a value that its release lacks (Field::limited). This rule covers all fields. A search does not
/// try such values.
constexpr std::string_view kOfRelease = "foldwise.release";

using costmodel::CompressedSpec;
using costmodel::CpComm;
using costmodel::DataType;
using costmodel::Dispatcher;
using costmodel::Experts;
using costmodel::GatedDeltaNetSpec;
using costmodel::GqaSpec;
using costmodel::GraphImpl;
using costmodel::GraphModule;
using costmodel::LayerSpec;
using costmodel::MambaSpec;
using costmodel::Mixer;
using costmodel::MlaSpec;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using costmodel::OffloadModule;
using costmodel::OptimizerKind;
using costmodel::ParsedLayout;
using costmodel::Precision;
using costmodel::RecomputeGranularity;
using costmodel::RecomputeModule;
using costmodel::Schedule;
using costmodel::Sharding;
using costmodel::StageContent;
using costmodel::TrainingOptions;

// ---- Properties of the model ---------------------------------------------------------------------------------------

/// Query and KV heads of an attention on one TP rank. There is at least one KV head.
struct RankHeads {
  std::int64_t query = 0, key_value = 1;
};
RankHeads rank_heads(const Mixer& mixer, std::int64_t tp) {
  return std::visit(
      [tp](const auto& spec) {
        return RankHeads{spec.query_heads() / tp, std::max<std::int64_t>(1, spec.kv_heads() / tp)};
      },
      mixer);
}

/// Query heads (--num-attention-heads) of the first mixer whose heads TP does not divide; 0 if it divides all.
std::int64_t heads_not_split(const ModelSpec& model, std::int64_t tp) {
  for (const Mixer& mixer : model.mixers)
    if (const std::int64_t heads = std::visit([](const auto& spec) { return spec.query_heads(); }, mixer);
        heads % tp != 0)
      return heads;
  return 0;
}

/// The first --num-query-groups that is neither a multiple nor a divisor of TP; 0 if there is none.
std::int64_t groups_not_split(const ModelSpec& model, std::int64_t tp) {
  const auto* found = model.find<GqaSpec>([tp](const GqaSpec& gqa) {
    return gqa.query_groups > 0 && gqa.query_groups % tp != 0 && tp % gqa.query_groups != 0;
  });
  return found == nullptr ? 0 : found->query_groups;
}

/// The first mixer whose heads on a TP rank cannot be divided among `ranks` that exchange them; null if there is none.
const Mixer* heads_not_exchanged(const ModelSpec& model, std::int64_t tp, std::int64_t ranks) {
  for (const Mixer& mixer : model.mixers)
    if (const RankHeads heads = rank_heads(mixer, tp);
        heads.query > 0 && (heads.query % ranks != 0 || heads.key_value % ranks != 0))
      return &mixer;
  return nullptr;
}

RankHeads exchanged_heads(const ModelSpec& model, const costmodel::LayerOptions& o) {
  return rank_heads(*heads_not_exchanged(model, o.tp, o.cp_all_to_all_ranks()), o.tp);
}

/// The model's mixer of this kind, or a default one without heads.
template <typename Spec>
const Spec& mixer_of(const ModelSpec& model) {
  static const Spec none;
  const Spec* found = model.find<Spec>();
  return found == nullptr ? none : *found;
}

/// Whether the key or value heads of a gated delta net do not divide over `ranks`, or its value heads not by its key
/// heads.
bool delta_net_not_split(const ModelSpec& model, std::int64_t ranks) {
  const auto* gdn = model.find<GatedDeltaNetSpec>([](const GatedDeltaNetSpec& spec) { return spec.key_heads > 0; });
  return gdn != nullptr && (gdn->key_heads % ranks != 0 || gdn->value_heads % ranks != 0 ||
                            gdn->value_heads % std::max<std::int64_t>(1, gdn->key_heads) != 0);
}

bool has_sinks(const ModelSpec& model) {
  return model.find<GqaSpec>([](const GqaSpec& gqa) { return gqa.learnable_softmax; }) != nullptr;
}

bool has_qkv_bias(const ModelSpec& model) {
  return model.find<GqaSpec>([](const GqaSpec& gqa) { return gqa.qkv_bias; }) != nullptr;
}

bool has_dense_mlp(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const LayerSpec& layer) { return layer.mlp == MlpKind::kDense; });
}

bool has_window(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& layer) { return layer.window > 0; });
}

// ---- Properties of the options -------------------------------------------------------------------------------------

std::int64_t group_size(const TrainingOptions& o) {
  return o.pipeline.microbatch_group_size > 0 ? o.pipeline.microbatch_group_size : o.pipeline.pp;
}

bool dual_pipe(const TrainingOptions& o) {
  return o.pipeline.schedule == Schedule::kDualPipe || o.pipeline.schedule == Schedule::kDualPipeV;
}

/// The number of model chunks per rank for which a study schedule is made. DualPipe has two copies with pp stages each.
std::int64_t study_vpp(const TrainingOptions& o) {
  return o.pipeline.schedule == Schedule::kDualPipe ? 1 : costmodel::chunks_of(o.pipeline.schedule, 1);
}

bool selective(const TrainingOptions& o) { return o.layer.recompute.granularity == RecomputeGranularity::kSelective; }

/// Whether --recompute-modules recomputes the module. Full recomputation has rules of its own.
bool recomputes(const TrainingOptions& o, RecomputeModule module) {
  return selective(o) && o.layer.recompute.modules.contains(module);
}

/// Size of a pipeline rank's group of experts. Megatron makes these groups in dense models too.
std::int64_t expert_group(const Problem& p, const TrainingOptions& o) {
  return p.model.has_moe() || o.layer.etp > 1 ? o.layer.etp * o.layer.ep : o.layer.tp;
}

/// HSDP: several FSDP groups, each with a copy of the weights.
bool hybrid_fsdp(const TrainingOptions& o) {
  return is_fsdp(o.step.sharding) && o.step.fsdp_group > 0 && o.step.fsdp_group < o.layout().dp_cp();
}

bool full_recompute(const TrainingOptions& o) { return o.layer.recompute.granularity == RecomputeGranularity::kFull; }

bool offloads(const TrainingOptions& o, OffloadModule module) { return o.layer.offload_modules.contains(module); }

/// --fine-grained-activation-offloading
bool fine_grained_offload(const TrainingOptions& o) {
  constexpr auto kLayer = static_cast<unsigned>(OffloadModule::kLayer);
  return (o.layer.offload_modules.bits & ~kLayer) != 0;
}

/// --cpu-offloading-num-layers
bool layer_offload(const TrainingOptions& o) {
  return o.pipeline.cpu_offloading_num_layers != 0 || offloads(o, OffloadModule::kLayer);
}

bool per_layer_graphs(const TrainingOptions& o) {
  return o.layer.cuda_graph.impl == GraphImpl::kLocal || o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine;
}

/// Whether --cuda-graph-modules names the module. An empty list captures whole layers; see
/// foldwise.graph_whole_moe_layer.
bool captures(const TrainingOptions& o, GraphModule module) {
  return per_layer_graphs(o) && o.layer.cuda_graph.modules.contains(module);
}

/// Whether a module that a graph captures (by `captured`, or as part of a whole layer) is recomputed in backward.
bool recomputes_in_graph(const TrainingOptions& o, GraphModule captured, RecomputeModule module) {
  const bool whole = per_layer_graphs(o) && o.layer.cuda_graph.modules.empty();
  return (whole || captures(o, captured)) && recomputes(o, module);
}

/// The parsed layout. It is remembered for all rules and candidates, because the search tries a few layouts a million
/// times.
const ParsedLayout& parsed_layout(const Problem& p, const TrainingOptions& o) {
  struct Memo {
    std::string text;
    std::int64_t layers = -1, mtp = -1;
    ParsedLayout parsed;
  };
  thread_local Memo memo;
  const std::int64_t layers = p.model.num_layers(), mtp = p.model.mtp_num_layers;
  if (memo.layers != layers || memo.mtp != mtp || memo.text != o.pipeline.layout) {
    memo = {.text = o.pipeline.layout,
            .layers = layers,
            .mtp = mtp,
            .parsed = costmodel::parse_layout(o.pipeline.layout, layers, mtp)};
  }
  return memo.parsed;
}

/// The hint for an uneven split: the layout that counts embedding and loss as layers, if that divides evenly; otherwise
/// one whose stages differ by one layer.
std::string uneven_split(const Problem& p, const TrainingOptions& o) {
  const std::int64_t stages = o.pipeline.pp * o.pipeline.vpp, layers = p.model.num_layers();
  for (const auto& [embedding, loss] : {std::pair{true, true}, std::pair{false, true}, std::pair{true, false}}) {
    const std::int64_t places = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (stages == 1 || places % stages != 0) continue;
    return fmt::format(", unlike {} \"{}\"", flag("pipeline_layout"),
                       to_layout_string(costmodel::even_stages(layers, p.model.mtp_num_layers, o.pipeline.pp,
                                                               o.pipeline.vpp, embedding, loss)));
  }
  if (stages == 1 || layers < stages) return "; an uneven split needs " + flag("pipeline_layout");
  // Stages in the middle, away from embedding and loss, get one layer more.
  costmodel::StageLayout layout = costmodel::even_stages(layers / stages * stages, p.model.mtp_num_layers,
                                                         o.pipeline.pp, o.pipeline.vpp, false, false);
  const std::int64_t more = layers % stages, first = (stages - more) / 2;
  for (std::int64_t i = 0; i < stages; ++i) {
    costmodel::StageContent& stage = layout.stages[static_cast<std::size_t>(i)];
    stage.first_layer += std::clamp<std::int64_t>(i - first, 0, more);
    stage.num_layers += i >= first && i < first + more ? 1 : 0;
  }
  return fmt::format(", unlike {} \"{}\"", flag("pipeline_layout"), to_layout_string(layout));
}

bool has_layout(const TrainingOptions& o) { return !o.pipeline.layout.empty(); }

std::int64_t stage_count(const ParsedLayout& parsed) { return static_cast<std::int64_t>(parsed.stages->stages.size()); }

/// Virtual stage that holds the MTP layers; -1 if none does.
std::int64_t mtp_stage(const ParsedLayout& parsed) {
  const std::vector<StageContent>& stages = parsed.stages->stages;
  const auto found =
      std::find_if(stages.begin(), stages.end(), [](const StageContent& stage) { return stage.mtp_layers > 0; });
  return found == stages.end() ? -1 : found - stages.begin();
}

/// Number of ranks that exchange tokens of experts.
std::int64_t exchange_ranks(const TrainingOptions& o) { return o.layer.etp * o.layer.ep; }

/// Number of these ranks that share an NVLink domain.
std::int64_t domain_ranks(const Problem& p, const TrainingOptions& o) {
  return std::min(exchange_ranks(o), p.hardware.network.ranks_per_domain);
}

/// Width of the tokens that are sent to experts.
std::int64_t token_width(const ModelSpec& model) {
  return model.moe.latent_size > 0 ? model.moe.latent_size : model.hidden_size;
}

/// DeepEP's Buffer has settings for these numbers of ranks, and kernels for hidden sizes up to 8184
/// (deep_ep/buffer.py:232, csrc/kernels/intranode.cu:235, launch.cuh:54 of DeepEP 1.2.1).
constexpr std::array<std::int64_t, 9> kDeepEpRanks = {2, 4, 8, 16, 32, 64, 128, 144, 160};
constexpr std::int64_t kDeepEpHidden = 8184, kDeepEpNode = 8;
bool deep_ep_fits(const Problem& p, const TrainingOptions& o) {
  const std::int64_t ranks = exchange_ranks(o), width = token_width(p.model);
  return std::ranges::count(kDeepEpRanks, ranks) > 0 && width <= kDeepEpHidden &&
         width % (ranks > kDeepEpNode ? 256 : 16) == 0;
}

/// Beyond one NVLink domain HybridEP counts a rank's tokens in 16 bits: 3 T + 1 < 2^16
/// (deep_ep/hybrid_ep_buffer.py:162, csrc/hybrid_ep/config.cuh:18 of DeepEP's branch hybrid-ep).
constexpr std::int64_t kHybridEpTokens = 21'844;
std::int64_t rank_tokens(const TrainingOptions& o) {
  return o.layer.seq_len * o.layer.micro_batch / o.layer.cp / (o.layer.splits_sequence() ? o.layer.tp : 1);
}

/// Whether the experts' shapes are fixed, as a graph of the whole iteration requires.
bool has_fixed_shapes(const TrainingOptions& o) {
  if (o.layer.software.experts == Experts::kFused)
    return o.layer.dispatcher == Dispatcher::kHybridEp && o.layer.rank_capacity_factor.has_value();
  return o.layer.pad_to_capacity &&
         (o.layer.dispatcher == Dispatcher::kAllToAll || o.layer.dispatcher == Dispatcher::kHybridEp);
}

/// Transformer Engine's products of this precision take operands whose widths are multiples of this: of 16
/// (Transformer Engine v2.17.1 pytorch/utils.py:617, common/gemm/cublaslt_gemm.cu:161), and where 32 values share a
/// scale of 32 (pytorch/csrc/quantizer.cpp:1395, common/transpose/quantize_transpose_vector_blockwise_fp4.cu). 1: any
/// width.
std::int64_t width_multiple(Precision precision) {
  if (precision == Precision::kMxfp8 || precision == Precision::kNvfp4) return 32;
  return costmodel::is_quantised(precision) ? 16 : 1;
}

/// Rows of a quantised product: TE's assert_dim_for_fp8_exec asks for 8, MXFP8's blocks along columns for 32.
std::int64_t row_multiple(Precision precision) {
  if (precision == Precision::kMxfp8) return 32;
  return costmodel::is_quantised(precision) ? 8 : 1;
}

/// A width of a layer on one rank that is no multiple of width_multiple(); 0: there is none.
std::int64_t uneven_width(const ModelSpec& model, const costmodel::LayerOptions& o) {
  const std::int64_t multiple = width_multiple(o.precision);
  if (multiple == 1) return 0;
  std::int64_t found = 0;
  const auto check = [&](std::int64_t width, std::int64_t ranks) {
    if (found == 0 && width / ranks % multiple != 0) found = width / ranks;
  };
  check(model.hidden_size, 1);
  if (has_dense_mlp(model)) check(model.ffn_hidden_size, o.tp);
  check(model.moe.shared_ffn_hidden_size, o.tp);
  check(model.moe.ffn_hidden_size, o.etp);
  for (const Mixer& mixer : model.mixers) {
    if (const auto* gqa = std::get_if<GqaSpec>(&mixer)) {
      check(gqa->heads * gqa->value_dim(), o.tp);
      check((gqa->heads + 2 * std::max(gqa->query_groups, o.tp)) * gqa->head_dim, o.tp);
    } else if (const auto* mla = std::get_if<MlaSpec>(&mixer)) {
      check(mla->heads * (mla->qk_head_dim + mla->qk_pos_emb_head_dim), o.tp);
      check(mla->heads * mla->v_head_dim, o.tp);
      check(mla->kv_lora_rank + mla->qk_pos_emb_head_dim, 1);
    } else if (const auto* mamba = std::get_if<MambaSpec>(&mixer)) {
      check(mamba->projection(), o.tp);
      check(mamba->heads * mamba->head_dim, o.tp);
    } else if (const auto* gdn = std::get_if<GatedDeltaNetSpec>(&mixer)) {
      const std::int64_t values = gdn->value_heads * gdn->value_head_dim;
      check(2 * gdn->key_heads * gdn->key_head_dim + 2 * values + 2 * gdn->value_heads, o.tp);
      check(values, o.tp);
    }
  }
  return found;
}

// ---- Texts of the reasons -----------------------------------------------------------------------------------------

/// The flex dispatchers that a GPU supports: "hybridep", or "none".
std::string flex_dispatchers(const costmodel::Hardware& hardware) {
  std::string list;
  for (const Dispatcher dispatcher : hardware.traits.flex_dispatchers)
    list += (list.empty() ? "" : ", ") + name_of(dispatcher);
  return list.empty() ? "none" : list;
}

/// Like fmt::format, but every [key] is replaced by the field's flag.
template <typename... Args>
std::string said(fmt::format_string<Args...> text, Args&&... args) {
  const fmt::string_view view = text;
  return fmt::vformat(with_flags({view.data(), view.size()}), fmt::make_format_args(args...));
}

// Macros for the two functions of a rule, for use in the table. `p` and `o` are its arguments.
#define FW_REASON(...)                                            \
  [](const Problem& p, const TrainingOptions& o) -> std::string { \
    (void)p;                                                      \
    (void)o;                                                      \
    return said(__VA_ARGS__);                                     \
  }
#define FW_WHEN(condition)                                 \
  [](const Problem& p, const TrainingOptions& o) -> bool { \
    (void)p;                                               \
    (void)o;                                               \
    return condition;                                      \
  }

/// Whether the first `parts` choices lack the measured evidence that the problem asks for.
template <std::size_t parts>
bool not_measured(const Problem& p, const TrainingOptions& o) {
  if (p.evidence == Evidence::kAny) return false;
  const MeasuredChoices& measured = p.measured != nullptr ? *p.measured : MeasuredChoices::built_in();
  return !measured.has(p.evidence, p.hardware.traits.generation, joint_choice(p.model, o), parts);
}

template <std::size_t parts>
std::string not_measured_text(const Problem& p, const TrainingOptions& o) {
  const JointChoice choice = joint_choice(p.model, o);
  std::string text;
  for (std::size_t i = 0; i < parts; ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(static_cast<ChoicePart>(i)),
                        text_of(static_cast<ChoicePart>(i), choice[i]));
  return fmt::format("no measured run on {} has {} of: {} (--evidence any allows it)", p.hardware.traits.generation,
                     p.evidence == Evidence::kRun ? "all" : "each", text);
}

/// Rules about measured choices. Each reads the leading choices up to a level, so a search can test it early.
std::vector<Rule> evidence_rules() {
  const std::string experts = "[precision] [cp] [cp_comm_type] [software.experts] [dispatcher] [ep] [etp]",
                    graphs = experts + " [cuda_graph.impl]", pipeline = graphs + " [pp] [vpp] [overlaps.ep_a2a]",
                    step = pipeline + " [sharding]",
                    all = step +
                          " [offload.modules] [offload.type] [offload.num_layers] "
                          "[offload.optimizer_cpu_offload] [offload.fraction] [offload.optimizer_states]";
  return {{"evidence.experts", experts, not_measured<4>, not_measured_text<4>},
          {"evidence.graphs", graphs, not_measured<5>, not_measured_text<5>},
          {"evidence.pipeline", pipeline, not_measured<7>, not_measured_text<7>},
          {"evidence.step", step, not_measured<8>, not_measured_text<8>},
          {"evidence.offload", all, not_measured<9>, not_measured_text<9>}};
}

std::vector<Rule> make_rules() {
  std::vector<Rule> table = {
      // ---- Sizes: everything below divides by them ----
      {"foldwise.positive",
       "[tp] [cp] [pp] [vpp] [ep] [etp] [micro_batch] [global_batch] [seq_len] [microbatch_group_size]",
       FW_WHEN(std::min({o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp, o.pipeline.vpp, o.layer.ep, o.layer.etp,
                         o.layer.micro_batch, o.pipeline.global_batch, o.layer.seq_len, p.num_gpus}) < 1 ||
               o.pipeline.microbatch_group_size < 0 || o.step.fsdp_group < 0),
       FW_REASON("every size must be at least 1: [tp] {}, [cp] {}, data parallel {}, [pp] {}, [vpp] {}, [ep] {}, [etp] "
                 "{}, [micro_batch] {}, [global_batch] {}, [seq_len] {}, GPUs {}; and a group size 0 (default) or "
                 "more: [microbatch_group_size] {}, FSDP group {}",
                 o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp, o.pipeline.vpp, o.layer.ep, o.layer.etp,
                 o.layer.micro_batch, o.pipeline.global_batch, o.layer.seq_len, p.num_gpus,
                 o.pipeline.microbatch_group_size, o.step.fsdp_group)},

      // ---- The two grids ----
      {"grid.world_dense", "[tp] [cp] [pp]", FW_WHEN(o.layout().world() != p.num_gpus),
       FW_REASON("[tp] {} x [cp] {} x data parallel {} x [pp] {} is {} ranks, but there are {} GPUs", o.layer.tp,
                 o.layer.cp, o.step.dp, o.pipeline.pp, o.layout().world(), p.num_gpus)},
      {"grid.world_expert", "[etp] [ep] [pp]", FW_WHEN(p.num_gpus % (o.layer.etp * o.layer.ep * o.pipeline.pp) != 0),
       FW_REASON("[etp] {} x [ep] {} x [pp] {} does not divide the {} GPUs", o.layer.etp, o.layer.ep, o.pipeline.pp,
                 p.num_gpus)},
      {"grid.pp_not_last", "[use_tp_pp_dp_mapping] [tp] [cp] [pp] [ep] [etp]",
       FW_WHEN(o.layout().tp_pp_dp && o.layer.tp * o.layer.cp != expert_group(p, o)),
       FW_REASON("[use_tp_pp_dp_mapping] with [pp] {} needs the same data-parallel size of attention and experts: [tp] "
                 "{} x [cp] {} is not [etp] {} x [ep] {}",
                 o.pipeline.pp, o.layer.tp, o.layer.cp, expert_group(p, o) / o.layer.ep, o.layer.ep)},
      {"foldwise.tp_pp_dp_cp", "[use_tp_pp_dp_mapping] [cp] [pp]", FW_WHEN(o.layout().tp_pp_dp && o.layer.cp > 1),
       FW_REASON("[use_tp_pp_dp_mapping] with [cp] {} is not modelled: data-parallel and context-parallel ranks have "
                 "no one distance",
                 o.layer.cp)},
      {"foldwise.unfolded_tp", "[etp] [tp]", FW_WHEN(!p.folding && p.model.has_moe() && o.layer.etp != o.layer.tp),
       FW_REASON("without folding experts take attention's [tp] {}; [etp] is {}", o.layer.tp, o.layer.etp)},
      {"foldwise.unfolded_ep", "[ep] [tp] [cp] [pp]", FW_WHEN(!p.folding && o.step.dp % o.layer.ep != 0),
       FW_REASON("without folding [ep] {} must divide data parallel {}", o.layer.ep, o.step.dp)},
      {"grid.gbs", "[global_batch] [micro_batch] [tp] [cp] [pp]",
       FW_WHEN(o.pipeline.global_batch % (o.layer.micro_batch * o.step.dp) != 0),
       FW_REASON("[global_batch] {} is not a multiple of [micro_batch] {} x data parallel {}", o.pipeline.global_batch,
                 o.layer.micro_batch, o.step.dp)},
      {"foldwise.schedule_length", "[pp] [vpp] [global_batch] [micro_batch] [tp] [cp]",
       FW_WHEN(o.pipeline.pp * o.pipeline.vpp * o.num_microbatches() > kLongestSchedule),
       FW_REASON("{} micro-batches through [pp] {} x [vpp] {} stages are more than the {} that a schedule is predicted "
                 "of; a smaller [global_batch] or a larger [micro_batch] has fewer",
                 o.num_microbatches(), o.pipeline.pp, o.pipeline.vpp, kLongestSchedule)},
      {"grid.ep_needs_moe", "[ep] --num-experts", FW_WHEN(o.layer.ep > 1 && !p.model.has_moe()),
       FW_REASON("[ep] {} needs --num-experts; {} has no experts", o.layer.ep, p.model.name)},
      {"grid.experts_div_ep", "[ep] --num-experts", FW_WHEN(p.model.moe.experts % o.layer.ep != 0),
       FW_REASON("[ep] {} does not divide --num-experts {}", o.layer.ep, p.model.moe.experts)},
      {"grid.bias_etp", "[etp] --add-bias-linear",
       FW_WHEN(o.layer.etp > 1 && p.model.has_moe() && p.model.add_bias_linear),
       FW_REASON("[etp] {} must be 1: the experts of {} have linear biases", o.layer.etp, p.model.name)},
      {"grid.etp_without_ep",
       "[etp] [tp] [ep] --num-experts",
       FW_WHEN(p.model.has_moe() && o.layer.ep == 1 && o.layer.etp != o.layer.tp),
       FW_REASON(
           "[etp] {} with [ep] 1 must be [tp] {} before Megatron-Core 0.19, which sums experts' gradients over the "
           "dense data-parallel group: these are not the ranks that hold the same part of the experts",
           o.layer.etp, o.layer.tp),
       {},
       in_releases("", "0.18.2")},
      {"grid.cp_seq", "[cp] [seq_len]", FW_WHEN(o.layer.cp > 1 && o.layer.seq_len % (2 * o.layer.cp) != 0),
       FW_REASON("[seq_len] {} is not a multiple of 2 x [cp] {}", o.layer.seq_len, o.layer.cp)},
      {"grid.sp_seq", "[sequence_parallel] [tp] [cp] [seq_len]",
       FW_WHEN(o.layer.splits_sequence() && (o.layer.seq_len / o.layer.cp) % o.layer.tp != 0),
       FW_REASON("[sequence_parallel] cannot split [seq_len] {} / [cp] {} over [tp] {}", o.layer.seq_len, o.layer.cp,
                 o.layer.tp)},
      {"grid.moe_tp_sp", "[sequence_parallel] [tp] --num-experts",
       FW_WHEN(p.model.has_moe() && o.layer.tp > 1 && !o.layer.sequence_parallel),
       FW_REASON("[tp] {} of {} needs [sequence_parallel]: experts take tokens of one rank each (core_v0.19.0 "
                 "moe_layer.py)",
                 o.layer.tp, p.model.name)},
      {"grid.maxpos", "--max-position-embeddings [seq_len]",
       FW_WHEN(p.model.learned_position_embedding && p.model.max_position_embeddings > 0 &&
               p.model.max_position_embeddings < o.layer.seq_len),
       FW_REASON("--max-position-embeddings {} is below [seq_len] {}", p.model.max_position_embeddings,
                 o.layer.seq_len)},

      // ---- What a layer can be split over ----
      {"attn.heads_tp", "--num-attention-heads [tp]", FW_WHEN(heads_not_split(p.model, o.layer.tp) > 0),
       FW_REASON("[tp] {} does not divide --num-attention-heads {}", o.layer.tp, heads_not_split(p.model, o.layer.tp))},
      {"attn.groups_tp", "--num-query-groups [tp]", FW_WHEN(groups_not_split(p.model, o.layer.tp) > 0),
       FW_REASON("--num-query-groups {} is neither a multiple nor a divisor of [tp] {}",
                 groups_not_split(p.model, o.layer.tp), o.layer.tp)},
      {"attn.gdn", "--linear-num-key-heads --linear-num-value-heads [tp] [cp]",
       FW_WHEN(delta_net_not_split(p.model, o.layer.tp * o.layer.cp)),
       FW_REASON("[tp] {} x [cp] {} must divide --linear-num-key-heads {} and --linear-num-value-heads {}, and the "
                 "value heads must be a multiple of the key heads",
                 o.layer.tp, o.layer.cp, mixer_of<GatedDeltaNetSpec>(p.model).key_heads,
                 mixer_of<GatedDeltaNetSpec>(p.model).value_heads)},
      {"attn.mamba_tp", "--mamba-num-heads --mamba-num-groups [tp] [precision]",
       FW_WHEN(
           mixer_of<MambaSpec>(p.model).heads > 0 &&
           (mixer_of<MambaSpec>(p.model).heads % o.layer.tp != 0 ||
            mixer_of<MambaSpec>(p.model).groups % o.layer.tp != 0 ||
            mixer_of<MambaSpec>(p.model).heads % std::max<std::int64_t>(1, mixer_of<MambaSpec>(p.model).groups) != 0 ||
            (is_fp8(o.layer.precision) && mixer_of<MambaSpec>(p.model).projection() % 16 != 0))),
       FW_REASON("[tp] {} must divide --mamba-num-heads {} and --mamba-num-groups {}, the heads must be a multiple of "
                 "the groups, and with fp8 the projection's width {} one of 16",
                 o.layer.tp, mixer_of<MambaSpec>(p.model).heads, mixer_of<MambaSpec>(p.model).groups,
                 mixer_of<MambaSpec>(p.model).projection())},
      {"attn.dsa", "--experimental-attention-variant [cp_comm_type] [cp]",
       FW_WHEN(p.model.find<MlaSpec>([](const MlaSpec& mla) { return mla.index_heads > 0; }) != nullptr &&
               (p.model.add_bias_linear || (o.layer.cp > 1 && o.layer.cp_comm != CpComm::kAllGather))),
       FW_REASON("--experimental-attention-variant dsa takes no linear bias, and [cp] {} only with [cp_comm_type] "
                 "all_gather, not {}",
                 o.layer.cp, name_of(o.layer.cp_comm))},
      {"attn.gdn_cp",
       "[cp] --experimental-attention-variant",
       FW_WHEN(o.layer.cp > 1 && p.model.find<GatedDeltaNetSpec>() != nullptr),
       FW_REASON("the gated delta nets of {} take no context parallelism before Megatron-Core 0.18: [cp] is {}",
                 p.model.name, o.layer.cp),
       {},
       in_releases("", "0.17.1")},
      {"attn.dsa_cp",
       "[cp] --experimental-attention-variant",
       FW_WHEN(o.layer.cp > 1 &&
               p.model.find<MlaSpec>([](const MlaSpec& mla) { return mla.index_heads > 0; }) != nullptr),
       FW_REASON("--experimental-attention-variant dsa takes no context parallelism before Megatron-Core 0.19: [cp] is "
                 "{}",
                 o.layer.cp),
       {},
       in_releases("", "0.18.2")},
      {"cp.a2a_heads", "[cp_comm_type] [cp] [tp] --num-query-groups [hierarchical_context_parallel_sizes]",
       FW_WHEN(heads_not_exchanged(p.model, o.layer.tp, o.layer.cp_all_to_all_ranks()) != nullptr),
       FW_REASON("[cp_comm_type] {} needs the heads of a tensor-parallel rank to be a multiple of the {} ranks that "
                 "exchange them: it has {} query and {} key/value heads",
                 name_of(o.layer.cp_comm), o.layer.cp_all_to_all_ranks(), exchanged_heads(p.model, o.layer).query,
                 exchanged_heads(p.model, o.layer).key_value)},
      {"cp.hier", "[cp_comm_type] [hierarchical_context_parallel_sizes] [cp]",
       FW_WHEN(o.layer.cp > 1 && o.layer.cp_comm == CpComm::kA2aP2p && o.layer.cp_a2a_size == 0),
       FW_REASON("[cp_comm_type] a2a+p2p needs [hierarchical_context_parallel_sizes]")},
      {"cp.hier_prod", "[hierarchical_context_parallel_sizes] [cp]",
       FW_WHEN(o.layer.cp_a2a_size > 0 && o.layer.cp % o.layer.cp_a2a_size != 0),
       FW_REASON("the first of [hierarchical_context_parallel_sizes], {}, does not divide [cp] {}", o.layer.cp_a2a_size,
                 o.layer.cp)},
      {"cp.softmax", "[cp] [cp_comm_type] --softmax-type [software.attention]",
       FW_WHEN(o.layer.cp > 1 && has_sinks(p.model) &&
               (o.layer.cp_comm != CpComm::kA2a || !o.layer.software.fused_attention)),
       FW_REASON("the learnable softmax of {} allows [cp] {} only with [cp_comm_type] a2a (not {}) and fused attention",
                 p.model.name, o.layer.cp, name_of(o.layer.cp_comm))},
      {"cp.swa", "[cp] [cp_comm_type] --window-size",
       FW_WHEN(o.layer.cp > 1 && o.layer.cp_comm != CpComm::kA2a && o.layer.cp_comm != CpComm::kAllGather &&
               has_window(p.model)),
       FW_REASON("the sliding windows of {} allow [cp] {} only with [cp_comm_type] a2a or all_gather, not {}",
                 p.model.name, o.layer.cp, name_of(o.layer.cp_comm))},
      {"cp.mamba", "[cp] --mamba-num-heads [tp]",
       FW_WHEN(mixer_of<MambaSpec>(p.model).heads > 0 &&
               (mixer_of<MambaSpec>(p.model).heads / o.layer.tp) % o.layer.cp != 0),
       FW_REASON("[cp] {} does not divide the {} Mamba heads of a tensor-parallel rank", o.layer.cp,
                 mixer_of<MambaSpec>(p.model).heads / o.layer.tp)},
      {"foldwise.ffn_tp", "--ffn-hidden-size --moe-ffn-hidden-size --moe-shared-expert-intermediate-size [tp] [etp]",
       FW_WHEN(p.model.ffn_hidden_size % o.layer.tp != 0 || p.model.moe.shared_ffn_hidden_size % o.layer.tp != 0 ||
               p.model.moe.ffn_hidden_size % o.layer.etp != 0),
       FW_REASON("[tp] {} must divide --ffn-hidden-size {} and --moe-shared-expert-intermediate-size {}, and [etp] {} "
                 "--moe-ffn-hidden-size {}",
                 o.layer.tp, p.model.ffn_hidden_size, p.model.moe.shared_ffn_hidden_size, o.layer.etp,
                 p.model.moe.ffn_hidden_size)},

      // ---- Pipeline ----
      {"pp.vpp_pp_overlap", "[vpp] [pp]", FW_WHEN(o.pipeline.vpp > 1 && o.pipeline.pp == 1),
       FW_REASON("[vpp] {} needs [pp] above 1", o.pipeline.vpp)},
      {"foldwise.schedule_chunks", "[schedule] [vpp]",
       FW_WHEN(!costmodel::runnable(o.pipeline.schedule) && o.pipeline.vpp != study_vpp(o)),
       FW_REASON("schedule \"{}\" needs vpp = {}, found {}", name_of(o.pipeline.schedule), study_vpp(o),
                 o.pipeline.vpp)},
      {"foldwise.schedule_sizes", "[schedule] [pp] [global_batch] [micro_batch] [tp] [cp]",
       FW_WHEN(dual_pipe(o) && (o.num_microbatches() < 2 * o.pipeline.pp ||
                                (o.pipeline.schedule == Schedule::kDualPipe &&
                                 (o.pipeline.pp % 2 != 0 || o.num_microbatches() % 2 != 0)))),
       FW_REASON("schedule \"{}\" needs at least two micro-batches a pipeline rank{}, found {} over {} ranks",
                 name_of(o.pipeline.schedule),
                 o.pipeline.schedule == Schedule::kDualPipe ? ", and an even number of both" : "", o.num_microbatches(),
                 o.pipeline.pp)},
      {"pp.group_range", "[microbatch_group_size] [pp] [vpp] [schedule] [global_batch] [micro_batch] [tp] [cp]",
       FW_WHEN(o.pipeline.vpp > 1 && runnable(o.pipeline.schedule) &&
               (group_size(o) < o.pipeline.pp || group_size(o) > o.num_microbatches())),
       FW_REASON("[microbatch_group_size] {} must lie between [pp] {} and the {} micro-batches", group_size(o),
                 o.pipeline.pp, o.num_microbatches())},
      {"pp.group_rem", "[microbatch_group_size] [global_batch] [pp] [vpp] [schedule] [micro_batch] [tp] [cp]",
       FW_WHEN(o.pipeline.vpp > 1 && runnable(o.pipeline.schedule) && o.num_microbatches() % group_size(o) != 0 &&
               o.num_microbatches() % group_size(o) < o.pipeline.pp),
       FW_REASON("{} micro-batches leave {} after groups of {}: interleaving needs none, or at least [pp] {}",
                 o.num_microbatches(), o.num_microbatches() % group_size(o), group_size(o), o.pipeline.pp)},
      {"pp.even", "[pp] --num-layers [pipeline_layout]",
       FW_WHEN(!has_layout(o) && p.model.num_layers() % o.pipeline.pp != 0),
       FW_REASON("[pp] {} does not divide --num-layers {}{}", o.pipeline.pp, p.model.num_layers(), uneven_split(p, o))},
      {"pp.vpp_even", "[vpp] --num-layers [pp] [pipeline_layout]",
       FW_WHEN(!has_layout(o) && o.pipeline.vpp > 1 && (p.model.num_layers() / o.pipeline.pp) % o.pipeline.vpp != 0),
       FW_REASON("[vpp] {} does not divide the {} layers of a pipeline rank{}", o.pipeline.vpp,
                 p.model.num_layers() / o.pipeline.pp, uneven_split(p, o))},
      {"pp.hybrid_pattern", "--hybrid-layer-pattern [pipeline_layout]", FW_WHEN(p.model.hybrid && has_layout(o)),
       FW_REASON("the hybrid {} takes its stage boundaries from --hybrid-layer-pattern, not from [pipeline_layout]",
                 p.model.name)},
      {"pp.hybrid_vpp",
       "[vpp] --hybrid-layer-pattern",
       FW_WHEN(p.model.hybrid && o.pipeline.vpp > 1),
       FW_REASON("the hybrid {} has no virtual stages in Megatron-Core 0.16: [vpp] is {}", p.model.name,
                 o.pipeline.vpp),
       {},
       in_releases("", "0.16.1")},
      {"pp.layout_content", "[pipeline_layout] --num-layers [mtp]",
       FW_WHEN(has_layout(o) && !parsed_layout(p, o).stages),
       FW_REASON("[pipeline_layout] \"{}\": {}", o.pipeline.layout, parsed_layout(p, o).error)},
      {"pp.layout_stages", "[pipeline_layout] [pp] [vpp]",
       FW_WHEN(has_layout(o) && parsed_layout(p, o).stages &&
               stage_count(parsed_layout(p, o)) != o.pipeline.pp * o.pipeline.vpp),
       FW_REASON("[pipeline_layout] \"{}\" has {} stages, but [pp] {} x [vpp] {} is {}", o.pipeline.layout,
                 stage_count(parsed_layout(p, o)), o.pipeline.pp, o.pipeline.vpp, o.pipeline.pp * o.pipeline.vpp)},
      {"pp.layout_mtp", "[pipeline_layout] [mtp] [pp] [vpp]",
       FW_WHEN(has_layout(o) && parsed_layout(p, o).stages && mtp_stage(parsed_layout(p, o)) >= 0 &&
               mtp_stage(parsed_layout(p, o)) < (o.pipeline.vpp - 1) * o.pipeline.pp),
       FW_REASON("[pipeline_layout] \"{}\" puts the MTP layers in virtual stage {}, which is not the last of its "
                 "pipeline rank (those are {} to {})",
                 o.pipeline.layout, mtp_stage(parsed_layout(p, o)), (o.pipeline.vpp - 1) * o.pipeline.pp,
                 o.pipeline.vpp * o.pipeline.pp - 1)},
      {"pp.mtp_rope", "[mtp] --position-embedding-type",
       FW_WHEN(p.model.mtp_num_layers > 0 && p.model.learned_position_embedding),
       FW_REASON("[mtp] {} needs --position-embedding-type rope or none", p.model.mtp_num_layers)},
      {"pp.mhc", "--enable-mhc-connections [pp] [mtp] [recompute.granularity]",
       FW_WHEN(mixer_of<CompressedSpec>(p.model).residual_streams > 1 &&
               (o.pipeline.pp > 1 || p.model.mtp_num_layers > 0 || full_recompute(o))),
       FW_REASON(
           "the hyper-connections of {} exclude [pp] above 1 (it is {}), MTP layers (it has {}) and full recompute",
           p.model.name, o.pipeline.pp, p.model.mtp_num_layers)},

      // ---- MoE ----
      {"moe.flex_group", "[dispatcher/1] [ep] [etp]",
       FW_WHEN(p.model.has_moe() && dispatcher_spec(o.layer.dispatcher).needs_group && o.layer.etp * o.layer.ep == 1),
       FW_REASON("{} needs [ep] x [etp] above 1", flag_of_name("dispatcher", o))},
      {"moe.flex_group_release",
       "[dispatcher/1] [ep] [etp]",
       FW_WHEN(p.model.has_moe() && is_flex(o.layer.dispatcher) && exchange_ranks(o) == 1),
       FW_REASON("{} needs [ep] x [etp] above 1 in Megatron-Core 0.16", flag_of_name("dispatcher", o)),
       {},
       in_releases("", "0.16.1")},
      {"moe.shared_bias", "--moe-shared-expert-intermediate-size --add-bias-linear",
       FW_WHEN(p.model.moe.shared_ffn_hidden_size > 0 && p.model.add_bias_linear),
       FW_REASON("the shared experts of {} take no linear bias", p.model.name)},
      {"moe.shared_overlap_disp",
       "[overlaps.shared_expert] [dispatcher] [recompute.modules] [overlaps.ep_a2a] --moe-latent-size "
       "[recompute.granularity]",
       FW_WHEN(o.layer.overlaps.shared_expert &&
               (o.pipeline.overlaps.ep_a2a ||
                (p.model.moe.shared_ffn_hidden_size > 0 &&
                 (!dispatcher_spec(o.layer.dispatcher).overlaps_shared_experts ||
                  recomputes(o, RecomputeModule::kSharedExperts) || p.model.moe.latent_size > 0)))),
       FW_REASON("[overlaps.shared_expert] excludes [dispatcher] allgather, [recompute.modules] shared_experts, "
                 "[overlaps.ep_a2a] and --moe-latent-size (dispatcher: {})",
                 flag_of_name("dispatcher", o))},
      {"moe.shared_overlap_flex",
       "[overlaps.shared_expert] [dispatcher] --moe-shared-expert-intermediate-size",
       FW_WHEN(o.layer.overlaps.shared_expert && p.model.moe.shared_ffn_hidden_size > 0 &&
               o.layer.dispatcher != Dispatcher::kAllToAll),
       FW_REASON("[overlaps.shared_expert] needs [dispatcher] alltoall before Megatron-Core 0.18, not {}",
                 name_of(o.layer.dispatcher)),
       {},
       in_releases("", "0.17.1")},
      {"moe.allgather_permute",
       "[dispatcher] [software.permute]",
       FW_WHEN(p.model.has_moe() && o.layer.dispatcher == Dispatcher::kAllGather && o.layer.software.fused_permute),
       FW_REASON("[software.permute] with [dispatcher] allgather stops in Megatron-Core 0.16: it hands a count on the "
                 "host to a Triton kernel"),
       {},
       in_releases("", "0.16.1")},
      {"moe.deepep_sizes", "[dispatcher/1] [ep] [etp] --hidden-size",
       FW_WHEN(p.model.has_moe() && o.layer.dispatcher == Dispatcher::kDeepEp && exchange_ranks(o) > 1 &&
               !deep_ep_fits(p, o)),
       FW_REASON(
           "DeepEP has no kernels for [ep] {} x [etp] {} ranks and tokens of {} values: it takes {} ranks, and up "
           "to {} values, a multiple of 16, or of 256 beyond one machine",
           o.layer.ep, o.layer.etp, token_width(p.model), fmt::join(kDeepEpRanks, ", "), kDeepEpHidden)},
      {"moe.hybridep_sizes", "[dispatcher/1] [ep] [etp] --hidden-size --num-experts",
       FW_WHEN(p.model.has_moe() && o.layer.dispatcher == Dispatcher::kHybridEp &&
               (token_width(p.model) % 16 != 0 || exchange_ranks(o) % domain_ranks(p, o) != 0 ||
                p.model.moe.experts / o.layer.ep * domain_ranks(p, o) % 4 != 0)),
       FW_REASON(
           "HybridEP needs tokens of a multiple of 16 values (they have {}), [ep] {} x [etp] {} to be a multiple of "
           "the {} ranks that share NVLink, and a multiple of 4 experts on those (they have {})",
           token_width(p.model), o.layer.ep, o.layer.etp, domain_ranks(p, o),
           p.model.moe.experts / o.layer.ep * domain_ranks(p, o))},
      {"moe.hybridep_tokens", "[dispatcher/1] [ep] [etp] [seq_len] [micro_batch] [cp] [tp] [sequence_parallel]",
       FW_WHEN(p.model.has_moe() && o.layer.dispatcher == Dispatcher::kHybridEp &&
               exchange_ranks(o) > p.hardware.network.ranks_per_domain && rank_tokens(o) > kHybridEpTokens),
       FW_REASON(
           "HybridEP takes {} tokens a rank beyond one NVLink domain; [seq_len] {} x [micro_batch] {} over [cp] {} "
           "and [tp] {} are {}",
           kHybridEpTokens, o.layer.seq_len, o.layer.micro_batch, o.layer.cp, o.layer.tp, rank_tokens(o))},
      {"moe.rank_cap", "[rank_capacity_factor] [dispatcher/1] [software.experts/1]",
       FW_WHEN(o.layer.rank_capacity_factor && p.model.has_moe() &&
               (o.layer.dispatcher != Dispatcher::kHybridEp || o.layer.software.experts != Experts::kFused)),
       FW_REASON("[rank_capacity_factor] needs [dispatcher/1] hybridep (it is {}) and [software.experts/1]",
                 name_of(o.layer.dispatcher))},
      {"moe.paged_stash", "[paged_stash] [rank_capacity_factor] [offload.modules] [offload.type] [offload.num_layers]",
       FW_WHEN(o.layer.paged_stash &&
               (!o.layer.rank_capacity_factor || layer_offload(o) ||
                o.layer.offload_modules.intersects(
                    {OffloadModule::kExpertFc1, OffloadModule::kMoeAct, OffloadModule::kFusedGroupMlp}))),
       FW_REASON("[paged_stash] needs [rank_capacity_factor], and excludes [offload.modules] expert_fc1, moe_act and "
                 "fused_group_mlp")},
      {"moe.pad_cap", "[pad_to_capacity] [capacity_factor]",
       FW_WHEN(o.layer.pad_to_capacity && !o.layer.capacity_factor),
       FW_REASON("[pad_to_capacity] needs [capacity_factor]")},
      {"moe.pad_cap_deepep", "[pad_to_capacity] [dispatcher]",
       FW_WHEN(o.layer.pad_to_capacity && o.layer.dispatcher == Dispatcher::kDeepEp),
       FW_REASON("[pad_to_capacity] excludes DeepEP")},
      {"moe.fused_mlp", "[software.experts/1] [etp] [offload.modules]",
       FW_WHEN(o.layer.software.experts == Experts::kFused && p.model.has_moe() &&
               (o.layer.etp > 1 || offloads(o, OffloadModule::kExpertFc1) || offloads(o, OffloadModule::kMoeAct))),
       FW_REASON("[software.experts/1] with grouped GEMM needs [etp] 1 (it is {}) and excludes [offload.modules] "
                 "expert_fc1 and moe_act",
                 o.layer.etp)},
      {"foldwise.cutlass_groups",
       "[software.experts] [software.transformer_impl] [precision] [etp] --hidden-size --moe-ffn-hidden-size",
       FW_WHEN(
           p.model.has_moe() && o.layer.software.experts == Experts::kCutlass &&
           (!o.layer.software.transformer_engine || o.layer.precision != Precision::kBf16 ||
            p.hardware.gemm.at(static_cast<std::size_t>(costmodel::MathFormat::kBf16)).one_kernel_memory_share <= 0.0 ||
            token_width(p.model) % 128 != 0 || p.model.moe.ffn_hidden_size / o.layer.etp % 128 != 0)),
       FW_REASON(
           "software.experts cutlass is Transformer Engine's kernel for BF16 on Hopper and widths of a multiple of 128 "
           "(tokens have {} values, an expert {}); elsewhere it falls back to grouped",
           token_width(p.model), p.model.moe.ffn_hidden_size / o.layer.etp)},
      {"foldwise.fused_experts", "[software.experts/1] [precision]",
       FW_WHEN(p.model.has_moe() && o.layer.software.experts == Experts::kFused &&
               o.layer.precision != Precision::kMxfp8),
       FW_REASON("[software.experts/1] is Transformer Engine's kernel for MXFP8 on Blackwell; with other precisions it "
                 "runs product by product, which is not modelled")},
      {"moe.fused_widths", "[software.experts/1] --hidden-size --moe-ffn-hidden-size",
       FW_WHEN(p.model.has_moe() && o.layer.software.experts == Experts::kFused &&
               (token_width(p.model) % 64 != 0 || p.model.moe.ffn_hidden_size % 64 != 0)),
       FW_REASON(
           "Transformer Engine fuses experts whose widths are multiples of 64 ([software.experts/1]): tokens have "
           "{} values, --moe-ffn-hidden-size is {}",
           token_width(p.model), p.model.moe.ffn_hidden_size)},
      {"rc.fused_moe_act",
       "[recompute.modules] [software.experts/1] [recompute.granularity]",
       FW_WHEN(p.model.has_moe() && recomputes(o, RecomputeModule::kMoeAct) &&
               o.layer.software.experts == Experts::kFused),
       FW_REASON(
           "[recompute.modules] moe_act beside fused experts ([software.experts/1]) is ignored before Transformer "
           "Engine 2.17 and raises since where it does not fuse"),
       {},
       in_releases("0.18.2")},
      {"foldwise.flex_gpu", "[dispatcher/1]",
       FW_WHEN(p.model.has_moe() && is_flex(o.layer.dispatcher) &&
               std::ranges::count(p.hardware.traits.flex_dispatchers, o.layer.dispatcher) == 0),
       FW_REASON("{} does not run on {}; what does: {}", flag_of_name("dispatcher", o), p.hardware.gpu,
                 flex_dispatchers(p.hardware))},

      {"foldwise.hybridep_place", "[dispatcher/1] [ep] [etp]",
       FW_WHEN(p.model.has_moe() && o.layer.dispatcher == Dispatcher::kHybridEp &&
               p.hardware.network.ranks_per_domain % domain_ranks(p, o) != 0 && p.num_gpus > exchange_ranks(o)),
       FW_REASON("HybridEP takes the [ep] {} x [etp] {} ranks of a group for those of one NVLink domain: they must "
                 "divide its {}",
                 o.layer.ep, o.layer.etp, p.hardware.network.ranks_per_domain)},

      // ---- Overlap of the experts' all-to-all ----
      {"foldwise.epov_hybrid", "[overlaps.ep_a2a] --hybrid-layer-pattern",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && p.model.hybrid),
       FW_REASON("[overlaps.ep_a2a] is of GPT models: the hybrid {} has no schedule plan", p.model.name)},
      {"foldwise.epov_fp4",
       "[overlaps.ep_a2a] [precision]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.precision == Precision::kNvfp4),
       FW_REASON(
           "[overlaps.ep_a2a] with [precision] nvfp4 multiplies in BF16: its schedule enters FP8's context alone"),
       {},
       in_releases("")},
      {"epov.ep", "[overlaps.ep_a2a] [ep]", FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.ep == 1),
       FW_REASON("[overlaps.ep_a2a] needs [ep] above 1")},
      {"epov.vpp", "[overlaps.ep_a2a] [vpp] [pp] [schedule]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.pipeline.pp > 1 && o.pipeline.vpp == 1 && runnable(o.pipeline.schedule)),
       FW_REASON("[overlaps.ep_a2a] with [pp] {} needs [vpp] above 1", o.pipeline.pp)},
      {"foldwise.schedule_overlap", "[schedule] [overlaps.ep_a2a]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && !runnable(o.pipeline.schedule) && !dual_pipe(o)),
       FW_REASON("[overlaps.ep_a2a] needs a schedule with (forward, backward) pairs: 1f1b, dualpipe or dualpipe-v, "
                 "found \"{}\"",
                 name_of(o.pipeline.schedule))},
      {"epov.disp", "[overlaps.ep_a2a] [dispatcher]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && !dispatcher_spec(o.layer.dispatcher).overlaps_micro_batches),
       FW_REASON("[overlaps.ep_a2a] needs [dispatcher] alltoall or flex, not allgather")},
      {"epov.recompute", "[overlaps.ep_a2a] [recompute.granularity] [recompute.modules]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && (full_recompute(o) || recomputes(o, RecomputeModule::kMoe))),
       FW_REASON("[overlaps.ep_a2a] excludes {}",
                 with_flags(full_recompute(o) ? "[recompute.granularity] full" : "[recompute.modules] moe"))},
      {"epov.shared", "[overlaps.ep_a2a] [overlaps.shared_expert]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.overlaps.shared_expert),
       FW_REASON("[overlaps.ep_a2a] excludes [overlaps.shared_expert]")},
      {"epov.mtp", "[overlaps.ep_a2a] [mtp]", FW_WHEN(o.pipeline.overlaps.ep_a2a && p.model.mtp_num_layers > 1),
       FW_REASON("[overlaps.ep_a2a] allows at most 1 MTP layer, not [mtp] {}", p.model.mtp_num_layers)},
      {"epov.mtp_pp",
       "[overlaps.ep_a2a] [mtp] [pp]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && p.model.mtp_num_layers == 1 && o.pipeline.pp == 1),
       FW_REASON("[overlaps.ep_a2a] with [mtp] needs [pp] above 1 before Megatron-Core 0.18"),
       {},
       in_releases("", "0.17.1")},
      {"epov.cg_impl",
       "[overlaps.ep_a2a] [cuda_graph.impl]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a &&
               (o.layer.cuda_graph.impl == GraphImpl::kLocal || o.layer.cuda_graph.impl == GraphImpl::kFullIteration)),
       FW_REASON("[overlaps.ep_a2a] takes Transformer Engine's graphs only before Megatron-Core 0.18, not {}",
                 name_of(o.layer.cuda_graph.impl)),
       {},
       in_releases("", "0.17.1")},
      {"epov.fsdp_release",
       "[overlaps.ep_a2a] [sharding/1]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && is_fsdp(o.step.sharding)),
       FW_REASON("[overlaps.ep_a2a] with [sharding/1] is in Megatron-Core since 0.18"),
       {},
       in_releases("", "0.17.1")},
      {"epov.fsdp_graphs",
       "[overlaps.ep_a2a] [sharding/1] [cuda_graph.impl]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && is_fsdp(o.step.sharding) && per_layer_graphs(o)),
       FW_REASON("[overlaps.ep_a2a] with [sharding/1] takes no graphs but of the full iteration, not {}",
                 name_of(o.layer.cuda_graph.impl)),
       {},
       in_releases("0.18.2")},
      {"epov.cg", "[overlaps.ep_a2a] [cuda_graph.impl] [cuda_graph.scope]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine &&
               o.layer.cuda_graph.modules.intersects({GraphModule::kMoe, GraphModule::kMlp})),
       FW_REASON(
           "[overlaps.ep_a2a] with [cuda_graph.impl] transformer_engine excludes [cuda_graph.scope] moe and mlp")},
      {"epov.fsdp", "[overlaps.ep_a2a] [sharding/1] [vpp] [pp]",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && is_fsdp(o.step.sharding) && o.pipeline.pp > 1),
       FW_REASON("[overlaps.ep_a2a] with [sharding/1] needs [pp] 1, not {}", o.pipeline.pp)},
      {"epov.delay_wgrad",
       "[overlaps.delay_wgrad] [overlaps.ep_a2a] [cuda_graph.scope] [software.transformer_impl] "
       "[software.wgrad_accumulation_fusion] [cuda_graph.impl]",
       FW_WHEN(o.pipeline.overlaps.delay_wgrad &&
               (!o.pipeline.overlaps.ep_a2a || !o.layer.software.transformer_engine ||
                (captures(o, GraphModule::kAttn) && (!o.layer.software.gradient_accumulation_fusion ||
                                                     has_qkv_bias(p.model) || p.model.add_bias_linear)))),
       FW_REASON("[overlaps.delay_wgrad] needs [overlaps.ep_a2a] and TransformerEngine layers; with [cuda_graph.scope] "
                 "attn also gradient accumulation fusion and no attention bias")},

      // ---- Recompute ----
      {"rc.full", "[recompute.granularity] [recompute.num_layers]",
       FW_WHEN(full_recompute(o) && o.pipeline.recompute.num_layers < 1),
       FW_REASON("[recompute.granularity] full needs [recompute.num_layers] of at least 1, not {}",
                 o.pipeline.recompute.num_layers)},
      {"rc.full_mtp", "[recompute.granularity] [recompute.method] [recompute.num_layers] [mtp]",
       FW_WHEN(full_recompute(o) && o.pipeline.recompute.method == costmodel::RecomputeMethod::kUniform &&
               o.pipeline.recompute.num_layers > 1 && p.model.mtp_num_layers > 0),
       FW_REASON("[recompute.method] uniform needs [recompute.num_layers] 1 with MTP layers (Megatron's first forward "
                 "asserts it), not {}",
                 o.pipeline.recompute.num_layers)},
      {"rc.modules", "[recompute.modules] [recompute.granularity]", FW_WHEN(recomputes(o, RecomputeModule::kFull)),
       FW_REASON("[recompute.modules] does not list \"full\": that is [recompute.granularity] full")},
      {"rc.moe_act", "[recompute.modules] [software.experts] [recompute.granularity]",
       FW_WHEN(recomputes(o, RecomputeModule::kMoeAct) && o.layer.software.experts == Experts::kSequential),
       FW_REASON("[recompute.modules] moe_act needs [software.experts]")},
      {"rc.mla", "[recompute.modules] --multi-latent-attention [recompute.granularity]",
       FW_WHEN(recomputes(o, RecomputeModule::kMlaUpProj) && p.model.find<MlaSpec>() == nullptr &&
               p.model.find<CompressedSpec>() == nullptr),
       FW_REASON("[recompute.modules] mla_up_proj needs --multi-latent-attention, which {} does not have",
                 p.model.name)},
      {"rc.fp8", "[recompute.modules] [precision] [recompute.granularity]",
       FW_WHEN(o.layer.precision == Precision::kFp8Delayed &&
               (recomputes(o, RecomputeModule::kMoeAct) || recomputes(o, RecomputeModule::kLayerNorm))),
       FW_REASON("[recompute.modules] moe_act and layernorm exclude [precision] delayed")},
      {"rc.cpu_off", "[offload.num_layers] [recompute.granularity] [offload.modules] [cuda_graph.impl] [offload.type]",
       FW_WHEN(layer_offload(o) &&
               (o.layer.recompute.granularity != RecomputeGranularity::kNone || fine_grained_offload(o) ||
                o.layer.cuda_graph.impl != GraphImpl::kNone || o.pipeline.cpu_offloading_num_layers < 0 ||
                o.pipeline.cpu_offloading_num_layers >= p.model.num_layers())),
       FW_REASON("[offload.num_layers] {} must be below --num-layers {} and excludes recompute, [offload.modules] and "
                 "[cuda_graph.impl]",
                 o.pipeline.cpu_offloading_num_layers, p.model.num_layers())},
      {"rc.cpu_off_pp", "[offload.num_layers] [pp] [offload.type]", FW_WHEN(layer_offload(o) && o.pipeline.pp > 1),
       FW_REASON("[offload.num_layers] excludes [pp] above 1; it is {}", o.pipeline.pp)},
      {"foldwise.cpu_off_overlap", "[offload.num_layers] [overlaps.ep_a2a] [offload.type]",
       FW_WHEN(layer_offload(o) && o.pipeline.overlaps.ep_a2a),
       FW_REASON("[offload.num_layers] offloads nothing with [overlaps.ep_a2a], whose schedule runs the layers one by "
                 "one")},

      {"foldwise.recompute_hybrid",
       "[recompute.granularity] --hybrid-layer-pattern",
       FW_WHEN(p.model.hybrid && full_recompute(o)),
       FW_REASON("[recompute.granularity] full of the hybrid {} recomputes nothing before Megatron-Core 0.18",
                 p.model.name),
       {},
       in_releases("", "0.17.1")},

      // ---- Offload ----
      {"foldwise.layer_offload_hybrid",
       "[offload.num_layers] [offload.type] [offload.modules] --hybrid-layer-pattern",
       FW_WHEN(p.model.hybrid && layer_offload(o)),
       FW_REASON("[offload.num_layers] offloads nothing of the hybrid {}", p.model.name),
       {},
       in_releases("")},
      {"foldwise.offload_hybrid",
       "[offload.modules] --hybrid-layer-pattern",
       FW_WHEN(p.model.hybrid && fine_grained_offload(o)),
       FW_REASON("[offload.modules] offloads nothing of the hybrid {} before Megatron-Core 0.18", p.model.name),
       {},
       in_releases("", "0.17.1")},
      {"off.modules", "[offload.modules] [software.transformer_impl]",
       FW_WHEN(fine_grained_offload(o) && !o.layer.software.transformer_engine),
       FW_REASON("[offload.type] needs [software.transformer_impl] transformer_engine")},
      {"off.attn_proj", "[offload.modules]",
       FW_WHEN(offloads(o, OffloadModule::kAttnProj) && !offloads(o, OffloadModule::kCoreAttn)),
       FW_REASON("[offload.modules] attn_proj needs core_attn too")},
      {"off.moe_rc", "[offload.modules] [recompute.modules] [recompute.granularity]",
       FW_WHEN(recomputes(o, RecomputeModule::kMoe) &&
               o.layer.offload_modules.intersects(
                   {OffloadModule::kMoeAct, OffloadModule::kExpertFc1, OffloadModule::kFusedGroupMlp})),
       FW_REASON("[recompute.modules] moe excludes [offload.modules] moe_act, expert_fc1 and fused_group_mlp")},
      {"off.fused_release",
       "[offload.modules]",
       FW_WHEN(offloads(o, OffloadModule::kFusedGroupMlp)),
       FW_REASON("[offload.modules] fused_group_mlp is in Megatron-Core since 0.19"),
       {},
       in_releases("", "0.18.2")},
      {"off.fp8_qkv",
       "[offload.modules] [precision]",
       FW_WHEN(offloads(o, OffloadModule::kQkvLinear) && costmodel::is_quantised(o.layer.precision)),
       FW_REASON("[offload.modules] qkv_linear takes the quantised weights for activations in {} before Megatron-Core "
                 "0.19",
                 flag_of_name("precision", o)),
       {},
       in_releases("", "0.18.2")},
      {"off.fsdp", "[offload.modules] [sharding/1] [software.cross_entropy]",
       FW_WHEN(o.megatron_fsdp() && fine_grained_offload(o)),
       FW_REASON("[offload.modules] with [sharding/1] gives gradients that are no numbers: what is offloaded is freed "
                 "first")},
      {"off.cg_local_release",
       "[offload.modules] [cuda_graph.impl]",
       FW_WHEN(fine_grained_offload(o) && o.layer.cuda_graph.impl == GraphImpl::kLocal),
       FW_REASON("[offload.modules] with [cuda_graph.impl] local is in Megatron-Core since 0.19"),
       {},
       in_releases("0.18.2", "0.18.2")},
      {"off.optim_states",
       "[offload.optimizer_cpu_offload] [optimizer.exp_avg_dtype] [optimizer.exp_avg_sq_dtype] [offload.fraction] "
       "[optimizer.precision_aware]",
       FW_WHEN(o.step.offload.optimizer_fraction > 0.0 &&
               (o.step.optimizer.exp_avg != DataType::kFp32 || o.step.optimizer.exp_avg_sq != DataType::kFp32)),
       FW_REASON("[offload.optimizer_cpu_offload] keeps states in fp32 whatever [optimizer.exp_avg_dtype] and "
                 "[optimizer.exp_avg_sq_dtype] say, on the GPU too: it frees nothing beside states of two bytes"),
       {},
       in_releases("")},
      {"off.fused", "[offload.modules] [software.experts/1]",
       FW_WHEN(offloads(o, OffloadModule::kFusedGroupMlp) &&
               (o.layer.software.experts != Experts::kFused ||
                o.layer.offload_modules.intersects({OffloadModule::kExpertFc1, OffloadModule::kMoeAct}))),
       FW_REASON("[offload.modules] fused_group_mlp needs [software.experts/1] and excludes expert_fc1 and moe_act")},
      {"off.cg_local", "[offload.modules] [cuda_graph.impl] [cuda_graph.scope]",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kLocal && fine_grained_offload(o) &&
               (o.layer.cuda_graph.modules.empty() || o.layer.cuda_graph.modules.contains(GraphModule::kMoe) ||
                o.layer.offload_modules.intersects({OffloadModule::kAttnNorm, OffloadModule::kQkvLinear,
                                                    OffloadModule::kCoreAttn, OffloadModule::kAttnProj,
                                                    OffloadModule::kMlpNorm}))),
       FW_REASON("[cuda_graph.impl] local allows [offload.modules] expert_fc1, moe_act and fused_group_mlp only, with "
                 "a non-empty [cuda_graph.scope] without moe")},
      {"off.cg_warm", "[offload.modules] [cuda_graph.scope] [cuda_graph.impl]",
       FW_WHEN(fine_grained_offload(o) && captures(o, GraphModule::kMoe)),
       FW_REASON("[offload.type] excludes [cuda_graph.scope] moe")},
      {"off.optim",
       "[offload.optimizer_cpu_offload] [optimizer.precision_aware] [optimizer.fp8_param_gather] [precision] "
       "[offload.fraction]",
       FW_WHEN(o.step.offload.optimizer_fraction > 0.0 &&
               (!o.step.optimizer.precision_aware ||
                (o.step.optimizer.low_precision_param_gather && is_fp8(o.layer.precision) &&
                 o.layer.precision != Precision::kFp8Delayed))),
       [](const Problem&, const TrainingOptions& o) {
         return !o.step.optimizer.precision_aware
                    ? said("[offload.optimizer_cpu_offload] needs [optimizer.precision_aware], and of states fp32")
                    : said(
                          "[offload.optimizer_cpu_offload] takes [optimizer.fp8_param_gather] only with [precision] "
                          "delayed (the run uses {})",
                          flag_of_name("precision", o));
       }},
      {"foldwise.offload_states",
       "[offload.optimizer_states] [sharding] [optimizer.name] [offload.optimizer_cpu_offload] [offload.fraction]",
       FW_WHEN(o.step.offload.optimizer_states &&
               (o.step.sharding != Sharding::kDdpDistributedOptimizer ||
                o.step.optimizer.kind != OptimizerKind::kAdam || o.step.offload.optimizer_fraction > 0.0)),
       FW_REASON("[offload.optimizer_states] needs [sharding] and [optimizer.name] adam (it is {}), and excludes "
                 "[offload.optimizer_cpu_offload]",
                 name_of(o.step.optimizer.kind))},

      // ---- Precision ----
      {"foldwise.precision_gpu", "[precision] [precision/4]", FW_WHEN(!p.hardware.supports(o.layer.precision)),
       FW_REASON("{} has no support for {}", p.hardware.gpu, flag_of_name("precision", o))},
      {"foldwise.local_layers",
       "[software.transformer_impl] [cp] [precision] [sequence_parallel] [tp] --normalization",
       FW_WHEN(!o.layer.software.transformer_engine &&
               (o.layer.cp > 1 || costmodel::is_quantised(o.layer.precision) ||
                (o.layer.splits_sequence() && p.model.normalization == costmodel::Normalization::kRmsNorm))),
       FW_REASON(
           "[software.transformer_impl] local has no [cp] above 1, no products in FP8 or FP4, and no RMSNorm with "
           "[sequence_parallel]"),
       {},
       in_releases("")},
      {"foldwise.quantised_widths", "[precision] [tp] [etp] --hidden-size --ffn-hidden-size --moe-ffn-hidden-size",
       FW_WHEN(uneven_width(p.model, o.layer) != 0),
       FW_REASON("products in {} need widths of a multiple of {}; with [tp] {} and [etp] {} a rank has one of {}",
                 flag_of_name("precision", o), width_multiple(o.layer.precision), o.layer.tp, o.layer.etp,
                 uneven_width(p.model, o.layer))},
      {"foldwise.quantised_rows", "[precision] [seq_len] [micro_batch] [cp] [tp] [sequence_parallel]",
       FW_WHEN(rank_tokens(o) % row_multiple(o.layer.precision) != 0),
       FW_REASON("products in {} need rows of a multiple of {}; [seq_len] {} x [micro_batch] {} over [cp] {} and "
                 "[sequence_parallel] are {}",
                 flag_of_name("precision", o), row_multiple(o.layer.precision), o.layer.seq_len, o.layer.micro_batch,
                 o.layer.cp, rank_tokens(o))},
      {"foldwise.fp4_hybrid",
       "[precision] --hybrid-layer-pattern",
       FW_WHEN(p.model.hybrid && o.layer.precision == Precision::kNvfp4),
       FW_REASON("[precision] nvfp4 of the hybrid {} multiplies in BF16 before Megatron-Core 0.17", p.model.name),
       {},
       in_releases("", "0.16.1")},
      {"q.param_gather",
       "[optimizer.fp8_param_gather] [sharding] [sharding/1] [optimizer.fp4_param_gather] [precision]",
       FW_WHEN(o.step.optimizer.low_precision_param_gather &&
               (!costmodel::is_quantised(o.layer.precision) ||
                (is_fp8(o.layer.precision) && o.step.sharding == Sharding::kDdp))),
       FW_REASON("[optimizer.fp8_param_gather] needs fp8 (the run uses {}) and [sharding] or [sharding/1]",
                 flag_of_name("precision", o))},

      // ---- Data parallel and optimizer ----
      {"dp.opg", "[overlaps.dp_param] [overlaps.dp_grad] [sharding]",
       FW_WHEN(o.step.overlaps.dp_param && (!o.step.overlaps.dp_grad || o.step.sharding == Sharding::kDdp)),
       FW_REASON("[overlaps.dp_param] needs [overlaps.dp_grad] and [sharding] or [sharding/1]")},
      {"dp.opg_step", "[overlaps.param_gather_with_optimizer_step] [sharding] [overlaps.dp_param] [vpp]",
       FW_WHEN(
           o.step.overlaps.param_gather_with_optimizer_step &&
           (o.step.sharding != Sharding::kDdpDistributedOptimizer || !o.step.overlaps.dp_param || o.pipeline.vpp == 1)),
       FW_REASON("[overlaps.param_gather_with_optimizer_step] needs [sharding], [overlaps.dp_param] and [vpp] above 1 "
                 "(it is {})",
                 o.pipeline.vpp)},
      {"dp.precision_aware",
       "[optimizer.precision_aware] [optimizer.name] [optimizer.main_grads_dtype] [optimizer.main_params_dtype] "
       "[optimizer.exp_avg_dtype] [optimizer.exp_avg_sq_dtype] [sharding]",
       FW_WHEN(o.step.optimizer.precision_aware
                   ? o.step.optimizer.kind != OptimizerKind::kAdam || o.step.sharding == Sharding::kDdp
                   : (o.step.optimizer.main_grads != DataType::kFp32 ||
                      o.step.optimizer.main_params != DataType::kFp32 || o.step.optimizer.exp_avg != DataType::kFp32 ||
                      o.step.optimizer.exp_avg_sq != DataType::kFp32)),
       [](const Problem&, const TrainingOptions& o) {
         return o.step.optimizer.precision_aware
                    ? said("[optimizer.precision_aware] needs [optimizer.name] adam (it is {}) and [sharding]",
                           name_of(o.step.optimizer.kind))
                    : said(
                          "[optimizer.main_grads_dtype], [optimizer.main_params_dtype], [optimizer.exp_avg_dtype] and "
                          "[optimizer.exp_avg_sq_dtype] other than fp32 need [optimizer.precision_aware]");
       }},
      {"dp.delayed_masters",
       "[optimizer.precision_aware] [optimizer.fp8_param_gather] [precision] [optimizer.main_params_dtype] "
       "[sharding/1] "
       "[offload.optimizer_cpu_offload]",
       FW_WHEN(o.step.optimizer.precision_aware && o.step.optimizer.low_precision_param_gather &&
               o.layer.precision == Precision::kFp8Delayed && o.step.optimizer.main_params == DataType::kFp32 &&
               o.step.offload.optimizer_fraction == 0.0 && !o.megatron_fsdp()),
       FW_REASON("[optimizer.precision_aware] with [optimizer.fp8_param_gather] in delayed scaling stops in the first "
                 "step: half of a master is kept beside an FP8 weight, and Adam's kernel takes whole ones")},
      {"dp.fp32_accum", "[optimizer.grad_reduce_in_fp32] [optimizer.main_grads_dtype]",
       FW_WHEN(o.layer.grad_reduce_in_fp32 && o.step.optimizer.main_grads != DataType::kFp32),
       FW_REASON("[optimizer.grad_reduce_in_fp32] needs [optimizer.main_grads_dtype] fp32")},
      {"dp.fsdp", "[sharding/1] [optimizer.name]",
       FW_WHEN(is_fsdp(o.step.sharding) && o.step.optimizer.kind == OptimizerKind::kMuon),
       FW_REASON("[sharding/1] needs [optimizer.name] adam, not muon")},
      {"foldwise.fsdp_fusion",
       "[sharding/1] [optimizer.grad_reduce_in_fp32] [software.wgrad_accumulation_fusion] [software.cross_entropy]",
       FW_WHEN(o.megatron_fsdp() && o.layer.grad_reduce_in_fp32 && o.layer.software.gradient_accumulation_fusion),
       FW_REASON("[sharding/1] with fp32 gradients stops in the head's backward where products add to them "
                 "([software.wgrad_accumulation_fusion])")},
      {"foldwise.fsdp_pp", "[sharding/1] [pp] [software.cross_entropy]",
       FW_WHEN(o.megatron_fsdp() && o.pipeline.pp > 1),
       FW_REASON("[sharding/1] needs [pp] 1, not {}: its device mesh has no pipeline", o.pipeline.pp)},
      {"foldwise.fsdp_group_one", "[sharding/1] [fsdp_group] [tp] [cp] [pp] [software.cross_entropy]",
       FW_WHEN(o.megatron_fsdp() && hybrid_fsdp(o) && o.step.fsdp_group == 1),
       FW_REASON("an FSDP group of one rank shards nothing, and its buffers do not match those of its copies: "
                 "[num_distributed_optimizer_instances] must be below {}",
                 o.layout().dp_cp())},
      {"dp.fsdp_outer_fp8",
       "[fsdp_outer_optim] [sharding/1] [optimizer.fp8_param_gather] [optimizer.fp4_param_gather] [fsdp_group] [tp] "
       "[cp] [pp]",
       FW_WHEN(hybrid_fsdp(o) && o.step.fsdp_outer_optim && o.step.optimizer.low_precision_param_gather),
       FW_REASON("[fsdp_outer_optim] with [optimizer.fp8_param_gather] is not implemented in Megatron-Core 0.16"),
       {},
       in_releases("", "0.16.1")},
      {"dp.muon_release",
       "[optimizer.name] [overlaps.dp_grad] [overlaps.dp_param]",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kMuon && (o.step.overlaps.dp_grad || o.step.overlaps.dp_param)),
       FW_REASON("[optimizer.name] muon excludes [overlaps.dp_grad] and [overlaps.dp_param] in Megatron-Core 0.16"),
       {},
       in_releases("", "0.16.1")},
      {"dp.muon_ddp",
       "[optimizer.name] [overlaps.dp_grad] [sharding]",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kMuon && o.step.overlaps.dp_grad &&
               o.step.sharding == Sharding::kDdp),
       FW_REASON("[optimizer.name] muon excludes [overlaps.dp_grad] without [sharding] in Megatron-Core 0.17"),
       {},
       in_releases("0.17.1", "0.17.1")},
      {"dp.muon_fp16", "[optimizer.name] [precision]",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kMuon && o.layer.precision == Precision::kFp16),
       FW_REASON("[optimizer.name] muon excludes --fp16")},
      {"dp.muon_opg_step", "[optimizer.name] [overlaps.param_gather_with_optimizer_step]",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kMuon && o.step.overlaps.param_gather_with_optimizer_step),
       FW_REASON("[optimizer.name] muon excludes [overlaps.param_gather_with_optimizer_step]")},
      {"dp.muon_instances", "[optimizer.name] [num_distributed_optimizer_instances] [sharding]",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kMuon && o.step.optimizer_instances > 1),
       FW_REASON("[optimizer.name] muon needs [num_distributed_optimizer_instances] 1, not {}",
                 o.step.optimizer_instances)},
      {"dp.muon_expert_bias",
       "[optimizer.name] [sharding] --add-bias-linear --num-experts",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kMuon && o.step.sharding != Sharding::kDdp &&
               p.model.moe.experts > 0 && p.model.add_bias_linear),
       FW_REASON("[optimizer.name] muon leaves biases of experts to Adam, which [sharding] cannot shard beside it"),
       {},
       in_releases("0.18.2")},
      {"dp.sgd", "[optimizer.name] [sharding] [sharding/1]",
       FW_WHEN(o.step.optimizer.kind == OptimizerKind::kSgd && o.step.sharding != Sharding::kDdp),
       FW_REASON("[optimizer.name] sgd excludes [sharding] and [sharding/1], whose checkpoints know Adam's states")},
      {"dp.opg_step_mxfp8",
       "[overlaps.param_gather_with_optimizer_step] [optimizer.reuse_grad_buffer] [optimizer.fp8_param_gather] "
       "[precision]",
       FW_WHEN(o.step.overlaps.param_gather_with_optimizer_step && o.step.optimizer.reuse_grad_buffer &&
               o.step.optimizer.low_precision_param_gather && o.layer.precision == Precision::kMxfp8),
       FW_REASON("[overlaps.param_gather_with_optimizer_step] excludes [optimizer.reuse_grad_buffer]"),
       {},
       in_releases("")},
      {"foldwise.opg_step_experts",
       "[overlaps.param_gather_with_optimizer_step] [tp] [cp] [pp] [ep] [etp]",
       FW_WHEN(o.step.overlaps.param_gather_with_optimizer_step && p.model.has_moe() && o.layout().edp() > 1),
       FW_REASON("[overlaps.param_gather_with_optimizer_step] gathers the experts of the first chunk before their "
                 "optimizer's step: {} ranks that have the same ones train on stale copies",
                 o.layout().edp()),
       {},
       in_releases("")},
      {"foldwise.fsdp_fp4", "[sharding/1] [optimizer.fp4_param_gather] [optimizer.fp8_param_gather] [precision]",
       FW_WHEN(is_fsdp(o.step.sharding) && o.step.optimizer.low_precision_param_gather &&
               o.layer.precision == Precision::kNvfp4),
       FW_REASON("[sharding/1] has no buffers for weights in FP4 ([optimizer.fp4_param_gather])")},
      {"foldwise.fsdp_group_experts",
       "[sharding/1] [fsdp_group] [tp] [cp] [pp] [ep] [software.cross_entropy]",
       FW_WHEN(o.megatron_fsdp() && hybrid_fsdp(o) && o.layer.ep > 1),
       FW_REASON("{} FSDP groups ([num_distributed_optimizer_instances]) need [ep] 1, not {}: they would shard experts "
                 "over ranks that have others",
                 o.layout().dp_cp() / o.step.fsdp_group, o.layer.ep),
       {},
       in_releases("", "0.16.1")},
      {"foldwise.fsdp_outer", "[fsdp_outer_optim] [sharding/1] [fsdp_group] [tp] [cp] [pp]",
       FW_WHEN(hybrid_fsdp(o) && o.step.fsdp_outer_optim && o.step.sharding != Sharding::kFsdp),
       FW_REASON("[fsdp_outer_optim] needs [sharding/2] optim_grads_params")},
      {"grid.distopt_instances", "[num_distributed_optimizer_instances] [sharding] [tp] [cp] [pp] [ep] [etp]",
       FW_WHEN(o.step.optimizer_instances > 1 && (o.step.sharding != Sharding::kDdpDistributedOptimizer ||
                                                  o.layout().dp_cp() % o.step.optimizer_instances != 0 ||
                                                  o.layout().edp() % o.step.optimizer_instances != 0)),
       FW_REASON("[num_distributed_optimizer_instances] {} needs [sharding] and must divide data x context parallel {} "
                 "and the experts' data parallel {}",
                 o.step.optimizer_instances, o.layout().dp_cp(), o.layout().edp())},
      {"grid.distopt_instances_fsdp", "[sharding/1] [fsdp_group] [tp] [cp] [pp] [ep] [etp]",
       FW_WHEN(is_fsdp(o.step.sharding) && o.step.fsdp_group > 0 && o.layout().dp_cp() % o.step.fsdp_group == 0 &&
               o.layout().edp() * o.step.fsdp_group % o.layout().dp_cp() != 0),
       FW_REASON("{} FSDP groups ([num_distributed_optimizer_instances]) must divide the experts' data parallel {}",
                 o.layout().dp_cp() / o.step.fsdp_group, o.layout().edp())},
      {"foldwise.fsdp_group", "[sharding/1] [fsdp_group] [tp] [cp] [pp]",
       FW_WHEN(is_fsdp(o.step.sharding) && o.step.fsdp_group > 0 && o.layout().dp_cp() % o.step.fsdp_group != 0),
       FW_REASON("an FSDP group of {} ranks does not divide data parallel {} x [cp] {}", o.step.fsdp_group, o.step.dp,
                 o.layer.cp)},
      {"dp.tpovl", "[overlaps.tp] [sequence_parallel] [tp]", FW_WHEN(o.layer.overlaps.tp && !o.layer.splits_sequence()),
       FW_REASON("[overlaps.tp] needs [sequence_parallel], that is [tp] above 1")},
      {"foldwise.tpovl_domain", "[overlaps.tp] [tp]",
       FW_WHEN(o.layer.overlaps.tp && o.layer.tp > p.hardware.network.ranks_per_domain),
       FW_REASON("[overlaps.tp] needs [tp] within one NVLink domain of {}: user buffers are mapped by their peers",
                 p.hardware.network.ranks_per_domain)},
      {"dp.tpovl_precision", "[overlaps.tp] [precision]",
       FW_WHEN(o.layer.overlaps.tp &&
               (o.layer.precision == Precision::kFp8Blockwise || o.layer.precision == Precision::kNvfp4)),
       FW_REASON("[overlaps.tp] and [precision] {} exclude each other: Transformer Engine's user buffers gather BF16, "
                 "FP8 with one scale a tensor, and MXFP8",
                 name_of(o.layer.precision))},

      {"foldwise.tpovl_mla",
       "[overlaps.tp] --multi-latent-attention",
       FW_WHEN(o.layer.overlaps.tp && p.model.find<MlaSpec>() != nullptr),
       FW_REASON("[overlaps.tp] is switched off by multi-latent attention, whose projections have no user buffers"),
       {},
       in_releases("")},

      // ---- CUDA graphs ----
      {"foldwise.yarn_graphs",
       "[cuda_graph.impl] [cuda_graph.scope] --position-embedding-type",
       FW_WHEN(p.model.scaled_rope && o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine &&
               (o.layer.cuda_graph.modules.empty() || captures(o, GraphModule::kAttn))),
       FW_REASON("[cuda_graph.impl] transformer_engine captures attention without positions where they are YaRN's and "
                 "attention is not latent"),
       {},
       in_releases("0.19.0")},
      {"foldwise.graph_opg_step",
       "[cuda_graph.impl] [overlaps.param_gather_with_optimizer_step]",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kFullIteration &&
               o.step.overlaps.param_gather_with_optimizer_step),
       FW_REASON("[cuda_graph.impl] full_iteration would wait in the graph for a gather that starts outside of it "
                 "([overlaps.param_gather_with_optimizer_step])"),
       {},
       in_releases("")},
      {"foldwise.graph_fp16",
       "[cuda_graph.impl] [precision]",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kFullIteration && o.layer.precision == Precision::kFp16),
       FW_REASON(
           "[cuda_graph.impl] full_iteration keeps the loss scale of its capture, which [precision] fp16 changes"),
       {},
       in_releases("")},
      {"cg.full_mods", "[cuda_graph.impl] [cuda_graph.scope]",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kFullIteration && !o.layer.cuda_graph.modules.empty()),
       FW_REASON("[cuda_graph.impl] full_iteration takes no [cuda_graph.scope]")},
      {"cg.full_rc", "[cuda_graph.impl] [recompute.granularity]", FW_WHEN(per_layer_graphs(o) && full_recompute(o)),
       FW_REASON("[recompute.granularity] full excludes [cuda_graph.impl] {}; only full_iteration graphs allow it",
                 name_of(o.layer.cuda_graph.impl))},
      {"cg.dropout",
       "[attention_dropout] [hidden_dropout] [cuda_graph.scope] [cuda_graph.impl] [recompute.modules] "
       "[recompute.granularity]",
       FW_WHEN((o.layer.attention_dropout > 0.0 &&
                recomputes_in_graph(o, GraphModule::kAttn, RecomputeModule::kCoreAttn)) ||
               (o.layer.hidden_dropout > 0.0 && (recomputes_in_graph(o, GraphModule::kMlp, RecomputeModule::kMlp) ||
                                                 recomputes_in_graph(o, GraphModule::kMoe, RecomputeModule::kMoe)))),
       FW_REASON("what a graph recomputes takes no dropout: [attention_dropout] {}, [hidden_dropout] {}",
                 o.layer.attention_dropout, o.layer.hidden_dropout)},
      {"cg.dense", "[cuda_graph.scope] [cuda_graph.impl]",
       FW_WHEN(!p.model.has_moe() && (captures(o, GraphModule::kMoe) || captures(o, GraphModule::kMoeRouter))),
       FW_REASON("[cuda_graph.scope] moe and moe_router need experts; {} is dense", p.model.name)},
      {"cg.moe", "[cuda_graph.scope] [capacity_factor] [pad_to_capacity] [cuda_graph.impl]",
       FW_WHEN(
           p.model.has_moe() &&
           ((captures(o, GraphModule::kMoe) && (!o.layer.pad_to_capacity || captures(o, GraphModule::kMoeRouter))) ||
            (o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine && captures(o, GraphModule::kMoePreprocess) &&
             !captures(o, GraphModule::kMoeRouter)))),
       FW_REASON(
           "[cuda_graph.scope] moe needs [pad_to_capacity] and excludes moe_router; moe_preprocess needs moe_router")},
      {"cg.rc_moe", "[cuda_graph.scope] [recompute.modules] [cuda_graph.impl] [recompute.granularity]",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine && captures(o, GraphModule::kMoeRouter) &&
               recomputes(o, RecomputeModule::kMoe)),
       FW_REASON("[cuda_graph.scope] moe_router excludes [recompute.modules] moe")},
      {"cg.mlp", "[cuda_graph.scope] --moe-layer-freq [cuda_graph.impl]",
       FW_WHEN(captures(o, GraphModule::kMlp) && p.model.has_moe() && !has_dense_mlp(p.model)),
       FW_REASON("[cuda_graph.scope] mlp needs a dense layer; every layer of {} is a MoE layer", p.model.name)},
      {"foldwise.graph_whole_moe_layer", "[cuda_graph.impl] [cuda_graph.scope] [pad_to_capacity]",
       FW_WHEN(p.model.has_moe() && per_layer_graphs(o) && o.layer.cuda_graph.modules.empty() &&
               !o.layer.pad_to_capacity),
       FW_REASON("[cuda_graph.impl] {} without [cuda_graph.scope] captures whole layers, but the shapes of experts "
                 "change: list modules, or set [pad_to_capacity]",
                 name_of(o.layer.cuda_graph.impl))},
      {"cg.local_moe_layer",
       "[cuda_graph.impl] [cuda_graph.scope] [pad_to_capacity]",
       FW_WHEN(p.model.has_moe() && !p.model.hybrid && o.layer.cuda_graph.impl == GraphImpl::kLocal &&
               (!captures(o, GraphModule::kAttn) || !o.layer.pad_to_capacity)),
       FW_REASON("[cuda_graph.impl] local captures whole layers where [cuda_graph.scope] has attn, experts too, whose "
                 "shapes then need [pad_to_capacity]; without attn it captures nothing or stops"),
       {},
       in_releases("")},
      {"cg.full_moe",
       "[cuda_graph.impl] [dispatcher] [software.experts] [pad_to_capacity] [rank_capacity_factor]",
       FW_WHEN(p.model.has_moe() && o.layer.cuda_graph.impl == GraphImpl::kFullIteration && !has_fixed_shapes(o)),
       FW_REASON("[cuda_graph.impl] full_iteration waits for the host inside the capture but with experts of fixed "
                 "shapes: fused ones with [dispatcher] hybridep and [rank_capacity_factor], or [pad_to_capacity] with "
                 "alltoall or hybridep (experts: {}, dispatcher: {})",
                 field("software.experts").value.get(o).get<std::string>(), name_of(o.layer.dispatcher)),
       {},
       in_releases("0.18.2")},
      {"foldwise.graph_full_iteration_moe", "[cuda_graph.impl] [dispatcher] [pad_to_capacity]",
       FW_WHEN(p.model.has_moe() && o.layer.cuda_graph.impl == GraphImpl::kFullIteration && !o.layer.pad_to_capacity &&
               o.layer.dispatcher != Dispatcher::kHybridEp),
       FW_REASON(
           "[cuda_graph.impl] full_iteration needs experts of fixed shapes: [pad_to_capacity], or the capacity of a "
           "rank that [dispatcher] hybridep has; it is {}",
           name_of(o.layer.dispatcher))},
  };
  for (Rule& rule : evidence_rules()) table.push_back(std::move(rule));
  for (Rule& rule : table) {
    rule.keys = keys_in(rule.flags);
    rule.flags = with_flags(rule.flags);
  }
  return table;
}

#undef FW_REASON
#undef FW_WHEN

}  // namespace

std::optional<std::string> Rule::violation(const Problem& problem, const TrainingOptions& options) const {
  if (!broken(problem, options)) return std::nullopt;
  return reason(problem, options);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = make_rules();
  return table;
}

std::optional<std::size_t> first_violated(const Problem& problem, const TrainingOptions& options) {
  const std::vector<Rule>& table = rules();
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].broken(problem, options)) return i;
  }
  return std::nullopt;
}

std::string Rejection::text() const { return fmt::format("{}: {}", rule, reason); }

std::optional<Rejection> first_violation(const Problem& problem, const TrainingOptions& options) {
  const std::optional<std::size_t> index = first_violated(problem, options);
  if (!index) {
    if (problem.release == nullptr) return std::nullopt;
    for (const Field& f : fields())
      if (std::string lacking = f.is_option() ? f.lacks(*problem.release, options) : ""; !lacking.empty())
        return Rejection{.rule = kOfRelease, .reason = std::move(lacking)};
    return std::nullopt;
  }
  const Rule& rule = rules()[*index];
  return Rejection{.rule = rule.id, .reason = rule.reason(problem, options)};
}

std::vector<Rejection> violations(const Problem& problem, const TrainingOptions& options) {
  std::vector<Rejection> found;
  for (const Rule& rule : rules()) {
    if (!rule.broken(problem, options)) continue;
    found.push_back({.rule = rule.id, .reason = rule.reason(problem, options)});
    if (&rule == &rules().front()) return found;  // The other rules divide by these sizes.
  }
  if (problem.release == nullptr) return found;
  for (const Field& f : fields())
    if (f.is_option() && !f.lacks(*problem.release, options).empty())
      found.push_back({.rule = kOfRelease, .reason = f.lacks(*problem.release, options)});
  return found;
}

namespace {

std::vector<Rejection> violations_in(const Run& run, const Release* release) {
  return violations({.model = run.model, .hardware = run.hardware, .num_gpus = run.num_gpus, .release = release},
                    run.options);
}

void report(const Run& run, const std::vector<Rejection>& rejections, config::Diagnostics& diagnostics) {
  for (const Rejection& rejection : rejections) diagnostics.error({run.file, run.line, run.id}, rejection.text());
}

}  // namespace

std::vector<Rejection> violations(const Run& run) { return violations_in(run, run.release); }

void report_violations(const Run& run, config::Diagnostics& diagnostics) { report(run, violations(run), diagnostics); }

void report_violations(const Run& run, config::Diagnostics& diagnostics, const Release& release) {
  report(run, violations_in(run, &release), diagnostics);
}

nlohmann::json rejections_json(const std::vector<Rejection>& rejections) {
  nlohmann::json list = nlohmann::json::array();
  for (const Rejection& rejection : rejections)
    list.push_back({{"rule", rejection.rule}, {"reason", rejection.reason}});
  return list;
}

}  // namespace foldwise::planner

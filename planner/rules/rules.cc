#include "planner/rules/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "costmodel/ops/dispatcher.h"
#include "costmodel/pipeline/schedule.h"
#include "planner/run/names.h"

// Ids without "foldwise." name checks of Megatron-LM, TransformerEngine or Megatron-Bridge; docs/rules.md gives the
// file of each. A reason names the flags as the user would type them, with the numbers that clash.
namespace foldwise::planner {
namespace {

using costmodel::CompressedSpec;
using costmodel::CpComm;
using costmodel::DataType;
using costmodel::Dispatcher;
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

// ---- What the rules ask about a model ------------------------------------------------------------------------------

/// Query and KV heads of an attention on one TP rank, at least one KV head.
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

/// Query heads (--num-attention-heads) of the first mixer whose heads TP does not divide; 0: it divides all.
std::int64_t heads_not_split(const ModelSpec& model, std::int64_t tp) {
  for (const Mixer& mixer : model.mixers)
    if (const std::int64_t heads = std::visit([](const auto& spec) { return spec.query_heads(); }, mixer);
        heads % tp != 0)
      return heads;
  return 0;
}

/// Likewise --num-query-groups that are neither a multiple nor a divisor of TP.
std::int64_t groups_not_split(const ModelSpec& model, std::int64_t tp) {
  const auto* found = model.find<GqaSpec>([tp](const GqaSpec& gqa) {
    return gqa.query_groups > 0 && gqa.query_groups % tp != 0 && tp % gqa.query_groups != 0;
  });
  return found == nullptr ? 0 : found->query_groups;
}

/// The first mixer whose heads of a TP rank do not divide over `ranks` that exchange them; null: all do.
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

/// The model's mixer of a kind, or one without heads.
template <typename Spec>
const Spec& mixer_of(const ModelSpec& model) {
  static const Spec kNone;
  const Spec* found = model.find<Spec>();
  return found == nullptr ? kNone : *found;
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

// ---- What the rules ask about the options --------------------------------------------------------------------------

std::int64_t group_size(const TrainingOptions& o) {
  return o.pipeline.microbatch_group_size > 0 ? o.pipeline.microbatch_group_size : o.pipeline.pp;
}

bool dual_pipe(const TrainingOptions& o) {
  return o.pipeline.schedule == Schedule::kDualPipe || o.pipeline.schedule == Schedule::kDualPipeV;
}

/// The model chunks of a rank that a study schedule is made for; DualPipe cuts each of its two copies in pp stages.
std::int64_t study_vpp(const TrainingOptions& o) {
  return o.pipeline.schedule == Schedule::kDualPipe ? 1 : costmodel::chunks_of(o.pipeline.schedule, 1);
}

bool selective(const TrainingOptions& o) { return o.layer.recompute.granularity == RecomputeGranularity::kSelective; }

/// The module is recomputed by --recompute-modules (full recompute is another rule's business).
bool recomputes(const TrainingOptions& o, RecomputeModule module) {
  return selective(o) && o.layer.recompute.modules.contains(module);
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

/// The module is named in --cuda-graph-modules. An empty list captures whole layers; see
/// foldwise.graph_whole_moe_layer.
bool captures(const TrainingOptions& o, GraphModule module) {
  return per_layer_graphs(o) && o.layer.cuda_graph.modules.contains(module);
}

/// A layout string is parsed once for all rules and for all candidates that share it: the search tries a few strings a
/// million times.
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

/// What an uneven split needs: the layout that counts embedding and loss as layers, if that divides.
std::string uneven_split(const Problem& p, const TrainingOptions& o) {
  const std::int64_t stages = o.pipeline.pp * o.pipeline.vpp, layers = p.model.num_layers();
  for (const auto& [embedding, loss] : {std::pair{true, true}, std::pair{false, true}, std::pair{true, false}}) {
    const std::int64_t places = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (stages == 1 || places % stages != 0) continue;
    return fmt::format(", unlike --pipeline-model-parallel-layout \"{}\"",
                       to_layout_string(costmodel::even_stages(layers, p.model.mtp_num_layers, o.pipeline.pp,
                                                               o.pipeline.vpp, embedding, loss)));
  }
  return "; an uneven split needs --pipeline-model-parallel-layout";
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

// ---- Names for the reasons -----------------------------------------------------------------------------------------

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp8Delayed:
      return "--fp8-recipe delayed";
    case Precision::kFp8Current:
      return "--fp8-recipe tensorwise";
    case Precision::kFp8Blockwise:
      return "--fp8-recipe blockwise";
    case Precision::kMxfp8:
      return "--fp8-recipe mxfp8";
    case Precision::kNvfp4:
      return "--fp4-recipe nvfp4";
  }
  return "?";
}

std::string_view name_of(Dispatcher dispatcher) {
  switch (dispatcher) {
    case Dispatcher::kAllGather:
      return "--moe-token-dispatcher-type allgather";
    case Dispatcher::kAllToAll:
      return "--moe-token-dispatcher-type alltoall";
    case Dispatcher::kDeepEp:
      return "--moe-flex-dispatcher-backend deepep";
    case Dispatcher::kHybridEp:
      return "--moe-flex-dispatcher-backend hybridep";
  }
  return "?";
}

/// "hybridep", or "none": the flex dispatchers of a GPU.
std::string flex_dispatchers(const costmodel::Hardware& hardware) {
  std::string list;
  for (const Dispatcher dispatcher : hardware.traits.flex_dispatchers) {
    const std::string_view flag = name_of(dispatcher);
    list += (list.empty() ? "" : ", ") + std::string(flag.substr(flag.rfind(' ') + 1));
  }
  return list.empty() ? "none" : list;
}

std::string_view name_of(CpComm comm) {
  switch (comm) {
    case CpComm::kP2p:
      return "p2p";
    case CpComm::kAllGather:
      return "all_gather";
    case CpComm::kA2a:
      return "a2a";
    case CpComm::kA2aP2p:
      return "a2a+p2p";
  }
  return "?";
}

std::string_view name_of(GraphImpl impl) {
  switch (impl) {
    case GraphImpl::kNone:
      return "none";
    case GraphImpl::kLocal:
      return "local";
    case GraphImpl::kTransformerEngine:
      return "transformer_engine";
    case GraphImpl::kFullIteration:
      return "full_iteration";
  }
  return "?";
}

std::string_view name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kMuon:
      return "muon";
    case OptimizerKind::kSgd:
      return "sgd";
  }
  return "?";
}

// The two functions of a rule; `p` and `o` are what it looks at. Local to the table.
#define FW_REASON(...)                                            \
  [](const Problem& p, const TrainingOptions& o) -> std::string { \
    (void)p;                                                      \
    (void)o;                                                      \
    return fmt::format(__VA_ARGS__);                              \
  }
#define FW_WHEN(condition)                                 \
  [](const Problem& p, const TrainingOptions& o) -> bool { \
    (void)p;                                               \
    (void)o;                                               \
    return condition;                                      \
  }

std::vector<Rule> make_rules() {
  return {
      // ---- Sizes: everything below divides by them ----
      {"foldwise.positive",
       "--tensor-model-parallel-size --context-parallel-size --pipeline-model-parallel-size "
       "--num-virtual-stages-per-pipeline-rank --expert-model-parallel-size --expert-tensor-parallel-size "
       "--micro-batch-size --global-batch-size --seq-length --microbatch-group-size-per-virtual-pipeline-stage",
       FW_WHEN(std::min({o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp, o.pipeline.vpp, o.layer.ep, o.layer.etp,
                         o.layer.micro_batch, o.pipeline.global_batch, o.layer.seq_len, p.num_gpus}) < 1 ||
               o.pipeline.microbatch_group_size < 0 || o.step.fsdp_group < 0),
       FW_REASON("every size must be at least 1: --tensor-model-parallel-size {}, --context-parallel-size {}, data "
                 "parallel {}, --pipeline-model-parallel-size {}, --num-virtual-stages-per-pipeline-rank {}, "
                 "--expert-model-parallel-size {}, --expert-tensor-parallel-size {}, --micro-batch-size {}, "
                 "--global-batch-size {}, --seq-length {}, GPUs {}; and a group size 0 (default) or more: "
                 "--microbatch-group-size-per-virtual-pipeline-stage {}, FSDP group {}",
                 o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp, o.pipeline.vpp, o.layer.ep, o.layer.etp,
                 o.layer.micro_batch, o.pipeline.global_batch, o.layer.seq_len, p.num_gpus,
                 o.pipeline.microbatch_group_size, o.step.fsdp_group)},

      // ---- The two grids ----
      {"grid.world_dense", "--tensor-model-parallel-size --context-parallel-size --pipeline-model-parallel-size",
       FW_WHEN(o.layout().world() != p.num_gpus),
       FW_REASON("--tensor-model-parallel-size {} x --context-parallel-size {} x data parallel {} x "
                 "--pipeline-model-parallel-size {} is {} ranks, but there are {} GPUs",
                 o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp, o.layout().world(), p.num_gpus)},
      {"grid.world_expert", "--expert-tensor-parallel-size --expert-model-parallel-size --pipeline-model-parallel-size",
       FW_WHEN(p.num_gpus % (o.layer.etp * o.layer.ep * o.pipeline.pp) != 0),
       FW_REASON("--expert-tensor-parallel-size {} x --expert-model-parallel-size {} x --pipeline-model-parallel-size "
                 "{} does not divide the {} GPUs",
                 o.layer.etp, o.layer.ep, o.pipeline.pp, p.num_gpus)},
      {"grid.gbs", "--global-batch-size --micro-batch-size",
       FW_WHEN(o.pipeline.global_batch % (o.layer.micro_batch * o.step.dp) != 0),
       FW_REASON("--global-batch-size {} is not a multiple of --micro-batch-size {} x data parallel {}",
                 o.pipeline.global_batch, o.layer.micro_batch, o.step.dp)},
      {"grid.ep_needs_moe", "--expert-model-parallel-size --num-experts", FW_WHEN(o.layer.ep > 1 && !p.model.has_moe()),
       FW_REASON("--expert-model-parallel-size {} needs --num-experts; {} has no experts", o.layer.ep, p.model.name)},
      {"grid.experts_div_ep", "--expert-model-parallel-size --num-experts",
       FW_WHEN(p.model.moe.experts % o.layer.ep != 0),
       FW_REASON("--expert-model-parallel-size {} does not divide --num-experts {}", o.layer.ep, p.model.moe.experts)},
      {"grid.bias_etp", "--expert-tensor-parallel-size --add-bias-linear",
       FW_WHEN(o.layer.etp > 1 && p.model.has_moe() && p.model.add_bias_linear),
       FW_REASON("--expert-tensor-parallel-size {} must be 1: the experts of {} have linear biases", o.layer.etp,
                 p.model.name)},
      {"grid.cp_seq", "--context-parallel-size --seq-length",
       FW_WHEN(o.layer.cp > 1 && o.layer.seq_len % (2 * o.layer.cp) != 0),
       FW_REASON("--seq-length {} is not a multiple of 2 x --context-parallel-size {}", o.layer.seq_len, o.layer.cp)},
      {"grid.sp_seq", "--sequence-parallel --tensor-model-parallel-size --context-parallel-size --seq-length",
       FW_WHEN(o.layer.sequence_parallel() && (o.layer.seq_len / o.layer.cp) % o.layer.tp != 0),
       FW_REASON("--sequence-parallel cannot split --seq-length {} / --context-parallel-size {} over "
                 "--tensor-model-parallel-size {}",
                 o.layer.seq_len, o.layer.cp, o.layer.tp)},
      {"grid.maxpos", "--max-position-embeddings --seq-length",
       FW_WHEN(p.model.learned_position_embedding && p.model.max_position_embeddings > 0 &&
               p.model.max_position_embeddings < o.layer.seq_len),
       FW_REASON("--max-position-embeddings {} is below --seq-length {}", p.model.max_position_embeddings,
                 o.layer.seq_len)},

      // ---- What a layer can be split over ----
      {"attn.heads_tp", "--num-attention-heads --tensor-model-parallel-size",
       FW_WHEN(heads_not_split(p.model, o.layer.tp) > 0),
       FW_REASON("--tensor-model-parallel-size {} does not divide --num-attention-heads {}", o.layer.tp,
                 heads_not_split(p.model, o.layer.tp))},
      {"attn.groups_tp", "--num-query-groups --tensor-model-parallel-size",
       FW_WHEN(groups_not_split(p.model, o.layer.tp) > 0),
       FW_REASON("--num-query-groups {} is neither a multiple nor a divisor of --tensor-model-parallel-size {}",
                 groups_not_split(p.model, o.layer.tp), o.layer.tp)},
      {"attn.gdn",
       "--linear-num-key-heads --linear-num-value-heads --tensor-model-parallel-size --context-parallel-size",
       FW_WHEN(
           mixer_of<GatedDeltaNetSpec>(p.model).key_heads > 0 &&
           (mixer_of<GatedDeltaNetSpec>(p.model).key_heads % (o.layer.tp * o.layer.cp) != 0 ||
            mixer_of<GatedDeltaNetSpec>(p.model).value_heads % (o.layer.tp * o.layer.cp) != 0 ||
            mixer_of<GatedDeltaNetSpec>(p.model).value_heads % mixer_of<GatedDeltaNetSpec>(p.model).key_heads != 0)),
       FW_REASON(
           "--tensor-model-parallel-size {} x --context-parallel-size {} must divide --linear-num-key-heads {} and "
           "--linear-num-value-heads {}, and the value heads must be a multiple of the key heads",
           o.layer.tp, o.layer.cp, mixer_of<GatedDeltaNetSpec>(p.model).key_heads,
           mixer_of<GatedDeltaNetSpec>(p.model).value_heads)},
      {"attn.mamba_tp", "--mamba-num-heads --mamba-num-groups --tensor-model-parallel-size",
       FW_WHEN(
           mixer_of<MambaSpec>(p.model).heads > 0 &&
           (mixer_of<MambaSpec>(p.model).heads % o.layer.tp != 0 ||
            mixer_of<MambaSpec>(p.model).groups % o.layer.tp != 0 ||
            mixer_of<MambaSpec>(p.model).heads % std::max<std::int64_t>(1, mixer_of<MambaSpec>(p.model).groups) != 0 ||
            (is_fp8(o.layer.precision) && mixer_of<MambaSpec>(p.model).projection() % 16 != 0))),
       FW_REASON(
           "--tensor-model-parallel-size {} must divide --mamba-num-heads {} and --mamba-num-groups {}, the heads "
           "must be a multiple of the groups, and with fp8 the projection's width {} one of 16",
           o.layer.tp, mixer_of<MambaSpec>(p.model).heads, mixer_of<MambaSpec>(p.model).groups,
           mixer_of<MambaSpec>(p.model).projection())},
      {"attn.dsa", "--experimental-attention-variant --cp-comm-type --context-parallel-size",
       FW_WHEN(p.model.find<MlaSpec>([](const MlaSpec& mla) { return mla.index_heads > 0; }) != nullptr &&
               (p.model.add_bias_linear || (o.layer.cp > 1 && o.layer.cp_comm != CpComm::kAllGather))),
       FW_REASON("--experimental-attention-variant dsa takes no linear bias, and --context-parallel-size {} only with "
                 "--cp-comm-type all_gather, not {}",
                 o.layer.cp, name_of(o.layer.cp_comm))},
      {"cp.a2a_heads", "--cp-comm-type --context-parallel-size --tensor-model-parallel-size --num-query-groups",
       FW_WHEN(heads_not_exchanged(p.model, o.layer.tp, o.layer.cp_all_to_all_ranks()) != nullptr),
       FW_REASON("--cp-comm-type {} needs the heads of a tensor-parallel rank to be a multiple of the {} ranks that "
                 "exchange them: it has {} query and {} key/value heads",
                 name_of(o.layer.cp_comm), o.layer.cp_all_to_all_ranks(), exchanged_heads(p.model, o.layer).query,
                 exchanged_heads(p.model, o.layer).key_value)},
      {"cp.hier", "--cp-comm-type --hierarchical-context-parallel-sizes",
       FW_WHEN(o.layer.cp > 1 && o.layer.cp_comm == CpComm::kA2aP2p && o.layer.cp_a2a_size == 0),
       FW_REASON("--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes")},
      {"cp.hier_prod", "--hierarchical-context-parallel-sizes --context-parallel-size",
       FW_WHEN(o.layer.cp_a2a_size > 0 && o.layer.cp % o.layer.cp_a2a_size != 0),
       FW_REASON("the first of --hierarchical-context-parallel-sizes, {}, does not divide --context-parallel-size {}",
                 o.layer.cp_a2a_size, o.layer.cp)},
      {"cp.softmax", "--context-parallel-size --cp-comm-type --softmax-type",
       FW_WHEN(o.layer.cp > 1 && has_sinks(p.model) &&
               (o.layer.cp_comm != CpComm::kA2a || !o.layer.software.fused_attention)),
       FW_REASON("the learnable softmax of {} allows --context-parallel-size {} only with --cp-comm-type a2a (not {}) "
                 "and fused attention",
                 p.model.name, o.layer.cp, name_of(o.layer.cp_comm))},
      {"cp.swa", "--context-parallel-size --cp-comm-type --window-size",
       FW_WHEN(o.layer.cp > 1 && o.layer.cp_comm != CpComm::kA2a && o.layer.cp_comm != CpComm::kAllGather &&
               has_window(p.model)),
       FW_REASON(
           "the sliding windows of {} allow --context-parallel-size {} only with --cp-comm-type a2a or all_gather, "
           "not {}",
           p.model.name, o.layer.cp, name_of(o.layer.cp_comm))},
      {"cp.mamba", "--context-parallel-size --mamba-num-heads --tensor-model-parallel-size",
       FW_WHEN(mixer_of<MambaSpec>(p.model).heads > 0 &&
               (mixer_of<MambaSpec>(p.model).heads / o.layer.tp) % o.layer.cp != 0),
       FW_REASON("--context-parallel-size {} does not divide the {} Mamba heads of a tensor-parallel rank", o.layer.cp,
                 mixer_of<MambaSpec>(p.model).heads / o.layer.tp)},
      {"foldwise.ffn_tp",
       "--ffn-hidden-size --moe-ffn-hidden-size --moe-shared-expert-intermediate-size --tensor-model-parallel-size "
       "--expert-tensor-parallel-size",
       FW_WHEN(p.model.ffn_hidden_size % o.layer.tp != 0 || p.model.moe.shared_ffn_hidden_size % o.layer.tp != 0 ||
               p.model.moe.ffn_hidden_size % o.layer.etp != 0),
       FW_REASON(
           "--tensor-model-parallel-size {} must divide --ffn-hidden-size {} and "
           "--moe-shared-expert-intermediate-size {}, and --expert-tensor-parallel-size {} --moe-ffn-hidden-size {}",
           o.layer.tp, p.model.ffn_hidden_size, p.model.moe.shared_ffn_hidden_size, o.layer.etp,
           p.model.moe.ffn_hidden_size)},

      // ---- Pipeline ----
      {"pp.vpp_pp_overlap", "--num-virtual-stages-per-pipeline-rank --pipeline-model-parallel-size",
       FW_WHEN(o.pipeline.vpp > 1 && o.pipeline.pp == 1),
       FW_REASON("--num-virtual-stages-per-pipeline-rank {} needs --pipeline-model-parallel-size above 1",
                 o.pipeline.vpp)},
      {"foldwise.schedule_chunks", "--schedule --num-virtual-stages-per-pipeline-rank",
       FW_WHEN(!costmodel::runnable(o.pipeline.schedule) && o.pipeline.vpp != study_vpp(o)),
       FW_REASON("schedule \"{}\" needs vpp = {}, found {}", planner::name_of(o.pipeline.schedule), study_vpp(o),
                 o.pipeline.vpp)},
      {"foldwise.schedule_sizes", "--schedule --pipeline-model-parallel-size --global-batch-size",
       FW_WHEN(dual_pipe(o) && (o.num_microbatches() < 2 * o.pipeline.pp ||
                                (o.pipeline.schedule == Schedule::kDualPipe &&
                                 (o.pipeline.pp % 2 != 0 || o.num_microbatches() % 2 != 0)))),
       FW_REASON("schedule \"{}\" needs at least two micro-batches a pipeline rank{}, found {} over {} ranks",
                 planner::name_of(o.pipeline.schedule),
                 o.pipeline.schedule == Schedule::kDualPipe ? ", and an even number of both" : "", o.num_microbatches(),
                 o.pipeline.pp)},
      {"pp.group_range", "--microbatch-group-size-per-virtual-pipeline-stage --pipeline-model-parallel-size",
       FW_WHEN(o.pipeline.vpp > 1 && runnable(o.pipeline.schedule) &&
               (group_size(o) < o.pipeline.pp || group_size(o) > o.num_microbatches())),
       FW_REASON(
           "--microbatch-group-size-per-virtual-pipeline-stage {} must lie between --pipeline-model-parallel-size "
           "{} and the {} micro-batches",
           group_size(o), o.pipeline.pp, o.num_microbatches())},
      {"pp.group_rem", "--microbatch-group-size-per-virtual-pipeline-stage --global-batch-size",
       FW_WHEN(o.pipeline.vpp > 1 && runnable(o.pipeline.schedule) && o.num_microbatches() % group_size(o) != 0 &&
               o.num_microbatches() % group_size(o) < o.pipeline.pp),
       FW_REASON("{} micro-batches leave {} after groups of {}: interleaving needs none, or at least "
                 "--pipeline-model-parallel-size {}",
                 o.num_microbatches(), o.num_microbatches() % group_size(o), group_size(o), o.pipeline.pp)},
      {"pp.even", "--pipeline-model-parallel-size --num-layers",
       FW_WHEN(!has_layout(o) && p.model.num_layers() % o.pipeline.pp != 0),
       FW_REASON("--pipeline-model-parallel-size {} does not divide --num-layers {}{}", o.pipeline.pp,
                 p.model.num_layers(), uneven_split(p, o))},
      {"pp.vpp_even", "--num-virtual-stages-per-pipeline-rank --num-layers",
       FW_WHEN(!has_layout(o) && o.pipeline.vpp > 1 && (p.model.num_layers() / o.pipeline.pp) % o.pipeline.vpp != 0),
       FW_REASON("--num-virtual-stages-per-pipeline-rank {} does not divide the {} layers of a pipeline rank{}",
                 o.pipeline.vpp, p.model.num_layers() / o.pipeline.pp, uneven_split(p, o))},
      {"pp.hybrid_pattern", "--hybrid-layer-pattern --pipeline-model-parallel-layout",
       FW_WHEN(p.model.hybrid && has_layout(o)),
       FW_REASON("the hybrid {} takes its stage boundaries from --hybrid-layer-pattern, not from "
                 "--pipeline-model-parallel-layout",
                 p.model.name)},
      {"pp.layout_content", "--pipeline-model-parallel-layout --num-layers --mtp-num-layers",
       FW_WHEN(has_layout(o) && !parsed_layout(p, o).stages),
       FW_REASON("--pipeline-model-parallel-layout \"{}\": {}", o.pipeline.layout, parsed_layout(p, o).error)},
      {"pp.layout_stages",
       "--pipeline-model-parallel-layout --pipeline-model-parallel-size --num-virtual-stages-per-pipeline-rank",
       FW_WHEN(has_layout(o) && parsed_layout(p, o).stages &&
               stage_count(parsed_layout(p, o)) != o.pipeline.pp * o.pipeline.vpp),
       FW_REASON("--pipeline-model-parallel-layout \"{}\" has {} stages, but --pipeline-model-parallel-size {} x "
                 "--num-virtual-stages-per-pipeline-rank {} is {}",
                 o.pipeline.layout, stage_count(parsed_layout(p, o)), o.pipeline.pp, o.pipeline.vpp,
                 o.pipeline.pp * o.pipeline.vpp)},
      {"pp.layout_mtp", "--pipeline-model-parallel-layout --mtp-num-layers",
       FW_WHEN(has_layout(o) && parsed_layout(p, o).stages && mtp_stage(parsed_layout(p, o)) >= 0 &&
               mtp_stage(parsed_layout(p, o)) < (o.pipeline.vpp - 1) * o.pipeline.pp),
       FW_REASON(
           "--pipeline-model-parallel-layout \"{}\" puts the MTP layers in virtual stage {}, which is not the last "
           "of its pipeline rank (those are {} to {})",
           o.pipeline.layout, mtp_stage(parsed_layout(p, o)), (o.pipeline.vpp - 1) * o.pipeline.pp,
           o.pipeline.vpp * o.pipeline.pp - 1)},
      {"pp.mtp_rope", "--mtp-num-layers --position-embedding-type",
       FW_WHEN(p.model.mtp_num_layers > 0 && p.model.learned_position_embedding),
       FW_REASON("--mtp-num-layers {} needs --position-embedding-type rope or none", p.model.mtp_num_layers)},
      {"pp.mhc", "--enable-mhc-connections --pipeline-model-parallel-size --mtp-num-layers --recompute-granularity",
       FW_WHEN(mixer_of<CompressedSpec>(p.model).residual_streams > 1 &&
               (o.pipeline.pp > 1 || p.model.mtp_num_layers > 0 || full_recompute(o))),
       FW_REASON(
           "the hyper-connections of {} exclude --pipeline-model-parallel-size above 1 (it is {}), MTP layers (it "
           "has {}) and full recompute",
           p.model.name, o.pipeline.pp, p.model.mtp_num_layers)},

      // ---- MoE ----
      {"moe.flex_group", "--moe-flex-dispatcher-backend --expert-model-parallel-size --expert-tensor-parallel-size",
       FW_WHEN(p.model.has_moe() && dispatcher_spec(o.layer.dispatcher).needs_group && o.layer.etp * o.layer.ep == 1),
       FW_REASON("{} needs --expert-model-parallel-size x --expert-tensor-parallel-size above 1",
                 name_of(o.layer.dispatcher))},
      {"moe.shared_bias", "--moe-shared-expert-intermediate-size --add-bias-linear",
       FW_WHEN(p.model.moe.shared_ffn_hidden_size > 0 && p.model.add_bias_linear),
       FW_REASON("the shared experts of {} take no linear bias", p.model.name)},
      {"moe.shared_overlap_disp",
       "--moe-shared-expert-overlap --moe-token-dispatcher-type --recompute-modules "
       "--overlap-moe-expert-parallel-comm --moe-latent-size",
       FW_WHEN(o.layer.overlaps.shared_expert && (!dispatcher_spec(o.layer.dispatcher).overlaps_shared_experts ||
                                                  recomputes(o, RecomputeModule::kSharedExperts) ||
                                                  o.pipeline.overlaps.ep_a2a || p.model.moe.latent_size > 0)),
       FW_REASON("--moe-shared-expert-overlap excludes --moe-token-dispatcher-type allgather, --recompute-modules "
                 "shared_experts, --overlap-moe-expert-parallel-comm and --moe-latent-size (dispatcher: {})",
                 name_of(o.layer.dispatcher))},
      {"moe.fused_mlp", "--use-transformer-engine-op-fuser --expert-tensor-parallel-size --offload-modules",
       FW_WHEN(o.layer.software.fused_grouped_mlp && p.model.has_moe() &&
               (o.layer.etp > 1 || offloads(o, OffloadModule::kExpertFc1) || offloads(o, OffloadModule::kMoeAct))),
       FW_REASON("--use-transformer-engine-op-fuser with grouped GEMM needs --expert-tensor-parallel-size 1 (it is {}) "
                 "and excludes --offload-modules expert_fc1 and moe_act",
                 o.layer.etp)},
      {"foldwise.flex_gpu", "--moe-flex-dispatcher-backend",
       FW_WHEN(p.model.has_moe() && is_flex(o.layer.dispatcher) &&
               std::ranges::count(p.hardware.traits.flex_dispatchers, o.layer.dispatcher) == 0),
       FW_REASON("{} does not run on {}; what does: {}", name_of(o.layer.dispatcher), p.hardware.gpu,
                 flex_dispatchers(p.hardware))},

      // ---- Overlap of the experts' all-to-all ----
      {"epov.ep", "--overlap-moe-expert-parallel-comm --expert-model-parallel-size",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.ep == 1),
       FW_REASON("--overlap-moe-expert-parallel-comm needs --expert-model-parallel-size above 1")},
      {"epov.vpp", "--overlap-moe-expert-parallel-comm --num-virtual-stages-per-pipeline-rank",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.pipeline.pp > 1 && o.pipeline.vpp == 1 && runnable(o.pipeline.schedule)),
       FW_REASON("--overlap-moe-expert-parallel-comm with --pipeline-model-parallel-size {} needs "
                 "--num-virtual-stages-per-pipeline-rank above 1",
                 o.pipeline.pp)},
      {"foldwise.schedule_overlap", "--schedule --overlap-moe-expert-parallel-comm",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && !runnable(o.pipeline.schedule) && !dual_pipe(o)),
       FW_REASON(
           "--overlap-moe-expert-parallel-comm needs a schedule with (forward, backward) pairs: 1f1b, dualpipe or "
           "dualpipe-v, found \"{}\"",
           planner::name_of(o.pipeline.schedule))},
      {"epov.disp", "--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && !dispatcher_spec(o.layer.dispatcher).overlaps_micro_batches),
       FW_REASON(
           "--overlap-moe-expert-parallel-comm needs --moe-token-dispatcher-type alltoall or flex, not allgather")},
      {"epov.recompute", "--overlap-moe-expert-parallel-comm --recompute-granularity --recompute-modules",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && (full_recompute(o) || recomputes(o, RecomputeModule::kMoe))),
       FW_REASON("--overlap-moe-expert-parallel-comm excludes {}",
                 full_recompute(o) ? "--recompute-granularity full" : "--recompute-modules moe")},
      {"epov.shared", "--overlap-moe-expert-parallel-comm --moe-shared-expert-overlap",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.overlaps.shared_expert),
       FW_REASON("--overlap-moe-expert-parallel-comm excludes --moe-shared-expert-overlap")},
      {"epov.mtp", "--overlap-moe-expert-parallel-comm --mtp-num-layers",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && p.model.mtp_num_layers > 1),
       FW_REASON("--overlap-moe-expert-parallel-comm allows at most 1 MTP layer, not --mtp-num-layers {}",
                 p.model.mtp_num_layers)},
      {"epov.cg", "--overlap-moe-expert-parallel-comm --cuda-graph-impl --cuda-graph-modules",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine &&
               o.layer.cuda_graph.modules.intersects({GraphModule::kMoe, GraphModule::kMlp})),
       FW_REASON("--overlap-moe-expert-parallel-comm with --cuda-graph-impl transformer_engine excludes "
                 "--cuda-graph-modules moe and mlp")},
      {"epov.fsdp", "--overlap-moe-expert-parallel-comm --use-megatron-fsdp --num-virtual-stages-per-pipeline-rank",
       FW_WHEN(o.pipeline.overlaps.ep_a2a && is_fsdp(o.step.sharding) && o.pipeline.pp > 1),
       FW_REASON("--overlap-moe-expert-parallel-comm with --use-megatron-fsdp needs --pipeline-model-parallel-size 1, "
                 "not {}",
                 o.pipeline.pp)},
      {"epov.delay_wgrad", "--delay-wgrad-compute --overlap-moe-expert-parallel-comm --cuda-graph-modules",
       FW_WHEN(o.pipeline.overlaps.delay_wgrad &&
               (!o.pipeline.overlaps.ep_a2a || !o.layer.software.transformer_engine ||
                (captures(o, GraphModule::kAttn) && (!o.layer.software.gradient_accumulation_fusion ||
                                                     has_qkv_bias(p.model) || p.model.add_bias_linear)))),
       FW_REASON("--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm and TransformerEngine layers; with "
                 "--cuda-graph-modules attn also gradient accumulation fusion and no attention bias")},

      // ---- Recompute ----
      {"rc.full", "--recompute-granularity --recompute-num-layers",
       FW_WHEN(full_recompute(o) && o.pipeline.recompute.num_layers < 1),
       FW_REASON("--recompute-granularity full needs --recompute-num-layers of at least 1, not {}",
                 o.pipeline.recompute.num_layers)},
      {"rc.modules", "--recompute-modules", FW_WHEN(recomputes(o, RecomputeModule::kFull)),
       FW_REASON("--recompute-modules does not list \"full\": that is --recompute-granularity full")},
      {"rc.moe_act", "--recompute-modules --moe-grouped-gemm",
       FW_WHEN(recomputes(o, RecomputeModule::kMoeAct) && !o.layer.software.grouped_gemm),
       FW_REASON("--recompute-modules moe_act needs --moe-grouped-gemm")},
      {"rc.mla", "--recompute-modules --multi-latent-attention",
       FW_WHEN(recomputes(o, RecomputeModule::kMlaUpProj) && p.model.find<MlaSpec>() == nullptr &&
               p.model.find<CompressedSpec>() == nullptr),
       FW_REASON("--recompute-modules mla_up_proj needs --multi-latent-attention, which {} does not have",
                 p.model.name)},
      {"rc.fp8", "--recompute-modules --fp8-recipe",
       FW_WHEN(o.layer.precision == Precision::kFp8Delayed &&
               (recomputes(o, RecomputeModule::kMoeAct) || recomputes(o, RecomputeModule::kLayerNorm))),
       FW_REASON("--recompute-modules moe_act and layernorm exclude --fp8-recipe delayed")},
      {"rc.cpu_off",
       "--cpu-offloading-num-layers --recompute-granularity --pipeline-model-parallel-size --offload-modules "
       "--cuda-graph-impl",
       FW_WHEN(layer_offload(o) &&
               (o.layer.recompute.granularity != RecomputeGranularity::kNone || o.pipeline.pp > 1 ||
                fine_grained_offload(o) || per_layer_graphs(o) || o.pipeline.cpu_offloading_num_layers < 0 ||
                o.pipeline.cpu_offloading_num_layers >= p.model.num_layers())),
       FW_REASON("--cpu-offloading-num-layers {} must be below --num-layers {} and excludes recompute, "
                 "--pipeline-model-parallel-size above 1 (it is {}), --offload-modules and per-layer CUDA graphs",
                 o.pipeline.cpu_offloading_num_layers, p.model.num_layers(), o.pipeline.pp)},

      // ---- Offload ----
      {"off.modules", "--offload-modules --transformer-impl",
       FW_WHEN(fine_grained_offload(o) && !o.layer.software.transformer_engine),
       FW_REASON("--fine-grained-activation-offloading needs --transformer-impl transformer_engine")},
      {"off.attn_proj", "--offload-modules",
       FW_WHEN(offloads(o, OffloadModule::kAttnProj) && !offloads(o, OffloadModule::kCoreAttn)),
       FW_REASON("--offload-modules attn_proj needs core_attn too")},
      {"off.moe_rc", "--offload-modules --recompute-modules",
       FW_WHEN(recomputes(o, RecomputeModule::kMoe) &&
               o.layer.offload_modules.intersects(
                   {OffloadModule::kMoeAct, OffloadModule::kExpertFc1, OffloadModule::kFusedGroupMlp})),
       FW_REASON("--recompute-modules moe excludes --offload-modules moe_act, expert_fc1 and fused_group_mlp")},
      {"off.fused", "--offload-modules --use-transformer-engine-op-fuser",
       FW_WHEN(offloads(o, OffloadModule::kFusedGroupMlp) &&
               (!o.layer.software.fused_grouped_mlp ||
                o.layer.offload_modules.intersects({OffloadModule::kExpertFc1, OffloadModule::kMoeAct}))),
       FW_REASON(
           "--offload-modules fused_group_mlp needs --use-transformer-engine-op-fuser and excludes expert_fc1 and "
           "moe_act")},
      {"off.cg_local", "--offload-modules --cuda-graph-impl --cuda-graph-modules",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kLocal && fine_grained_offload(o) &&
               (o.layer.cuda_graph.modules.empty() || o.layer.cuda_graph.modules.contains(GraphModule::kMoe) ||
                o.layer.offload_modules.intersects({OffloadModule::kAttnNorm, OffloadModule::kQkvLinear,
                                                    OffloadModule::kCoreAttn, OffloadModule::kAttnProj,
                                                    OffloadModule::kMlpNorm}))),
       FW_REASON(
           "--cuda-graph-impl local allows --offload-modules expert_fc1, moe_act and fused_group_mlp only, with a "
           "non-empty --cuda-graph-modules without moe")},
      {"off.cg_warm", "--offload-modules --cuda-graph-modules",
       FW_WHEN(fine_grained_offload(o) && captures(o, GraphModule::kMoe)),
       FW_REASON("--fine-grained-activation-offloading excludes --cuda-graph-modules moe")},
      {"off.optim", "--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-param-gather",
       FW_WHEN(o.step.offload.optimizer_fraction > 0.0 &&
               (!o.step.optimizer.precision_aware ||
                (o.step.optimizer.low_precision_param_gather && is_fp8(o.layer.precision) &&
                 o.layer.precision != Precision::kFp8Delayed))),
       FW_REASON("--optimizer-cpu-offload needs --use-precision-aware-optimizer, and --fp8-param-gather with it only "
                 "--fp8-recipe delayed (the run uses {})",
                 name_of(o.layer.precision))},

      // ---- Precision ----
      {"foldwise.precision_gpu", "--fp8-recipe --fp4-recipe", FW_WHEN(!p.hardware.supports(o.layer.precision)),
       FW_REASON("{} has no support for {}", p.hardware.gpu, name_of(o.layer.precision))},
      {"q.param_gather", "--fp8-param-gather --use-distributed-optimizer --use-megatron-fsdp",
       FW_WHEN(
           o.step.optimizer.low_precision_param_gather &&
           (o.layer.precision == Precision::kBf16 || (is_fp8(o.layer.precision) && o.step.sharding == Sharding::kDdp))),
       FW_REASON(
           "--fp8-param-gather needs fp8 (the run uses {}) and --use-distributed-optimizer or --use-megatron-fsdp",
           name_of(o.layer.precision))},

      // ---- Data parallel and optimizer ----
      {"dp.opg", "--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer",
       FW_WHEN(o.step.overlaps.dp_param &&
               (!o.step.overlaps.dp_grad ||
                (o.step.sharding == Sharding::kDdp && o.step.optimizer.kind != OptimizerKind::kMuon))),
       FW_REASON("--overlap-param-gather needs --overlap-grad-reduce and --use-distributed-optimizer or "
                 "--use-megatron-fsdp")},
      {"dp.opg_step",
       "--overlap-param-gather-with-optimizer-step --use-distributed-optimizer --overlap-param-gather "
       "--num-virtual-stages-per-pipeline-rank",
       FW_WHEN(
           o.step.overlaps.param_gather_with_optimizer_step &&
           (o.step.sharding != Sharding::kDdpDistributedOptimizer || !o.step.overlaps.dp_param || o.pipeline.vpp == 1)),
       FW_REASON("--overlap-param-gather-with-optimizer-step needs --use-distributed-optimizer, --overlap-param-gather "
                 "and --num-virtual-stages-per-pipeline-rank above 1 (it is {})",
                 o.pipeline.vpp)},
      {"dp.precision_aware",
       "--use-precision-aware-optimizer --optimizer --main-grads-dtype --main-params-dtype --exp-avg-dtype "
       "--exp-avg-sq-dtype",
       FW_WHEN(o.step.optimizer.precision_aware
                   ? o.step.optimizer.kind != OptimizerKind::kAdam
                   : (o.step.optimizer.main_grads != DataType::kFp32 ||
                      o.step.optimizer.main_params != DataType::kFp32 || o.step.optimizer.exp_avg != DataType::kFp32 ||
                      o.step.optimizer.exp_avg_sq != DataType::kFp32)),
       [](const Problem&, const TrainingOptions& o) {
         return o.step.optimizer.precision_aware
                    ? fmt::format("--use-precision-aware-optimizer needs --optimizer adam, not {}",
                                  name_of(o.step.optimizer.kind))
                    : std::string(
                          "--main-grads-dtype, --main-params-dtype, --exp-avg-dtype and --exp-avg-sq-dtype other "
                          "than fp32 need --use-precision-aware-optimizer");
       }},
      {"dp.fp32_accum", "--accumulate-allreduce-grads-in-fp32 --main-grads-dtype",
       FW_WHEN(o.layer.grad_reduce_in_fp32 && o.step.optimizer.main_grads != DataType::kFp32),
       FW_REASON("--accumulate-allreduce-grads-in-fp32 needs --main-grads-dtype fp32")},
      {"dp.fsdp", "--use-megatron-fsdp --optimizer",
       FW_WHEN(is_fsdp(o.step.sharding) && o.step.optimizer.kind == OptimizerKind::kMuon),
       FW_REASON("--use-megatron-fsdp needs --optimizer adam or sgd, not muon")},
      {"grid.distopt_instances", "--num-distributed-optimizer-instances --use-distributed-optimizer",
       FW_WHEN(o.step.optimizer_instances > 1 && (o.step.sharding != Sharding::kDdpDistributedOptimizer ||
                                                  o.layout().dp_cp() % o.step.optimizer_instances != 0 ||
                                                  o.layout().edp() % o.step.optimizer_instances != 0)),
       FW_REASON("--num-distributed-optimizer-instances {} needs --use-distributed-optimizer and must divide data x "
                 "context parallel {} and the experts' data parallel {}",
                 o.step.optimizer_instances, o.layout().dp_cp(), o.layout().edp())},
      {"foldwise.fsdp_group", "--use-megatron-fsdp",
       FW_WHEN(is_fsdp(o.step.sharding) && o.step.fsdp_group > 0 && o.layout().dp_cp() % o.step.fsdp_group != 0),
       FW_REASON("an FSDP group of {} ranks does not divide data parallel {} x --context-parallel-size {}",
                 o.step.fsdp_group, o.step.dp, o.layer.cp)},
      {"dp.tpovl", "--tp-comm-overlap --sequence-parallel --tensor-model-parallel-size",
       FW_WHEN(o.layer.overlaps.tp && !o.layer.sequence_parallel()),
       FW_REASON("--tp-comm-overlap needs --sequence-parallel, that is --tensor-model-parallel-size above 1")},

      // ---- CUDA graphs ----
      {"cg.full_mods", "--cuda-graph-impl --cuda-graph-modules",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kFullIteration && !o.layer.cuda_graph.modules.empty()),
       FW_REASON("--cuda-graph-impl full_iteration takes no --cuda-graph-modules")},
      {"cg.full_rc", "--cuda-graph-impl --recompute-granularity", FW_WHEN(per_layer_graphs(o) && full_recompute(o)),
       FW_REASON("--recompute-granularity full excludes --cuda-graph-impl {}; only full_iteration graphs allow it",
                 name_of(o.layer.cuda_graph.impl))},
      {"cg.dense", "--cuda-graph-modules",
       FW_WHEN(!p.model.has_moe() && (captures(o, GraphModule::kMoe) || captures(o, GraphModule::kMoeRouter))),
       FW_REASON("--cuda-graph-modules moe and moe_router need experts; {} is dense", p.model.name)},
      {"cg.moe", "--cuda-graph-modules --moe-expert-capacity-factor --moe-pad-expert-input-to-capacity",
       FW_WHEN(
           p.model.has_moe() &&
           ((captures(o, GraphModule::kMoe) && (!o.layer.pad_to_capacity || captures(o, GraphModule::kMoeRouter))) ||
            (o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine && captures(o, GraphModule::kMoePreprocess) &&
             !captures(o, GraphModule::kMoeRouter)))),
       FW_REASON("--cuda-graph-modules moe needs --moe-pad-expert-input-to-capacity and excludes moe_router; "
                 "moe_preprocess needs moe_router")},
      {"cg.rc_moe", "--cuda-graph-modules --recompute-modules",
       FW_WHEN(o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine && captures(o, GraphModule::kMoeRouter) &&
               recomputes(o, RecomputeModule::kMoe)),
       FW_REASON("--cuda-graph-modules moe_router excludes --recompute-modules moe")},
      {"cg.mlp", "--cuda-graph-modules --moe-layer-freq",
       FW_WHEN(captures(o, GraphModule::kMlp) && p.model.has_moe() && !has_dense_mlp(p.model)),
       FW_REASON("--cuda-graph-modules mlp needs a dense layer; every layer of {} is a MoE layer", p.model.name)},
      {"foldwise.graph_whole_moe_layer", "--cuda-graph-impl --cuda-graph-modules --moe-pad-expert-input-to-capacity",
       FW_WHEN(p.model.has_moe() && per_layer_graphs(o) && o.layer.cuda_graph.modules.empty() &&
               !o.layer.pad_to_capacity),
       FW_REASON("--cuda-graph-impl {} without --cuda-graph-modules captures whole layers, but the shapes of "
                 "experts change: list modules, or set --moe-pad-expert-input-to-capacity",
                 name_of(o.layer.cuda_graph.impl))},
  };
}

#undef FW_REASON
#undef FW_WHEN

}  // namespace

std::optional<std::string> Rule::violation(const Problem& problem, const TrainingOptions& options) const {
  if (!violated(problem, options)) return std::nullopt;
  return reason(problem, options);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = make_rules();
  return table;
}

std::optional<std::size_t> first_violated(const Problem& problem, const TrainingOptions& options) {
  const std::vector<Rule>& table = rules();
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].violated(problem, options)) return i;
  }
  return std::nullopt;
}

std::optional<Rejection> first_violation(const Problem& problem, const TrainingOptions& options) {
  const std::optional<std::size_t> index = first_violated(problem, options);
  if (!index) return std::nullopt;
  const Rule& rule = rules()[*index];
  return Rejection{.rule = rule.id, .reason = rule.reason(problem, options)};
}

std::vector<Rejection> violations(const Problem& problem, const TrainingOptions& options) {
  std::vector<Rejection> found;
  for (const Rule& rule : rules()) {
    if (!rule.violated(problem, options)) continue;
    found.push_back({.rule = rule.id, .reason = rule.reason(problem, options)});
    if (&rule == &rules().front()) break;  // The others divide by these sizes.
  }
  return found;
}

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "costmodel/network/network.h"

// Options of one training run in Megatron's terms. The run-file reader (planner/run) fills them, the rules
// (planner/rules) accept or reject them, and the op list (costmodel/ops) is built from them. Defaults are Megatron's,
// as in the table of fields (planner/run/fields.cc).
namespace foldwise::costmodel {

/// Two grids over the same ranks: attention TP x CP x DP x PP, experts ETP x EP x EDP x PP.
struct Layout {
  std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
  std::int64_t vpp = 1;          ///< Model chunks per pipeline rank; 1 is plain 1F1B.
  std::int64_t ep = 1, etp = 1;  ///< --expert-model-parallel-size, --expert-tensor-parallel-size.
  /// --use-tp-pp-dp-mapping: pipeline ranks are adjacent and data-parallel ranks are apart, instead of the reverse.
  /// Requires edp() == dp and, for group_shape(), CP 1.
  bool tp_pp_dp = false;

  [[nodiscard]] std::int64_t world() const { return tp * cp * dp * pp; }
  [[nodiscard]] std::int64_t edp() const { return tp * cp * dp / (etp * ep); }  ///< Expert data parallel size.
  [[nodiscard]] std::int64_t dp_cp() const { return dp * cp; }  ///< Dense gradients and optimizer shards span DP x CP.
  bool operator==(const Layout&) const = default;
};

enum class Precision { kBf16, kFp8Delayed, kFp8Current, kFp8Blockwise, kMxfp8, kNvfp4, kFp16 };
enum class CpComm { kP2p, kAllGather, kA2a, kA2aP2p };
/// Order in which a pipeline rank issues its chunks (costmodel/pipeline/schedule.h). Megatron runs kOneF1B, plain and
/// interleaved, with and without EP overlap. The others are for study.
enum class Schedule : std::uint8_t { kOneF1B, kGpipe, kZbH1, kZbV, kDualPipe, kDualPipeV };
/// kFsdp...: Megatron-FSDP's --data-parallel-sharding-strategy optim, optim_grads, optim_grads_params.
enum class Sharding { kDdp, kDdpDistributedOptimizer, kFsdpOptim, kFsdpOptimGrads, kFsdp };
[[nodiscard]] constexpr bool is_fsdp(Sharding sharding) {
  return sharding == Sharding::kFsdpOptim || sharding == Sharding::kFsdpOptimGrads || sharding == Sharding::kFsdp;
}
/// Whether gradients are sharded, that is reduced unit by unit in every backward.
[[nodiscard]] constexpr bool shards_gradients(Sharding sharding) {
  return sharding == Sharding::kFsdpOptimGrads || sharding == Sharding::kFsdp;
}

/// `--recompute-modules`. A bit set, because an op can belong to several modules (moe_act lies inside moe).
enum class RecomputeModule : std::uint16_t {
  kCoreAttn = 1 << 0,
  kMoeAct = 1 << 1,
  kLayerNorm = 1 << 2,
  kMlaUpProj = 1 << 3,
  kMlp = 1 << 4,
  kMoe = 1 << 5,
  kSharedExperts = 1 << 6,
  kFull = 1 << 7,  ///< Everything that full recomputation covers.
  /// TorchTitan's selective policy: keeps attention and every other matrix product, and rebuilds the rest. Megatron has
  /// no such policy.
  kAlternateMatmuls = 1 << 8,
};
/// `--offload-modules` of fine-grained activation offloading. kLayer is layer-wise CPU offloading.
enum class OffloadModule : std::uint16_t {
  kAttnNorm = 1 << 0,
  kQkvLinear = 1 << 1,
  kCoreAttn = 1 << 2,
  kAttnProj = 1 << 3,
  kMlpNorm = 1 << 4,
  kExpertFc1 = 1 << 5,
  kMoeAct = 1 << 6,
  kFusedGroupMlp = 1 << 7,
  kLayer = 1 << 8,
};
/// `--cuda-graph-modules`.
enum class GraphModule : std::uint16_t {
  kAttn = 1 << 0,
  kMlp = 1 << 1,
  kMoe = 1 << 2,
  kMoeRouter = 1 << 3,
  kMoePreprocess = 1 << 4,
  kMamba = 1 << 5,
};

/// Linears with a low-rank adapter: `target_modules` of Megatron-Bridge's LoRA, by Megatron's names.
enum class LoraModule : std::uint16_t {
  kLinearQkv = 1 << 0,
  kLinearProj = 1 << 1,
  kLinearFc1 = 1 << 2,
  kLinearFc2 = 1 << 3,
};

/// A set of enumerators that are bits.
template <typename Enum>
struct BitSet {
  std::uint16_t bits = 0;
  constexpr BitSet() = default;
  constexpr BitSet(Enum member) : bits(static_cast<std::uint16_t>(member)) {}  // NOLINT(google-explicit-constructor)
  constexpr BitSet(std::initializer_list<Enum> members) {
    for (const BitSet member : members) *this = *this | member;
  }
  [[nodiscard]] constexpr bool contains(Enum member) const { return (bits & static_cast<std::uint16_t>(member)) != 0; }
  [[nodiscard]] constexpr bool intersects(BitSet other) const { return (bits & other.bits) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits == 0; }
  [[nodiscard]] constexpr BitSet operator&(BitSet other) const {
    BitSet both;
    both.bits = static_cast<std::uint16_t>(bits & other.bits);
    return both;
  }
  [[nodiscard]] constexpr BitSet operator|(BitSet other) const {
    BitSet either;
    either.bits = static_cast<std::uint16_t>(bits | other.bits);
    return either;
  }
  bool operator==(const BitSet&) const = default;
};

enum class RecomputeGranularity { kNone, kSelective, kFull };
enum class RecomputeMethod { kUniform, kBlock };

enum class GraphImpl { kNone, kLocal, kTransformerEngine, kFullIteration };
struct CudaGraph {
  GraphImpl impl = GraphImpl::kNone;
  BitSet<GraphModule> modules{};  ///< Empty with kLocal or kTransformerEngine: the whole layer.
  bool operator==(const CudaGraph&) const = default;
};

enum class DataType { kFp32, kFp16, kBf16, kFp8 };
/// Bytes of one element.
[[nodiscard]] constexpr double bytes_of(DataType type) {
  return type == DataType::kFp32 ? 4.0 : type == DataType::kFp8 ? 1.0 : 2.0;
}

enum class OptimizerKind { kAdam, kMuon, kSgd };
struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdam;
  bool precision_aware = false;  ///< --use-precision-aware-optimizer
  DataType exp_avg = DataType::kFp32, exp_avg_sq = DataType::kFp32;
  DataType main_params = DataType::kFp32, main_grads = DataType::kFp32;
  bool low_precision_param_gather = false;  ///< --fp8-param-gather / --fp4-param-gather
  bool reuse_grad_buffer = false;           ///< --reuse-grad-buf-for-mxfp8-param-ag
  /// Adam's kernel reads the moments in BF16 if both are BF16. Transformer Engine does so from 2.13 on; older versions
  /// widen them first.
  bool reads_bf16_moments = false;
  bool operator==(const Optimizer&) const = default;
};

/// kTransformerEngine works in place on BF16 logits. kNative is Megatron's compiled loss. kUnfused is Megatron's loss
/// op by op (its default: no --cross-entropy-loss-fusion). kTorch is log-softmax and its gradient on FP32 logits, op by
/// op.
enum class CrossEntropy { kTransformerEngine, kNative, kUnfused, kTorch };

/// Kernels of a rank's experts. kSequential: one MLP per expert. kGrouped: --moe-grouped-gemm. kCutlass: BF16 forward
/// and dgrad of all experts in one kernel (NVTE_USE_CUTLASS_GROUPED_GEMM). kFused: one kernel for the MLP of all
/// experts (Transformer Engine's op fuser).
enum class Experts : std::uint8_t { kSequential, kGrouped, kCutlass, kFused };

/// Kernels of a layer, as far as they change the op list.
struct Software {
  bool transformer_engine = true;  ///< False: Megatron's `local` layers (unfused rope, permute; no wgrad fusion).
  bool fused_permute = false;      ///< --moe-permute-fusion
  bool fused_router = false;       ///< --moe-router-fusion
  bool fused_attention = true;     ///< False: scores are written to memory.
  Experts experts = Experts::kSequential;
  CrossEntropy cross_entropy = CrossEntropy::kUnfused;
  bool gradient_accumulation_fusion = true;
  bool router_fp32 = false;           ///< --moe-router-dtype fp32
  bool router_fp32_operands = false;  ///< core_v0.16: operands of the router GEMM are cast to FP32 (no tensor cores).
  bool operator==(const Software&) const = default;
};

/// All options that the ops of a layer may depend on, and no others. Builders of op lists see only these, and costs of
/// layers are remembered by this value (ops/block_cache.h).
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order in which people read them.
struct LayerOptions {
  std::int64_t tp = 1, cp = 1;    ///< --tensor-model-parallel-size, --context-parallel-size
  std::int64_t ep = 1, etp = 1;   ///< --expert-model-parallel-size, --expert-tensor-parallel-size
  bool sequence_parallel = true;  ///< --sequence-parallel; without effect if TP is 1.
  std::int64_t micro_batch = 1;   ///< Sequences.
  std::int64_t seq_len = 4096;
  /// --hidden-dropout, --attention-dropout: shares of values that are set to zero.
  double hidden_dropout = 0.0, attention_dropout = 0.0;
  Precision precision = Precision::kBf16;
  bool fp8_attention = false;  ///< fp8_dot_product_attention
  CpComm cp_comm = CpComm::kP2p;
  /// a2a+p2p: the first of --hierarchical-context-parallel-sizes, the ranks of the all-to-all. The ring has CP divided
  /// by it. 0: not given.
  std::int64_t cp_a2a_size = 0;
  Dispatcher dispatcher = Dispatcher::kAllGather;
  std::optional<double> capacity_factor;  ///< --moe-expert-capacity-factor; unset: dropless.
  bool pad_to_capacity = false;           ///< --moe-pad-expert-input-to-capacity
  /// --moe-expert-rank-capacity-factor: capacity of a rank's buffers of routed tokens, relative to the rows of balanced
  /// routing. A step with more rows runs again without its graph, so no token is lost. Unset: buffers hold as many as
  /// arrive.
  std::optional<double> rank_capacity_factor;
  /// --moe-paged-stash: tensors that experts keep for backward are in pages of a pool instead of buffers of that
  /// capacity.
  bool paged_stash = false;
  double expert_load = 1.0;  ///< Rows of this rank's experts, relative to balanced routing.
  struct Recompute {
    RecomputeGranularity granularity = RecomputeGranularity::kNone;
    BitSet<RecomputeModule> modules{};  ///< Selective only.
    bool operator==(const Recompute&) const = default;
  } recompute;                              ///< For the layers that PipelineOptions::recompute covers.
  BitSet<OffloadModule> offload_modules{};  ///< Fine-grained modules; kLayer with cpu_offloading_num_layers.
  struct Overlaps {
    bool tp = false;             ///< --tp-comm-overlap
    bool shared_expert = false;  ///< --moe-shared-expert-overlap
    bool operator==(const Overlaps&) const = default;
  } overlaps;
  CudaGraph cuda_graph;
  Software software;
  bool grad_reduce_in_fp32 = true;  ///< Type of the gradient buffer, to which weight gradients are added.
  bool lora = false;                ///< Weights are frozen; adapters beside them are trained.
  std::int64_t lora_dim = 32;       ///< Width of the adapters. Default: LoRA in megatron/bridge/peft/lora.py.
  BitSet<LoraModule> lora_modules = {LoraModule::kLinearQkv, LoraModule::kLinearProj, LoraModule::kLinearFc1,
                                     LoraModule::kLinearFc2};  ///< Likewise.
  /// --no-check-for-nan-in-loss-and-grad: else the host waits for each micro-batch's loss and each bucket of gradients.
  /// A graph of the whole iteration excludes it (megatron/training/arguments.py).
  bool check_for_nan = true;

  [[nodiscard]] bool checks_for_nan() const { return check_for_nan && cuda_graph.impl != GraphImpl::kFullIteration; }
  /// Whether TP ranks divide the tokens between the linears. Otherwise each rank has all.
  [[nodiscard]] bool splits_sequence() const { return sequence_parallel && tp > 1; }
  /// CP ranks that exchange heads for tokens. The rest of CP is a ring.
  [[nodiscard]] std::int64_t cp_all_to_all_ranks() const {
    return cp_comm == CpComm::kA2a ? cp : cp_comm == CpComm::kA2aP2p && cp_a2a_size > 0 ? cp_a2a_size : 1;
  }
  bool operator==(const LayerOptions&) const = default;
};

/// Which op lists read an option of a layer.
enum class Readers : std::uint8_t { kAll, kAttention, kExperts };

template <typename Value>
struct LayerOption {
  Value& value;
  Readers readers = Readers::kAll;
};
template <typename Value>
LayerOption(Value&, Readers = Readers::kAll) -> LayerOption<Value>;

/// Every option of a layer with its readers, including those of nested values. Structured bindings name every member,
/// so none can be forgotten.
template <typename Options>
[[nodiscard]] constexpr auto each_option(Options& options) {
  auto& [tp, cp, ep, etp, sequence_parallel, micro_batch, seq_len, hidden_dropout, attention_dropout, precision,
         fp8_attention, cp_comm, cp_a2a_size, dispatcher, capacity_factor, pad_to_capacity, rank_capacity_factor,
         paged_stash, expert_load, recompute, offload_modules, overlaps, cuda_graph, software, grad_reduce_in_fp32,
         lora, lora_dim, lora_modules, check_for_nan] = options;
  auto& [granularity, recompute_modules] = recompute;
  auto& [overlap_tp, overlap_shared_expert] = overlaps;
  auto& [graph_impl, graph_modules] = cuda_graph;
  auto& [transformer_engine, fused_permute, fused_router, fused_attention, experts, cross_entropy,
         gradient_accumulation_fusion, router_fp32, router_fp32_operands] = software;
  using enum Readers;
  return std::tuple{LayerOption{tp},
                    LayerOption{cp},
                    LayerOption{ep, kExperts},
                    LayerOption{etp, kExperts},
                    LayerOption{sequence_parallel},
                    LayerOption{micro_batch},
                    LayerOption{seq_len},
                    LayerOption{hidden_dropout},
                    LayerOption{attention_dropout, kAttention},
                    LayerOption{precision},
                    LayerOption{fp8_attention, kAttention},
                    LayerOption{cp_comm, kAttention},
                    LayerOption{cp_a2a_size, kAttention},
                    LayerOption{dispatcher, kExperts},
                    LayerOption{capacity_factor, kExperts},
                    LayerOption{pad_to_capacity, kExperts},
                    LayerOption{rank_capacity_factor, kExperts},
                    LayerOption{paged_stash, kExperts},
                    LayerOption{expert_load, kExperts},
                    LayerOption{granularity},
                    LayerOption{recompute_modules},
                    LayerOption{offload_modules},
                    LayerOption{overlap_tp},
                    LayerOption{overlap_shared_expert, kExperts},
                    LayerOption{graph_impl},
                    LayerOption{graph_modules},
                    LayerOption{transformer_engine},
                    LayerOption{fused_permute, kExperts},
                    LayerOption{fused_router, kExperts},
                    LayerOption{fused_attention, kAttention},
                    LayerOption{experts, kExperts},
                    LayerOption{cross_entropy},
                    LayerOption{gradient_accumulation_fusion},
                    LayerOption{router_fp32, kExperts},
                    LayerOption{router_fp32_operands, kExperts},
                    LayerOption{grad_reduce_in_fp32},
                    LayerOption{lora},
                    LayerOption{lora_dim},
                    LayerOption{lora_modules},
                    LayerOption{check_for_nan}};
}

/// How layers become stages, and how micro-batches pass through them.
struct PipelineOptions {
  std::int64_t pp = 1;
  std::int64_t vpp = 1;           ///< Model chunks per pipeline rank; 1 is plain 1F1B.
  std::int64_t global_batch = 1;  ///< Sequences.
  Schedule schedule = Schedule::kOneF1B;
  bool tp_pp_dp = false;                   ///< --use-tp-pp-dp-mapping; without effect if PP or DP is 1.
  std::string layout;                      ///< --pipeline-model-parallel-layout; empty: even split.
  std::int64_t microbatch_group_size = 0;  ///< --microbatch-group-size-per-virtual-pipeline-stage; 0 is PP.
  struct Recompute {
    RecomputeMethod method = RecomputeMethod::kUniform;
    std::int64_t num_layers = 1;  ///< Layers per checkpoint, or layers recomputed per chunk.
    bool operator==(const Recompute&) const = default;
  } recompute;  ///< Full recomputation only.
  struct Overlaps {
    bool ep_a2a = false;       ///< --overlap-moe-expert-parallel-comm
    bool delay_wgrad = false;  ///< --delay-wgrad-compute
    bool operator==(const Overlaps&) const = default;
  } overlaps;                                  ///< Forward with the backward of another micro-batch.
  std::int64_t cpu_offloading_num_layers = 0;  ///< --cpu-offloading-num-layers
  bool operator==(const PipelineOptions&) const = default;
};

/// Options of what happens once a step: data parallelism and the optimizer.
struct StepOptions {
  std::int64_t dp = 1;
  Sharding sharding = Sharding::kDdp;
  std::int64_t fsdp_group = 0;    ///< FSDP: ranks over which a parameter is sharded; 0: DP x CP; fewer: hybrid (HSDP).
  bool fsdp_outer_optim = false;  ///< HSDP: the optimizer is also sharded over the groups.
  /// --num-distributed-optimizer-instances: number of copies of the optimizer's shards among the data-parallel ranks.
  std::int64_t optimizer_instances = 1;
  bool pad_buckets_for_high_nccl_busbw = false;  ///< --ddp-pad-buckets-for-high-nccl-busbw
  struct Overlaps {
    bool dp_grad = false;   ///< --overlap-grad-reduce
    bool dp_param = false;  ///< --overlap-param-gather
    bool param_gather_with_optimizer_step = false;
    bool operator==(const Overlaps&) const = default;
  } overlaps;
  /// Overlapped shared experts of each layer run on a stream of their own, with its own memory. False: on one for all.
  bool shared_expert_streams = true;
  /// Megatron-FSDP's modules outside units, embedding and head, gather units ahead in every micro-batch, and what is
  /// gathered of themselves is freed before the optimizer step. False: neither.
  bool fsdp_head_gathers_ahead = true;
  Optimizer optimizer;
  struct Offload {
    double optimizer_fraction = 0.0;        ///< --optimizer-offload-fraction; 0 is off.
    bool overlap_optimizer_copies = false;  ///< --overlap-cpu-optimizer-d2h-h2d
    bool optimizer_states = false;          ///< --offload-optimizer-states: on the host between optimizer steps.
    bool operator==(const Offload&) const = default;
  } offload;
  bool operator==(const StepOptions&) const = default;
};

/// A choice of recomputation: what is recomputed in a layer, and in which layers.
struct Recompute {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  BitSet<RecomputeModule> modules{};                   ///< Selective only.
  RecomputeMethod method = RecomputeMethod::kUniform;  ///< Full only.
  std::int64_t num_layers = 1;                         ///< Full only.
  bool operator==(const Recompute&) const = default;
};

struct TrainingOptions {
  LayerOptions layer;
  PipelineOptions pipeline;
  StepOptions step;

  /// Whether anything moves to the host.
  [[nodiscard]] bool offloads() const {
    return !layer.offload_modules.empty() || pipeline.cpu_offloading_num_layers > 0 ||
           step.offload != StepOptions::Offload{};
  }
  /// False for PyTorch's FSDP2. Programs that use it also have torch's own loss (docs/run-file.md#published-rows).
  [[nodiscard]] bool megatron_fsdp() const {
    return is_fsdp(step.sharding) && layer.software.cross_entropy != CrossEntropy::kTorch;
  }
  [[nodiscard]] Recompute recompute() const {
    return {layer.recompute.granularity, layer.recompute.modules, pipeline.recompute.method,
            pipeline.recompute.num_layers};
  }
  void set_recompute(const Recompute& choice) {
    layer.recompute = {choice.granularity, choice.modules};
    pipeline.recompute = {choice.method, choice.num_layers};
  }
  [[nodiscard]] Layout layout() const {
    return {.tp = layer.tp,
            .cp = layer.cp,
            .dp = step.dp,
            .pp = pipeline.pp,
            .vpp = pipeline.vpp,
            .ep = layer.ep,
            .etp = layer.etp,
            .tp_pp_dp = pipeline.tp_pp_dp && pipeline.pp > 1};
  }
  void set_layout(const Layout& sizes) {
    layer.tp = sizes.tp;
    layer.cp = sizes.cp;
    layer.ep = sizes.ep;
    layer.etp = sizes.etp;
    pipeline.pp = sizes.pp;
    pipeline.vpp = sizes.vpp;
    step.dp = sizes.dp;
  }
  /// Micro-batches per step. Requires global_batch % (micro_batch * dp) == 0.
  [[nodiscard]] std::int64_t num_microbatches() const { return pipeline.global_batch / (layer.micro_batch * step.dp); }
  bool operator==(const TrainingOptions&) const = default;
};

[[nodiscard]] constexpr bool is_fp8(Precision p) {
  return p == Precision::kFp8Delayed || p == Precision::kFp8Current || p == Precision::kFp8Blockwise ||
         p == Precision::kMxfp8;
}
/// Whether operands are cast to fewer than 16 bits.
[[nodiscard]] constexpr bool is_quantised(Precision p) { return is_fp8(p) || p == Precision::kNvfp4; }

}  // namespace foldwise::costmodel

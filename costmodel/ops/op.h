#pragma once
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "costmodel/enums.h"
#include "costmodel/hardware/hardware.h"
#include "costmodel/parallel/options.h"
#include "costmodel/parallel/process_groups.h"
#include "costmodel/units/units.h"

// The op list: what one rank executes for one layer and one micro-batch. Time, memory, FLOPs, parameters and kernel
// launches are all read off it, and nothing else computes them. Recomputation and offloading edit the list
// (ops/edit.h), so that every number follows. docs/formulas.md#op-list walks through one layer.
namespace foldwise::costmodel {

/// Part of the model an op belongs to; used in reports.
enum class Module : std::uint8_t {
  kEmbedding,
  kAttention,
  kMlp,
  kRouter,
  kDispatch,
  kExperts,
  kSharedExperts,
  kMtp,
  kHead,
  kLoss,
  kOptimizer,
  kGradients,
};
[[nodiscard]] std::string_view to_string(Module module);

enum class Phase : std::uint8_t { kForward, kDgrad, kWgrad, kRecompute };

/// Node of Megatron's layer schedule plan (core/models/common/model_chunk_schedule_plan.py): what EP overlap
/// interleaves.
enum class Node : std::uint8_t { kPreDispatch, kDispatch, kMlp, kCombine };
inline constexpr std::size_t kNodes = enumerators<Node>();

/// Ops of one class run side by side: of their communication, only what exceeds their compute is exposed.
enum class Overlap : std::uint8_t {
  kNone,
  kTpGemm,        ///< --tp-comm-overlap: user-buffer collectives beside their GEMM.
  kTpBackward,    ///< Without it: what backward of a column-parallel linear gathers and scatters, beside its GEMMs.
  kCpAttention,   ///< Ring attention: K/V exchange beside the previous step.
  kSharedExpert,  ///< --moe-shared-expert-overlap: shared experts beside dispatch and combine.
  kOffload,       ///< Copies to and from the host beside the block's compute.
};
inline constexpr std::size_t kOverlaps = enumerators<Overlap>();

/// A kernel a group, several at once or one after another, or all groups in one kernel.
enum class Grouping { kSideBySide, kOneByOne, kOneKernel };
/// Linear: m rows, n output and k reduced features; `groups` experts of m rows each in a grouped GEMM (m is the mean).
struct GemmWork {
  MathFormat format = MathFormat::kBf16;
  double m = 0;
  std::int64_t n = 0, k = 0, groups = 1;
  bool accumulate_fp32 = false;  ///< wgrad into the fp32 main_grad.
  Grouping grouping = Grouping::kSideBySide;
};
struct AttentionWork {
  std::int64_t head_dim = 128;
  Flops flops{};
  double query_rows = 0.0;  ///< Of every head on this rank; 0 for linear attention.
  bool backward = false, fp8 = false;
  double window = 0.0;   ///< Keys that a query sees, which `flops` count; 0: all earlier ones.
  double stretch = 1.0;  ///< Its time over that of a kernel with as many queries as keys.
};
/// Memory-bound kernels: bytes read plus written.
struct MemoryWork {
  MemoryOp op = MemoryOp::kElementwise;
  Bytes bytes{};
  std::int64_t kernels = 1;  ///< Equal ones, one after another, that share the bytes.
};
/// Kernels of training software that have a curve of their own.
struct SoftwareWork {
  SoftwareKernel kernel{};
  double elements = 0.0;
  std::int64_t groups = 1;  ///< Parts of the elements that have kernels of their own.
};
/// `bytes` as collective_time defines them.
struct CollectiveWork {
  CollectiveKind kind = CollectiveKind::kAllGather;
  Group group = Group::kNone;
  Bytes bytes{};
  GroupShape shape;
};
/// Fused dispatch or combine of DeepEP or HybridEP.
struct ExchangeWork {
  CollectiveKind kind = CollectiveKind::kDispatch;
  Group group = Group::kNone;
  Dispatcher dispatcher = Dispatcher::kDeepEp;
  ExchangeVolume volume;
  GroupShape shape;
};
struct HostCopyWork {
  Bytes bytes{};
  bool to_host = true;
  std::int64_t gpus = 1;  ///< Of the job: all copy at once.
};
/// The host updates parameters: PyTorch's fused AdamW in one thread, then a copy in bf16.
struct HostUpdateWork {
  double elements = 0.0;
};
/// The host waits for the device: for the batch, or for what the device then copies to it (token counts of a MoE layer
/// that is not padded to a capacity).
struct HostSyncWork {
  bool to_host = false;
};

using Work = std::variant<GemmWork, AttentionWork, MemoryWork, SoftwareWork, CollectiveWork, ExchangeWork, HostCopyWork,
                          HostUpdateWork, HostSyncWork>;

/// Kept from the forward op until the backward of the step that consumes it.
struct Tensor {
  std::string_view name;  ///< For people, as all names here.
  Bytes bytes{};
  BitSet<RecomputeModule> freed_by;    ///< Any of these recomputed: not kept.
  BitSet<OffloadModule> offloaded_by;  ///< Any of these offloaded: kept on the host.
  Bytes copied{};                      ///< Goes to the host besides, and stays: another module's tensor is the same.
  std::int32_t step = 0;               ///< Its backward frees the tensor.
  Bytes rests{};                       ///< Part that the module holds on to until its next forward replaces it.
  bool block_input = false;            ///< What the block before has handed on.
  Bytes leaf{};  ///< What rests besides if the region is recomputed: its detached input, and gradient.
};

/// Parameters of an op on this rank.
struct Weight {
  std::string_view name;
  std::int64_t count = 0;      ///< Elements on this rank.
  bool expert = false;         ///< Sharded by the optimizer over EDP; else over DP x CP.
  bool quantised = false;      ///< Has low-precision copies in an FP8/FP4 run.
  bool tp_replicated = false;  ///< Its gradient is all-reduced over TP at the end of the step.
  std::int64_t tensors = 1;    ///< Equal tensors that it consists of (one an expert).
  bool adapter = false;        ///< Of LoRA: trained where the others are frozen.
};

struct Op {
  std::string_view name;  ///< Megatron's module name where it has one.
  Module module = Module::kAttention;
  Phase phase = Phase::kForward;
  Node node = Node::kPreDispatch;
  Work work;
  Overlap overlap = Overlap::kNone;
  std::int32_t launches = 1;            ///< Kernels the host issues.
  std::int32_t modules = 0;             ///< Modules of Transformer Engine that the host enters; they launch from C++.
  std::int32_t quantised = 0;           ///< Tensors that Transformer Engine's quantizers make.
  std::int32_t checkpoints = 0;         ///< Recomputed regions that begin with it.
  std::int32_t cp_attentions = 0;       ///< Attention over CP that begins with it.
  bool eager = true;                    ///< Every kernel is a PyTorch op of its own.
  BitSet<RecomputeModule> replayed_by;  ///< Runs again in backward if any of these is recomputed.
  BitSet<GraphModule> captured_by;      ///< Costs the host nothing if any of these is captured.
  std::vector<Tensor> keeps;            ///< Forward ops only.
  std::vector<Weight> weights;          ///< Forward ops only.
  /// wgrad: is added to main_grad by the product itself, and autograd gets a dummy tensor of its shape.
  bool dummy_gradient = false;
  bool updates_parameters = false;  ///< Of a step's end: the optimizer's update and casts.
  std::int32_t step = 0;            ///< Forward ops and their backward ops; backward runs the steps in reverse.
  std::vector<Bytes> transient;     ///< Tensors alive during the op, and no more than the next one.
  Bytes cache{}, setup_cache{};     ///< Tables of the module between steps, and before the first step.
  Bytes holds{}, releases{};        ///< Allocated by this op and alive until a later one releases them.
};

/// One block: forward ops in execution order, backward ops (recompute, dgrad, wgrad) in execution order.
struct OpList {
  std::vector<Op> forward, backward;
};

[[nodiscard]] Bytes transient_bytes(const Op& op);
[[nodiscard]] Seconds op_time(const Op& op, const Hardware& hardware);
/// Host time to issue the op.
[[nodiscard]] Seconds issue_time(const Op& op, const Hardware& hardware);
/// Memory-bound kernels of a fused attention's backward: the row dot of output and its gradient before the kernel;
/// after it the query gradient from FP32 to BF16 and, where several query heads share a key head, the sum over them.
/// Rows count every head. Source: benchmarks/accuracy/journal.md#attention.
[[nodiscard]] std::vector<MemoryWork> attention_backward_passes(double query_rows, double key_rows, double qk_dim,
                                                                double v_dim);
/// Multiply-adds count two. Memory-bound ops and collectives count nothing.
[[nodiscard]] Flops op_flops(const Op& op);
[[nodiscard]] bool is_communication(const Op& op);
/// What a communicating op puts on the links, and the group it spans; nothing for other ops.
[[nodiscard]] LinkBytes link_bytes(const Op& op);
[[nodiscard]] Group communication_group(const Op& op);
/// The kernel that runs a fused dispatch or combine.
[[nodiscard]] const ExchangeKernel& exchange_kernel(const Network& network, Dispatcher dispatcher);
/// "gemm", "grouped_gemm", "attention", "memory_bound", "quantize", "all_gather", ..., "host_copy", "host_sync".
[[nodiscard]] std::string_view kind_name(const Op& op);
[[nodiscard]] std::string_view group_name(const Op& op);  ///< "" unless a collective.

}  // namespace foldwise::costmodel

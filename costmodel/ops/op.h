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
// (ops/edit.h), so every number follows. docs/formulas.md#op-list explains one layer.
namespace foldwise::costmodel {

/// Part of the model that an op belongs to; used in reports.
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

/// Node of Megatron's layer schedule plan (core/models/common/model_chunk_schedule_plan.py). EP overlap interleaves
/// nodes.
enum class Node : std::uint8_t { kPreDispatch, kDispatch, kMlp, kCombine };
inline constexpr std::size_t kNodes = enumerators<Node>();

/// Ops of one class run side by side. Communication is exposed only as far as it exceeds the compute of its class.
enum class Overlap : std::uint8_t {
  kNone,
  kTpGemm,        ///< --tp-comm-overlap: user-buffer collectives beside their GEMM.
  kTpBackward,    ///< Without it: gather and scatter of a column-parallel linear's backward, beside its GEMMs.
  kCpAttention,   ///< Ring attention: K/V exchange beside the previous step.
  kSharedExpert,  ///< --moe-shared-expert-overlap: shared experts beside dispatch and combine.
  kOffload,       ///< Copies to and from the host beside the block's compute.
};
inline constexpr std::size_t kOverlaps = enumerators<Overlap>();

/// How groups run: a kernel per group, several at once or one after another, or one kernel for all groups.
enum class Grouping { kSideBySide, kOneByOne, kOneKernel };
/// A linear with m rows, n output and k reduced features. A grouped GEMM has `groups` experts with m rows on average.
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
  double query_rows = 0.0;  ///< Rows of all heads on this rank; 0 for linear attention.
  bool backward = false, fp8 = false;
  double window = 0.0;   ///< Number of keys that a query sees, which `flops` assume; 0: all earlier ones.
  double stretch = 1.0;  ///< Its time over that of a kernel with as many queries as keys.
};
/// Memory-bound kernels: bytes read plus written.
struct MemoryWork {
  MemoryOp op = MemoryOp::kElementwise;
  Bytes bytes{};
  std::int64_t kernels = 1;  ///< Number of equal kernels that share the bytes, one after another.
};
/// Kernels of training software that have a curve of their own.
struct SoftwareWork {
  SoftwareKernel kernel{};
  double elements = 0.0;
  std::int64_t groups = 1;  ///< Number of parts of the elements that have kernels of their own.
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
  std::int64_t gpus = 1;  ///< GPUs of the job, which all copy at once.
};
/// The host updates parameters with PyTorch's fused AdamW in one thread, then makes a BF16 copy.
struct HostUpdateWork {
  double elements = 0.0;
};
/// The host waits for the device. `to_host`: it needs values that the device then copies to it (token counts of a MoE
/// layer that is not padded to a capacity). `micro_batch`: it then goes on with Python that is once a micro-batch,
/// which loads it or checks its loss.
struct HostSyncWork {
  bool to_host = false, micro_batch = false;
};

using Work = std::variant<GemmWork, AttentionWork, MemoryWork, SoftwareWork, CollectiveWork, ExchangeWork, HostCopyWork,
                          HostUpdateWork, HostSyncWork>;

/// A tensor kept from a forward op until the backward of the step that uses it.
struct Tensor {
  std::string_view name;  ///< For people, like all names here.
  Bytes bytes{};
  BitSet<RecomputeModule> freed_by;    ///< Not kept if any of these is recomputed.
  BitSet<OffloadModule> offloaded_by;  ///< Kept on the host if any of these is offloaded.
  Bytes copied{};         ///< Bytes copied to the host that also stay, because another module keeps the same tensor.
  std::int32_t step = 0;  ///< The backward of this step frees the tensor.
  Bytes rests{};          ///< Bytes that the module still holds after backward, until its next forward overwrites them.
  bool block_input = false;  ///< Handed on by the previous block.
  Bytes leaf{};  ///< Additional `rests` if the region is recomputed: its detached input and the gradient of that.
};

/// Parameters of an op on this rank.
struct Weight {
  std::string_view name;
  std::int64_t count = 0;      ///< Elements on this rank.
  bool expert = false;         ///< The optimizer shards it over EDP; otherwise over DP x CP.
  bool quantised = false;      ///< Has low-precision copies in an FP8/FP4 run.
  bool tp_replicated = false;  ///< Its gradient is all-reduced over TP at the end of the step.
  std::int64_t tensors = 1;    ///< Number of equal tensors in it (one per expert).
  bool adapter = false;        ///< LoRA's: trained although the other weights are frozen.
};

struct Op {
  std::string_view name;  ///< Megatron's module name, if there is one.
  Module module = Module::kAttention;
  Phase phase = Phase::kForward;
  Node node = Node::kPreDispatch;
  Work work;
  Overlap overlap = Overlap::kNone;
  std::int32_t launches = 1;            ///< Kernels that the host issues.
  std::int32_t modules = 0;             ///< Transformer Engine modules that the host enters. They launch from C++.
  std::int32_t quantised = 0;           ///< Tensors made by Transformer Engine's quantizers.
  std::int32_t checkpoints = 0;         ///< Recomputed regions that begin with this op.
  std::int32_t cp_attentions = 0;       ///< Attentions over CP that begin with this op.
  bool eager = true;                    ///< Every kernel is a separate PyTorch op.
  BitSet<RecomputeModule> replayed_by;  ///< Runs again in backward if any of these is recomputed.
  BitSet<GraphModule> captured_by;      ///< Costs the host nothing if any of these is captured.
  std::vector<Tensor> keeps;            ///< Forward ops only.
  std::vector<Weight> weights;          ///< Forward ops only.
  /// wgrad with accumulation fusion: the product itself adds to main_grad, and autograd gets a BF16 tensor of the
  /// weight's shape, which Transformer Engine makes once a shape and keeps (get_dummy_wgrad, module/base.py).
  bool dummy_gradient = false;
  bool updates_parameters = false;  ///< At a step's end: the optimizer's update and casts.
  std::int32_t step = 0;  ///< Groups forward ops with their backward ops. Backward runs the steps in reverse order.
  std::vector<Bytes> transient;  ///< Tensors alive during the op; at most the next op may share them.
  Bytes cache{}, setup_cache{};  ///< Tables that the module holds between steps, and before the first step.
  Bytes holds{}, releases{};     ///< Bytes that this op allocates for later ops; bytes of earlier ops that it frees.
};

/// One block: forward ops in execution order, backward ops (recompute, dgrad, wgrad) in execution order.
struct OpList {
  std::vector<Op> forward, backward;
};

[[nodiscard]] Bytes transient_bytes(const Op& op);
[[nodiscard]] Seconds op_time(const Op& op, const Hardware& hardware);
/// Host time to issue the op.
[[nodiscard]] Seconds issue_time(const Op& op, const Hardware& hardware);
/// Memory-bound kernels of a fused attention's backward. Before the main kernel: the row-wise dot product of the output
/// and its gradient. After it: the query gradient from FP32 to BF16 and, if several query heads share a key head, the
/// sum over them. Rows count every head. Source: benchmarks/accuracy/journal.md#attention.
[[nodiscard]] std::vector<MemoryWork> attention_backward_passes(double query_rows, double key_rows, double qk_dim,
                                                                double v_dim);
/// A multiply-add counts as two. Memory-bound ops and collectives count as zero.
[[nodiscard]] Flops op_flops(const Op& op);
[[nodiscard]] bool is_communication(const Op& op);
/// Bytes of a communicating op on the links, and its group; zero and kNone for other ops.
[[nodiscard]] LinkBytes link_bytes(const Op& op);
[[nodiscard]] Group communication_group(const Op& op);
/// The kernel that runs a fused dispatch or combine.
[[nodiscard]] const ExchangeKernel& exchange_kernel(const Network& network, Dispatcher dispatcher);
/// "gemm", "grouped_gemm", "attention", "memory_bound", "quantize", "all_gather", ..., "host_copy", "host_sync".
[[nodiscard]] std::string_view kind_name(const Op& op);
[[nodiscard]] std::string_view group_name(const Op& op);  ///< "" unless the op is a collective.

}  // namespace foldwise::costmodel

#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/enums.h"
#include "costmodel/network/network.h"
#include "costmodel/parallel/options.h"
#include "costmodel/units/units.h"

// Description of a system for the cost model. hwprofiles/load fills it from hwprofiles/data/systems. The cost model
// uses no other hardware values. Formulas: docs/formulas.md#hardware.
namespace foldwise::costmodel {

/// Number format of a GEMM's operands.
enum class MathFormat { kBf16, kFp8, kFp8Block, kMxfp8, kNvfp4, kFp32 };
inline constexpr std::size_t kMathFormats = enumerators<MathFormat>();

/// The product that a GEMM computes: output, input gradient or weight gradient. Operand formats and layouts differ, and
/// so do rates.
enum class GemmPhase { kForward, kDgrad, kWgrad };
inline constexpr std::size_t kGemmPhases = enumerators<GemmPhase>();

/// Time of a (grouped) GEMM m x n x k from tiles and waves:
///   tiles = groups * ceil(m / tile_m) * ceil(n / tile_n);  waves = max(1, tiles / sms) (rounded up to whole waves when
///   groups = 1);  t = launch + waves * (2 * tile_m * tile_n * k / (sustained * peak / sms) + wave_overhead)
///       + (groups - 1) * per_group
///       + 8 bytes * groups * m * n / (accumulate_share * hbm) if the output is added to FP32
///   and at least launch + bytes / (group_memory_share * hbm), or group_accumulate_share if it adds to FP32, also for a
///   single product (benchmarks/accuracy/journal.md#few-rows). The best tile is used.
/// Groups on several streams keep group_rate_share of the sustained rate in forward and dgrad. Groups that add to FP32
/// have their own memory share and cost per further group.
/// FP32 products have narrower tiles. If these leave SMs idle, the depth is split among the SMs.
/// If all groups run in one kernel, one_kernel_per_group and one_kernel_memory_share replace the two values of groups.
/// Groups have different numbers of rows, and m is the mean. In forward and dgrad a group ends on average a quarter
/// tile after m / tile_m (benchmarks/accuracy/journal.md#gemm).
/// Source: this form explains the measured kernels of benchmarks/accuracy/journal.md#gemm. Parameters are fitted per
/// GPU and format.
struct GemmCurve {
  FlopRate peak{};                              ///< Dense datasheet peak of the format.
  std::array<double, kGemmPhases> sustained{};  ///< Share of peak inside a full wave, by GemmPhase.
  Seconds launch{};                             ///< Fixed cost of one GEMM.
  Seconds per_group{};                          ///< Fixed cost of each further group.
  Seconds accumulate_per_group{};               ///< The same for groups that add to FP32; 0: as per_group.
  double group_rate_share = 0.0;        ///< Share of `sustained` that groups keep in forward and dgrad; 0: all of it.
  double group_memory_share = 1.0;      ///< Share of the HBM bandwidth that groups running side by side reach.
  double group_accumulate_share = 0.0;  ///< The same for groups that add to FP32; 0: as group_memory_share.
  Seconds one_kernel_per_group{};       ///< per_group for groups in one kernel.
  /// group_memory_share for groups in one kernel; 0: not measured, costs as several kernels.
  double one_kernel_memory_share = 0.0;
  Seconds wave_overhead{};  ///< Prologue and epilogue of a wave.
  /// Rate at which an epilogue adds to an FP32 output (4 bytes read and 4 written per element), over the HBM bandwidth.
  /// Above 1 if other tiles compute meanwhile.
  double accumulate_share = 1.0;
  bool operator==(const GemmCurve&) const = default;
};

/// Attention, per direction: t = launch + FLOPs / rate + waves * tile. Tiles of 128 query rows run in waves = tiles /
/// sms, at least one. `tile` contains the start and end of a tile and what a causal tile computes above the diagonal.
/// head_dim selects the row. Under a sliding window of w keys the FLOPs are those of w + window_keys, because whole
/// tiles of the mask are computed. Source: benchmarks/accuracy/journal.md#attention.
struct AttentionCurve {
  std::int64_t head_dim = 128;  ///< Query/key width at which the row was measured.
  FlopRate forward_rate{}, backward_rate{};
  Seconds forward_launch{}, backward_launch{};
  Seconds forward_tile{}, backward_tile{};
  double fp8_forward_speedup = 1.0,
         fp8_backward_speedup = 1.0;  ///< Rate of FP8 attention over the BF16 rate; may be < 1.
  double forward_window_keys = 0.0,
         backward_window_keys = 0.0;  ///< Keys per query that a windowed kernel computes in addition to the window's.
  bool operator==(const AttentionCurve&) const = default;
};

/// Families of memory-bound kernels that reach different shares of the HBM bandwidth.
enum class MemoryOp {
  kNormForward,
  kNormBackward,
  kElementwise,
  kActivationForward,
  kActivationBackward,
  kRope,
  kPermute,
  kStridedCopy,
  kQuantize,
  kAmax,
  kCrossEntropy,
  kRouter,
  kOptimizer,
  kReduce,  ///< fp32 gradient += bf16 gradient.
  kFill,
  kEmbedding,
};
inline constexpr std::size_t kMemoryOps = enumerators<MemoryOp>();

/// t = launch + bytes / (share * hbm bandwidth).
struct MemoryCurve {
  double share = 0.75;      ///< Reached by the kernels that measured the device.
  double step_share = 0.0;  ///< Reached by the kernels of training software, if known; 0: as `share`.
  Seconds launch{};
  bool operator==(const MemoryCurve&) const = default;
};

/// Kernels of training software that take longer than their bytes: atomics, FP32 arithmetic, strides, one kernel per
/// expert. benchmarks/accuracy/journal.md#software has the place of each in the source and the meaning of an element.
enum class SoftwareKernel : std::uint8_t {
  kUnfusedCrossEntropyForward,
  kUnfusedCrossEntropyBackward,
  kNativeCrossEntropyForward,
  kNativeCrossEntropyBackward,
  kMambaScanForward,
  kMambaScanBackward,
  kMambaConvolutionForward,
  kMambaConvolutionBackward,
  kMambaNormForward,
  kMambaNormBackward,
  kExpertBiasForward,
  kExpertBiasBackward,
  kActivationClampForward,
  kActivationClampBackward,
  kIndexAdd,
  kScatterAdd,
  kSinkGradient,
  kProbabilityGradient,
  kBiasGradient,
  kSortMap,
  kFlatCast,  ///< Transpose-cast of a flat shard, treated as a matrix of one row.
  kHyperConnectionForward,
  kHyperConnectionBackward,
  kKeyCompressorForward,
  kKeyCompressorBackward,
  kQueryNormForward,
  kQueryNormBackward,
  kKeySelection,
  kGatedDeltaRuleForward,
  kGatedDeltaRuleBackward,
  kDeltaNetLayoutForward,
  kDeltaNetLayoutBackward,
  kGeneralNormForward,  ///< Transformer Engine's RMSNorm of a width for which it has no tuned kernel.
  kGeneralNormBackward,
  kHeadNormForward,  ///< The same of the heads of queries and keys: many short rows.
  kHeadNormBackward,
  kWiden,          ///< BF16 to FP32 by PyTorch's copy.
  kAdamRemainder,  ///< Transformer Engine's Adam that keeps 16 bits of an FP32 master beside a BF16 parameter.
};
inline constexpr std::size_t kSoftwareKernels = static_cast<std::size_t>(SoftwareKernel::kAdamRemainder) + 1;

/// t = launch + groups * per_group + elements * per_element.
struct SoftwareCurve {
  Seconds per_element{}, per_group{}, launch{};
  Bytes bytes{};  ///< HBM bytes of an element: the part of its time that depends on the bandwidth (hwprofiles/load).
  bool operator==(const SoftwareCurve&) const = default;
};

/// Power model that decides the clocks. Under products without pauses, base + energy per FLOP x rate equals the limit.
struct PowerSpec {
  Watts limit{};                                      ///< One GPU; 0: not modelled.
  Watts base{};                                       ///< Drawn regardless of the tensor cores: leakage, HBM, NVLink.
  std::array<double, kMathFormats> joule_per_flop{};  ///< By MathFormat.
  double attention = 1.0;     ///< Power of attention at its full rate over that of BF16 products, both above `base`.
  double memory_pause = 1.0;  ///< Seconds of pause that cool the GPU as a second of memory-bound kernels does.
  /// What the limit adds to attention's time, over what it adds to products' at the same clock: products wait for
  /// memory too, and lose less than the clock. Below 1: as 1.
  double attention_stretch = 1.0;
  double spread = 0.0;  ///< Standard deviation over mean of the rate that the limit leaves to GPUs of this kind.
  bool operator==(const PowerSpec&) const = default;
};

struct HostSpec {
  Seconds launch{};             ///< One kernel launched from C++.
  Seconds graph_node{};         ///< One small kernel of a replayed CUDA graph, from start to start.
  Seconds eager_op{};           ///< One PyTorch op with its kernel and autograd.
  Seconds module{};             ///< One direction through a module of Transformer Engine, without kernels.
  Seconds expert_weight{};      ///< One expert's weight tensor in such a module: view, autograd, DDP's hook.
  Seconds quantize{};           ///< One tensor made by a quantizer of Transformer Engine, without kernels.
  Seconds amax{};               ///< Its largest element and scale, with current scaling, in addition.
  Seconds quantized_linear{};   ///< One direction through a linear that quantizes, in addition to a module's.
  Seconds checkpoint{};         ///< One direction through a recomputed region: RNG states, autograd.
  Seconds cp_attention{};       ///< One direction through attention over CP, without kernels.
  Seconds node{};               ///< One direction through a node of EP overlap's schedule plan.
  Seconds fsdp_unit{};          ///< One direction through a unit of Megatron-FSDP: hooks, buckets.
  Seconds fsdp_parameter{};     ///< One parameter of such a unit: view of a bucket, gradient.
  Seconds collective{};         ///< One collective by torch.distributed or a dispatcher's library.
  double backward_share = 1.0;  ///< Share of these prices in backward, which autograd issues from C++.
  Seconds task{};               ///< Start of a chunk's forward or backward: schedule, P2P, autograd.
  Seconds sync{};               ///< Stall of one host-device synchronisation of a MoE layer.
  Seconds update{};             ///< Update of one parameter in the host's AdamW with one thread: OMP_NUM_THREADS=1.
  Seconds step{};               ///< Per step: logging, and what of the optimizer is once a step. The GPU is idle.
  Seconds micro_batch{};        ///< Python that loads a micro-batch, and Python that checks its loss for NaN.
  Seconds bucket_check{};       ///< Check of one bucket of gradients for NaN.
  Seconds parameter{};  ///< One parameter tensor in the optimizer's loops: gradient, norm, clip, lists for Adam.
  Seconds plain_op{};   ///< One PyTorch op without autograd in these loops.
  Bandwidth link_to_host{}, link_from_host{};    ///< Reached by pinned copies of one GPU alone.
  std::int64_t links = 1;                        ///< GPUs whose copies share the memory of one CPU.
  Bandwidth links_to_host{}, links_from_host{};  ///< Reached by all of these together; 0: as each alone.
  Seconds link_latency{};                        ///< Latency of one such copy.
  double link_both_share = 1.0;                  ///< Share of its rate that each direction keeps beside the other.
  Bytes memory_per_gpu{};                        ///< Host memory available to one GPU.
  /// If these prices are assumed: the factor that virtual machines were measured to take, and their `node`.
  double virtual_machine = 1.0;
  Seconds virtual_machine_node{};
  /// The prices of such virtual machines; nothing if these prices are measured.
  [[nodiscard]] std::optional<HostSpec> of_virtual_machine() const;
  /// Bandwidth for one of `gpus` GPUs of a job that all copy in the same direction at once.
  [[nodiscard]] Bandwidth link(bool to_host, std::int64_t gpus) const;
  bool operator==(const HostSpec&) const = default;
};

struct HostPrice {
  std::string_view name;  ///< In a profile: /host/...
  Seconds HostSpec::*price;
  bool on_virtual_machine = true;  ///< Times `virtual_machine` there.
};

/// Prices that grow on a slower host.
inline constexpr std::array<HostPrice, 21> kHostPrices{{{"launch", &HostSpec::launch, false},
                                                        {"eager_op", &HostSpec::eager_op},
                                                        {"module", &HostSpec::module},
                                                        {"expert_weight", &HostSpec::expert_weight},
                                                        {"quantize", &HostSpec::quantize},
                                                        {"amax", &HostSpec::amax},
                                                        {"quantized_linear", &HostSpec::quantized_linear},
                                                        {"checkpoint", &HostSpec::checkpoint},
                                                        {"cp_attention", &HostSpec::cp_attention},
                                                        {"node", &HostSpec::node, false},
                                                        {"fsdp_unit", &HostSpec::fsdp_unit},
                                                        {"fsdp_parameter", &HostSpec::fsdp_parameter},
                                                        {"collective", &HostSpec::collective},
                                                        {"task", &HostSpec::task},
                                                        {"sync", &HostSpec::sync, false},
                                                        {"update", &HostSpec::update, false},
                                                        {"step", &HostSpec::step, false},
                                                        {"micro_batch", &HostSpec::micro_batch},
                                                        {"bucket_check", &HostSpec::bucket_check},
                                                        {"parameter", &HostSpec::parameter},
                                                        {"plain_op", &HostSpec::plain_op}}};

/// Device memory that no tensor of the op list accounts for.
struct MemoryOverheads {
  Bytes context{};             ///< CUDA context, driver, and the kernels that every training loads.
  Bytes moe_kernels{};         ///< Kernels that MoE layers load in addition.
  Bytes communicator{};        ///< Buffers of a NCCL communicator's collectives.
  Bytes peer{};                ///< Buffers for what a NCCL communicator sends to and receives from one other rank.
  Bytes workspace{};           ///< One cuBLAS handle.
  double fragmentation = 0.0;  ///< Share of the allocated activations that the caching allocator reserves in addition.
  bool operator==(const MemoryOverheads&) const = default;
};

/// Shares of their rates that a compute kernel and a NCCL collective keep while both run.
struct SharedRates {
  double compute = 1.0, collective = 1.0;
  bool operator==(const SharedRates&) const = default;
};

/// Slowdown of kernels that run side by side on one GPU. A collective over NVLink beside back-to-back kernels of `C`
/// takes start_wait * C + M / collective, where M is its time alone. After its start the kernels run at `compute`.
/// Source: benchmarks/accuracy/journal.md#contention.
struct Contention {
  SharedRates gemm, memory;  ///< Beside a GEMM and beside a memory-bound kernel.
  double start_wait = 0.0;   ///< Wait of a collective for SMs, over the time of the kernel that occupies them.
  /// Share of its rate that a GEMM keeps if it is launched while the collective already occupies SMs.
  double launched = 1.0;
  bool operator==(const Contention&) const = default;
};

/// Properties of the GPU other than rates: of its tensor cores, and of software made for it.
struct GpuTraits {
  std::string generation;  ///< "blackwell": groups statistics, has no effect on predictions.
  /// Orders of elements in which an FP8 operand with one scale is kept. 1: tensor cores take either operand in either
  /// order. 2: a product needs K innermost, so the transpose is a second copy.
  int fp8_layouts = 2;
  std::vector<Dispatcher> flex_dispatchers;  ///< Dispatchers that run on it.
  bool operator==(const GpuTraits&) const = default;
};

/// Settings of the published recipes for the GPU, for options that a run leaves open.
struct RecipeDefaults {
  Precision fp8 = Precision::kFp8Current;  ///< For runs that state only FP8.
  std::optional<Dispatcher> dispatcher;    ///< Flex dispatcher of MoE models.
  BitSet<GraphModule> graph_modules;       ///< In Transformer Engine's graphs of MoE models.
  bool operator==(const RecipeDefaults&) const = default;
};

/// Uncertainty about a site: covariance of the logarithms of factors on its host's speed, its rates of products, its
/// NVLink bandwidth and its NIC bandwidth, in this order. It changes no predicted time; only intervals read it.
struct SiteKnowledge {
  static constexpr std::size_t kFactors = 4;
  std::array<std::array<double, kFactors>, kFactors> covariance{};  ///< Symmetric.
  bool operator==(const SiteKnowledge&) const = default;
};

struct Hardware {
  std::string name;  ///< "gb200-nvl72"
  std::string gpu;   ///< "GB200-NVL72" as in hardware.json
  GpuTraits traits;
  RecipeDefaults recipe;
  std::int64_t sms = 132;
  Bytes hbm_capacity{};  ///< Usable capacity, as nvidia-smi prints it.
  Bandwidth hbm_bandwidth{};
  std::array<FlopRate, kMathFormats> peak{};   ///< By MathFormat; zero if the GPU does not have it.
  std::array<GemmCurve, kMathFormats> gemm{};  ///< By MathFormat.
  std::vector<AttentionCurve> attention;       ///< By ascending head_dim; the nearest row is used.
  std::array<MemoryCurve, kMemoryOps> memory{};
  std::array<SoftwareCurve, kSoftwareKernels> software{};
  PowerSpec power;
  Contention contention;
  Network network;
  HostSpec host;
  MemoryOverheads overheads;
  std::optional<SiteKnowledge> site;  ///< Nothing: no run of the site was looked at.
  std::string unmeasured;  ///< Why measured runs say nothing about these numbers: "numbers of the system overridden".
  bool operator==(const Hardware&) const = default;

  [[nodiscard]] bool supports(Precision precision) const;
  /// Compute capability below 10; MXFP8 came with 10.
  [[nodiscard]] bool before_blackwell() const { return !supports(Precision::kMxfp8); }
  /// Peak for the MFU of runs of `precision`.
  [[nodiscard]] FlopRate mfu_peak(Precision precision) const;
};

/// Whether norms are priced as cuDNN's, at one rate for all widths, since there is none of Transformer Engine's
/// kernels.
[[nodiscard]] bool cudnn_norms(const Hardware& hw);

/// Share of its rate that a format's products keep if they never pause. Pauses let the GPU cool; then the share is 1 -
/// (1 - sustained_clock) x duty. Of the slowest of `gpus` GPUs, for which the others wait. Source:
/// docs/formulas.md#power.
[[nodiscard]] double sustained_clock(const Hardware& hw, MathFormat format, std::int64_t gpus = 1);
/// The same of attention.
[[nodiscard]] double sustained_attention(const Hardware& hw, std::int64_t gpus = 1);
/// Expected largest of `count` values of a standard normal distribution, to 0.03 (Blom, 1958).
[[nodiscard]] double expected_largest(std::int64_t count);
/// Time of products beside `others` under the power limit. `lost` is the share of their clocks that the limit takes if
/// they never pause. It is the x with x (1 - lost x / (x + others)) = products.
[[nodiscard]] Seconds limited_products(Seconds products, double lost, Seconds others);

[[nodiscard]] Seconds gemm_time(const Hardware& hw, MathFormat format, GemmPhase phase, std::int64_t m, std::int64_t n,
                                std::int64_t k, std::int64_t groups, bool accumulate_fp32, bool one_kernel = false);
[[nodiscard]] Seconds memory_time(const Hardware& hw, MemoryOp op, Bytes bytes);
/// `groups`: number of parts of the elements (experts) that have kernels of their own.
[[nodiscard]] Seconds software_time(const Hardware& hw, SoftwareKernel kernel, double elements, std::int64_t groups);
/// `query_rows` counts the rows of all query heads; 0: no tiles are charged (linear attention). `window` is the number
/// of keys that a query sees, and `flops` must match it; 0: all earlier keys.
[[nodiscard]] Seconds attention_time(const Hardware& hw, std::int64_t head_dim, Flops flops, double query_rows,
                                     bool backward, bool fp8, double window = 0.0);

}  // namespace foldwise::costmodel

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

// What a system is, to the cost model. Filled from hwprofiles/data/systems by hwprofiles/load; the cost model computes
// with these values only. Formulas: docs/formulas.md#hardware.
namespace foldwise::costmodel {

/// Number format of a GEMM's operands.
enum class MathFormat { kBf16, kFp8, kFp8Block, kMxfp8, kNvfp4, kFp32 };
inline constexpr std::size_t kMathFormats = enumerators<MathFormat>();

/// Whose product a GEMM is: output, input gradient, weight gradient. Operand formats and layouts differ, and so do
/// rates.
enum class GemmPhase { kForward, kDgrad, kWgrad };
inline constexpr std::size_t kGemmPhases = enumerators<GemmPhase>();

/// Time of a (grouped) GEMM m x n x k by tiles and waves:
///   tiles = groups * ceil(m / tile_m) * ceil(n / tile_n);  waves = max(1, tiles / sms) (rounded up to whole waves when
///   groups = 1);  t = launch + waves * (2 * tile_m * tile_n * k / (sustained * peak / sms) + wave_overhead)
///       + (groups - 1) * per_group + 8 bytes * groups * m * n / (accumulate_share * hbm) where the output is added to
///       FP32
///   and at least launch + bytes / (group_memory_share * hbm), group_accumulate_share where it adds to FP32, of one
///   product too (benchmarks/accuracy/journal.md#few-rows). The best tile counts.
/// Groups on several streams keep group_rate_share of the sustained rate in forward and dgrad; those that add to FP32
/// have a memory share and a cost of each further group of their own.
/// FP32 products have narrower tiles and, where these leave SMs idle, split the depth among them.
/// Where all groups run in one kernel, one_kernel_per_group and one_kernel_memory_share stand for the two of groups.
/// Groups have different numbers of rows: m is their mean, and a group ends on average a quarter tile after m / tile_m
/// (benchmarks/accuracy/journal.md#gemm), in forward and dgrad.
/// Source: the form that explains the measured kernels of benchmarks/accuracy/journal.md#gemm; parameters are fitted
/// per GPU and format.
struct GemmCurve {
  FlopRate peak{};                              ///< Dense datasheet peak of the format.
  std::array<double, kGemmPhases> sustained{};  ///< Share of peak inside a full wave, by GemmPhase.
  Seconds launch{};                             ///< Fixed cost of one GEMM.
  Seconds per_group{};                          ///< Fixed cost of each further group.
  Seconds accumulate_per_group{};               ///< The same of groups that add to FP32; 0: as per_group.
  double group_rate_share = 0.0;                ///< Share of `sustained` that groups keep, but in wgrad; 0: all of it.
  double group_memory_share = 1.0;              ///< Share of the HBM bandwidth that groups side by side reach.
  double group_accumulate_share = 0.0;          ///< The same of groups that add to FP32; 0: as group_memory_share.
  Seconds one_kernel_per_group{};               ///< The same of groups in one kernel.
  double one_kernel_memory_share = 0.0;         ///< 0: it was not measured, and costs as groups in several do.
  Seconds wave_overhead{};                      ///< Prologue and epilogue of a wave.
  /// Rate at which an epilogue adds to an FP32 output (4 bytes read, 4 written an element) over the HBM bandwidth:
  /// above 1 where other tiles compute meanwhile.
  double accumulate_share = 1.0;
  bool operator==(const GemmCurve&) const = default;
};

/// Attention, per direction: t = launch + FLOPs / rate + waves * tile, where tiles of 128 query rows run in
/// waves = tiles / sms, at least one. Beside its start and end, `tile` holds what a causal tile computes above the
/// diagonal. head_dim decides the row. Under a sliding window of w keys the FLOPs are those of w + window_keys: whole
/// tiles of the mask are computed. Source: benchmarks/accuracy/journal.md#attention.
struct AttentionCurve {
  std::int64_t head_dim = 128;  ///< Query/key width the row was measured at.
  FlopRate forward_rate{}, backward_rate{};
  Seconds forward_launch{}, backward_launch{};
  Seconds forward_tile{}, backward_tile{};
  double fp8_forward_speedup = 1.0,
         fp8_backward_speedup = 1.0;  ///< Rate of FP8 attention over the BF16 rate; may be < 1.
  double forward_window_keys = 0.0,
         backward_window_keys = 0.0;  ///< Keys per query that a windowed kernel computes besides the window's.
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
  double step_share = 0.0;  ///< Reached by the kernels that training software runs, where that is known; 0: as `share`.
  Seconds launch{};
  bool operator==(const MemoryCurve&) const = default;
};

/// Kernels of training software that take longer than their bytes: atomics, fp32 arithmetic, strides, a kernel an
/// expert. Where each is in the source, and what an element of it is: benchmarks/accuracy/journal.md#software.
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
  kFlatCast,  ///< Transpose-cast of a flat shard, as if it were a matrix of one row.
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
};
inline constexpr std::size_t kSoftwareKernels = static_cast<std::size_t>(SoftwareKernel::kDeltaNetLayoutBackward) + 1;

/// t = launch + groups * per_group + elements * per_element.
struct SoftwareCurve {
  Seconds per_element{}, per_group{}, launch{};
  Bytes bytes{};  ///< Of an element in HBM: what of its time another bandwidth changes (hwprofiles/load).
  bool operator==(const SoftwareCurve&) const = default;
};

/// What decides the clocks: under products that never pause, base + energy per FLOP x rate stays at the limit.
struct PowerSpec {
  Watts limit{};                                      ///< Of one GPU; 0: none is modelled.
  Watts base{};                                       ///< Drawn whatever the tensor cores do: leakage, HBM, NVLink.
  std::array<double, kMathFormats> joule_per_flop{};  ///< By MathFormat.
  bool operator==(const PowerSpec&) const = default;
};

struct HostSpec {
  Seconds launch{};                            ///< One kernel launched from C++.
  Seconds graph_node{};                        ///< One small kernel of a replayed CUDA graph, start to start.
  Seconds eager_op{};                          ///< One PyTorch op and its kernel, autograd included.
  Seconds module{};                            ///< One direction through a module of Transformer Engine, kernels apart.
  Seconds expert_weight{};                     ///< One expert's weight tensor in it: view, autograd, DDP's hook.
  Seconds quantize{};                          ///< One tensor made by a quantizer of Transformer Engine, kernels apart.
  Seconds quantized_linear{};                  ///< One direction through a linear that quantizes, over a module's.
  Seconds checkpoint{};                        ///< One direction through a recomputed region: RNG states, autograd.
  Seconds cp_attention{};                      ///< One direction through attention over CP, kernels apart.
  Seconds node{};                              ///< One direction through a node of EP overlap's schedule plan.
  Seconds fsdp_unit{};                         ///< One direction through a unit of Megatron-FSDP: hooks, buckets.
  Seconds fsdp_parameter{};                    ///< One parameter of it: view of a bucket, gradient.
  Seconds collective{};                        ///< One collective by torch.distributed or a dispatcher's library.
  double backward_share = 1.0;                 ///< Of these prices in backward, which autograd issues from C++.
  Seconds task{};                              ///< Around a chunk's forward or backward: schedule, P2P, autograd.
  Seconds sync{};                              ///< Stall of one host-device synchronisation of a MoE layer.
  Seconds update{};                            ///< One parameter in the host's AdamW, by one thread: OMP_NUM_THREADS=1.
  Seconds step{};                              ///< Per step: batch, optimizer's Python, logging; the GPU idles.
  Bandwidth link_to_host{}, link_from_host{};  ///< Reached by pinned copies of one GPU alone.
  std::int64_t links = 1;                      ///< GPUs whose copies share the memory of one CPU.
  Bandwidth links_to_host{}, links_from_host{};  ///< Reached by all of these at once, together; 0: as each alone.
  Seconds link_latency{};                        ///< Of one such copy.
  double link_both_share = 1.0;                  ///< Of its rate that each direction keeps beside the other.
  Bytes memory_per_gpu{};                        ///< Host memory available to one GPU.
  /// Where these prices are assumed: what virtual machines were measured to take over them, and their `node`.
  double virtual_machine = 1.0;
  Seconds virtual_machine_node{};
  /// The prices of such virtual machines; none: these are measured.
  [[nodiscard]] std::optional<HostSpec> of_virtual_machine() const;
  /// Of one of a job's `gpus`, which all copy the same way at once.
  [[nodiscard]] Bandwidth link(bool to_host, std::int64_t gpus) const;
  bool operator==(const HostSpec&) const = default;
};

/// What takes longer on a slower host: name in a profile (/host/...) and member.
inline constexpr std::array<std::pair<std::string_view, Seconds HostSpec::*>, 16> kHostPrices{
    {{"launch", &HostSpec::launch},
     {"eager_op", &HostSpec::eager_op},
     {"module", &HostSpec::module},
     {"expert_weight", &HostSpec::expert_weight},
     {"quantize", &HostSpec::quantize},
     {"quantized_linear", &HostSpec::quantized_linear},
     {"checkpoint", &HostSpec::checkpoint},
     {"cp_attention", &HostSpec::cp_attention},
     {"node", &HostSpec::node},
     {"fsdp_unit", &HostSpec::fsdp_unit},
     {"fsdp_parameter", &HostSpec::fsdp_parameter},
     {"collective", &HostSpec::collective},
     {"task", &HostSpec::task},
     {"sync", &HostSpec::sync},
     {"update", &HostSpec::update},
     {"step", &HostSpec::step}}};

/// Device memory that no tensor of the op list explains.
struct MemoryOverheads {
  Bytes context{};             ///< CUDA context and driver.
  Bytes nccl{};                ///< Communicator buffers.
  Bytes workspace{};           ///< Of one cuBLAS handle.
  double fragmentation = 0.0;  ///< Share of allocated activations that the caching allocator reserves on top.
  bool operator==(const MemoryOverheads&) const = default;
};

/// Rates that a compute kernel and a NCCL collective keep while both run, over their rates alone.
struct SharedRates {
  double compute = 1.0, collective = 1.0;
  bool operator==(const SharedRates&) const = default;
};

/// What kernels side by side on one GPU cost each other. A collective over NVLink beside back-to-back kernels of `C`
/// takes start_wait * C + M / collective, M being its time alone; meanwhile the kernels run at `compute` once it has
/// started. Source: benchmarks/accuracy/journal.md#contention.
struct Contention {
  SharedRates gemm, memory;  ///< Beside a GEMM, a memory-bound kernel.
  double start_wait = 0.0;   ///< A collective waits for SMs, over the time of the kernel that has them.
  bool operator==(const Contention&) const = default;
};

/// What depends on the GPU beside rates: facts of its tensor cores, and of the software that is made for it.
struct GpuTraits {
  std::string generation;  ///< "blackwell": groups statistics and decides nothing.
  /// Orders of its elements in which an FP8 operand with one scale is kept: 1 where tensor cores take either operand in
  /// either order, 2 where a product wants K innermost, so that the transpose is another copy.
  int fp8_layouts = 2;
  std::vector<Dispatcher> flex_dispatchers;  ///< That run on it.
  bool operator==(const GpuTraits&) const = default;
};

/// What the published recipes for the GPU set where a run leaves it open.
struct RecipeDefaults {
  Precision fp8 = Precision::kFp8Current;  ///< Of runs that say only FP8.
  std::optional<Dispatcher> dispatcher;    ///< Flex one, of MoE models.
  BitSet<GraphModule> graph_modules;       ///< In Transformer Engine's graphs, of MoE models.
  bool operator==(const RecipeDefaults&) const = default;
};

/// What runs of a site leave unknown of it: covariance of the logarithms of factors on its host's speed, its rates of
/// products, its NVLink's and its NICs' bandwidth, in this order. Decides no time; intervals read it.
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
  Bytes hbm_capacity{};  ///< Usable, as nvidia-smi prints it.
  Bandwidth hbm_bandwidth{};
  std::array<FlopRate, kMathFormats> peak{};   ///< By MathFormat; zero where the GPU has none.
  std::array<GemmCurve, kMathFormats> gemm{};  ///< By MathFormat.
  std::vector<AttentionCurve> attention;       ///< By ascending head_dim; the nearest row is used.
  std::array<MemoryCurve, kMemoryOps> memory{};
  std::array<SoftwareCurve, kSoftwareKernels> software{};
  PowerSpec power;
  Contention contention;
  Network network;
  HostSpec host;
  MemoryOverheads overheads;
  std::optional<SiteKnowledge> site;  ///< None: no run of it was looked at.
  std::string unmeasured;  ///< Why no measured run can tell of these numbers: "numbers of the system overridden".
  bool operator==(const Hardware&) const = default;

  [[nodiscard]] bool supports(Precision precision) const;
  /// Compute capability below 10, with which MXFP8 came.
  [[nodiscard]] bool before_blackwell() const { return !supports(Precision::kMxfp8); }
  /// Peak that MFU is taken against for runs of `precision`.
  [[nodiscard]] FlopRate mfu_peak(Precision precision) const;
};

/// Share of its rate that products of a format keep when they never pause. With pauses, which let the GPU cool, the
/// share is 1 - (1 - sustained_clock) x duty. Source: docs/formulas.md#power.
[[nodiscard]] double sustained_clock(const Hardware& hw, MathFormat format);
/// What products take beside `others` under the power limit, which takes the share `lost` of their clocks where they
/// never pause: the x with x (1 - lost x / (x + others)) = products.
[[nodiscard]] Seconds limited_products(Seconds products, double lost, Seconds others);

[[nodiscard]] Seconds gemm_time(const Hardware& hw, MathFormat format, GemmPhase phase, std::int64_t m, std::int64_t n,
                                std::int64_t k, std::int64_t groups, bool accumulate_fp32, bool one_kernel = false);
[[nodiscard]] Seconds memory_time(const Hardware& hw, MemoryOp op, Bytes bytes);
/// `groups`: parts of the elements that have kernels of their own (experts).
[[nodiscard]] Seconds software_time(const Hardware& hw, SoftwareKernel kernel, double elements, std::int64_t groups);
/// `query_rows` counts the rows of every query head; 0: no tiles are charged (linear attention). `window` is the number
/// of keys that a query sees, to which `flops` belong; 0: all earlier ones.
[[nodiscard]] Seconds attention_time(const Hardware& hw, std::int64_t head_dim, Flops flops, double query_rows,
                                     bool backward, bool fp8, double window = 0.0);

}  // namespace foldwise::costmodel

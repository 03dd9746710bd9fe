#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/enums.h"
#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "costmodel/pipeline/schedule.h"
#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// Parts of a step on the critical (busiest) pipeline rank. They add up to the step.
struct Breakdown {
  Seconds compute{};                ///< Kernels on the compute stream.
  Seconds exposed_communication{};  ///< Exposed collectives and transfers.
  Seconds exposed_copy{};           ///< Exposed copies over the host link.
  Seconds bubble{};                 ///< Waiting for other pipeline ranks.
  Seconds host{};                   ///< GPU idle because the host issues kernels too slowly or synchronises.
  [[nodiscard]] Seconds total() const { return compute + exposed_communication + exposed_copy + bubble + host; }
};

/// The parts of Breakdown, and the part to which a line of the detail belongs.
enum class Cause : std::uint8_t { kCompute, kCommunication, kCopy, kBubble, kHost };
/// "compute", "exposed_communication", "exposed_copy", "bubble", "host".
[[nodiscard]] std::string_view to_string(Cause cause);

/// DetailEntry::kind of the time that the power limit adds to a rank's products.
inline constexpr std::string_view kPowerLimit = "power_limit";

/// Part of a rank's seconds, one line for each (cause, kind of op, module, group). With the bubble they add up to the
/// step.
struct DetailEntry {
  Cause cause = Cause::kCompute;
  std::string kind;    ///< "gemm", "grouped_gemm", "attention", "memory_bound", "quantize", "all_gather", ...
  std::string module;  ///< "attention", "mlp", "experts", "router", "dispatch", "head", "optimizer", ...
  std::string group;   ///< "tp", "ep", "dp_cp", ... for collectives, else "".
  Seconds seconds{};
  Seconds recomputed{};  ///< Part of `seconds` in forward ops that run again in backward.
};

/// torch.cuda.max_memory_reserved of a step, after some steps. It is at most what the device leaves to torch.
struct ReservedMemory {
  Bytes segments{};    ///< Default settings: segments of fixed size.
  Bytes expandable{};  ///< PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
  /// torch.OutOfMemoryError with the default settings. `segments` is then what torch held.
  bool segments_run_out = false;
};

/// torch.OutOfMemoryError, raised after torch gave back its cached memory.
struct OutOfMemory {
  int step = 1;  ///< Counted from 1.
  Bytes wanted{}, allocated{}, reserved{};
};

/// Whether a rank's memory suffices, with expandable segments.
struct MemoryPressure {
  Bytes unlimited{};  ///< Memory that torch would reserve on a larger device.
  int retries = 0;    ///< Number of times that torch gave back cached memory to try again; torch's num_alloc_retries.
  bool every_step = false;  ///< It also does so after the first steps. That takes time which is not predicted.
  std::optional<OutOfMemory> out_of_memory;
  [[nodiscard]] bool runs() const { return !out_of_memory && !every_step; }
};

/// Device memory of the fullest moment of one pipeline rank.
struct StageMemory {
  Bytes parameters{}, gradients{}, optimizer{}, activations{}, buffers{};
  Bytes cuda_context{};        ///< Including the driver's share and lazily loaded kernels.
  Bytes nccl{};                ///< Buffers of NCCL's communicators.
  Bytes dispatcher_buffers{};  ///< Buffers of DeepEP or HybridEP.
  Bytes user_buffers{};        ///< Transformer Engine's, for TP overlap.
  Bytes graph_pools{};         ///< Tensors of captured regions.
  Bytes fragmentation{};       ///< Share of the activations that the caching allocator cannot use.
  Bytes holes{};  ///< Holes between the optimizer's states that activations cannot use (StaticBytes::holes).
  /// What torch.cuda.max_memory_allocated reports.
  [[nodiscard]] Bytes allocated() const { return parameters + gradients + optimizer + activations + buffers; }
  [[nodiscard]] Bytes overhead() const { return outside() + graph_pools + fragmentation + holes; }
  [[nodiscard]] Bytes total() const { return allocated() + overhead(); }
  /// Device memory outside torch.
  [[nodiscard]] Bytes outside() const { return cuda_context + nccl + dispatcher_buffers + user_buffers; }
  /// Memory that would be in use on a larger device, with expandable segments.
  [[nodiscard]] Bytes in_use() const { return pressure.unlimited + outside(); }
  ReservedMemory reserved;  ///< Zero, like `pressure`, until add_reserved() fills it.
  MemoryPressure pressure;
  Bytes allocated_after_setup{};    ///< Model and optimizer are built, and no step was taken.
  Bytes allocated_beside_chunks{};  ///< Allocated memory without micro-batches in flight.
  Bytes allocated_between_steps{};  ///< After the optimizer step.
  Bytes allocated_in_optimizer{};   ///< Highest level during the optimizer step.
  Bytes rests{};                    ///< Part of the two before: left by activations between steps.
  Bytes lasting_buffers{};          ///< Part of `rests`: made once by the software and kept.
  Bytes returning{};                ///< Optimizer states that are on the device only during the optimizer step.
  Bytes host{};                     ///< Host memory of offloaded activations and optimizer states.
  std::string moment;               ///< "forward", "backward", "optimizer step".
};

/// What a second of a pipeline rank is spent on. Communication is the exposed part, by group.
enum class Activity : std::uint8_t {
  kCompute,
  kRecompute,
  kTensor,    ///< TP.
  kContext,   ///< CP.
  kExpert,    ///< EP, ETP.
  kPipeline,  ///< PP: transfers that the sender waits for.
  kData,      ///< DP: gradient reduction, parameter gather, FSDP, gradient norm.
  kOffload,   ///< Waiting for copies over the host link.
  kHost,
  kOptimizer,
  kBubble,  ///< Waiting for other pipeline ranks.
};
inline constexpr std::size_t kActivities = enumerators<Activity>();
/// "compute", "recompute", "tp", "cp", "ep", "pp", "dp", "offload_wait", "host", "optimizer", "bubble".
[[nodiscard]] std::string_view to_string(Activity activity);
using ActivityTimes = std::array<Seconds, kActivities>;

/// A part of the step outside the schedule's chunks, on one rank.
struct StepPart {
  std::string_view name{};  ///< Name of the ops: "grad_reduce", "grad_norm", "adam", "zero_grad", "param_gather", ...
  Activity activity = Activity::kOptimizer;
  Seconds seconds{};  ///< All of its time.
  Seconds exposed{};  ///< The exposed part.
};

/// Times of a rank's tasks over a step, separately for tasks that run alone and merged (F, B) pairs.
struct TaskTimes {
  Seconds forward{};
  Seconds input_gradient{};  ///< The whole backward if the schedule does not split it.
  Seconds weight_gradient{};
  Seconds merged{};
};

/// Cost of a rank's data-parallel collectives: waiting for them, and the slowdown of work beside them. Also its waiting
/// for other data.
struct DataParallelCost {
  Seconds gather{};     ///< Gather of parameters, before first forwards.
  Seconds reduction{};  ///< Reduction of gradients, after the last backward.
  Seconds reload{};     ///< Reload of optimizer states from the host, after the reduction.
};

struct StagePrediction {
  Seconds compute{}, exposed_communication{}, exposed_copy{}, bubble{}, host{};
  Seconds forward{}, backward{};  ///< One micro-batch through all chunks of the rank.
  TaskTimes tasks;
  DataParallelCost data_parallel;
  Seconds host_issue{};             ///< Host time to launch a step's kernels; a lower bound of the step.
  ActivityTimes parts{};            ///< Adds up to the step; unset without detail.
  std::vector<DetailEntry> detail;  ///< Longest first; empty unless asked for.
  std::int64_t layers = 0;
  std::int64_t peak_chunks_in_flight = 0;
};

struct Prediction {
  Seconds step_time{};
  double tokens_per_s_per_gpu = 0.0;
  double model_tflops_per_gpu = 0.0;  ///< Megatron's FLOP count over step time and GPUs.
  double mfu_pct = 0.0;               ///< Relative to Hardware::mfu_peak.
  Bytes peak_memory{};                ///< Total of the fullest stage.
  bool fits = false;                  ///< Also false if add_reserved() finds that torch runs out of memory.
  Breakdown breakdown;
  std::vector<StepPart> step_end;       ///< On the critical rank, in order; empty unless asked for.
  std::vector<StagePrediction> stages;  ///< [pp]
  std::vector<StageMemory> memory;      ///< [pp]
  std::size_t critical_stage = 0;
  /// StageMemory::in_use() of the fullest rank. Requires add_reserved().
  [[nodiscard]] Bytes in_use() const;
  /// Whether torch runs in `capacity` bytes of the device and keeps what it has in every step. Requires add_reserved().
  [[nodiscard]] bool torch_has_room(Bytes capacity) const;
  /// Detail of the critical rank. Requires stages.
  [[nodiscard]] const std::vector<DetailEntry>& detail() const { return stages.at(critical_stage).detail; }
};

/// Memory of a rank to which random routing sends more rows than its share.
struct Imbalance {
  double p99_load = 1.0;  ///< Rows of a MoE layer on a rank over the mean; 99 of 100 micro-batches have at most this.
  Bytes p99_memory{};     ///< Upper bound for the fullest rank: all its MoE layers and micro-batches have p99_load.
};
/// Imbalance::p99_load, a factor for LayerOptions::expert_load. With capacity and padding there is no imbalance.
[[nodiscard]] double p99_load(const ModelSpec& model, const LayerOptions& options);
/// In addition to LayerOptions::expert_load.
[[nodiscard]] Imbalance imbalance(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware);

/// Predicts one run: predict(compose_step(...)); see step.h.
[[nodiscard]] Prediction predict(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware);

}  // namespace foldwise::costmodel

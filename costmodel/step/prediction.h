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

/// Where the seconds of a step go on the critical pipeline rank (the busiest one); the parts add up to the step.
struct Breakdown {
  Seconds compute{};                ///< Kernels on the compute stream.
  Seconds exposed_communication{};  ///< Collectives and transfers that nothing hides.
  Seconds exposed_copy{};           ///< Copies over the host link that nothing hides.
  Seconds bubble{};                 ///< Waiting for other pipeline ranks.
  Seconds host{};                   ///< GPU idle because the host issues kernels too slowly, or synchronises.
  [[nodiscard]] Seconds total() const { return compute + exposed_communication + exposed_copy + bubble + host; }
};

/// The parts of Breakdown, and what a line of its detail belongs to.
enum class Cause : std::uint8_t { kCompute, kCommunication, kCopy, kBubble, kHost };
/// "compute", "exposed_communication", "exposed_copy", "bubble", "host".
[[nodiscard]] std::string_view to_string(Cause cause);

/// DetailEntry::kind of what the power limit adds to the products of a rank.
inline constexpr std::string_view kPowerLimit = "power_limit";

/// Part of a rank's seconds: one line per (cause, kind of op, module, group). With the bubble they add up to the step.
struct DetailEntry {
  Cause cause = Cause::kCompute;
  std::string kind;    ///< "gemm", "grouped_gemm", "attention", "memory_bound", "quantize", "all_gather", ...
  std::string module;  ///< "attention", "mlp", "experts", "router", "dispatch", "head", "optimizer", ...
  std::string group;   ///< "tp", "ep", "dp_cp", ... for collectives, else "".
  Seconds seconds{};
  Seconds recomputed{};  ///< Part of them: forward ops that run again in backward.
};

/// What torch.cuda.max_memory_reserved reports of a step, after some steps: no more than the device leaves to torch.
struct ReservedMemory {
  Bytes segments{};    ///< Default settings: segments of fixed size.
  Bytes expandable{};  ///< PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
  /// torch.OutOfMemoryError with the default settings; `segments` is what it held then.
  bool segments_run_out = false;
};

/// torch.OutOfMemoryError: even after torch gave back what it had cached.
struct OutOfMemory {
  int step = 1;  ///< The first is 1.
  Bytes wanted{}, allocated{}, reserved{};
};

/// How a rank gets along with what the device leaves to torch, with expandable segments.
struct MemoryPressure {
  Bytes unlimited{};        ///< What torch would reserve of a larger device.
  int retries = 0;          ///< How often it gave back what it had cached, to try again; torch's num_alloc_retries.
  bool every_step = false;  ///< Not only in the first steps. It takes time that is not predicted.
  std::optional<OutOfMemory> out_of_memory;
  [[nodiscard]] bool runs() const { return !out_of_memory && !every_step; }
};

/// Device memory of the fullest moment of one pipeline rank.
struct StageMemory {
  Bytes parameters{}, gradients{}, optimizer{}, activations{}, buffers{};
  Bytes cuda_context{};        ///< With the driver's share and lazily loaded kernels.
  Bytes nccl{};                ///< Buffers of its communicators.
  Bytes dispatcher_buffers{};  ///< Of DeepEP or HybridEP.
  Bytes graph_pools{};         ///< Tensors of captured regions.
  Bytes fragmentation{};       ///< Share of the activations that the caching allocator cannot use.
  Bytes holes{};               ///< Between the optimizer's states, which activations cannot use (StaticBytes::holes).
  /// What torch.cuda.max_memory_allocated reports.
  [[nodiscard]] Bytes allocated() const { return parameters + gradients + optimizer + activations + buffers; }
  [[nodiscard]] Bytes overhead() const {
    return cuda_context + nccl + dispatcher_buffers + graph_pools + fragmentation + holes;
  }
  [[nodiscard]] Bytes total() const { return allocated() + overhead(); }
  /// What is on the device beside torch's memory.
  [[nodiscard]] Bytes outside() const { return cuda_context + nccl + dispatcher_buffers; }
  /// What a larger device would have in use, with expandable segments.
  [[nodiscard]] Bytes in_use() const { return pressure.unlimited + outside(); }
  ReservedMemory reserved;  ///< Zero unless add_reserved() has filled it; like `pressure`.
  MemoryPressure pressure;
  Bytes allocated_after_setup{};    ///< Model and optimizer built, no step taken.
  Bytes allocated_beside_chunks{};  ///< What micro-batches in flight come on top of.
  Bytes allocated_between_steps{};  ///< After the optimizer step.
  Bytes allocated_in_optimizer{};   ///< Highest while it steps.
  Bytes rests{};                    ///< Part of the two before: what activations leave between steps.
  Bytes lasting_buffers{};          ///< Part of that: what the software makes once and keeps.
  Bytes returning{};                ///< Optimizer states that are on the device only while the optimizer steps.
  Bytes host{};                     ///< Host memory of offloaded activations and optimizer states.
  std::string moment;               ///< "forward", "backward", "optimizer step".
};

/// What a second of a pipeline rank is spent on. Communication is what nothing hides, by group.
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
  std::string_view name{};  ///< "grad_reduce", "grad_norm", "adam", "zero_grad", "param_gather", ...: the ops' names.
  Activity activity = Activity::kOptimizer;
  Seconds seconds{};  ///< All of it.
  Seconds exposed{};  ///< What nothing hides.
};

/// What a rank's tasks take over a step, by what runs: alone, or as merged (F, B) pairs.
struct TaskTimes {
  Seconds forward{};
  Seconds input_gradient{};  ///< The whole backward in a schedule that does not split it.
  Seconds weight_gradient{};
  Seconds merged{};
};

/// What a rank's data-parallel collectives cost it: waiting for them, and work that they slow down. And what it waits
/// for beside them.
struct DataParallelCost {
  Seconds gather{};     ///< Of parameters, before first forwards.
  Seconds reduction{};  ///< Of gradients, after the last backward.
  Seconds reload{};     ///< Of optimizer states from the host, after that.
};

struct StagePrediction {
  Seconds compute{}, exposed_communication{}, exposed_copy{}, bubble{}, host{};
  Seconds forward{}, backward{};  ///< One micro-batch through all chunks of the rank.
  TaskTimes tasks;
  DataParallelCost data_parallel;
  Seconds host_issue{};             ///< Host time to launch a step's kernels: a floor of the step.
  ActivityTimes parts{};            ///< Adds up to the step; unset without detail.
  std::vector<DetailEntry> detail;  ///< Longest first; empty unless asked for.
  std::int64_t layers = 0;
  std::int64_t peak_chunks_in_flight = 0;
};

struct Prediction {
  Seconds step_time{};
  double tokens_per_s_per_gpu = 0.0;
  double model_tflops_per_gpu = 0.0;  ///< Megatron's FLOP count over step time and GPUs.
  double mfu_pct = 0.0;               ///< Against Hardware::mfu_peak.
  Bytes peak_memory{};                ///< Total of the fullest stage.
  bool fits = false;                  ///< False too where add_reserved() finds that torch runs out of memory.
  Breakdown breakdown;
  std::vector<StepPart> step_end;       ///< Of the critical rank, in order; empty unless asked for.
  std::vector<StagePrediction> stages;  ///< [pp]
  std::vector<StageMemory> memory;      ///< [pp]
  std::size_t critical_stage = 0;
  /// StageMemory::in_use() of the fullest rank. Requires add_reserved().
  [[nodiscard]] Bytes in_use() const;
  /// Of the critical rank. Requires stages.
  [[nodiscard]] const std::vector<DetailEntry>& detail() const { return stages.at(critical_stage).detail; }
};

/// Memory of a rank that random routing gives more rows than its share.
struct Imbalance {
  double p99_load = 1.0;  ///< Rows of a MoE layer on a rank over the mean, not passed in 99 of 100 micro-batches.
  Bytes p99_memory{};     ///< Of the fullest rank if all its MoE layers and micro-batches get so many: an upper bound.
};
/// Imbalance::p99_load, to multiply LayerOptions::expert_load with. Capacity with padding leaves no imbalance.
[[nodiscard]] double p99_load(const ModelSpec& model, const LayerOptions& options);
/// Besides LayerOptions::expert_load.
[[nodiscard]] Imbalance imbalance(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware);

/// Predicts one run: predict(compose_step(...)) of step.h, which see.
[[nodiscard]] Prediction predict(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware);

}  // namespace foldwise::costmodel

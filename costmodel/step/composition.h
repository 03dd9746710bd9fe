#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "costmodel/ops/block_cache.h"
#include "costmodel/ops/block_cost.h"
#include "costmodel/ops/step_ops.h"
#include "costmodel/pipeline/timeline.h"
#include "costmodel/step/prediction.h"

// From the costs of layers to the cost of a step. `ModelCosts` depends only on what a layer sees (TP, CP, EP, ETP,
// micro-batch, recomputation, ...); everything else is composition, cheap enough to do for every candidate of a search.
namespace foldwise::costmodel {

/// Decoder layers by kind: what a stage holds is a difference of prefix sums.
struct ModelKinds {
  std::vector<LayerSpec> kinds;                   ///< Distinct decoder layers.
  std::vector<std::vector<std::int32_t>> prefix;  ///< [kinds][layers + 1] layers of a kind before layer i.
  std::vector<std::int32_t> kind;                 ///< [layers]
  std::vector<std::int32_t> run_end;              ///< [layers] first later layer of another kind.
};
[[nodiscard]] ModelKinds model_kinds(const ModelSpec& model);

/// Weight gradients that Transformer Engine caches without using them, one of each shape: a rank has those of its
/// layers.
struct DummyGradients {
  std::vector<Bytes> mixer;                         ///< By ModelSpec::mixers.
  std::array<Bytes, enumerators<MlpKind>()> mlp{};  ///< By MlpKind.
  Bytes mtp{}, head{};
};

/// Costs of the pieces of a model on one rank, for one micro-batch.
struct ModelCosts {
  std::vector<BlockCost> covered;  ///< [kinds] with the options' recomputation and offloading.
  std::vector<BlockCost> plain;    ///< [kinds] without: layers that block recomputation or layer offloading leave out.
  std::vector<Seconds> saving;     ///< [kinds] of a merged pair under EP overlap.
  BlockCost embedding, mtp;        ///< mtp: one depth with its layers, without its head evaluation.
  BlockCost head;                  ///< Head and loss of the model and of every MTP depth.
  Seconds mtp_saving{};
  Bytes overlapped{};  ///< EP overlap: of the other micro-batch, what one layer holds beside this one's backward.
  DummyGradients dummies;
  std::vector<BufferTensors> layer_tensors;                    ///< [kinds]
  BufferTensors embedding_tensors, mtp_tensors, head_tensors;  ///< mtp: one depth with its layers.
};
/// `cache` may be shared by contexts of one model and one system; not between threads.
[[nodiscard]] ModelCosts model_costs(const StepContext& context, const ModelKinds& kinds, BlockCache* cache = nullptr);

struct StageCost {
  BlockCost cost;
  Seconds saving{};
  HostIdle host;
  Seconds weight_gradient{};  ///< Of the backward's compute; for schedules that split the backward, else 0.
  Seconds send{};             ///< Of its output to the next stage, beside compute where that is how transfers run.
  /// Part of `comm`: what the compute loses to the transfers between stages that run beside it.
  Seconds forward_transfers{}, backward_transfers{};
  std::int64_t layers = 0, moe_layers = 0;
  bool loss = false, mtp = false;
  std::uint32_t mixers = 0, mlps = 0;  ///< Bits of the mixers and the kinds of MLP that it has.
  CommunicationSum gather, reduction;  ///< data_parallel_ops.
  [[nodiscard]] Seconds forward() const { return cost.forward.device() + host.forward; }
  [[nodiscard]] Seconds backward() const { return cost.backward.device() + host.backward; }
};
/// `mtp_depths` MTP layers and the head of a stage follow its decoder layers.
[[nodiscard]] StageCost stage_cost(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                                   const StageContent& content);

/// The end of a step on one rank, after every gradient is reduced.
struct StepTail {
  Seconds compute{}, comm{}, copy{}, host{};
  Seconds parameters{};  ///< Gather, unless the next step's forwards overlap it.
  [[nodiscard]] Seconds total() const { return compute + comm + copy + host + parameters; }
};

/// A candidate composed up to, not including, the simulation of its schedule.
struct Composition {
  std::vector<StageCost> distinct;   ///< Most stages cost the same as the one before.
  std::vector<std::uint16_t> index;  ///< [pp * vpp] into `distinct`; the chunk of a rank at chunk * pp + rank.
  PipelineTimes times;
  std::vector<ParameterCount> parameters;  ///< [pp]
  DummyGradients dummies;                  ///< As in ModelCosts.
  Bytes overlapped{};                      ///< As in ModelCosts.
  std::vector<StepTail> tails;             ///< [pp]
  [[nodiscard]] std::size_t num_stages() const { return index.size(); }
  [[nodiscard]] const StageCost& stage(std::size_t i) const { return distinct[index[i]]; }
};
[[nodiscard]] Composition compose(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                                  const StageLayout& layout);
/// Decoder layers of a chunk of `layers` that the options' recomputation or layer offloading covers: the first ones.
[[nodiscard]] std::int64_t covered_layers(const TrainingOptions& options, std::int64_t layers);
/// The options of the other ones.
[[nodiscard]] LayerOptions plain_layers(const LayerOptions& covered);

/// The stage that the chunk of a rank holds: an index into StageLayout::stages. DualPipe's two copies share the stages.
[[nodiscard]] std::size_t stage_of(const ScheduleShape& shape, std::size_t num_stages, std::size_t chunk_and_rank);

[[nodiscard]] ScheduleShape schedule_shape(const TrainingOptions& options);

/// A micro-batch's activations from one stage to the next; its gradient takes as long back.
[[nodiscard]] Op stage_transfer(const StepContext& context);

/// in_flight_peaks of one rank, flat for the search's inner loop.
struct PeakTable {
  std::vector<double> counts;         ///< [moments][vpp] chunks in flight.
  std::vector<std::int32_t> running;  ///< [moments] chunk whose task runs.
  std::vector<bool> forward;          ///< [moments] direction of that task.
  std::vector<double> largest;        ///< [vpp] most of each chunk at any moment.
  double most = 0;                    ///< Largest total.
};
[[nodiscard]] PeakTable peak_table(const ScheduleShape& shape, std::int64_t rank);

/// Memory of pipeline rank `rank`; `peaks` is peak_table(schedule_shape(options), rank).
[[nodiscard]] StageMemory rank_memory(const StepContext& context, const Composition& composition, std::int64_t rank,
                                      const PeakTable& peaks);

/// Whether `host` bytes are within a rank's part of the host's memory, as far as that is known.
[[nodiscard]] bool fits_host(Bytes host, const Hardware& hardware);
/// Whether a rank stays within the memory of its device and within its part of the host's.
[[nodiscard]] bool fits(const StageMemory& memory, const Hardware& hardware);
/// Whether every pipeline rank does: rank_memory's answer, without its parts.
/// `peaks` is [pp].
[[nodiscard]] bool fits(const StepContext& context, const Composition& composition,
                        const std::vector<PeakTable>& peaks);

/// Step time once the schedule's makespan, reductions included, is known.
[[nodiscard]] Seconds step_time(const Composition& composition, Seconds makespan);

/// Stages of the options' pipeline_layout, or the even split. The options must satisfy the rules.
[[nodiscard]] StageLayout stage_layout(const ModelSpec& model, const TrainingOptions& options);

/// Contiguous layers on pp * vpp virtual stages so that the slowest stage is as fast as possible; earlier stages are
/// filled first. The embedding starts the first stage; MTP and loss end the last. Fewer layers than stages: stages may
/// be empty.
[[nodiscard]] StageLayout balanced_stages(const ModelKinds& kinds, const ModelCosts& costs, std::int64_t mtp_layers,
                                          std::int64_t pp, std::int64_t vpp);

/// Everything about one composed candidate; `with_detail` adds DetailEntry lines.
[[nodiscard]] Prediction finish(const StepContext& context, const StageLayout& layout, const Composition& composition,
                                bool with_detail);

}  // namespace foldwise::costmodel

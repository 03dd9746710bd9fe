#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "costmodel/pipeline/timeline.h"
#include "costmodel/step/stage_cost.h"

// From the costs of layers to the cost of a step. It is cheap enough for every candidate of a search.
namespace foldwise::costmodel {

/// The end of a step on one rank, after every gradient is reduced.
struct StepTail {
  Seconds compute{}, comm{}, copy{};
  Seconds host{};        ///< Update of parameters on the host.
  Seconds idle{};        ///< Idle time of the device: optimizer's Python, checks of gradients, logging.
  Seconds parameters{};  ///< Gather of parameters, unless the next step's forwards overlap it.
  Seconds reload{};      ///< Not in the total: it runs beside the last reductions (PipelineTimes::reload).
  [[nodiscard]] Seconds total() const { return compute + comm + copy + host + idle + parameters; }
};

/// A composed candidate, up to the simulation of its schedule.
struct Composition {
  std::vector<StageCost> distinct;   ///< Most stages cost as much as the one before.
  std::vector<std::uint16_t> index;  ///< [pp * vpp] index into `distinct`; a rank's chunk is at chunk * pp + rank.
  PipelineTimes times;
  std::vector<ParameterCount> parameters;  ///< [pp]
  DummyGradients dummies;                  ///< See ModelCosts.
  Bytes overlapped{};                      ///< See ModelCosts.
  std::vector<StepTail> tails;             ///< [pp]
  [[nodiscard]] std::size_t num_stages() const { return index.size(); }
  [[nodiscard]] const StageCost& stage(std::size_t i) const { return distinct[index[i]]; }
};
[[nodiscard]] Composition compose(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                                  const StageLayout& layout);
/// Index in StageLayout::stages of the stage that a rank's chunk holds. DualPipe's two copies share the stages.
[[nodiscard]] std::size_t stage_of(const ScheduleShape& shape, std::size_t num_stages, std::size_t chunk_and_rank);

[[nodiscard]] ScheduleShape schedule_shape(const TrainingOptions& options);

/// Step time, given the schedule's makespan including reductions.
[[nodiscard]] Seconds step_time(const Composition& composition, Seconds makespan);

}  // namespace foldwise::costmodel

#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "costmodel/pipeline/timeline.h"
#include "costmodel/step/stage_cost.h"

// From the costs of layers to the cost of a step: cheap enough to do for every candidate of a search.
namespace foldwise::costmodel {

/// The end of a step on one rank, after every gradient is reduced.
struct StepTail {
  Seconds compute{}, comm{}, copy{}, host{};
  Seconds parameters{};  ///< Gather, unless the next step's forwards overlap it.
  Seconds reload{};      ///< Not in the total: beside the last reductions (PipelineTimes::reload).
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
/// The stage that the chunk of a rank holds: an index into StageLayout::stages. DualPipe's two copies share the stages.
[[nodiscard]] std::size_t stage_of(const ScheduleShape& shape, std::size_t num_stages, std::size_t chunk_and_rank);

[[nodiscard]] ScheduleShape schedule_shape(const TrainingOptions& options);

/// Step time once the schedule's makespan, reductions included, is known.
[[nodiscard]] Seconds step_time(const Composition& composition, Seconds makespan);

}  // namespace foldwise::costmodel

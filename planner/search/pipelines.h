#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/memory_bounds.h"

// A pipeline with its split of layers, and lower bounds of the time of its schedule.
namespace foldwise::planner {

/// A split of layers, with lower bounds of the work of its stages without recomputation and offloading.
struct Split {
  costmodel::StageLayout layout;
  bool even = false;  ///< Megatron's own split, which needs no layout string.
  std::vector<Load> stages;
  std::vector<Load> ranks;
  std::size_t busiest = 0;
  double least = 0.0;  ///< Lower bound of the schedule, in seconds.
  /// The composition with the plainest step, without recomputation and offloading; made when first needed. Every order
  /// of micro-batches shares it, except for the shape of its times and its data parallelism.
  std::optional<costmodel::Composition> plain{};
};

[[nodiscard]] Split split_of(const Workbench& bench, const costmodel::TrainingOptions& options, const LayerCosts& costs,
                             costmodel::StageLayout layout);

/// Lower bound of a schedule, in seconds, if a rank does `work` for each micro-batch. It adds the way of the first
/// micro-batch to this rank and the way of the last one from it.
[[nodiscard]] double schedule_bound(const costmodel::TrainingOptions& options, const std::vector<Load>& stages,
                                    std::size_t rank, const Load& work);

/// A pipeline with a split, whose step and memory choice are still open.
struct Pipeline {
  State state;
  LayerCosts* costs = nullptr;
  Split* split = nullptr;
  /// What follows from the plainest step without recomputation and offloading; made when first needed.
  std::vector<CriticalRank> critical{};
  std::vector<double> busiest_layers{};  ///< [kinds] layers of the busiest rank.
  costmodel::PipelineTimes times{};      ///< Without data parallelism.
  struct Stage {                         ///< One of the stages that differ.
    std::size_t first = 0;               ///< Index into Split::stages.
    Seconds forward{}, backward{};       ///< Transfers during its tasks.
    Seconds idle{};                      ///< Idle time that the host causes.
  };
  std::vector<Stage> stages{};
  std::vector<std::uint16_t> stage_of{};  ///< As costmodel::Composition::index.
  double least = 0.0;                     ///< Lower bound with `times`, in seconds.
  /// [LayerCosts::memory_choices] lower bound of the schedule in seconds; negative: not known yet.
  std::vector<double> bounds{};
  struct Needs {
    std::optional<Need> least{};  ///< Lower bound over all choices of offloading.
    /// Pareto front of the first choices of offloading, fastest first: each needs less of something than every faster
    /// one.
    struct Front {
      double seconds = 0.0;  ///< As LayerCosts::Priced::choice_seconds.
      Need need;
    };
    std::vector<Front> front{};
    std::size_t in_front = 0;  ///< Number of choices that were compared.
  };
  std::vector<Needs> needs{};    ///< [LayerCosts::memory_choices], made when first needed.
  std::int64_t most_layers = 1;  ///< Most layers of a chunk.
};

/// Fills Pipeline::times and `least`, with the plainest step.
void compose_plain(Workbench& bench, const costmodel::StepOptions& plainest, Pipeline& pipeline);
/// Fills the other members. Call compose_plain() before.
void prepare_memory_choices(Workbench& bench, const costmodel::StepOptions& plainest, Pipeline& pipeline);
/// Lower bound of the schedule in seconds with a memory choice (a position in LayerCosts::memory_choices), for every
/// step and every choice of offloading.
[[nodiscard]] double memory_choice_bound(const Workbench& bench, Pipeline& pipeline, std::size_t position);
/// Lower bound in seconds of a composed step with this memory choice when a choice of offloading is added. Offloading
/// only adds copies to it.
[[nodiscard]] double offload_bound(const Workbench& bench, const Pipeline& pipeline, std::size_t position,
                                   const Kept& offloaded, const costmodel::Composition& on_device);

}  // namespace foldwise::planner

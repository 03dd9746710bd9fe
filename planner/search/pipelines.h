#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/memory_bounds.h"

// A pipeline with its split of layers, and how long its schedule takes at least.
namespace foldwise::planner {

/// A split of layers and what its stages must at least spend without recomputation and offloading.
struct Split {
  costmodel::StageLayout layout;
  bool even = false;  ///< Megatron's own: no layout string.
  std::vector<Load> stages;
  std::vector<Load> ranks;
  std::size_t busiest = 0;
  double least = 0.0;  ///< Seconds of the schedule.
  /// Made when first needed: with the plainest step, without recomputation and offloading. But for its times' shape and
  /// data parallelism the same for every order of micro-batches.
  std::optional<costmodel::Composition> plain{};
};

[[nodiscard]] Split split_of(const Workbench& bench, const costmodel::TrainingOptions& options, const LayerCosts& costs,
                             costmodel::StageLayout layout);

/// Seconds that a schedule takes at least where a rank does `work` for each micro-batch: that, the way of the first
/// micro-batch to it, and that of the last one from it.
[[nodiscard]] double schedule_bound(const costmodel::TrainingOptions& options, const std::vector<Load>& stages,
                                    std::size_t rank, const Load& work);

/// A pipeline, split, whose step and memory choices are open.
struct Pipeline {
  State state;
  LayerCosts* costs = nullptr;
  Split* split = nullptr;
  /// Made when first needed: what the plainest step without recomputation and offloading comes to.
  std::vector<CriticalRank> critical{};
  std::vector<double> busiest_layers{};  ///< [kinds] of the busiest rank.
  costmodel::PipelineTimes times{};      ///< Without data parallelism.
  struct Stage {                         ///< One of those that differ.
    std::size_t first = 0;               ///< Index into Split::stages.
    Seconds forward{}, backward{};       ///< Transfers beside it.
    Seconds idle{};                      ///< Of the host's making.
  };
  std::vector<Stage> stages{};
  std::vector<std::uint16_t> stage_of{};  ///< As costmodel::Composition::index.
  double least = 0.0;                     ///< Seconds of `times`.
  std::vector<double>
      bounds{};  ///< [LayerCosts::memory_choices] least seconds of the schedule; negative: not known yet.
  struct Needs {
    std::optional<Need> least{};  ///< With any offloading.
    /// Of the first choices, those that need less of something than every faster one: the fastest first.
    struct Front {
      double seconds = 0.0;  ///< As LayerCosts::Priced::choice_seconds.
      Need need;
    };
    std::vector<Front> front{};
    std::size_t in_front = 0;  ///< Choices that were looked at.
  };
  std::vector<Needs> needs{};    ///< [LayerCosts::memory_choices] made when first needed.
  std::int64_t most_layers = 1;  ///< Of a chunk.
};

/// Fills Pipeline::times and `least`, with the plainest step.
void compose_plain(Workbench& bench, const costmodel::StepOptions& plainest, Pipeline& pipeline);
/// Fills the rest, after compose_plain.
void prepare_memory_choices(Workbench& bench, const costmodel::StepOptions& plainest, Pipeline& pipeline);
/// Least seconds of the schedule with memory choices (a position in LayerCosts::memory_choices), whatever the step and
/// the offloading.
[[nodiscard]] double memory_choice_bound(const Workbench& bench, Pipeline& pipeline, std::size_t position);
/// Least seconds of a step that is composed with these memory choices, with a choice of offloading besides: it only
/// adds copies to what is there without.
[[nodiscard]] double offload_bound(const Workbench& bench, const Pipeline& pipeline, std::size_t position,
                                   const Kept& offloaded, const costmodel::Composition& on_device);

}  // namespace foldwise::planner

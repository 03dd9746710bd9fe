#pragma once
#include <array>
#include <vector>

#include "costmodel/step/composition.h"
#include "planner/search/memory_choices.h"

// What a rank needs at least of its device's and its host's memory, before a candidate is composed.
namespace foldwise::planner {

/// A rank whose memory is looked at before that of the others, at the moment that needs most without recomputation and
/// offloading.
struct CriticalRank {
  std::size_t rank = 0;
  costmodel::ParameterCount parameters;
  Bytes overhead{};                                      ///< Outside of the allocator.
  Bytes buffers{};                                       ///< Besides, that no option changes which is still open.
  std::vector<const costmodel::StageContent*> stages{};  ///< [vpp]
  std::vector<double> layers_of{};                       ///< [kinds] of all its stages.
  /// The two that need most without recomputation and offloading: in forward and in backward.
  struct Moment {
    std::vector<double> in_flight{};  ///< [kinds] layers.
    std::vector<double> chunks{};     ///< [vpp] micro-batches.
    double depths = 0.0;              ///< MTP depths in flight.
    double kept = 0.0;                ///< Bytes of embedding, head and MTP's projections in flight.
    const costmodel::StageContent* running = nullptr;
    bool forward = false;
    double head = 0.0;         ///< Bytes that head and loss need besides while they run.
    double projections = 0.0;  ///< Bytes that those of one MTP depth keep.
  };
  std::vector<Moment> moments{};
};

/// The ranks that decide first what fits: the first, the busiest and the one that is fullest in `plain`, which is
/// composed without recomputation and offloading. `layout` must outlive them.
[[nodiscard]] std::vector<CriticalRank> critical_ranks(Workbench& bench, const costmodel::StepContext& context,
                                                       const LayerCosts& costs, const costmodel::StageLayout& layout,
                                                       const costmodel::Composition& plain, std::size_t busiest);

/// Bytes that memory choices need at least on the critical ranks.
struct Need {
  static constexpr std::size_t kMostCritical = 3;
  std::array<double, kMostCritical> bytes{}, host{}, rests{};
  /// Of nothing more.
  [[nodiscard]] bool at_most(const Need& other) const {
    for (std::size_t i = 0; i < kMostCritical; ++i)
      if (bytes[i] > other.bytes[i] || host[i] > other.host[i] || rests[i] > other.rests[i]) return false;
    return true;
  }
};

/// Whatever the step.
[[nodiscard]] Need need_of(const Workbench& bench, const LayerCosts& costs, const std::vector<CriticalRank>& critical,
                           const MemoryChoice& memory_choice, const Kept& kept);

}  // namespace foldwise::planner

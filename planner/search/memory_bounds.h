#pragma once
#include <array>
#include <vector>

#include "costmodel/step/composition.h"
#include "planner/search/memory_choices.h"

// Lower bounds of the device and host memory of a rank, before a candidate is composed.
namespace foldwise::planner {

/// A rank whose memory is bounded before that of the other ranks. It is bounded at the two moments, in forward and in
/// backward, that need most memory without recomputation and offloading.
struct CriticalRank {
  std::size_t rank = 0;
  costmodel::ParameterCount parameters;
  Bytes overhead{};                                      ///< Outside PyTorch's allocator.
  Bytes buffers{};                                       ///< Buffers that no open option changes.
  std::vector<const costmodel::StageContent*> stages{};  ///< [vpp]
  std::vector<double> layers_of{};                       ///< [kinds] layers of all its stages.
  /// The moment of one direction that needs most memory without recomputation and offloading.
  struct Moment {
    std::vector<double> in_flight{};  ///< [kinds] layers.
    std::vector<double> chunks{};     ///< [vpp] micro-batches.
    double depths = 0.0;              ///< MTP depths in flight.
    double kept = 0.0;                ///< Bytes of embedding, head and MTP's projections in flight.
    const costmodel::StageContent* running = nullptr;
    bool forward = false;
    double head = 0.0;         ///< Bytes that head and loss need in addition while they run.
    double projections = 0.0;  ///< Bytes that the projections of one MTP depth keep.
  };
  std::vector<Moment> moments{};
};

/// The ranks that most likely decide whether a candidate fits: the first, the busiest and the fullest one of `plain`,
/// which is composed without recomputation and offloading. `layout` must outlive them.
[[nodiscard]] std::vector<CriticalRank> critical_ranks(Workbench& bench, const costmodel::StepContext& context,
                                                       const LayerCosts& costs, const costmodel::StageLayout& layout,
                                                       const costmodel::Composition& plain, std::size_t busiest);

/// Lower bounds of the bytes that a memory choice needs on the critical ranks: on the device, on the host, and on the
/// device between backward and the next forward (`rests`).
struct Need {
  static constexpr std::size_t kMostCritical = 3;
  std::array<double, kMostCritical> bytes{}, host{}, rests{};
  /// Whether no number is larger than that of `other`.
  [[nodiscard]] bool at_most(const Need& other) const {
    for (std::size_t i = 0; i < kMostCritical; ++i)
      if (bytes[i] > other.bytes[i] || host[i] > other.host[i] || rests[i] > other.rests[i]) return false;
    return true;
  }
};

/// This bound holds for every choice of the step.
[[nodiscard]] Need need_of(const Workbench& bench, const LayerCosts& costs, const std::vector<CriticalRank>& critical,
                           const MemoryChoice& memory_choice, const Kept& kept);

}  // namespace foldwise::planner

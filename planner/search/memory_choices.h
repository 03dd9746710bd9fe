#pragma once
#include <boost/container/small_vector.hpp>
#include <boost/dynamic_bitset.hpp>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "costmodel/step/model_costs.h"
#include "planner/search/bounds.h"
#include "planner/search/workbench.h"

// A memory choice says which activations are recomputed and which are offloaded. Each saves memory and costs time.
namespace foldwise::planner {

/// A choice of recomputation, and of the number of layers that are offloaded whole.
struct RecomputeChoice {
  costmodel::LayerOptions::Recompute recompute;
  costmodel::PipelineOptions::Recompute recompute_layers;
  std::int64_t cpu_offloading_num_layers = 0;

  bool operator==(const RecomputeChoice&) const = default;
  void apply(costmodel::TrainingOptions& o, costmodel::BitSet<costmodel::OffloadModule> offload) const {
    o.layer.recompute = recompute;
    o.layer.offload_modules = offload;
    o.pipeline.recompute = recompute_layers;
    o.pipeline.cpu_offloading_num_layers = cpu_offloading_num_layers;
  }
};

/// A choice of recomputation with its choices of offloading. Without offloading it takes the least time and the most
/// memory.
struct MemoryChoice : RecomputeChoice {
  bool partial = false;  ///< Covers the first layers of a chunk only.
  double group = 1.0;    ///< Layers per checkpoint, which keep one input.
  struct Choice {
    costmodel::BitSet<costmodel::OffloadModule> offload;
    Assignment assignment;
  };
  std::vector<Choice> choices;          ///< Those with fewer offloaded modules first.
  std::vector<std::size_t> largest;     ///< Indices of the choices that no other choice contains.
  costmodel::TrainingOptions covering;  ///< Default options with this choice, for costmodel::covered_layers().
  /// Full recomputation: the next smaller number of layers that is a choice; 0 if there is none.
  std::int64_t fewer_layers = 0;

  [[nodiscard]] std::int64_t covered(std::int64_t layers) const {
    return partial ? costmodel::covered_layers(covering, layers) : layers;
  }
  [[nodiscard]] bool plain() const {
    return recompute.granularity == costmodel::RecomputeGranularity::kNone && cpu_offloading_num_layers == 0;
  }
  /// Whether it recomputes all that `other` does, and perhaps more.
  [[nodiscard]] bool contains(const MemoryChoice& other) const {
    return !partial && !other.partial && recompute.granularity != costmodel::RecomputeGranularity::kFull &&
           other.recompute.granularity != costmodel::RecomputeGranularity::kFull &&
           (recompute.modules & other.recompute.modules) == other.recompute.modules;
  }
};

/// Lists the memory choices that no rule refuses beside what is decided. Rules that also read the pipeline or the step
/// are not tested.
class MemoryChoiceLists {
 public:
  const std::vector<MemoryChoice>& of(Workbench& bench, const State& state);

 private:
  using Which = boost::dynamic_bitset<>;  ///< [all_]
  void list_all(Workbench& bench, const State& state);
  [[nodiscard]] const Which& refused(std::size_t rule, Workbench& bench, const State& state);
  [[nodiscard]] std::vector<MemoryChoice> list_without(const Which& refused) const;

  /// Memory choices that no rule about memory choices alone refuses.
  std::vector<std::pair<RecomputeChoice, MemoryChoice::Choice>> all_;
  /// [DecisionOrder::memory_rules()], then by the values that the rule reads.
  std::vector<std::map<Assignment, Which>> refused_;
  std::vector<std::size_t> reads_;                                        ///< Positions that any of these rules reads.
  std::map<Assignment, const std::vector<MemoryChoice>*> by_assignment_;  ///< Many assignments share few lists.
  std::map<Which, std::vector<MemoryChoice>> lists_;
};

/// A value for each kind of layer; models have few kinds.
template <typename Value>
using PerKind = boost::container::small_vector<Value, 2>;

/// Bytes that a micro-batch keeps in memory under a memory choice.
struct Kept {
  struct Layer {
    double kept = 0.0;
    double forward = 0.0, backward = 0.0;     ///< Additional bytes while a task of the layer runs.
    double rebuilt = 0.0;                     ///< Rebuilt in backward, for each other layer of a checkpoint.
    double rests = 0.0;                       ///< Kept from backward until the next forward.
    double host = 0.0, offloaded = 0.0;       ///< Bytes on the host for it; bytes of it that left the device.
    Seconds copy_forward{}, copy_backward{};  ///< Times over the host link.
    /// The copies of `count` layers.
    [[nodiscard]] Load copies(double count) const;
  };
  PerKind<Layer> layers;
  double mtp = 0.0;                              ///< One MTP depth.
  double mtp_forward = 0.0, mtp_backward = 0.0;  ///< Additional bytes while the last MTP layer runs.
  double beside = 0.0;                           ///< EP overlap: bytes of the other micro-batch.
  /// Sets each number of bytes to the smaller of the two.
  void at_most(const Kept& other);
};

/// Costs of pieces under one choice of all other options, by what memory choices change of a piece.
using PiecesByChoice = std::unordered_map<std::uint64_t, const costmodel::BlockCost*>;

/// `pieces` belongs to these options, or is empty.
[[nodiscard]] Kept kept_with(Workbench& bench, const costmodel::TrainingOptions& options,
                             const MemoryChoice& memory_choice, costmodel::BitSet<costmodel::OffloadModule> offload,
                             PiecesByChoice& pieces);

/// Costs of the pieces for one way to overlap the experts' exchange.
struct LayerCosts {
  costmodel::ModelCosts costs;  ///< Without recomputation and offloading.
  std::vector<Load> layer;      ///< [kinds] without recomputation and offloading.
  Load embedding, head, mtp;
  Load others;         ///< The whole model except its decoder layers.
  double least = 0.0;  ///< Seconds of the whole model per micro-batch, without recomputation and offloading.
  /// The memory choices, those with the least work first. They are priced when first needed.
  struct Priced {
    const MemoryChoice* choice = nullptr;
    double seconds = 0.0;      ///< Seconds of the whole model per micro-batch, without offloading.
    std::vector<Load> layer;   ///< [kinds] a covered layer, without offloading.
    Kept least;                ///< Lower bound over the choices of offloading.
    std::vector<Kept> kept{};  ///< [choices], made when first needed.
    /// [choices] `seconds` with the copies of offloading, made when first needed.
    std::vector<double> choice_seconds{};
    /// By offloaded modules and low_precision_param_gather, the only option of the step that these costs read; made
    /// when first needed.
    std::map<std::pair<std::uint16_t, bool>, costmodel::ModelCosts> costs{};
  };
  std::vector<Priced> memory_choices;
  Kept plain;  ///< Without recomputation and offloading.
  PiecesByChoice pieces;
};

/// Everything but the members that depend on memory choices.
[[nodiscard]] LayerCosts layer_costs(Workbench& bench, const costmodel::TrainingOptions& options);
/// Fills `memory_choices` and `plain`. `list` must outlive the costs.
void price_memory_choices(Workbench& bench, const costmodel::TrainingOptions& options,
                          const std::vector<MemoryChoice>& list, LayerCosts& costs);

}  // namespace foldwise::planner

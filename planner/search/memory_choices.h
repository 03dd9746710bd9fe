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

/// A choice of recomputation, and of layers that are offloaded whole.
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

/// Choices of offloading beside one of recomputation. Without offloading they take least time and most memory.
struct MemoryChoice : RecomputeChoice {
  bool partial = false;  ///< Covers the first layers of a chunk only.
  double group = 1.0;    ///< Layers that keep one input.
  struct Choice {
    costmodel::BitSet<costmodel::OffloadModule> offload;
    Assignment assignment;
  };
  std::vector<Choice> choices;          ///< Those with fewer modules first.
  std::vector<std::size_t> largest;     ///< Of the choices: those that no other contains.
  costmodel::TrainingOptions covering;  ///< With these memory choices, for costmodel::covered_layers().
  std::int64_t fewer_layers = 0;  ///< Of full recomputation: the number below its own that is a choice too; 0: none is.

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

/// The memory choices that no rule refuses beside what is decided, but for rules that read the pipeline or the step.
class MemoryChoiceLists {
 public:
  const std::vector<MemoryChoice>& of(Workbench& bench, const State& state);

 private:
  using Which = boost::dynamic_bitset<>;  ///< [all_]
  void list_all(Workbench& bench, const State& state);
  [[nodiscard]] const Which& refused(std::size_t rule, Workbench& bench, const State& state);
  [[nodiscard]] std::vector<MemoryChoice> list_without(const Which& refused) const;

  std::vector<std::pair<RecomputeChoice, MemoryChoice::Choice>>
      all_;                                           ///< That no rule about memory choices alone refuses.
  std::vector<std::map<Assignment, Which>> refused_;  ///< [DecisionOrder::memory_rules()] by what the rule reads.
  std::vector<std::size_t> reads_;                    ///< What any of them does.
  std::map<Assignment, const std::vector<MemoryChoice>*> by_assignment_;  ///< Many, of few lists.
  std::map<Which, std::vector<MemoryChoice>> lists_;
};

/// [kinds] of a model, which are few.
template <typename Value>
using PerKind = boost::container::small_vector<Value, 2>;

/// What memory choices leave in memory, of one micro-batch: bytes.
struct Kept {
  struct Layer {
    double kept = 0.0;
    double forward = 0.0, backward = 0.0;     ///< What a running task of the layer needs besides.
    double rebuilt = 0.0;                     ///< By backward, of each other layer of a checkpoint.
    double rests = 0.0;                       ///< From backward until the next forward.
    double host = 0.0, offloaded = 0.0;       ///< Bytes there for it; of these, what left the device.
    Seconds copy_forward{}, copy_backward{};  ///< Over the host link.
    /// The copies of so many.
    [[nodiscard]] Load copies(double count) const;
  };
  PerKind<Layer> layers;
  double mtp = 0.0;                              ///< Of one MTP depth.
  double mtp_forward = 0.0, mtp_backward = 0.0;  ///< What its last layer needs besides while it runs.
  double beside = 0.0;                           ///< EP overlap: of the other micro-batch.
  /// Makes it no more than the other in any of these bytes.
  void at_most(const Kept& other);
};

/// Costs of the pieces beside one choice of all but memory choices, by what memory choices change of a piece.
using PiecesByChoice = std::unordered_map<std::uint64_t, const costmodel::BlockCost*>;

/// `pieces` is of these options, or empty.
[[nodiscard]] Kept kept_with(Workbench& bench, const costmodel::TrainingOptions& options,
                             const MemoryChoice& memory_choice, costmodel::BitSet<costmodel::OffloadModule> offload,
                             PiecesByChoice& pieces);

/// Costs of the pieces for one way to overlap the experts' exchange.
struct LayerCosts {
  costmodel::ModelCosts costs;  ///< without recomputation and offloading.
  std::vector<Load> layer;      ///< [kinds] without recomputation and offloading.
  Load embedding, head, mtp;
  Load others;         ///< Of the whole model, decoder layers left out.
  double least = 0.0;  ///< Seconds of the whole model for a micro-batch, without recomputation and offloading.
  /// Made when first needed: the memory choices with the least work first.
  struct Priced {
    const MemoryChoice* choice = nullptr;
    double seconds = 0.0;                  ///< Of the whole model for a micro-batch, without offloading.
    std::vector<Load> layer;               ///< [kinds] of a covered layer, without offloading.
    Kept least;                            ///< With the most offloading.
    std::vector<Kept> kept{};              ///< [choices], made when first needed.
    std::vector<double> choice_seconds{};  ///< [choices] as `seconds`, with the copies; likewise.
    /// By offloaded modules and low_precision_param_gather, of the steps all that they read; likewise.
    std::map<std::pair<std::uint16_t, bool>, costmodel::ModelCosts> costs{};
  };
  std::vector<Priced> memory_choices;
  Kept plain;  ///< without recomputation and offloading.
  PiecesByChoice pieces;
};

/// Without the part that memory choices change.
[[nodiscard]] LayerCosts layer_costs(Workbench& bench, const costmodel::TrainingOptions& options);
/// Fills that part. `list` must outlive the costs.
void price_memory_choices(Workbench& bench, const costmodel::TrainingOptions& options,
                          const std::vector<MemoryChoice>& list, LayerCosts& costs);

}  // namespace foldwise::planner

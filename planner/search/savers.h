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

// Savers: recomputation and offloading of activations. They take time and free memory.
namespace foldwise::planner {

/// A choice of recomputation, and of layers that are offloaded whole.
struct Saver {
  costmodel::LayerOptions::Recompute recompute;
  costmodel::PipelineOptions::Recompute recompute_layers;
  std::int64_t cpu_offloading_num_layers = 0;

  bool operator==(const Saver&) const = default;
  void apply(costmodel::TrainingOptions& o, costmodel::BitSet<costmodel::OffloadModule> offload) const {
    o.layer.recompute = recompute;
    o.layer.offload_modules = offload;
    o.pipeline.recompute = recompute_layers;
    o.pipeline.cpu_offloading_num_layers = cpu_offloading_num_layers;
  }
};

/// Choices of offloading beside one of recomputation. Without offloading they take least time and most memory.
struct Savers : Saver {
  bool partial = false;  ///< Covers the first layers of a chunk only.
  double group = 1.0;    ///< Layers that keep one input.
  struct Choice {
    costmodel::BitSet<costmodel::OffloadModule> offload;
    Digits digits;
  };
  std::vector<Choice> choices;          ///< Those with fewer modules first.
  std::vector<std::size_t> largest;     ///< Of the choices: those that no other contains.
  costmodel::TrainingOptions covering;  ///< With these savers, for costmodel::covered_layers().
  std::int64_t fewer_layers = 0;  ///< Of full recomputation: the number below its own that is a choice too; 0: none is.

  [[nodiscard]] std::int64_t covered(std::int64_t layers) const {
    return partial ? costmodel::covered_layers(covering, layers) : layers;
  }
  [[nodiscard]] bool plain() const {
    return recompute.granularity == costmodel::RecomputeGranularity::kNone && cpu_offloading_num_layers == 0;
  }
  /// Whether it recomputes all that `other` does, and perhaps more.
  [[nodiscard]] bool contains(const Savers& other) const {
    return !partial && !other.partial && recompute.granularity != costmodel::RecomputeGranularity::kFull &&
           other.recompute.granularity != costmodel::RecomputeGranularity::kFull &&
           (recompute.modules & other.recompute.modules) == other.recompute.modules;
  }
};

/// The savers that no rule refuses beside what is decided, but for rules that read the pipeline or the step.
class SaverLists {
 public:
  const std::vector<Savers>& of(Workbench& bench, const State& state);

 private:
  using Which = boost::dynamic_bitset<>;  ///< [all_]
  void list_all(Workbench& bench, const State& state);
  [[nodiscard]] const Which& refused(std::size_t rule, Workbench& bench, const State& state);
  [[nodiscard]] std::vector<Savers> list_without(const Which& refused) const;

  std::vector<std::pair<Saver, Savers::Choice>> all_;       ///< That no rule about savers alone refuses.
  std::vector<std::map<Digits, Which>> refused_;            ///< [DecisionOrder::saver_rules()] by what the rule reads.
  std::vector<std::size_t> reads_;                          ///< What any of them does.
  std::map<Digits, const std::vector<Savers>*> by_digits_;  ///< Many, of few lists.
  std::map<Which, std::vector<Savers>> lists_;
};

/// [kinds] of a model, which are few.
template <typename Value>
using PerKind = boost::container::small_vector<Value, 2>;

/// What savers leave in memory, of one micro-batch: bytes.
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

/// Costs of the pieces beside one choice of all but savers, by what savers change of a piece.
using SavedPieces = std::unordered_map<std::uint64_t, const costmodel::BlockCost*>;

/// `pieces` is of these options, or empty.
[[nodiscard]] Kept kept_with(Workbench& bench, const costmodel::TrainingOptions& options, const Savers& savers,
                             costmodel::BitSet<costmodel::OffloadModule> offload, SavedPieces& pieces);

/// Costs of the pieces for one way to overlap the experts' exchange.
struct LayerCosts {
  costmodel::ModelCosts costs;  ///< Without savers.
  std::vector<Load> layer;      ///< [kinds] without savers.
  Load embedding, head, mtp;
  Load others;         ///< Of the whole model, decoder layers left out.
  double least = 0.0;  ///< Seconds of the whole model for a micro-batch, without savers.
  /// Made when first needed: the savers with the least work first.
  struct Priced {
    const Savers* savers = nullptr;
    double seconds = 0.0;                  ///< Of the whole model for a micro-batch, without offloading.
    std::vector<Load> layer;               ///< [kinds] of a covered layer, without offloading.
    Kept least;                            ///< With the most offloading.
    std::vector<Kept> kept{};              ///< [choices], made when first needed.
    std::vector<double> choice_seconds{};  ///< [choices] as `seconds`, with the copies; likewise.
    /// By offloaded modules and low_precision_param_gather, of the steps all that they read; likewise.
    std::map<std::pair<std::uint16_t, bool>, costmodel::ModelCosts> costs{};
  };
  std::vector<Priced> savers;
  Kept plain;  ///< Without savers.
  SavedPieces pieces;
};

/// Without the part that savers change.
[[nodiscard]] LayerCosts layer_costs(Workbench& bench, const costmodel::TrainingOptions& options);
/// Fills that part. `list` must outlive the costs.
void price_savers(Workbench& bench, const costmodel::TrainingOptions& options, const std::vector<Savers>& list,
                  LayerCosts& costs);

}  // namespace foldwise::planner

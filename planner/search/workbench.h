#pragma once
#include <tbb/concurrent_unordered_map.h>

#include <boost/container_hash/hash.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "costmodel/ops/block_cache.h"
#include "costmodel/step/model_costs.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_pieces.h"
#include "planner/search/incumbents.h"
#include "planner/search/order.h"

// What one thread of a search works with: the problem, and costs that it remembers.
namespace foldwise::planner {

/// A partial assignment with its options.
struct State {
  costmodel::TrainingOptions options;
  Assignment assignment;  ///< In the order of decision, up to what is decided.
};

struct HashOfShape {
  [[nodiscard]] std::size_t operator()(const costmodel::ScheduleShape& shape) const;
};
/// Memory peaks of the ranks of a schedule: [pp].
using PeaksOfShapes =
    tbb::concurrent_unordered_map<costmodel::ScheduleShape, std::vector<costmodel::PeakTable>, HashOfShape>;

/// Costs that the threads of several searches share. The searches have the same model, system and number of GPUs.
class SharedCosts {
 public:
  /// The caches in use. A cache that has grown large is replaced by a new one.
  [[nodiscard]] std::shared_ptr<costmodel::BlockCache> pieces() { return now(pieces_, 131'072); }
  [[nodiscard]] std::shared_ptr<PeaksOfShapes> peaks() { return now(peaks_, 1'024); }

 private:
  template <typename Kind>
  std::shared_ptr<Kind> now(std::shared_ptr<Kind>& filled, std::size_t most) {
    const std::lock_guard lock(mutex_);
    if (filled->size() > most) filled = std::make_shared<Kind>();
    return filled;
  }

  std::mutex mutex_;
  std::shared_ptr<costmodel::BlockCache> pieces_ = std::make_shared<costmodel::BlockCache>();
  std::shared_ptr<PeaksOfShapes> peaks_ = std::make_shared<PeaksOfShapes>();
};

[[nodiscard]] inline std::int64_t price_of_schedule(const costmodel::ScheduleShape& shape) {
  return price::kSchedule +
         2 * shape.pp * shape.vpp * costmodel::without_repeats(shape, 0).num_microbatches / price::kTasks;
}

/// Belongs to one thread.
class Workbench {
 public:
  Workbench(const PlanProblem& plan_problem, const DecisionOrder& decision_order, SharedCosts& costs);

  const PlanProblem& problem;
  const DecisionOrder& order;
  costmodel::Hardware hardware;  ///< hbm_capacity is the memory that a plan may use.
  costmodel::ModelKinds kinds;
  Statistics statistics;
  bool counts = true;      ///< Whether to count the candidates that rules refuse.
  std::int64_t spent = 0;  ///< Microseconds of a core, about, for whole candidates: time_of(), fits_at_p99().

  [[nodiscard]] costmodel::BlockCache& cache() { return *pieces_; }
  [[nodiscard]] costmodel::StepContext context(const costmodel::TrainingOptions& options) const {
    return {problem.model, options, hardware, problem.num_gpus};  // While sizes are open, a layout can have more.
  }
  /// The state of an assignment. Nothing is recomputed or offloaded unless the assignment says so.
  [[nodiscard]] State state_of(const Assignment& assignment) const;
  /// Decides the next position; false if that repeats another candidate.
  bool decide_one(State& state, std::uint16_t index) const;
  /// Visits every assignment of the positions [from, to) that no rule refuses. If `visit` returns a bool, false ends
  /// the walk. Returns false if it was ended.
  template <typename Visit>
  bool decide(const State& state, std::size_t from, std::size_t to, const Visit& visit) {
    if (from == to) {
      if constexpr (std::is_same_v<std::invoke_result_t<Visit, const State&>, bool>) return visit(state);
      visit(state);
      return true;
    }
    const std::uint16_t values = values_beside(problem, order.at(from), state.options);
    State next = state;
    for (std::uint16_t index = 0; index < values; ++index) {
      if (index > 0) next = state;
      if (!decide_one(next, index)) continue;
      if (!refused(order.rules_at(from), next.options, order.candidates_from(from + 1)) &&
          !decide(next, from + 1, to, visit))
        return false;
    }
    return true;
  }
  [[nodiscard]] bool breaks(std::size_t rule, const costmodel::TrainingOptions& options) const;
  /// Whether one of the rules (indices into rules()) refuses the options. If so, counts `candidates` as refused by it.
  [[nodiscard]] bool refused(const std::vector<std::size_t>& rules, const costmodel::TrainingOptions& options,
                             double candidates);

  /// A key for values that depend on sizes and numerics, but on no other decision about attention.
  [[nodiscard]] std::vector<std::int64_t> with_numerics(std::vector<std::int64_t> sizes, const State& state) const;

  /// Number of micro-batches that each layer runs on a rank if every rank has its share of the layers.
  [[nodiscard]] double micro_batches_per_stage(const costmodel::TrainingOptions& options) const;
  /// Decoder layers of a kind among the first `layers` of a stage.
  [[nodiscard]] std::int32_t layers_of(std::size_t kind, const costmodel::StageContent& content,
                                       std::int64_t layers) const;
  /// Megatron's own split, if there is one.
  [[nodiscard]] std::optional<costmodel::StageLayout> even_split(const costmodel::TrainingOptions& options) const;
  /// Whether the usual order of ranks is allowed too and has every group in the same place: the run is the same.
  [[nodiscard]] bool order_says_nothing(const costmodel::Layout& layout) const;
  /// [pp]
  [[nodiscard]] const std::vector<costmodel::PeakTable>& peaks(const costmodel::ScheduleShape& shape);
  /// costmodel::simulate_makespan(), remembered. Many candidates have equal times and differ only in the end of the
  /// step.
  [[nodiscard]] Seconds makespan(const costmodel::PipelineTimes& times);
  /// Whether no rule refuses a whole candidate.
  [[nodiscard]] bool allowed(const costmodel::TrainingOptions& options) const;
  /// Whether a candidate fits into `hardware`, including the allocator's reserve.
  [[nodiscard]] bool fits(const costmodel::TrainingOptions& options, const costmodel::Composition& composition);
  /// Seconds of the step of a candidate with this split. Nothing if it does not fit into `hardware` or takes `limit` or
  /// more.
  [[nodiscard]] std::optional<Seconds> time_of(const costmodel::TrainingOptions& options,
                                               const costmodel::ModelCosts& costs, const costmodel::StageLayout& layout,
                                               Seconds limit);
  /// Whether Imbalance::p99_memory fits into the whole device. It may use the headroom.
  [[nodiscard]] bool fits_at_p99(const costmodel::TrainingOptions& options, const costmodel::StageLayout& layout);
  /// Clears the caches that have grown large.
  void forget();

 private:
  SharedCosts& costs_;
  std::shared_ptr<costmodel::BlockCache> pieces_;
  std::shared_ptr<PeaksOfShapes> peaks_;
  Bases bases_;
  Problem rule_problem_;
  std::unordered_map<std::vector<double>, Seconds, boost::hash<std::vector<double>>> makespans_;
  std::size_t of_makespans_ = 0;  ///< Total length of their keys.
};

}  // namespace foldwise::planner

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

// What a thread of a search works with: the problem, and what it remembers of it.
namespace foldwise::planner {

/// A partial decision.
struct State {
  costmodel::TrainingOptions options;
  Assignment assignment;  ///< In the order of decision: of what is decided.
};

struct HashOfShape {
  [[nodiscard]] std::size_t operator()(const costmodel::ScheduleShape& shape) const;
};
/// Peaks of the ranks of schedules: [pp].
using PeaksOfShapes =
    tbb::concurrent_unordered_map<costmodel::ScheduleShape, std::vector<costmodel::PeakTable>, HashOfShape>;

/// What searches of one model on one system with one number of GPUs, and their threads, need not work out again.
class SharedCosts {
 public:
  /// Those that are filled now: new ones once they have become many.
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

/// Not shared between threads.
class Workbench {
 public:
  Workbench(const PlanProblem& plan_problem, const DecisionOrder& decision_order, SharedCosts& costs);

  const PlanProblem& problem;
  const DecisionOrder& order;
  costmodel::Hardware hardware;  ///< With the memory that a plan may use.
  costmodel::ModelKinds kinds;
  Statistics statistics;
  bool counts = true;      ///< Whether to count what rules refuse.
  std::int64_t spent = 0;  ///< Microseconds of a core, about, on whole candidates: time_of(), fits_at_p99().

  [[nodiscard]] costmodel::BlockCache& cache() { return *pieces_; }
  [[nodiscard]] costmodel::StepContext context(const costmodel::TrainingOptions& options) const {
    return {problem.model, options, hardware};
  }
  /// The state of an assignment; nothing is recomputed or offloaded as far as they do not say so.
  [[nodiscard]] State state_of(const Assignment& assignment) const;
  /// Decides one position more; false if that repeats another candidate.
  bool decide_one(State& state, std::uint16_t index) const;
  /// Visits every choice of the positions [from, to) that no rule refuses, until a visit that returns something returns
  /// false; whether none did.
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
  /// Whether one of the rules (indices into rules()) refuses the options; counts so many candidates under it.
  [[nodiscard]] bool refused(const std::vector<std::size_t>& rules, const costmodel::TrainingOptions& options,
                             double candidates);

  /// A key of what does not depend on the other decisions of attention than sizes and numerics.
  [[nodiscard]] std::vector<std::int64_t> with_numerics(std::vector<std::int64_t> sizes, const State& state) const;

  /// Micro-batches that each layer runs on a rank, as if every rank had its share of the layers.
  [[nodiscard]] double micro_batches_per_stage(const costmodel::TrainingOptions& options) const;
  /// Decoder layers of a kind among the first `layers` of a stage.
  [[nodiscard]] std::int32_t layers_of(std::size_t kind, const costmodel::StageContent& content,
                                       std::int64_t layers) const;
  /// Megatron's own split, if there is one.
  [[nodiscard]] std::optional<costmodel::StageLayout> even_split(const costmodel::TrainingOptions& options) const;
  /// [pp]
  [[nodiscard]] const std::vector<costmodel::PeakTable>& peaks(const costmodel::ScheduleShape& shape);
  /// costmodel::simulate_makespan(). Many candidates have the same times, and differ in what ends the step.
  [[nodiscard]] Seconds makespan(const costmodel::PipelineTimes& times);
  /// Whether no rule refuses a whole candidate.
  [[nodiscard]] bool allowed(const costmodel::TrainingOptions& options) const;
  /// Whether a candidate fits into `hardware`, with what the allocator must have besides.
  [[nodiscard]] bool fits(const costmodel::TrainingOptions& options, const costmodel::Composition& composition);
  /// Seconds of the step of a candidate with this split, if it fits into `hardware` and takes less than `limit`.
  [[nodiscard]] std::optional<Seconds> time_of(const costmodel::TrainingOptions& options,
                                               const costmodel::ModelCosts& costs, const costmodel::StageLayout& layout,
                                               Seconds limit);
  /// costmodel::imbalance() <= the device's memory, headroom included.
  [[nodiscard]] bool fits_at_p99(const costmodel::TrainingOptions& options, const costmodel::StageLayout& layout);
  /// Drops what was remembered, if that has become much.
  void forget();

 private:
  SharedCosts& costs_;
  std::shared_ptr<costmodel::BlockCache> pieces_;
  std::shared_ptr<PeaksOfShapes> peaks_;
  Bases bases_;
  Problem rule_problem_;
  std::unordered_map<std::vector<double>, Seconds, boost::hash<std::vector<double>>> makespans_;
  std::size_t of_makespans_ = 0;  ///< Numbers in their keys.
};

}  // namespace foldwise::planner

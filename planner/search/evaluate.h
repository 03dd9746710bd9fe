#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "costmodel/ops/block_cache.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_pieces.h"
#include "planner/search/bounds.h"
#include "planner/search/order.h"

// What the search does below one choice of all that a layer's time depends on.
namespace foldwise::planner {

/// A candidate that fits.
struct Found {
  Seconds time{};
  Digits digits;  ///< In the order of the space.
  costmodel::TrainingOptions options;
  Bytes memory{};
};

/// The fastest candidate of each layout, as far as it is among the first `top`.
class Best {
 public:
  explicit Best(std::size_t top) : top_(top) {}
  /// Keeps it if it is faster than what is known of its layout.
  void offer(const Found& found);
  /// Seconds below which a candidate of the layout, or of any, can still enter the answer.
  [[nodiscard]] double limit(const costmodel::Layout& layout) const;
  [[nodiscard]] double limit() const { return limit_; }
  /// Of all; infinity: nothing was found.
  [[nodiscard]] double fastest() const { return fastest_; }
  /// The fastest of so many layouts, fastest first.
  [[nodiscard]] std::vector<Found> first(std::size_t count) const;
  /// The answer.
  [[nodiscard]] std::vector<Found> sorted() const;

 private:
  using Key =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  static Key key(const costmodel::Layout& l) { return {l.tp, l.cp, l.dp, l.pp, l.vpp, l.ep, l.etp}; }
  std::size_t top_;
  std::map<Key, std::shared_ptr<const Found>> found_;
  double limit_ = std::numeric_limits<double>::infinity(), fastest_ = limit_;
};

struct Statistics {
  std::vector<double> rejected;  ///< Candidates, by rule; then those that do not fit, and those with too many stages.
  std::int64_t composed = 0, fitting = 0, simulated = 0;
  Statistics& operator+=(const Statistics& other);
};

/// One thread's part of the search, with the costs that it remembers.
class Evaluator {
 public:
  Evaluator(const PlanProblem& problem, const DecisionOrder& order);
  Evaluator(Evaluator&&) noexcept;
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  Evaluator& operator=(Evaluator&&) = delete;

  using Push = std::function<void(double bound, const Digits& digits)>;
  /// Every choice of the first level, with a bound.
  void attention_nodes(const Push& push);
  /// The choices of experts below such a node that may take less than `limit` seconds.
  void expand(const Digits& digits, double limit, const Push& push);
  /// A choice of attention and experts, and its bound; nothing if a rule refuses it. What does not apply is 0 in it.
  std::optional<std::pair<double, Digits>> node(Digits digits);

  /// How much to look at, in microseconds of a core, about. A dive finds something good soon, and proves nothing.
  struct Effort {
    std::int64_t most = 0;
    bool dive = false;
    int steps = 0;  ///< Of a dive: pipelines with their step that are looked at.
  };
  struct Answer {
    std::vector<Found> found;
    double left = std::numeric_limits<double>::infinity();  ///< Least seconds of what was not looked at.
    std::int64_t effort = 0;
  };
  /// What is below a choice of attention and experts, faster than `best` knows and within `capacity` bytes.
  Answer evaluate(const Digits& digits, Bytes capacity, const Best& best, Effort effort);

  [[nodiscard]] costmodel::TrainingOptions options_of(const Digits& digits) const { return state_of(digits).options; }
  [[nodiscard]] const Statistics& statistics() const { return statistics_; }

 private:
  /// A partial decision.
  struct State {
    costmodel::TrainingOptions options;
    Digits digits;
  };
  struct Overlapped;
  struct Kept;
  struct Need;
  struct Savers;
  struct Split;
  struct Watched;
  struct Pipeline;
  struct Open;
  struct OpenStep;
  struct StepChoice {
    costmodel::StepOptions options;
    Digits digits;
    double end = 0.0;                ///< Least seconds of the step's end.
    double every_micro_batch = 0.0;  ///< Seconds of Megatron-FSDP's communication in one direction.
    double beside = 0.0;             ///< Least seconds that it adds to a micro-batch.
  };

  /// The decided part of a node.
  [[nodiscard]] State state_of(const Digits& digits) const;
  /// Visits every choice of the positions [from, to) that no rule refuses.
  template <typename Visit>
  void decide(const State& state, std::size_t from, std::size_t to, const Visit& visit);
  [[nodiscard]] bool refused(const std::vector<std::size_t>& rules, const costmodel::TrainingOptions& options,
                             double candidates);
  [[nodiscard]] costmodel::StepContext context(const costmodel::TrainingOptions& options) const {
    return {problem_.model, options, hardware_};
  }
  [[nodiscard]] double micro_batches_per_stage(const costmodel::TrainingOptions& options) const;
  void spend(std::int64_t microseconds) { effort_.most -= microseconds; }
  [[nodiscard]] double bound_of(const State& state);
  [[nodiscard]] Load layers_load(const costmodel::TrainingOptions& options, bool experts);

  void graphs(const State& state, Best& best, Answer& answer);
  void pipelines(const State& state, Best& best, Answer& answer);
  bool begin_step(Pipeline& pipeline, std::size_t position, const StepChoice& choice, double limit);
  [[nodiscard]] double projections_kept(const costmodel::TrainingOptions& options);
  [[nodiscard]] double activations(const Pipeline& pipeline, const Watched& w, std::size_t moment,
                                   const Savers& savers, const Kept& kept) const;
  [[nodiscard]] Need need_of(const Pipeline& pipeline, const Savers& savers, const Kept& kept) const;
  [[nodiscard]] static bool too_much(const OpenStep& step, const Need& need);
  [[nodiscard]] double promise(Pipeline& pipeline, const OpenStep& step, std::size_t i);
  [[nodiscard]] double step_bound(Pipeline& pipeline, const OpenStep& step, const StepChoice& choice);
  void savers(Pipeline& pipeline, std::size_t position, const StepChoice& choice, std::size_t i, Best& best, Answer& answer);
  void simulate(const State& state, const Split& split, const costmodel::Composition& composition, Best& best, Answer& answer);

  [[nodiscard]] std::optional<costmodel::StageLayout> even_split(const costmodel::TrainingOptions& options) const;
  [[nodiscard]] std::int32_t layers_of(std::size_t kind, const costmodel::StageContent& content,
                                       std::int64_t layers) const;
  [[nodiscard]] Overlapped overlapped(const costmodel::TrainingOptions& options);
  [[nodiscard]] Split split_of(const costmodel::TrainingOptions& options, const Overlapped& costs,
                               costmodel::StageLayout layout) const;
  [[nodiscard]] static double schedule_bound(const costmodel::TrainingOptions& options, const std::vector<Load>& stages,
                                             std::size_t rank, const Load& work);
  const std::vector<costmodel::PeakTable>& peaks(const costmodel::ScheduleShape& shape);
  const std::vector<StepChoice>& step_choices(const State& state, const Overlapped& costs);
  const std::vector<Savers>& savers_of(const State& state);
  [[nodiscard]] Kept kept_with(const costmodel::TrainingOptions& options, const Savers& savers,
                               costmodel::BitSet<costmodel::OffloadModule> offload);
  void price_savers(const State& state, Overlapped& costs);
  void watch(Pipeline& pipeline, const StepChoice& plainest);
  [[nodiscard]] double saver_bound(Pipeline& pipeline, std::size_t position) const;

  const PlanProblem& problem_;
  const DecisionOrder& order_;
  Bases bases_;
  costmodel::Hardware hardware_;  ///< With the memory that a plan may use.
  costmodel::ModelKinds kinds_;
  Problem rule_problem_;
  costmodel::BlockCache cache_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>, std::vector<costmodel::PeakTable>>
      peaks_;
  std::map<std::vector<std::int64_t>, std::vector<StepChoice>> step_choices_;
  std::map<Digits, std::vector<Savers>> savers_;

  Effort effort_;
  Statistics statistics_;
};

}  // namespace foldwise::planner

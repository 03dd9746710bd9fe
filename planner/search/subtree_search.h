#pragma once
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "planner/search/incumbents.h"
#include "planner/search/parameters.h"
#include "planner/search/pipelines.h"
#include "planner/search/step_choices.h"

// Search below one node: everything is open that a layer's time without recomputation and offloading does not depend
// on.
namespace foldwise::planner {

struct Explored {
  std::vector<Solution> found;
  double left = std::numeric_limits<double>::infinity();  ///< Least bound of what was not explored, in seconds.
  std::int64_t effort = 0;
};

/// Branch and bound over pipelines, their splits of layers, choices of the step and memory choices, least bound first.
/// A bound is made exact step by step.
class SubtreeSearch {
 public:
  /// `incumbents`: known solutions. Solutions that are found are offered to them.
  SubtreeSearch(Workbench& bench, MemoryChoiceLists& memory_choice, StepChoices& steps, Incumbents& incumbents,
                Budget budget)
      : bench_(bench),
        memory_choices_(memory_choice),
        steps_(steps),
        incumbents_(incumbents),
        budget_(budget),
        most_(budget.most) {}
  /// May be called again for another node; the budget is for all calls. `most_pp`: only pipelines of at most this PP.
  void run(const State& layers, std::int64_t most_pp = std::numeric_limits<std::int64_t>::max());
  [[nodiscard]] Explored explored() &&;

 private:
  using BytesOfRanks = std::array<double, Need::kMostCritical>;
  /// Memory that choices of the step with the same needs leave to a pipeline's activations.
  struct Memory {
    bool fits = true;
    BytesOfRanks left{}, host_left{};  ///< [critical ranks] bytes.
    double least_promise = 0.0;        ///< Lower bound over all memory choices.
  };
  /// A group of choices of the step beside a pipeline.
  struct OpenGroup {
    const StepGroup* group = nullptr;
    double least = 0.0;  ///< Lower bound in seconds, without recomputation, offloading and the step's end.
    [[nodiscard]] double least_step() const { return least + group->choices.front().end; }
  };
  /// A choice of the step beside a pipeline.
  struct OpenStep {
    const StepGroup* group = nullptr;
    const StepChoice* choice = nullptr;
    double least = 0.0;  ///< Lower bound in seconds, without recomputation and offloading.
    bool composed = false, done = false;
    BytesOfRanks optimizer_left{};  ///< [critical ranks] bytes for what activations keep until the next step; valid
                                    ///< once composed.
    /// Memory choices that fit without offloading. A choice that recomputes more is slower.
    std::vector<const MemoryChoice*> fitting{};
  };
  struct OpenPipeline {
    Pipeline pipeline;
    std::vector<OpenGroup> groups{};  ///< Least bound first.
    std::vector<std::optional<Memory>> memories{};
    std::vector<OpenStep> steps{};
    int dived = 0;
  };
  struct Choice {
    State state;
    LayerCosts* costs = nullptr;
  };
  struct OpenSplit {
    std::uint32_t choice = 0;  ///< Index into choices_.
    Split* split = nullptr;
    const StepChoiceList* choices = nullptr;
  };
  enum class What : std::uint8_t { kPipeline, kSplit, kGroup, kStep, kMemory };
  struct Open {
    double bound = 0.0;
    What what = What::kPipeline;
    std::uint32_t pipeline = 0;  ///< Index into choices_; for kSplit into cuts_; for all others into pipelines_.
    std::uint16_t step = 0, memory_choice = 0;  ///< For kGroup, `step` is the group.
    int depth = 0;                              ///< In a dive the deepest item comes first.
    std::uint32_t order = 0;                    ///< Among equal bounds the earlier item comes first.
    bool operator>(const Open& other) const {
      return std::tie(other.depth, bound, order) > std::tie(depth, other.bound, other.order);
    }
  };

  void push(Open item, const costmodel::Layout& layout);
  void push_group(std::uint32_t pipeline, std::size_t group, double bound);
  void split(const Open& item);
  void open_groups(const Open& item);
  void open_steps(const Open& item);
  void open_memory_choices(const Open& item);
  void look_at(const Open& item);
  [[nodiscard]] std::vector<Split>& splits_of(const Choice& choice);
  [[nodiscard]] static double least_of(const costmodel::TrainingOptions& plain, const Split& split,
                                       const StepGroup& group);
  [[nodiscard]] Memory memory_of(const Pipeline& pipeline, const costmodel::StepOptions& options) const;
  [[nodiscard]] bool compose_step(const Pipeline& pipeline, OpenStep& step);
  [[nodiscard]] static bool too_much(const Pipeline& pipeline, const Memory& memory, const OpenStep* step,
                                     const Need& need);
  [[nodiscard]] Need need(Pipeline& pipeline, std::size_t memory_choice, std::size_t choice);
  [[nodiscard]] double choice_seconds(LayerCosts& costs, std::size_t memory_choice, std::size_t choice) const;
  [[nodiscard]] double promise(Pipeline& pipeline, const Memory& memory, const OpenStep* step,
                               std::size_t memory_choice);
  [[nodiscard]] double least_promise(Pipeline& pipeline, const Memory& memory);
  /// False if the candidate does not fit at the 99th percentile of routing. Called only for candidates faster than the
  /// known ones.
  [[nodiscard]] bool offer(const State& state, const Split& split, const costmodel::Composition& composition);
  [[nodiscard]] double rank_bound(const Pipeline& pipeline, const StepGroup& group, std::size_t memory_choice,
                                  const Kept* offloaded) const;
  [[nodiscard]] costmodel::Composition composed(const costmodel::TrainingOptions& options, const Split& split,
                                                const costmodel::ModelCosts& costs);
  /// Costs with the memory choice at this position of LayerCosts::memory_choices. `options` have this choice and a
  /// choice of offloading.
  [[nodiscard]] const costmodel::ModelCosts& costs_with(LayerCosts& costs, std::size_t memory_choice,
                                                        const costmodel::TrainingOptions& options);
  void spend(std::int64_t microseconds) { budget_.most -= microseconds; }

  Workbench& bench_;
  MemoryChoiceLists& memory_choices_;
  StepChoices& steps_;
  Incumbents& incumbents_;
  Budget budget_;
  std::int64_t most_;
  Explored explored_;
  // State of one run():
  double per_stage_ = 0.0;        ///< Micro-batches of a rank, as Workbench::micro_batches_per_stage.
  std::deque<LayerCosts> costs_;  ///< One for each way to overlap the experts' token exchange.
  std::vector<Choice> choices_;
  std::vector<OpenSplit> cuts_;
  std::deque<OpenPipeline> pipelines_;
  /// By costs, PP, VPP, order of ranks and the given layout.
  std::map<std::tuple<const LayerCosts*, std::int64_t, std::int64_t, bool, std::string>, std::vector<Split>> splits_;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
  std::uint32_t order_ = 0;
};

}  // namespace foldwise::planner

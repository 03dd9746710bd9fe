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

#include "planner/search/best.h"
#include "planner/search/pipelines.h"
#include "planner/search/step_choices.h"

// What the search does below one choice of all that a layer's time depends on, savers left out.
namespace foldwise::planner {

/// How much to look at, in microseconds of a core, about: counted, not measured, so that it is the same everywhere.
struct Effort {
  std::int64_t most = 0;
  bool dive = false;  ///< Finds something good soon, and proves nothing.
  int pipelines = 0;  ///< Of a dive: pipelines of each PP that are looked at,
  int steps = 0;      ///< and pipelines with a choice of the step.
};

struct Answer {
  std::vector<Found> found;
  double left = std::numeric_limits<double>::infinity();  ///< Least seconds of what was not looked at.
  std::int64_t effort = 0;
};

/// Best first: pipelines, their splits of layers, choices of the step, savers. A bound is made exact piece by piece.
class LayersSearch {
 public:
  /// `best` is what is known; what is found is offered to it.
  LayersSearch(Workbench& bench, SaverLists& savers, StepChoices& steps, Best& best, Effort effort)
      : bench_(bench), savers_(savers), steps_(steps), best_(best), effort_(effort), most_(effort.most) {}
  /// May be called again for another choice: the effort is for all of them. `most_pp`: of pipelines, those up to that.
  void run(const State& layers, std::int64_t most_pp = std::numeric_limits<std::int64_t>::max());
  [[nodiscard]] Answer answer() &&;

 private:
  using Rooms = std::array<double, Need::kMostWatched>;
  /// What choices of the step that need the same memory leave to a pipeline's activations.
  struct Memory {
    bool fits = true;
    Rooms room{}, host_room{};   ///< [watched] bytes.
    double least_promise = 0.0;  ///< Of all savers.
  };
  /// A group of choices of the step for a pipeline.
  struct OpenGroup {
    const StepGroup* group = nullptr;
    double least = 0.0;  ///< Seconds without savers and the step's end.
    [[nodiscard]] double least_step() const { return least + group->choices.front().end; }
  };
  /// A choice of the step for a pipeline.
  struct OpenStep {
    const StepGroup* group = nullptr;
    const StepChoice* choice = nullptr;
    double least = 0.0;  ///< Seconds without savers.
    bool composed = false, done = false;
    Rooms optimizer_room{};                ///< [watched] for what activations leave until the next step; once composed.
    std::vector<const Savers*> fitting{};  ///< Without offloading: what recomputes more is slower.
  };
  struct OpenPipeline {
    Pipeline pipeline;
    std::vector<OpenGroup> groups{};  ///< Those with the least bounds first.
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
  enum class What : std::uint8_t { kPipeline, kSplit, kGroup, kStep, kSavers };
  struct Open {
    double bound = 0.0;
    What what = What::kPipeline;
    std::uint32_t pipeline = 0;          ///< Index into choices_, of kSplit into cuts_, then into pipelines_.
    std::uint16_t step = 0, savers = 0;  ///< Of kGroup the group.
    int depth = 0;                       ///< Of a dive: the deepest first.
    std::uint32_t order = 0;             ///< Of equal bounds the earlier one first.
    bool operator>(const Open& other) const {
      return std::tie(other.depth, bound, order) > std::tie(depth, other.bound, other.order);
    }
  };

  void push(Open item, const costmodel::Layout& layout);
  void push_group(std::uint32_t pipeline, std::size_t group, double bound);
  void split(const Open& item);
  void open_groups(const Open& item);
  void open_steps(const Open& item);
  void open_savers(const Open& item);
  void look_at(const Open& item);
  [[nodiscard]] std::vector<Split>& splits_of(const Choice& choice);
  [[nodiscard]] static double least_of(const costmodel::TrainingOptions& plain, const Split& split,
                                       const StepGroup& group);
  [[nodiscard]] Memory memory_of(const Pipeline& pipeline, const costmodel::StepOptions& options) const;
  [[nodiscard]] bool compose_without_savers(const Pipeline& pipeline, OpenStep& step);
  [[nodiscard]] static bool too_much(const Pipeline& pipeline, const Memory& memory, const OpenStep* step,
                                     const Need& need);
  [[nodiscard]] Need need(Pipeline& pipeline, std::size_t savers, std::size_t choice);
  [[nodiscard]] double choice_seconds(LayerCosts& costs, std::size_t savers, std::size_t choice) const;
  [[nodiscard]] double promise(Pipeline& pipeline, const Memory& memory, const OpenStep* step, std::size_t savers);
  [[nodiscard]] double least_promise(Pipeline& pipeline, const Memory& memory);
  /// False: it does not fit at the 99th percentile of routing. Asked only of what is faster than what is known.
  [[nodiscard]] bool offer(const State& state, const Split& split, const costmodel::Composition& composition);
  [[nodiscard]] double rank_bound(const Pipeline& pipeline, const StepGroup& group, std::size_t savers,
                                  const Kept* offloaded) const;
  [[nodiscard]] costmodel::Composition composed(const costmodel::TrainingOptions& options, const Split& split,
                                                const costmodel::ModelCosts& costs);
  /// With savers at a position of LayerCosts::savers. `options` have them, and a choice of offloading.
  [[nodiscard]] const costmodel::ModelCosts& costs_with(LayerCosts& costs, std::size_t savers,
                                                        const costmodel::TrainingOptions& options);
  void spend(std::int64_t microseconds) { effort_.most -= microseconds; }

  Workbench& bench_;
  SaverLists& savers_;
  StepChoices& steps_;
  Best& best_;
  Effort effort_;
  std::int64_t most_;
  Answer answer_;
  // Of one run:
  double per_stage_ = 0.0;        ///< Micro-batches, as Workbench::micro_batches_per_stage.
  std::deque<LayerCosts> costs_;  ///< One for each way to overlap the experts' exchange.
  std::vector<Choice> choices_;
  std::vector<OpenSplit> cuts_;
  std::deque<OpenPipeline> pipelines_;
  /// By costs, PP, VPP and a layout that is given.
  std::map<std::tuple<const LayerCosts*, std::int64_t, std::int64_t, bool, std::string>, std::vector<Split>> splits_;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
  std::uint32_t order_ = 0;
};

}  // namespace foldwise::planner

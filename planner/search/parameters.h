#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "costmodel/enums.h"

// How a search spends its effort: its strategies, their parameters, and what each thing that it does is counted as
// (docs/search.md).
namespace foldwise::planner {

/// In the order in which a search runs them.
enum class StrategyName : std::uint8_t {
  kDive,                 ///< A first incumbent: depth first below few nodes.
  kRestriction,          ///< Where a dive finds none: the part of the problem that needs least memory.
  kLocalSearch,          ///< Candidates that differ from an incumbent in one or two fields.
  kNeighbourhoodSearch,  ///< Nodes that differ from an incumbent's in one or two fields, all below open.
  kProof,                ///< Best-first branch and bound.
  kPolish,               ///< The incumbents' splits of layers, and how much of an optimizer is on the host.
};
inline constexpr std::size_t kStrategies = costmodel::enumerators<StrategyName>();
[[nodiscard]] constexpr std::string_view to_string(StrategyName name) {
  return costmodel::names_of<StrategyName>("dive", "restriction", "local search", "neighbourhood search", "proof",
                                           "polish")
      .at(static_cast<std::size_t>(name));
}

/// How much of what is below a node to explore.
struct Budget {
  std::int64_t most = 0;  ///< Microseconds of a core, about: counted, not measured, so that it is the same everywhere.
  bool dive = false;      ///< Finds something good soon, and proves nothing.
  int pipelines = 0;      ///< A dive explores so many pipelines of each PP,
  int steps = 0;          ///< and so many pairs of a pipeline and a step.
};

// Prices: the counted effort of each thing that a search does, in microseconds of a core, about (one takes 0.6 to 2 on
// our machines, by model). Counted, not measured, so that a search ends at the same place on every machine.
namespace price {
inline constexpr std::int64_t kSizes = 1;               ///< A bound of sizes of experts (EP, ETP).
inline constexpr std::int64_t kNode = 9;                ///< A bound of a choice of experts.
inline constexpr std::int64_t kItem = 1;                ///< An open item below a node that is taken.
inline constexpr std::int64_t kPipeline = 35;           ///< A pipeline's critical ranks and bounds.
inline constexpr std::int64_t kMemoryChoiceOfKind = 4;  ///< A memory choice's cost of a kind of layers.
inline constexpr std::int64_t kComposition = 5;         ///< A candidate's costs, added up.
inline constexpr std::int64_t kRouting = 20;            ///< The same at the 99th percentile of routing.
inline constexpr std::int64_t kAssignment = 5;          ///< The rules and the bound of a whole assignment.
inline constexpr std::int64_t kSchedule = 5;            ///< A schedule that is run, and besides:
inline constexpr std::int64_t kTasks = 150;             ///< so many of its tasks are one.
}  // namespace price

// The promises of an answer (docs/search.md#answer), which tests/search_test.cc checks.
/// A layout is listed if it takes no longer than this times the fastest one: what is slower is no choice.
inline constexpr double kWindow = 1.25;
/// The fastest plan is exact. Of another layout a plan may be missed that is faster by no more than this share of its
/// time, which is less than the model errs by (docs/accuracy.md).
inline constexpr double kTolerance = 0.05;
/// A smaller share of a step's time is no gain.
inline constexpr double kExact = 1e-4;

// Parameters. In brackets: the range that makes sense. Efforts are microseconds of a core, about; a share is one part
// in so many of PlanProblem::effort. Values without a source were chosen by first plans of many questions;
// docs/search.md#parameters has what half and twice of each gives today.

/// Parameters of the searches beside the one for the plans (docs/search.md#other-questions).
struct FollowUpParameters {
  /// [16, 256] Share of an alternative's local search and its search near the first plan. There are some twenty.
  std::int64_t near_share = 64;
  /// [2, 16] Share of a search of all that an alternative leaves. Without it 25 of 80 were over 1 % too slow, with
  /// it 8.
  std::int64_t alternative_share = 2;
  /// [1, 1.1] That search is left out where an alternative takes at most so many times the first plan's time.
  double near = 1.02;
  /// [1, 4] First plans whose alternatives are searched for.
  int alternative_rounds = 2;
  /// [1e-4, 1e-2] A first plan that is faster by a smaller share of its time counts as the same one.
  double other_plan = 1e-3;
  /// [4, 32] Share of the local search from alternatives that are faster than the first plan.
  std::int64_t changes_share = 8;
  /// [0, 0.05] Of a step's time: a smaller difference cannot be told (docs/accuracy.md#pairs).
  double idle = 0.01;
  /// [4, 16] Share of the search at the prices of virtual machines.
  std::int64_t host_share = 8;
  /// [4, 16] Share of the search with the other type of the optimizer's states.
  std::int64_t states_share = 8;
  /// [2, 16] Share of the search with choices that were not measured.
  std::int64_t unproven_share = 4;
  /// [1, 5] Plans that it names.
  std::size_t unproven_plans = 2;
  /// [0, 0.05] Of the first plan's time: a smaller gain is not worth a run.
  double unproven_gain = 0.005;
  /// [2, 16] Share of the search with the fields of --why-not.
  std::int64_t why_not_share = 4;
  /// [4, 32] Share of each search where nothing fits.
  std::int64_t shortage_share = 10;
  /// [1, 10] Layouts that are named where nothing fits.
  std::size_t nearest = 3;
  /// [1, 10] Most doublings of memory, GPUs and batch, and most halvings.
  int doublings = 6;
  /// [1, 10] Most bisections of the least memory into which something fits.
  int bisections = 6;
  /// [0.001, 0.05] Of the device's memory: where they end.
  double close_enough = 0.005;
  /// [0.001, 0.05] Of the device's memory: where the bisection of --objective memory ends.
  double memory_resolution = 0.01;
};

struct SearchParameters {
  /// Strategies that are not run: for tests and experiments.
  std::set<StrategyName> off{};

  // Dive.
  /// [1'000, 50'000] The effort for each node.
  Budget dive{.most = 6'000, .dive = true, .pipelines = 2, .steps = 150};
  /// [1, 10] Choices of experts below each choice of attention.
  std::size_t dive_rounds = 3;
  /// [1, 16] Share after which no round begins.
  std::int64_t dive_share = 4;
  /// [1, 20] Steps of each pipeline whose memory choices are opened.
  int dive_memory_steps = 3;

  // Restriction.
  /// [2, 32] Share, of which it needs the part until its first solution.
  std::int64_t restriction_share = 8;

  // Local search.
  /// [2, 64] Share of each round, and of the descent at the end. Without a limit nothing is left for neighbourhoods.
  std::int64_t local_share = 8;
  /// [1, 10] Layouts from whose incumbents it starts.
  std::size_t local_centres = 8;
  /// [8, 128] Candidates at once. Fewer leave threads idle.
  std::size_t local_batch = 32;

  // Neighbourhood search.
  /// [0.1, 0.9] Of the effort: no step of it or of local search begins later. The rest is the proof's.
  double until = 0.5;
  /// [1, 10] Layouts whose incumbents are centres of dives, and of the longest look.
  std::size_t centres = 4;
  /// [10'000, 100'000] Below the fastest incumbent's own node.
  std::int64_t own_effort = 25'000;
  /// [5'000, 100'000] Below a neighbour of it, where dives find nothing; and in a dive's second pass.
  std::int64_t neighbour_effort = 20'000;
  /// Below a neighbour, where that finds nothing either [20'000, 200'000].
  Budget wide_dive{.most = 35'000, .dive = true, .pipelines = 8, .steps = 150};
  /// [20'000, 500'000] Below the centres' own nodes, where all else finds nothing.
  std::int64_t longest_effort = 60'000;
  /// [1e-4, 1e-2] Of a step's time: a smaller gain does not end a pass over neighbours, or a proof.
  double enough = 1e-3;
  /// [2, 64] Nodes at once. What they find is a limit for the next ones.
  std::size_t batch = 8;

  // Proof.
  /// [1'000, 100'000] Of a node's first visit. Each visit that does not exhaust it doubles the next one's,
  std::int64_t first_effort = 10'000;
  /// [0, 10] so many times.
  int most_visits = 6;
  /// [1'000, 10'000] What a node takes in the mean, about. A proof begins only if that suffices for all nodes below the
  /// incumbent's time.
  std::int64_t node_effort = 3'300;
  /// [4, 64] Share in which bounds are raised where no proof begins.
  std::int64_t bounds_share = 16;
  /// [2, 32] Share after which a proof ends that would take `patience` times what is left, at its pace so far.
  std::int64_t trying_share = 8;
  /// [1, 10] The nodes that come first take longest.
  std::int64_t patience = 3;
  /// [16, 1'024] Nodes at once, at most.
  std::size_t proof_batch = 256;

  // Allocator's reserve.
  /// [0.9, 1] Of the device's memory, in which a plan must run. Replays are 3 % off, rms (docs/memory.md#accuracy).
  double certain_share = 0.97;
  /// [2, 8] Bisections of the share in which a plan runs.
  int reserve_halvings = 4;
  /// [1, 2] Runs that gave memory back took up to so many times as long (benchmarks/accuracy/journal.md#memory-gone).
  double worth_pressure = 1.25;
  /// [1, 10] Searches more. Each leaves out the first plan of the one before.
  int reserve_searches = 4;
  /// [0, 5] Searches more, with less of what that plan needs. Others need less than it.
  int reserve_bisections = 2;

  FollowUpParameters follow_up{};
};

}  // namespace foldwise::planner

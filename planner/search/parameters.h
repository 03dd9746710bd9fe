#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "costmodel/enums.h"

// How a search spends its effort (docs/search.md): its strategies, their parameters, and the price of each operation.
namespace foldwise::planner {

/// In the order in which a search runs them.
enum class StrategyName : std::uint8_t {
  kDive,                 ///< A first incumbent: depth first below few nodes.
  kRestriction,          ///< The part of the problem that needs least memory, if a dive finds nothing.
  kLocalSearch,          ///< Candidates that differ from an incumbent in one or two fields.
  kNeighbourhoodSearch,  ///< Nodes that differ from an incumbent's in one or two fields, with all other fields open.
  kProof,                ///< Best-first branch and bound.
  kPolish,               ///< The incumbents' splits of layers, and how much of an optimizer is on the host.
};
inline constexpr std::size_t kStrategies = costmodel::enumerators<StrategyName>();
[[nodiscard]] constexpr std::string_view to_string(StrategyName name) {
  return costmodel::names_of<StrategyName>("dive", "restriction", "local search", "neighbourhood search", "proof",
                                           "polish")
      .at(static_cast<std::size_t>(name));
}

/// Effort for exploring one node.
struct Budget {
  /// Microseconds of a core, about. They are counted, not measured, and so the same on every machine.
  std::int64_t most = 0;
  bool dive = false;  ///< Finds a good solution soon and proves nothing.
  int pipelines = 0;  ///< A dive explores this many pipelines of each PP,
  int steps = 0;      ///< and this many pairs of a pipeline and a step.
};

// Prices: the effort that each operation of a search counts for, in microseconds of a core, about. One unit takes 0.6
// to 2 us on our machines, depending on the model. Effort is counted, not measured, so that a search ends at the same
// place on every machine.
namespace price {
inline constexpr std::int64_t kSizes = 1;               ///< Bound of sizes of experts (EP, ETP).
inline constexpr std::int64_t kNode = 9;                ///< Bound of a choice of experts.
inline constexpr std::int64_t kItem = 1;                ///< Taking an open item below a node.
inline constexpr std::int64_t kPipeline = 35;           ///< Critical ranks and bounds of a pipeline.
inline constexpr std::int64_t kMemoryChoiceOfKind = 4;  ///< Cost of a memory choice for one kind of layer.
inline constexpr std::int64_t kComposition = 5;         ///< Adding up a candidate's costs.
inline constexpr std::int64_t kRouting = 20;            ///< The same at the 99th percentile of routing.
inline constexpr std::int64_t kAssignment = 5;          ///< Rules and bound of a whole assignment.
inline constexpr std::int64_t kSchedule = 5;            ///< Running a schedule, and in addition
inline constexpr std::int64_t kTasks = 150;             ///< one unit for this many of its tasks.
}  // namespace price

// What an answer promises (docs/search.md#answer). tests/search_test.cc checks it.
/// A layout is listed if it takes at most this many times as long as the fastest one. Slower ones are no alternative.
inline constexpr double kWindow = 1.25;
/// If the search is proven, the fastest plan is exact. The plan of another layout may miss a faster one, but by no more
/// than this share of its time, which is below the model's error (docs/accuracy.md).
inline constexpr double kTolerance = 0.05;
/// A gain below this share of a step's time counts as none.
inline constexpr double kExact = 1e-4;

// Each parameter has its sensible range in brackets. Efforts are microseconds of a core, about. A share of n means
// PlanProblem::effort / n. Values without a source were chosen by the first plans of many questions;
// docs/search.md#parameters has the effect of half and of twice each value.

/// Parameters of the searches beside the one for the plans (docs/search.md#other-questions).
struct FollowUpParameters {
  /// [16, 256] Share of the local search for an alternative, and of its search near the first plan. There are about
  /// twenty alternatives.
  std::int64_t near_share = 64;
  /// [2, 16] Share of a search over all that an alternative leaves open. Without this search 25 of 80 alternatives were
  /// more than 1 % too slow, with it 8.
  std::int64_t alternative_share = 2;
  /// [1, 1.1] That search is left out if the alternative takes at most this many times the first plan's time.
  double near = 1.02;
  /// [1, 4] Number of first plans, one after another, whose alternatives are searched.
  int alternative_rounds = 2;
  /// [1e-4, 1e-2] A first plan that is faster by less than this share of its time counts as the same plan.
  double other_plan = 1e-3;
  /// [4, 32] Share of the local search from alternatives that are faster than the first plan.
  std::int64_t changes_share = 8;
  /// [0, 0.05] Step times that differ by less than this share cannot be told apart (docs/accuracy.md#pairs).
  double idle = 0.01;
  /// [4, 16] Share of the search at the prices of virtual machines.
  std::int64_t host_share = 8;
  /// [4, 16] Share of the search with the other type of the optimizer's states.
  std::int64_t states_share = 8;
  /// [2, 16] Share of the search that also allows choices that were not measured.
  std::int64_t unproven_share = 4;
  /// [1, 5] Most plans that this search names.
  std::size_t unproven_plans = 2;
  /// [0, 0.05] A gain below this share of the first plan's time is not worth a run.
  double unproven_gain = 0.005;
  /// [2, 16] Share of the search with the fields of --why-not.
  std::int64_t why_not_share = 4;
  /// [4, 32] Share of each search where nothing fits.
  std::int64_t shortage_share = 10;
  /// [1, 10] Most layouts that are named where nothing fits.
  std::size_t nearest = 3;
  /// [1, 10] Most doublings of memory, GPUs and batch, and most halvings.
  int doublings = 6;
  /// [1, 10] Most bisections of the least memory with which something fits.
  int bisections = 6;
  /// [0.001, 0.05] The bisections end at this share of the device's memory.
  double close_enough = 0.005;
  /// [0.001, 0.05] The bisection of --objective memory ends at this share of the device's memory.
  double memory_resolution = 0.01;
};

struct SearchParameters {
  /// Strategies that are not run: for tests and experiments.
  std::set<StrategyName> off{};

  // Dive.
  /// [1'000, 50'000] Effort for each node.
  Budget dive{.most = 6'000, .dive = true, .pipelines = 2, .steps = 150};
  /// [1, 10] Choices of experts below each choice of attention.
  std::size_t dive_rounds = 3;
  /// [1, 16] No round begins after this share.
  std::int64_t dive_share = 4;
  /// [1, 20] Steps of each pipeline whose memory choices are opened.
  int dive_memory_steps = 3;

  // Restriction.
  /// [2, 32] Most that it may use. It ends with its first solution.
  std::int64_t restriction_share = 8;

  // Local search.
  /// [2, 64] Share of each round, and of the final descent. Without this limit no effort is left for neighbourhood
  /// search.
  std::int64_t local_share = 8;
  /// [1, 10] Layouts from whose incumbents it starts.
  std::size_t local_centres = 8;
  /// [8, 128] Candidates per batch. With fewer, threads are idle.
  std::size_t local_batch = 32;

  // Neighbourhood search.
  /// [0.1, 0.9] No step of neighbourhood search or local search begins after this part of the effort. The rest is left
  /// for the proof.
  double until = 0.5;
  /// [1, 10] Layouts whose incumbents are centres of the dives and of the longest exploration.
  std::size_t centres = 4;
  /// [10'000, 100'000] Effort below the fastest incumbent's own node.
  std::int64_t own_effort = 25'000;
  /// [5'000, 100'000] Effort below a neighbour of it, if dives find nothing. Also the effort of a dive's second pass.
  std::int64_t neighbour_effort = 20'000;
  /// [20'000, 200'000] Effort of the dive below a neighbour if that finds nothing either.
  Budget wide_dive{.most = 35'000, .dive = true, .pipelines = 8, .steps = 150};
  /// [20'000, 500'000] Effort below the centres' own nodes, if everything else finds nothing.
  std::int64_t longest_effort = 60'000;
  /// [1e-4, 1e-2] A gain below this share of a step's time does not end a pass over neighbours or a proof.
  double enough = 1e-3;
  /// [2, 64] Nodes per batch. The solutions of a batch limit the next one.
  std::size_t batch = 8;

  // Proof.
  /// [1'000, 100'000] Effort of a node's first visit. Each visit that does not exhaust the node doubles the next one's,
  std::int64_t first_effort = 10'000;
  /// [0, 10] at most this many times.
  int most_visits = 6;
  /// [1'000, 10'000] Mean effort for a node, about. A proof begins only if the effort suffices for all nodes whose
  /// bounds are below the incumbent's time.
  std::int64_t node_effort = 3'300;
  /// [4, 64] Share for raising bounds if no proof begins.
  std::int64_t bounds_share = 16;
  /// [2, 32] After this share a proof ends if, at its pace so far, it would take `patience` times the effort that is
  /// left.
  std::int64_t trying_share = 8;
  /// [1, 10] Patience is needed because the first nodes take longest.
  std::int64_t patience = 3;
  /// [16, 1'024] Most nodes per batch.
  std::size_t proof_batch = 256;

  // Allocator's reserve.
  /// [0.9, 1] A plan must run in this share of the device's memory. Replays have an error of 3 %, rms
  /// (docs/memory.md#accuracy).
  double certain_share = 0.97;
  /// [2, 8] Bisections of the share of memory in which a plan runs.
  int reserve_halvings = 4;
  /// [1, 10] Most repetitions of the search. Each leaves out the first plan of the one before.
  int reserve_searches = 4;
  /// [0, 5] Further repetitions, with a smaller reserve than that plan needs, because other plans need less.
  int reserve_bisections = 2;

  FollowUpParameters follow_up{};
};

}  // namespace foldwise::planner

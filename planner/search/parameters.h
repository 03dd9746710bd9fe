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
  int pipelines = 0;      ///< Of a dive: pipelines of each PP that are explored,
  int steps = 0;          ///< and pipelines with a choice of the step.
};

// What each thing that a search does is counted as: microseconds of a core, about (one takes 0.6 to 2 on our machines,
// by model). Counted, not measured, so that a search ends at the same place on every machine.
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

// What an answer promises (docs/search.md#answer); tests/search_test.cc holds it to this.
/// A layout is listed if it takes no longer than this times the fastest one: what is slower is no choice.
inline constexpr double kWindow = 1.25;
/// The fastest plan is exact. Of another layout a plan may be missed that is faster by no more than this share of its
/// time, which is less than the model errs by (docs/accuracy.md).
inline constexpr double kTolerance = 0.05;
/// Of a step's time: less is no gain.
inline constexpr double kExact = 1e-4;

/// "A share" is one part in so many of PlanProblem::effort. Behind each: the range that makes sense, and the reason.
/// docs/search.md#parameters has what half and twice of each gives.
struct SearchParameters {
  std::set<StrategyName> off{};  ///< Not run: for tests and experiments.

  // Dive.
  Budget dive{.most = 6'000, .dive = true, .pipelines = 2, .steps = 150};  ///< 1'000 to 50'000: some 20 compositions.
  std::size_t dive_rounds = 3;  ///< 1 to 10: choices of experts tried below each choice of attention.
  std::int64_t dive_share = 4;  ///< 1 to 16: after it no round begins; else a small effort goes to dives alone.
  int dive_memory_steps = 3;    ///< 1 to 20: steps of a pipeline whose memory choices are opened: the others are alike.

  // Restriction.
  std::int64_t restriction_share = 8;  ///< 2 to 32: it ends with the first plan, mostly long before.

  // Local search.
  std::int64_t local_share = 8;   ///< 2 to 64: of each round, and again at the end; the rest is neighbourhoods'.
  std::size_t local_centres = 8;  ///< 1 to 10: layouts from whose incumbents it starts.
  std::size_t local_batch = 32;   ///< 8 to 128: candidates at once; fewer leave threads idle, more are wasted.

  // Neighbourhood search.
  double until = 0.5;                      ///< 0.1 to 0.9: share of the effort; the rest is the proof's.
  std::size_t centres = 4;                 ///< 1 to 10: layouts whose incumbents are centres of dives.
  std::int64_t own_effort = 25'000;        ///< 10'000 to 100'000: below the fastest incumbent's own node.
  std::int64_t neighbour_effort = 20'000;  ///< 5'000 to 100'000: below a neighbouring node that is explored, not dived.
  Budget wide_dive{
      .most = 35'000, .dive = true, .pipelines = 8, .steps = 150};  ///< As `dive`, where dives find nothing.
  std::int64_t longest_effort = 60'000;  ///< 20'000 to 500'000: below the centres' own nodes, where all else is tried.
  double enough = 1e-3;                  ///< 1e-4 to 1e-2: a share of the time; for less no neighbours are left out.
  std::size_t batch = 8;                 ///< 2 to 64: nodes at once: what the first find is a limit for the others.

  // Proof.
  std::int64_t first_effort =
      10'000;                        ///< 1'000 to 100'000: of a node; what is left open comes back with twice as much,
  int most_visits = 6;               ///< 0 to 10: up to so many times.
  std::int64_t node_effort = 3'300;  ///< What a node took, about: with more nodes than that allows no proof begins.
  std::int64_t bounds_share = 16;    ///< 4 to 64: for raised bounds where no proof begins.
  std::int64_t trying_share = 8;     ///< 2 to 32: after it a proof ends that
  std::int64_t patience =
      3;  ///< 1 to 10: would take so many times what is left, at its pace; the first nodes take longest.
  std::size_t proof_batch = 256;  ///< 16 to 1024: nodes at once, at most.

  // Allocator's reserve (docs/memory.md#reserved).
  double certain_share =
      0.97;                  ///< 0.9 to 1: of the device's memory. Replays are 3 % off, rms (docs/memory.md#accuracy).
  int reserve_halvings = 4;  ///< 2 to 8: of the memory that the first plan needs more.
  double worth_pressure =
      1.25;  ///< 1 to 2: runs that gave memory back took so many times as long (docs/measuring.md#memory-gone).
  int reserve_searches = 4;    ///< 1 to 10: each leaves out the first plan of the one before.
  int reserve_bisections = 2;  ///< 0 to 5: what one plan must have leaves out others that have room.
};

}  // namespace foldwise::planner

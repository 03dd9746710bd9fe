#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/parallel/options.h"
#include "costmodel/step/prediction.h"
#include "planner/run/run_file.h"
#include "planner/search/incumbents.h"
#include "planner/search/parameters.h"
#include "planner/search/space.h"

// The answer of a search.
namespace foldwise::planner {

struct Plan {
  Assignment assignment;
  costmodel::TrainingOptions options;
  costmodel::Prediction prediction;
  costmodel::Imbalance imbalance;  ///< It also fits into the device at p99 of routing, without headroom.
  std::vector<std::string> why;    ///< What limits the plan.
  std::string lead;                ///< Where it gains over the next plan; empty: it is the last.
  std::string preferred{};         ///< Why it comes first although another plan is as fast or faster; else empty.
  /// Step time at the host's prices of virtual machines (HostSpec::of_virtual_machine). explain() fills it. Nothing if
  /// the prices of the system's own host are measured.
  std::optional<Seconds> on_virtual_machine{};
};

/// A plainer value of a choice of the first plan, and the fastest plan that was found with it. All other fields are
/// chosen anew.
struct Alternative {
  std::string choice;                                      ///< "no CUDA graphs".
  std::map<std::string, std::vector<nlohmann::json>> set;  ///< The values that it leaves to each field.
  std::optional<Plan> plan;                                ///< None: nothing that fits was found.
};

/// A plan that does not fit.
struct NearMiss {
  Plan plan;
  std::size_t stage = 0;      ///< The pipeline rank that needs most.
  Bytes over{}, host_over{};  ///< Memory that it needs beyond what a plan may use: device, host.
};

/// The same question with other sizes, for which a plan was found.
struct WayOut {
  std::int64_t num_gpus = 1, global_batch = 1, seq_len = 1;
  Plan plan;
};

/// Why nothing fits.
struct Shortage {
  enum class Cause : std::uint8_t {
    kDevice,  ///< GPU memory: with more of it something fits.
    kHost,    ///< Host memory: with more of it something fits.
    kRules,   ///< Nothing was found with any memory, so rules refuse everything.
  };
  Cause cause = Cause::kRules;
  std::vector<NearMiss> nearest;  ///< Of different layouts, those that need least first; at most three.
  std::vector<WayOut> ways;  ///< More GPUs, another batch, shorter sequences: of each the smallest change that helps.
};

/// Work and gains of a strategy in one search.
struct StrategyUse {
  std::int64_t steps = 0;   ///< Number of its steps.
  std::int64_t moves = 0;   ///< Nodes explored and candidates tried.
  std::int64_t effort = 0;  ///< Microseconds of a core, about.
  std::int64_t gains = 0;   ///< Steps that made the first plan faster.
  Seconds gained{};         ///< Total gain of these steps. A first plan where there was none counts as 0.
  StrategyUse& operator+=(const StrategyUse& other);
};
using SearchLog = std::array<StrategyUse, kStrategies>;  ///< [StrategyName]

struct PlanResult {
  /// Candidates of the space, including those that were never looked at because a bound proves them slower than the
  /// answer.
  double enumerated = 0.0;
  std::int64_t nodes = 0;      ///< Partial assignments that were bounded.
  std::int64_t composed = 0;   ///< Candidates whose costs were added up; each split of layers counts.
  std::int64_t fitting = 0;    ///< Those of them that fit.
  std::int64_t simulated = 0;  ///< Those of them whose schedule was run.
  SearchLog log{};             ///< The work of each strategy.
  double seconds = 0.0;
  /// True: no candidate is faster than the first plan by more than 0.01 % (docs/search.md#answer). False: the search
  /// ended before it could prove this.
  bool proven = true;
  Seconds least{};           ///< No candidate is faster than this.
  std::int64_t effort = 0;   ///< Microseconds of a core, about. Counted, not measured.
  AllocatorReserve reserve;  ///< Learnt by the search. Whoever uses the answer has it in PlanProblem::reserve.
  /// Number of candidates by rule, most first. Memory is "memory.fits", and at the 99th percentile of routing
  /// "memory.fits_at_p99".
  std::vector<std::pair<std::string, double>> rejected_by_rule;
  bool refused = false;      ///< Rules refuse every candidate, whatever memory it needs. False: this is not known.
  std::vector<Plan> plans;   ///< The best candidate of each layout, fastest first; at most `top`.
  std::vector<Plan> pareto;  ///< The plans that no other plan beats in both time and memory.
  Evidence evidence = Evidence::kAny;  ///< How much of the plans was measured: PlanProblem::evidence, or less.
  /// Faster plans of which less was measured, fastest first; find_unproven() fills it.
  std::vector<Plan> unproven;
  std::vector<Alternative> alternatives;  ///< Plainer values of the first plan's choices; explain() fills it.
  /// The fastest plan with another type of the optimizer's states. Plans keep the type because it changes what is
  /// computed. explain() fills it. Nothing if the question names the type.
  std::optional<Alternative> other_states;
  std::optional<Shortage> shortage;  ///< Set by explain() where nothing was found.
  double explained_seconds = 0.0;    ///< Time that explain() took.
};

/// Phases of the work on an answer, in order.
enum class Work : std::uint8_t { kSearch, kAlternatives, kStates, kHosts, kUnproven, kList };
/// Receives the current phase and the share of it that is done; returns whether to go on.
using Doing = std::function<bool(Work, double done)>;

/// Progress of a search. One thread at a time reports it.
struct Progress {
  double effort = 0.0;  ///< Share of PlanProblem::effort. The search ends at 1, proven or not.
  Seconds best{};       ///< Step time of the best plan so far; 0: none yet.
  Seconds least{};      ///< No plan is faster.
  /// Progress of the whole answer, which foldwise::plan() fills: the phase, the share of all work that is done, and
  /// after the search its first plan. Later phases may still replace this plan.
  Work work = Work::kSearch;
  double share = 0.0;
  const Plan* first = nullptr;
  /// While it searches: what it has found so far, and for which problem. Null elsewhere; valid during the call.
  const Incumbents* found = nullptr;
  const PlanProblem* problem = nullptr;
};

/// The costs and the memory that limit the plan, one per line.
[[nodiscard]] std::vector<std::string> limits(const PlanProblem& problem, const Plan& plan);

/// Adds plans from another search of the same problem and sorts the answer again: the fastest plan of each layout, at
/// most `top`, with their leads and the Pareto front.
void take(std::vector<Plan> plans, std::int64_t top, PlanResult& result);
/// The plans that no other plan beats in both time and memory, fastest first.
[[nodiscard]] std::vector<Plan> pareto_of(std::vector<Plan> plans);
/// The plan as a run. write_run() (planner/run/run_file.h) makes a run file of it.
[[nodiscard]] Run run_of(const PlanProblem& problem, const Plan& plan);

/// Predicts a solution. Throws std::logic_error if it breaks a rule, does not fit or takes another time than the search
/// found, which is a bug of the search.
[[nodiscard]] Plan to_plan(const PlanProblem& problem, const Solution& solution);
/// A table of the log, one line for each strategy.
[[nodiscard]] std::string log_text(const PlanResult& result);

}  // namespace foldwise::planner

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
  costmodel::Imbalance imbalance;  ///< Fits into the device too, without headroom.
  std::vector<std::string> why;    ///< What limits it.
  std::string lead;                ///< What it wins over the next plan by; empty: it is the last.
  std::string preferred{};         ///< Why it comes first though another is as fast or faster; else empty.
  /// Its step at the host's prices of virtual machines (HostSpec::of_virtual_machine); explain() fills it. None: the
  /// system's are measured.
  std::optional<Seconds> on_virtual_machine{};
};

/// A plainer choice than the first plan's, and the fastest plan that was found with it, all else chosen anew.
struct Alternative {
  std::string choice;                                      ///< "no CUDA graphs".
  std::map<std::string, std::vector<nlohmann::json>> set;  ///< What fields it leaves which values.
  std::optional<Plan> plan;                                ///< None: nothing that fits was found.
};

/// A plan that does not fit.
struct NearMiss {
  Plan plan;
  std::size_t stage = 0;      ///< The pipeline rank that needs most.
  Bytes over{}, host_over{};  ///< What it needs more than a plan may use, of the device and of the host.
};

/// The question with other sizes, under which a plan was found.
struct WayOut {
  std::int64_t num_gpus = 1, global_batch = 1, seq_len = 1;
  Plan plan;
};

/// Why nothing fits.
struct Shortage {
  enum class Cause : std::uint8_t {
    kDevice,  ///< Memory of the GPU: with more of it something fits.
    kHost,    ///< Memory of the host, likewise.
    kRules,   ///< Nothing was found with any memory: rules refuse it.
  };
  Cause cause = Cause::kRules;
  std::vector<NearMiss> nearest;  ///< Of different layouts, those that need least first; at most three.
  std::vector<WayOut> ways;       ///< More GPUs, another batch, shorter sequences: the least change of each that helps.
};

/// The work and the gains of a strategy in one search.
struct StrategyUse {
  std::int64_t steps = 0;   ///< Times that its turn came.
  std::int64_t moves = 0;   ///< Nodes that it explored and candidates that it tried.
  std::int64_t effort = 0;  ///< Microseconds of a core, about.
  std::int64_t gains = 0;   ///< Steps that made the first plan faster,
  Seconds gained{};         ///< and by how much in all; where there was none before, by nothing.
  StrategyUse& operator+=(const StrategyUse& other);
};
using SearchLog = std::array<StrategyUse, kStrategies>;  ///< [StrategyName]

struct PlanResult {
  /// Candidates of the space, and those among them that were never looked at because a bound proves that they are
  /// slower than the answer.
  double enumerated = 0.0;
  std::int64_t nodes = 0;      ///< Partial decisions that were bounded.
  std::int64_t composed = 0;   ///< Candidates, splits of layers counted, whose costs were added up.
  std::int64_t fitting = 0;    ///< Of them, those that fit.
  std::int64_t simulated = 0;  ///< Of them, those whose schedule was run.
  SearchLog log{};             ///< The work of each strategy.
  double seconds = 0.0;
  /// That nothing is faster than the first plan, by more than 0.01 % (docs/search.md#answer); false: the search ended
  /// before that.
  bool proven = true;
  Seconds least{};           ///< Nothing is faster than this.
  std::int64_t effort = 0;   ///< Microseconds of a core, about: counted, not measured.
  AllocatorReserve reserve;  ///< Learnt (PlanProblem::reserve); what belongs to this answer has it in its problem.
  /// Candidates, most first; memory is "memory.fits", and at the 99th percentile of routing "memory.fits_at_p99".
  std::vector<std::pair<std::string, double>> rejected_by_rule;
  bool refused = false;                ///< Rules refuse every candidate, whatever memory it needs; false: not known so.
  std::vector<Plan> plans;             ///< The best candidate of each layout, fastest first; at most `top`.
  std::vector<Plan> pareto;            ///< Those of `plans` that none beats in both time and memory.
  Evidence evidence = Evidence::kAny;  ///< What of the plans was measured: PlanProblem::evidence, or less.
  /// Faster ones of which less was measured, fastest first; find_unproven() fills it.
  std::vector<Plan> unproven;
  std::vector<Alternative> alternatives;  ///< To what the first plan chooses; explain() fills it.
  /// What the other type of the optimizer's states would give, which a plan keeps because it changes what is computed;
  /// explain() fills it. None: the question names one.
  std::optional<Alternative> other_states;
  std::optional<Shortage> shortage;  ///< Set by explain() where nothing was found.
  double explained_seconds = 0.0;    ///< That explain() took.
};

/// What the work of an answer consists of, in order.
enum class Work : std::uint8_t { kSearch, kAlternatives, kHosts, kStates, kUnproven, kList };
/// Told what is being done and which share of that is; returns whether to go on.
using Doing = std::function<bool(Work, double done)>;

/// How far a search is. Reported by one thread at a time.
struct Progress {
  double effort = 0.0;  ///< Share of PlanProblem::effort: at 1 the search ends, proven or not.
  Seconds best{};       ///< Step time of the best plan so far; 0: none yet.
  Seconds least{};      ///< No plan is faster.
  /// Of the whole answer, as foldwise::plan() knows it: the share of its work that is done, and from the end of the
  /// search on its first plan, which explanations may still replace.
  Work work = Work::kSearch;
  double share = 0.0;
  const Plan* first = nullptr;
};

/// The costs and the memory that limit the plan, a line each.
[[nodiscard]] std::vector<std::string> limits(const PlanProblem& problem, const Plan& plan);

/// Adds plans that another search of the problem found and puts the answer in order: the fastest of each layout, at
/// most `top`, their leads, and which of them no other beats.
void take(std::vector<Plan> plans, std::int64_t top, PlanResult& result);
/// Those that no other beats in both time and memory, fastest first.
[[nodiscard]] std::vector<Plan> pareto_of(std::vector<Plan> plans);
/// The plan as a run that write_run() (planner/run/run_file.h) makes a run file of.
[[nodiscard]] Run run_of(const PlanProblem& problem, const Plan& plan);

/// A solution, predicted. Throws std::logic_error if it breaks a rule, does not fit or takes another time: a mistake of
/// the search.
[[nodiscard]] Plan to_plan(const PlanProblem& problem, const Solution& solution);
/// A table of the log, with a line for each strategy.
[[nodiscard]] std::string log_text(const PlanResult& result);

}  // namespace foldwise::planner

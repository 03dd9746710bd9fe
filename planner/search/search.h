#pragma once
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
#include "planner/search/best.h"
#include "planner/search/space.h"

namespace foldwise::planner {

class SharedCosts;

struct Plan {
  Digits digits;  ///< Of the candidate.
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

struct PlanResult {
  /// Candidates of the space, and those among them that were never looked at because a bound proves that they are
  /// slower than the answer.
  double enumerated = 0.0;
  std::int64_t nodes = 0;      ///< Partial decisions that were bounded.
  std::int64_t composed = 0;   ///< Candidates, splits of layers counted, whose costs were added up.
  std::int64_t fitting = 0;    ///< Of them, those that fit.
  std::int64_t simulated = 0;  ///< Of them, those whose schedule was run.
  double seconds = 0.0;
  /// That nothing is faster than the first plan, by more than 0.01 % (docs/design.md#search); false: the search ended
  /// before that.
  bool proven = true;
  Seconds least{};          ///< Nothing is faster than this.
  std::int64_t effort = 0;  ///< Microseconds of a core, about: counted, not measured.
  Pending pending;          ///< Learnt (PlanProblem::pending); what belongs to this answer has it in its problem.
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

/// Replays a plan's allocations (docs/memory.md#reserved) into its prediction: whether torch runs out of memory, or
/// must give memory back in every step, on a device 3 % smaller than it is. Then Prediction::fits is whether it runs on
/// the whole one.
[[nodiscard]] bool reserves_too_much(const PlanProblem& problem, Plan& plan);

/// Finds the fastest candidate that breaks no rule and fits, by branch and bound: if it is `proven`, it is the one that
/// predicting every candidate would give (tests/search_test.cc). The answer does not depend on the number of threads.
/// Of other layouts it lists the fastest that it found: none of them has a candidate that is more than 5 % faster.
/// A plan that torch's allocator has no room for is none (reserves_too_much): where the first is such a plan, it is
/// searched again with what that one lacks in what counts as needed; then nothing is proven. `progress` returns whether
/// to go on; if not, the answer is the best so far and `proven` is false. `shared`: with other searches. `known`:
/// candidates that fit, to start from.
[[nodiscard]] PlanResult plan(const PlanProblem& problem, const std::function<bool(const Progress&)>& progress = {},
                              SharedCosts* shared = nullptr, const std::vector<Found>& known = {});

/// The fastest plan, if any, that changes of one field, or of two by the next value each, make of the fastest start,
/// while one is faster and less than `most` is spent (as PlanProblem::effort counts). A start of infinite time may
/// break rules or not fit.
[[nodiscard]] PlanResult changed(const PlanProblem& problem, const std::vector<Found>& starts, std::int64_t most,
                                 SharedCosts& costs);

/// What limits the plan, a line each.
[[nodiscard]] std::vector<std::string> limits(const PlanProblem& problem, const Plan& plan);

/// Adds plans that another search of the problem found and puts the answer in order: the fastest of each layout, at
/// most `top`, their leads, and which of them no other beats.
void take(std::vector<Plan> plans, std::int64_t top, PlanResult& result);
/// Those that no other beats in both time and memory, fastest first.
[[nodiscard]] std::vector<Plan> pareto_of(std::vector<Plan> plans);
/// The plan as a run that write_run() (planner/run/run_file.h) makes a run file of.
[[nodiscard]] Run run_of(const PlanProblem& problem, const Plan& plan);

/// A candidate of the space as options, before its layers are split; nothing if it repeats another one.
[[nodiscard]] std::optional<costmodel::TrainingOptions> candidate(const PlanProblem& problem, const Bases& bases,
                                                                  const Digits& digits);

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/step/prediction.h"
#include "costmodel/step/step.h"
#include "planner/rules/rules.h"
#include "planner/run/run_file.h"
#include "planner/search/search.h"
#include "planner/search/why_not.h"

// Foldwise as a library: what the commands `predict` and `plan` do, as functions on values.
//
//   const foldwise::Run run = foldwise::load_run("run.json");
//   for (const foldwise::Rejection& rejection : foldwise::check(run)) ...
//   const foldwise::Prediction prediction = foldwise::predict(run);  // prediction.step_time.to<double>() seconds
//
// Seconds and Bytes carry their units (costmodel/units/units.h). Functions of equal arguments give equal results, keep
// no state and may run side by side. A mistake of the caller's input throws ConfigError, whose messages name file,
// line, field, what was expected and what was found, all mistakes at once; std::logic_error is a bug of ours.
namespace foldwise {

using config::ConfigError;
using costmodel::Hardware;    ///< A system: GPU, network, host, and the curves of both.
using costmodel::ModelSpec;   ///< A model: its layers and sizes.
using costmodel::Prediction;  ///< Of one training step: time, memory and where both go.
using costmodel::Step;
using costmodel::TrainingOptions;  ///< How Megatron is told to run it.
using planner::Plan;
using planner::PlanProblem;
using planner::PlanResult;
using planner::Rejection;
using planner::Run;  ///< Model, system, number of GPUs and options together: a run file.

/// `name` is a built-in model or the path of a Hugging Face config.json.
[[nodiscard]] ModelSpec load_model(const std::string& name);
/// `name` is a built-in system or the path of a profile.
[[nodiscard]] Hardware load_system(const std::string& name);

/// Reads a run file (docs/run-file.md). Its model and system may be changed afterwards, like everything in it. With a
/// `release` it is that one's run, whatever the file says.
[[nodiscard]] Run load_run(const std::string& path, const planner::Release* release = nullptr);
/// The same from text; `name` stands for the file in messages.
[[nodiscard]] Run parse_run(std::string_view text, const std::string& name = "run");

/// What Megatron or the GPU would refuse about it, every violated rule; none: it can be predicted.
[[nodiscard]] std::vector<Rejection> check(const Run& run);

/// Its step, composed once for everything that is read off it: predict(step), its timeline, its reports
/// (costmodel/step). Refers to `run`, which must outlive it. Throws ConfigError with what check() finds.
[[nodiscard]] Step compose(const Run& run);

/// One step. Throws ConfigError with what check() finds. Whether it fits into memory is part of the answer.
[[nodiscard]] Prediction predict(const Run& run);
/// The same of a run that is composed; without detail, the parts of ranks stay empty (costmodel/step/prediction.h). A
/// bug of ours says the run in which it shows.
[[nodiscard]] Prediction predict(const Run& run, const Step& step, bool with_detail = true);

/// What `plan` is asked for.
struct PlanRequest {
  std::string model, system;  ///< As load_model and load_system read them.
  std::string release{};      ///< Of Megatron-Core, that plans run with; empty: the newest one with a number.
  std::int64_t num_gpus = 0;
  std::int64_t seq_len = 4096;                   ///< Tokens.
  std::int64_t global_batch = 4096;              ///< Sequences.
  std::vector<costmodel::Precision> precisions;  ///< To choose from; empty: MXFP8 where the GPU has it, else bf16.
  bool all_precisions = false;                   ///< Every one that the GPU has but FP16, instead.
  costmodel::Schedule schedule = costmodel::Schedule::kOneF1B;
  /// Values of fields (docs/run-file.md) that a plan may have, as typed on a command line: {{"tp", {"2", "4"}},
  /// {"optimizer.name", {"sgd"}}}. A list of names is joined by "+". What a run file states about its model takes one
  /// value: "mtp", "mtp_use_repeated_layer", and "model_overrides.KEY", a value in JSON; so does a number of the
  /// system's profile: "system.hbm.capacity", "192 GiB".
  std::map<std::string, std::vector<std::string>> set{};
  /// What of a plan must have been measured. Where no plan is then found, the next level is taken.
  planner::Evidence evidence = planner::Evidence::kRun;
  double headroom = 0.05;  ///< Share of the device's memory that a plan leaves free.
  bool folding = true;     ///< False: experts take attention's TP, and EP divides DP.
};
/// The search that answers it: every field that the table of fields gives values to try, and what the newest set of
/// defaults of Megatron-Bridge says of the others. ConfigError: no such model or system, a precision that the GPU
/// lacks, a field that is none or none of its values, sizes that no candidate can have together
/// (search/contradiction.h).
[[nodiscard]] PlanProblem plan_problem(const PlanRequest& request);

/// The question that a run answers: its model, system, GPUs, sequences and schedule, and everything that a search does
/// not choose (the fields without Field::tried) as the run has it, but for `set`, as PlanRequest's. Without headroom.
[[nodiscard]] PlanProblem question_of(const Run& run, const std::map<std::string, std::vector<std::string>>& set = {});

/// Of a problem all of whose candidates rules refuse (PlanResult::refused): why, by the one that least speaks against.
[[nodiscard]] ConfigError no_candidate_is_valid(const PlanProblem& problem);

/// Leaves only candidates of which as much was measured, or of the next level if none of them is legal.
void ask_evidence(planner::Evidence evidence, PlanProblem& problem);

/// Layouts that the first plan is chosen among, however many are listed. Longer lists are searched for in sizes of ten
/// times as many, so that each is the start of every longer one.
inline constexpr std::int64_t kChosenAmong = 10;

/// Fastest layouts that fit, best first, and what the first one's choices earn; none: nothing fits, and why. Where
/// nothing fits of which as much was measured as the problem asks for, the next level is searched
/// (PlanResult::evidence).
/// `progress` is called from time to time, from any thread, and returns whether to go on.
[[nodiscard]] PlanResult plan(const PlanProblem& problem,
                              const std::function<bool(const planner::Progress&)>& progress = {});

/// plan() without its explanations, which take several times as long as the search: the first plan is the one that the
/// search finds, chosen for plainness and for any host as there. Of a problem that nothing fits, `shortage` has the
/// nearest misses.
[[nodiscard]] PlanResult first_plan(const PlanProblem& problem,
                                    const std::function<bool(const planner::Progress&)>& progress = {});

/// What why_not() (planner/search/why_not.h) is asked about a plan's problem, as PlanRequest::set but nothing of the
/// model. ConfigError: a field that is none, or none of its values.
[[nodiscard]] planner::Asked read_question(const std::map<std::string, std::vector<std::string>>& texts);

/// The run file of one of its plans: JSON that parse_run() reads back.
[[nodiscard]] std::string run_file(const PlanProblem& problem, const Plan& plan);

}  // namespace foldwise

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/cli/plan_arguments.h"
#include "planner/foldwise.h"
#include "planner/report/plan_report.h"
#include "planner/run/names.h"
#include "planner/search/objective.h"

namespace foldwise::cli {
namespace {

struct PlanOptions : PlanArguments {
  std::vector<std::string> sets;
  std::string objective = "time";
  std::optional<double> max_step_time;  ///< Seconds.
  double slack_pct = 5.0;
  CostArguments cost;
  std::string format = "text";
};

volatile std::sig_atomic_t interrupted = 0;

/// Ctrl-C ends the search with what it has, a second one the program.
std::function<bool(const planner::Progress&)> progress_line() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
  const bool terminal = isatty(STDERR_FILENO) != 0;  // Nothing in a file or a pipe.
  return [terminal, start = std::chrono::steady_clock::now()](const planner::Progress& progress) {
    if (terminal && std::chrono::steady_clock::now() - start > std::chrono::seconds(2))
      fmt::print(stderr, "\r{:3.0f} % of the effort: best so far {:.4g} s, none below {:.4g} s  ",
                 100.0 * std::min(1.0, progress.effort), progress.best.to<double>(), progress.least.to<double>());
    return interrupted == 0;
  };
}

void check_ranges(const PlanOptions& options, config::Diagnostics& diagnostics) {
  check_range("--slack", options.slack_pct, 0.0, 1000.0, diagnostics);
  if (options.max_step_time) check_range("--max-step-time", *options.max_step_time, 1e-6, 1e9, diagnostics);
}

/// What one option says about another.
void check_objective(const PlanOptions& options, bool slack_given, config::Diagnostics& diagnostics) {
  const auto mistake = [&](const char* option, const char* message) {
    diagnostics.error({"command line", 0, option}, message);
  };
  if (options.objective == "gpus" && !options.max_step_time)
    mistake("--objective gpus", "needs --max-step-time SECONDS");
  if (options.objective == "time" && options.max_step_time)
    mistake("--max-step-time", "belongs to --objective memory or gpus");
  if (options.objective != "memory" && slack_given) mistake("--slack", "belongs to --objective memory");
  if (options.objective == "memory" && slack_given && options.max_step_time)
    mistake("--slack", "contradicts --max-step-time: give one of them");
}

/// The request's problem with the options of the search. Throws ConfigError with the mistakes in `diagnostics` too.
planner::PlanProblem problem_of(const PlanOptions& options, const foldwise::PlanRequest& request,
                                config::Diagnostics diagnostics = {}) {
  planner::PlanProblem problem;
  try {
    problem = foldwise::plan_problem(request);
  } catch (const config::ConfigError& error) {
    diagnostics.add(error);
  }
  diagnostics.throw_if_any();
  problem.top = options.top;
  problem.threads = options.threads;
  problem.effort = effort_of(options);
  return problem;
}

/// Adds what a training by each plan costs to its answer.
void add_training(const planner::LongRun& question, const planner::PlanProblem& problem,
                  const planner::PlanResult& result, nlohmann::json& answer) {
  for (std::size_t i = 0; i < result.plans.size(); ++i) {
    const planner::Plan& plan = result.plans[i];
    answer["plans"][i]["training"] = planner::training_cost_json(
        question, planner::training_cost(question, planner::run_of(problem, plan), plan.prediction));
  }
}

/// Of the first plan.
std::string training_text(const planner::LongRun& question, const planner::PlanProblem& problem,
                          const planner::PlanResult& result) {
  if (result.plans.empty()) return "";
  const planner::Plan& best = result.plans.front();
  return "\nWith the first plan. " +
         planner::training_cost_text(question,
                                     planner::training_cost(question, planner::run_of(problem, best), best.prediction));
}

int plan(const PlanOptions& options, bool slack_given) {
  config::Diagnostics diagnostics;
  foldwise::PlanRequest request = request_of(options, diagnostics);
  for (auto& [key, values] : read_sets("--set", options.sets, diagnostics))
    if (!request.set.emplace(key, std::move(values)).second)
      diagnostics.error({"command line", 0, "--set " + key}, "given twice");
  check_ranges(options, diagnostics);
  check_objective(options, slack_given, diagnostics);
  const std::optional<planner::LongRun> training = long_run(options.cost, diagnostics);
  const planner::PlanProblem problem = problem_of(options, request, diagnostics);

  const auto print = [&](const planner::PlanProblem& asked, const planner::PlanResult& result, const auto& as_json,
                         const auto& as_text) {
    if (options.format == "json") {
      nlohmann::json answer = as_json();
      if (training) add_training(*training, asked, result, answer);
      print_result(answer);
    } else {
      print_result(as_text() + (training ? training_text(*training, asked, result) : ""));
    }
    return result.plans.empty() ? kNothingFits : kDone;
  };
  if (options.objective == "time") {
    const planner::PlanResult result = foldwise::plan(problem, progress_line());
    if (result.refused) throw foldwise::no_candidate_is_valid(problem);
    return print(
        problem, result, [&] { return planner::plan_json(problem, result, planner::built_in_residuals()); },
        [&] { return planner::plan_text(problem, result); });
  }
  const auto limit = options.max_step_time ? std::optional<Seconds>(Seconds{*options.max_step_time}) : std::nullopt;
  const auto of_size = [&](std::int64_t num_gpus) {
    request.num_gpus = num_gpus;
    return problem_of(options, request);
  };
  const planner::Answered answer =
      options.objective == "memory" ? planner::least_memory(problem, limit, options.slack_pct / 100.0, progress_line())
                                    : planner::fewest_gpus(options.gpus, *limit, of_size, progress_line());
  if (answer.result.refused) throw foldwise::no_candidate_is_valid(answer.problem);
  return print(
      answer.problem, answer.result,
      [&] { return planner::answer_json(answer, options.objective, planner::built_in_residuals()); },
      [&] { return planner::answer_text(answer, options.objective); });
}

}  // namespace

void add_plan(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Find the fastest layout that fits");
  add_plan_arguments(*command, *options);
  command->add_option("--set", options->sets,
                      "Values that a field may have: tp=1,2,4; any field of a run file. Of the "
                      "model one value: mtp=0, model_overrides.num_hidden_layers=12");
  command
      ->add_option("--objective", options->objective,
                   "Fastest; least memory within a step time; fewest GPUs within a step time")
      ->check(CLI::IsMember({"time", "memory", "gpus"}))
      ->capture_default_str();
  command->add_option("--max-step-time", options->max_step_time, "Seconds that a step may take");
  CLI::Option* slack = command
                           ->add_option("--slack", options->slack_pct,
                                        "Percent that the plan of least memory may be slower than the fastest")
                           ->capture_default_str();
  add_cost_arguments(*command, options->cost);
  add_format(*command, options->format);
  command->callback(
      [options, slack, &chosen] { chosen = [options, given = slack->count() > 0] { return plan(*options, given); }; });
}

}  // namespace foldwise::cli

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/output_file.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/import.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/foldwise.h"
#include "planner/launch/arguments.h"
#include "planner/launch/export.h"
#include "planner/report/comparison.h"
#include "planner/report/insight_report.h"
#include "planner/report/plan_report.h"
#include "planner/run/names.h"
#include "planner/search/objective.h"
#include "planner/search/sensitivity.h"

namespace foldwise::cli {
namespace {

struct PlanOptions : PlanArguments {
  std::vector<std::string> sets;
  std::vector<std::string> why_not;  ///< "tp=4,pp=8": a question each.
  std::string objective = "time";
  std::optional<double> max_step_time;  ///< Seconds.
  double slack_pct = 5.0;
  CostArguments cost;
  std::string from, out, html;  ///< Paths; empty: not given.
  std::string format = "text";
};

/// "key=value,key=value" of each --why-not.
std::vector<planner::Asked> read_questions(const PlanOptions& options, config::Diagnostics& diagnostics) {
  std::vector<planner::Asked> questions;
  for (const std::string& text : options.why_not) {
    std::map<std::string, std::vector<std::string>> parts;
    for (const std::string& part : CLI::detail::split(text, ',')) {
      const std::size_t equals = part.find('=');
      if (equals == std::string::npos || equals == 0)
        diagnostics.error({"command line", 0, "--why-not"}, fmt::format("expected key=value, found \"{}\"", part));
      else if (!parts.emplace(part.substr(0, equals), std::vector{part.substr(equals + 1)}).second)
        diagnostics.error({"command line", 0, "--why-not " + part.substr(0, equals)}, "given twice");
    }
    try {
      questions.push_back(foldwise::read_question(parts));
    } catch (const config::ConfigError& error) {
      diagnostics.add(error);
    }
  }
  return questions;
}

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

/// Arguments and Slurm job of a plan for the release whose rules the model keeps, else for the development branch:
/// STEM.flags, .sbatch. What a release lacks stands on stderr.
void write_launch(const std::string& stem, const planner::Run& run) {
  std::string lacking;
  for (const std::string& release : {std::string(planner::kRelease), planner::releases().back()}) {
    try {
      const planner::Launch launch = planner::launch_of(run, release);
      config::write_output_file(stem + ".flags", planner::launch_text(launch, planner::LaunchTarget::kMegatronLm));
      config::write_output_file(stem + ".sbatch", planner::launch_text(launch, planner::LaunchTarget::kSlurm));
      if (!lacking.empty())
        fmt::print(stderr, "{}.flags, .sbatch: for Megatron-Core {}, because:\n{}\n", stem, release, lacking);
      return;
    } catch (const config::ConfigError& refused) {
      lacking += (lacking.empty() ? "" : "\n") + std::string(refused.what());
    }
  }
  fmt::print(stderr, "{}: no arguments start it:\n{}\n", stem, lacking);
}

/// Run file and launch of each plan: DIR/plan-1.json, .flags, .sbatch.
void write_plans(const std::string& directory, const planner::PlanProblem& problem,
                 const std::vector<planner::Plan>& plans) {
  if (directory.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw config::ConfigError({{{directory, 0, "--out"}, "cannot be made: " + error.message()}});
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::string stem = fmt::format("{}/plan-{}", directory, i + 1), text = foldwise::run_file(problem, plans[i]);
    config::write_output_file(stem + ".json", text + '\n');
    write_launch(stem, foldwise::parse_run(text, stem + ".json"));
  }
}

/// The question that the run of --from answers, with this command's effort.
planner::PlanProblem problem_from(const PlanOptions& options, const planner::Run& run) {
  planner::PlanProblem problem = foldwise::question_of(run);
  problem.headroom = options.headroom_pct / 100.0;
  problem.folding = !options.no_folding;
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

std::vector<planner::Picture> schedule_of_first(const planner::PlanProblem& problem,
                                                const planner::PlanResult& result) {
  if (result.plans.empty()) return {};
  const planner::Run run = planner::run_of(problem, result.plans.front());
  return {schedule_picture(run, foldwise::compose(run), result.plans.front().prediction)};
}

int plan(const PlanOptions& options, bool slack_given, bool system_given) {
  config::Diagnostics diagnostics;
  foldwise::PlanRequest request = request_of(options, diagnostics);
  for (auto& [key, values] : read_sets("--set", options.sets, diagnostics))
    if (!request.set.emplace(key, std::move(values)).second)
      diagnostics.error({"command line", 0, "--set " + key}, "given twice");
  const std::vector<planner::Asked> questions = read_questions(options, diagnostics);
  check_ranges(options, diagnostics);
  check_objective(options, slack_given, diagnostics);
  const std::optional<planner::LongRun> training = long_run(options.cost, diagnostics);
  if (!options.from.empty() && (!request.set.empty() || options.objective != "time"))
    diagnostics.error({"command line", 0, "--from"},
                      "asks for the fastest plan of that run's question: it excludes "
                      "--set, --pin and --objective");
  std::optional<planner::ComparedRun> today;
  if (!options.from.empty()) {
    diagnostics.throw_if_any();
    planner::Run run = run_from(options.from, system_given ? options.system : "");
    costmodel::Prediction prediction = foldwise::predict(run);
    today = {std::move(run), std::move(prediction)};
  }
  const planner::PlanProblem problem =
      today ? problem_from(options, today->run) : problem_of(options, request, diagnostics);

  const auto print = [&](const planner::PlanProblem& of, const planner::PlanResult& result, const auto& as_json,
                         const auto& as_text) {
    write_plans(options.out, of, result.plans);
    std::optional<planner::Insight> insight;
    if (!result.plans.empty()) {
      const planner::Plan& first = result.plans.front();
      insight = planner::insight(planner::rule_problem(of), first.options, first.prediction, of.headroom);
    }
    std::vector<planner::WhyNot> whys;
    whys.reserve(questions.size());
    for (const planner::Asked& question : questions)
      whys.push_back(planner::why_not(of, question, [] { return interrupted == 0; }));
    std::vector<planner::ComparedRun> pair;  // What runs today and the first plan.
    if (today && !result.plans.empty())
      pair = {*today, {planner::run_of(of, result.plans.front()), result.plans.front().prediction}};
    const std::string report = options.out.empty() ? "" : options.out + "/report.html";
    const bool has_page = !options.html.empty() || !report.empty(), in_json = options.format == "json";
    nlohmann::json whole;
    if (has_page || in_json) {
      whole = as_json();
      whole["explain"] =
          insight ? planner::insight_json(result.plans.front().prediction, *insight) : nlohmann::json(nullptr);
      whole["why_not"] = nlohmann::json::array();
      for (const planner::WhyNot& why : whys) whole["why_not"].push_back(planner::why_not_json(of, result, why));
      if (training) add_training(*training, of, result, whole);
      if (!pair.empty()) whole["from"] = planner::comparison_json(pair, planner::built_in_residuals());
    }
    if (has_page) {
      const std::vector<planner::Picture> pictures = schedule_of_first(of, result);
      for (const std::string& page : {options.html, report}) write_page(page, "plan", whole, pictures);
    }
    if (in_json) {
      print_result(whole);
    } else {
      std::string answer = as_text();
      if (insight) answer += '\n' + planner::insight_text(result.plans.front().prediction, *insight);
      for (const planner::WhyNot& why : whys) answer += '\n' + planner::why_not_text(of, result, why);
      if (training) answer += training_text(*training, of, result);
      if (!pair.empty())
        answer += fmt::format("\n{} against the first plan\n{}", options.from,
                              planner::comparison_text(pair, planner::built_in_residuals()));
      print_result(answer);
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
  command->add_option("--why-not", options->why_not,
                      "Why a layout is no plan: tp=4,pp=8; the rule, the memory that it lacks, or what it loses");
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
  command
      ->add_option("--from", options->from,
                   "A run whose question is asked: its model, system, GPUs, batch and numerics; a run file, or what "
                   "import reads")
      ->check(CLI::ExistingFile);
  add_output_folder(*command, "--out", options->out,
                    "Directory for run file, arguments and Slurm job of each plan, and the page of --html");
  add_html(*command, options->html);
  add_format(*command, options->format);
  const CLI::Option* system = command->get_option("--system");
  command->callback([options, slack, system, &chosen] {
    chosen = [options, slack_given = slack->count() > 0, system_given = system->count() > 0] {
      return plan(*options, slack_given, system_given);
    };
  });
}

}  // namespace foldwise::cli

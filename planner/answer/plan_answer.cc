#include "planner/answer/plan_answer.h"

#include <tbb/parallel_invoke.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/step/reserved_memory.h"
#include "planner/answer/run_answer.h"
#include "planner/report/explanation.h"
#include "planner/report/insight_report.h"
#include "planner/report/plan_report.h"
#include "planner/report/prediction_report.h"
#include "planner/rules/rules.h"
#include "planner/run/release.h"
#include "planner/search/threads.h"
#include "planner/uncertainty/error_model.h"

namespace foldwise::planner {
namespace {

constexpr double kMostSuggestions = 100.0;

std::vector<Asked> read_questions(const PlanAsked& asked, config::Diagnostics& diagnostics) {
  std::vector<Asked> questions;
  for (const PlanAsked::Values& texts : asked.why_not) {
    try {
      questions.push_back(foldwise::read_question(texts));
    } catch (const ConfigError& error) {
      diagnostics.add(error);
    }
  }
  return questions;
}

void check_ranges(const PlanAsked& asked, config::Diagnostics& diagnostics) {
  if (asked.slack_pct) check_range("slack", *asked.slack_pct, 0.0, 1000.0, diagnostics);
  check_range("suggest", static_cast<double>(asked.decision.suggest), 0.0, kMostSuggestions, diagnostics);
  check_range("suggest_gpus", static_cast<double>(asked.decision.suggest_gpus), 0.0, 1e9, diagnostics);
  if (asked.max_step_time) check_range("max_step_time", *asked.max_step_time, 1e-6, 1e9, diagnostics);
}

/// Reports arguments that contradict the objective.
void check_objective(const PlanAsked& asked, config::Diagnostics& diagnostics) {
  const auto mistake = [&](const char* option, const char* message) {
    diagnostics.error({config::kArguments, 0, option}, message);
  };
  if (asked.objective == "gpus" && !asked.max_step_time) mistake("objective gpus", "needs --max-step-time SECONDS");
  if (asked.objective == "time" && asked.max_step_time)
    mistake("max_step_time", "belongs to --objective memory or gpus");
  if (asked.objective != "memory" && asked.slack_pct) mistake("slack", "belongs to --objective memory");
  if (asked.decision.suggest_gpus > 0 && asked.decision.suggest == 0) mistake("suggest_gpus", "belongs to --suggest");
  if (asked.objective == "memory" && asked.slack_pct && asked.max_step_time)
    mistake("slack", "contradicts --max-step-time: give one of them");
}

void set_search(const PlanAsked& asked, PlanProblem& problem) {
  problem.top = asked.top;
  problem.threads = asked.threads;
  problem.effort = effort_of(asked);
}

/// The problem of the request. Throws ConfigError with its mistakes and those in `diagnostics`.
PlanProblem problem_of(const PlanAsked& asked, const PlanRequest& request, config::Diagnostics diagnostics = {}) {
  PlanProblem problem;
  try {
    problem = foldwise::plan_problem(request);
  } catch (const ConfigError& error) {
    diagnostics.add(error);
  }
  diagnostics.throw_if_any();
  set_search(asked, problem);
  return problem;
}

/// The run in the release that is asked for, else in its own, else in the newest numbered one that accepts it.
Run asked_in(const Run& run, const std::string& name) {
  if (!name.empty()) {
    if (const std::string wrong = mistake_in_release(name); !wrong.empty())
      throw ConfigError({{{config::kArguments, 0, "release"}, wrong}});
    return in_release(run, *find_release(name));
  }
  if (run.release != nullptr) return run;
  for (const Release* release : numbered_releases()) try {
      Run read = in_release(run, *release);
      if (violations(read).empty()) return read;
    } catch (const ConfigError&) {
      continue;
    }
  return in_release(run, newest_release());
}

/// The question that a run answers, with the effort of these arguments.
PlanProblem problem_from(const Run& run, const PlanAsked& asked, const PlanRequest& request) {
  config::Diagnostics diagnostics;
  check_range("headroom", asked.headroom_pct, 0.0, 99.0, diagnostics);
  diagnostics.throw_if_any();
  PlanProblem problem = foldwise::question_of(run, request.set);
  problem.headroom = asked.headroom_pct / 100.0;
  problem.folding = !asked.no_folding;
  foldwise::ask_evidence(request.evidence, problem);
  set_search(asked, problem);
  return problem;
}

Answered searched(const PlanAsked& asked, PlanRequest request, PlanProblem problem, const Report& progress) {
  if (asked.objective == "time") {
    PlanResult result = foldwise::plan(problem, progress);
    problem.evidence = result.evidence;
    return {.problem = std::move(problem), .result = std::move(result)};
  }
  const auto limit = asked.max_step_time ? std::optional<Seconds>(Seconds{*asked.max_step_time}) : std::nullopt;
  if (asked.objective == "memory")
    return least_memory(problem, limit, asked.slack_pct.value_or(kSlackPct) / 100.0, progress);
  const auto of_size = [&](std::int64_t num_gpus) {
    request.num_gpus = num_gpus;
    return problem_of(asked, request);
  };
  return fewest_gpus(asked.gpus, *limit, of_size, progress);
}

/// Adds the cost of a training to the answer's plans.
void add_training(const PlanAnswer& answer, nlohmann::json& plans) {
  const std::vector<Plan>& list = answer.answered.result.plans;
  for (std::size_t i = 0; i < list.size(); ++i)
    plans[i]["training"] = training_cost_json(
        *answer.training,
        training_cost(*answer.training, run_of(answer.answered.problem, list[i]), list[i].prediction));
}

/// The problem; mistakes in what was pinned are said of the pin.
PlanProblem with_pins(const std::set<std::string>& pinned, const std::function<PlanProblem()>& make) {
  try {
    return make();
  } catch (const config::ConfigError& error) {
    std::vector<config::Diagnostic> mistakes = error.diagnostics();
    for (config::Diagnostic& mistake : mistakes)
      if (std::string& field = mistake.where.field;
          mistake.where.file == config::kArguments && field.starts_with("set ") && pinned.contains(field.substr(4)))
        field.replace(0, 3, "pin");
    throw config::ConfigError(std::move(mistakes));
  }
}

}  // namespace

PlanAnswer plan_answer(const PlanAsked& asked, config::Diagnostics diagnostics, const Report& progress) {
  PlanRequest request = request_of(asked, diagnostics);
  std::set<std::string> pinned;
  for (const auto& entry : request.set) pinned.insert(entry.first);
  for (const auto& [key, values] : asked.set)
    if (!request.set.emplace(key, values).second)
      diagnostics.error({config::kArguments, 0, "set " + key}, "given twice");
  const std::vector<Asked> questions = read_questions(asked, diagnostics);
  check_ranges(asked, diagnostics);
  check_objective(asked, diagnostics);
  PlanAnswer answer;
  answer.objective = asked.objective;
  answer.training = long_run(asked.cost, diagnostics);
  if (asked.from && asked.objective != "time")
    diagnostics.error({config::kArguments, 0, "from"},
                      "asks for the fastest plan of that run's question: it excludes --objective");
  std::optional<ComparedRun> today;  // Predicted before the search, so that a mistake in it is reported at once.
  if (asked.from) {
    diagnostics.throw_if_any();
    today = compared(asked_in(*asked.from, asked.release));
  }
  const PlanProblem problem = with_pins(pinned, [&] {
    return today ? problem_from(today->run, asked, request) : problem_of(asked, request, diagnostics);
  });
  check_measured(asked.decision.measured, problem.system_name);
  answer.answered = searched(asked, request, problem, progress);
  answer.answered.problem.reserve = answer.answered.result.reserve;
  bool first_fits = false;
  if (std::vector<Plan>& plans = answer.answered.result.plans; !plans.empty()) {
    Plan& first = plans.front();
    const costmodel::Hardware& hardware = answer.answered.problem.hardware;
    costmodel::Prediction prediction = first.prediction;
    costmodel::add_reserved(costmodel::compose_step(answer.answered.problem.model, first.options, hardware), prediction,
                            {.segments = false, .each = side_by_side});
    first_fits = prediction.fits;
    if (std::string note = pressed_note(prediction, hardware.hbm_capacity); !note.empty())
      first.why.push_back(std::move(note));
  }
  const PlanResult& result = answer.answered.result;
  const PlanProblem& of = answer.answered.problem;
  if (result.refused) throw foldwise::no_candidate_is_valid(of);
  if (!result.plans.empty()) {
    const std::optional<tbb::global_control> limit = thread_limit(of.threads);
    const Plan& first = result.plans.front();
    tbb::parallel_invoke(
        [&] { answer.insight = insight(rule_problem(of), first.options, first.prediction, of.headroom); },
        [&] { answer.decision = decide(of, result, built_in_errors(), asked.decision); });
  }
  const Progress now{.effort = 1.0, .best = {}, .least = result.least};
  for (const Asked& question : questions)
    answer.why_not.push_back(why_not(of, question, [&] { return !progress || progress(now); }));
  if (today && !result.plans.empty()) {
    ComparedRun first{run_of(of, result.plans.front()), result.plans.front().prediction};
    first.prediction.fits = first_fits;
    answer.from = {*today, std::move(first)};
  }
  return answer;
}

nlohmann::json plan_answer_json(const PlanAnswer& answer) {
  const auto& [problem, result, limit, tried] = answer.answered;
  nlohmann::json json = answer.objective == "time" ? plan_json(problem, result, built_in_errors())
                                                   : answer_json(answer.answered, answer.objective, built_in_errors());
  json["explain"] = answer.insight
                        ? insight_json(result.plans.front().options, result.plans.front().prediction, *answer.insight)
                        : nlohmann::json(nullptr);
  json["decision"] = answer.decision ? decision_json(*answer.decision) : nlohmann::json(nullptr);
  if (answer.decision) {
    json["decision"]["first"] = 1;
    json["decision"]["faster_unproven"] = unproven_json(problem, result);
  }
  json["why_not"] = nlohmann::json::array();
  for (const WhyNot& why : answer.why_not) json["why_not"].push_back(why_not_json(problem, result, why));
  if (answer.training) add_training(answer, json["plans"]);
  if (!answer.from.empty()) json["from"] = comparison_json(answer.from, built_in_errors());
  return json;
}

const Explanations& plan_explanations() {
  static const Explanations list = {{"plans", "every plan with its throughput and all of its choices"},
                                    {"why", "why plan 1 comes first, and what limits it"},
                                    {"sure", "the probability that each plan is the fastest"},
                                    {"alternatives", "what each choice of plan 1 earns"},
                                    {"limits", "what the step is spent on, and what more hardware would give"},
                                    {"pareto", "the plans that no other beats in both time and memory"},
                                    {"assumptions", "what plans take as given"},
                                    {"search", "how it was searched, and what rules rejected"}};
  return list;
}

std::string plan_answer_text(const PlanAnswer& answer, PlanScreen how, const std::vector<std::string>& explain) {
  const PlanProblem& problem = answer.answered.problem;
  const PlanResult& result = answer.answered.result;
  const Screen& screen = how.screen;
  how.about = objective_text(answer.answered, answer.objective);
  how.too_slow = fastest_too_slow(answer.answered) != nullptr;
  std::string text = plan_screen(problem, result, answer.decision, answer.insight, built_in_errors(), how);
  const auto add = [&](const std::string& name, const auto& section) {
    if (!is_asked(explain, name)) return;
    if (const std::string words = section(); !words.empty()) text += '\n' + words;
  };
  if (!result.plans.empty()) {
    add("plans", [&] { return "All plans\n" + plan_table(screen, problem, result, result.plans); });
    add("why", [&] { return why_text(screen, problem, result); });
    add("sure", [&] { return answer.decision ? decision_text(*answer.decision) : ""; });
    add("alternatives", [&] { return alternatives_text(problem, result, screen); });
    add("limits",
        [&] { return answer.insight ? insight_text(result.plans.front().prediction, *answer.insight, screen) : ""; });
    add("pareto", [&] { return pareto_text(screen, problem, result); });
    add("assumptions", [&] { return assumptions_text(screen, problem, result); });
  }
  add("search", [&] { return search_text(screen, answer.answered); });
  if (answer.decision && answer.decision->suggestions) text += '\n' + suggestions_text(*answer.decision);
  for (const WhyNot& why : answer.why_not) text += '\n' + why_not_text(problem, result, why, screen);
  if (answer.training && !result.plans.empty()) {
    const Plan& best = result.plans.front();
    text +=
        "\nWith plan 1. " +
        training_cost_text(*answer.training, training_cost(*answer.training, run_of(problem, best), best.prediction));
  }
  if (!answer.from.empty())
    text += fmt::format("\n{} against plan 1\n{}", answer.from.front().run.file,
                        comparison_text(answer.from, built_in_errors(), screen, explain));
  return text;
}

}  // namespace foldwise::planner

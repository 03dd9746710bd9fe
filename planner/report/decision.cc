#include "planner/report/decision.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "costmodel/step/prediction.h"
#include "costmodel/step/step.h"
#include "planner/report/prediction_report.h"
#include "planner/report/screen.h"
#include "planner/report/validation.h"
#include "planner/rules/rules.h"
#include "planner/uncertainty/beliefs.h"

namespace foldwise::planner {
namespace {

constexpr double kLikely = 0.01;  ///< Choices with a lower probability of being the fastest are counted, not listed.

costmodel::Prediction prediction_of(const Run& run) {
  return costmodel::predict(costmodel::compose_step(run.model, run.options, run.hardware), false);
}

bool is_same(const Run& a, const Run& b) {
  return a.num_gpus == b.num_gpus && a.options == b.options && a.model.num_layers() == b.model.num_layers() &&
         a.model_name == b.model_name;
}

struct Observation {
  const Run& run;
  std::string name;
  Seconds step_time{};  ///< Predicted.
  double error = 0.0;   ///< ln(measured / predicted).
};

std::vector<Observation> observations_of(const std::vector<Run>& measured) {
  std::vector<Observation> observations;
  for (const Run& run : measured) {
    const Seconds step_time = prediction_of(run).step_time;
    observations.push_back(
        {run, run_name(run), step_time, std::log(measured_step(run).value().seconds / step_time.to<double>())});
  }
  return observations;
}

/// "plan 2 on 64 GPUs with 15 layers"
std::string smaller_name(const std::string& name, const Run& run, std::int64_t layers) {
  return fmt::format("{} on {} GPUs{}", name, run.num_gpus,
                     run.model.num_layers() == layers ? "" : fmt::format(" with {} layers", run.model.num_layers()));
}

/// Re-reads the run file with other values; nullopt if a rule rejects the run.
std::optional<Run> changed(const Run& run, const nlohmann::json& values) {
  nlohmann::json object = write_run(run);
  object.merge_patch(values);
  try {
    Run result = parse_run(object.dump(), "suggestion");
    if (!violations(result).empty()) return std::nullopt;
    return result;
  } catch (const config::ConfigError&) {
    return std::nullopt;
  }
}

/// The run with `dp` replicas, `pp` stages and 1/`part` of the layers per stage; micro-batches stay. Nullopt if
/// refused.
std::optional<Run> smaller(const Run& run, std::int64_t dp, std::int64_t pp, std::int64_t part) {
  const costmodel::PipelineOptions& pipeline = run.options.pipeline;
  const std::int64_t replicas = run.options.step.dp, chunks = pp * pipeline.vpp,
                     layers = run.model.num_layers() * pp / pipeline.pp / part / chunks * chunks;
  if (layers == 0) return std::nullopt;
  nlohmann::json values = {{"num_gpus", run.num_gpus / replicas / pipeline.pp * pp * dp},
                           {"dp", dp},
                           {"pp", pp},
                           {"global_batch", pipeline.global_batch * dp / replicas}};
  if (pp < pipeline.pp || part > 1) {
    values["pipeline_layout"] = nullptr;
    values["model_overrides"] = {{"num_hidden_layers", layers}};
  }
  auto result = changed(run, values);
  return result && prediction_of(*result).fits ? result : std::nullopt;
}

/// Reduced copies of a run for at most `most` GPUs, with as many stages, then layers per stage, as possible: the ones
/// with the fewest and the most replicas.
std::vector<Run> on_fewer_gpus(const Run& run, std::int64_t most) {
  const std::int64_t stages = run.options.pipeline.pp, replicas = run.options.step.dp;
  for (std::int64_t pp = stages; pp >= 1; --pp) {
    if (stages % pp != 0) continue;
    for (const std::int64_t part : {1, 2, 4, 8}) {
      std::vector<Run> found;
      for (std::int64_t dp = 1; dp <= replicas && run.num_gpus / replicas / stages * pp * dp <= most; ++dp) {
        if (replicas % dp != 0) continue;
        std::optional<Run> result = smaller(run, dp, pp, part);
        if (!result) continue;
        if (found.size() > 1) found.pop_back();
        found.push_back(*std::move(result));
      }
      if (!found.empty()) return found;
    }
  }
  return {};
}

/// The contenders first, then other runs that were measured or may be.
struct Runs {
  std::vector<Run> list;
  std::vector<Contender> known;
  std::vector<std::string> names;

  /// Index of the run; adds it if it is not in the list.
  std::size_t add(Run run, Seconds step_time, std::string name) {
    const auto at = static_cast<std::size_t>(
        std::ranges::find_if(list, [&](const Run& other) { return is_same(run, other); }) - list.begin());
    if (at < list.size()) return at;
    known.push_back({.step_time = step_time, .causes = {}});
    list.push_back(std::move(run));
    names.push_back(std::move(name));
    return at;
  }
  void expose(const ErrorModel& errors) {
    tbb::parallel_for(std::size_t{0}, list.size(),
                      [&](std::size_t i) { known[i] = contender(list[i], known[i].step_time, errors); });
  }
};

/// Indices of the runs to measure: each of the first `contenders` runs, or its reduced copies if it needs more than
/// `most` GPUs.
std::vector<std::size_t> to_measure(Runs& runs, std::size_t contenders, std::int64_t most) {
  std::vector<std::size_t> among;
  for (std::size_t i = 0; i < contenders; ++i) {
    if (most == 0 || runs.list[i].num_gpus <= most) {
      among.push_back(i);
      continue;
    }
    const std::string name = runs.names[i];
    const std::int64_t layers = runs.list[i].model.num_layers();
    for (Run& run : on_fewer_gpus(runs.list[i], most)) {
      const Seconds step_time = prediction_of(run).step_time;
      const std::string its_name = smaller_name(name, run, layers);
      if (const std::size_t at = runs.add(std::move(run), step_time, its_name); !std::ranges::count(among, at))
        among.push_back(at);
    }
  }
  return among;
}

}  // namespace

void check_measured(const std::vector<Run>& runs, const std::string& system) {
  config::Diagnostics diagnostics;
  for (const Run& run : runs) {
    const config::Location where{run.file, run.line, run.id};
    if (run.system_name != system)
      diagnostics.error(where, fmt::format("is on {}, the plans are on {}", run.system_name, system));
    const std::size_t before = diagnostics.list().size();
    report_violations(run, diagnostics);
    if (diagnostics.list().size() > before) continue;
    if (std::string wrong = mistake_in_step(run, prediction_of(run).step_time); !wrong.empty())
      diagnostics.error(where, std::move(wrong));
  }
  diagnostics.throw_if_any();
}

std::optional<Decision> decide(const PlanProblem& problem, const PlanResult& result, const ErrorModel& of_all,
                               const DecisionAsked& asked) {
  if (result.plans.empty()) return std::nullopt;
  const ErrorModel errors = of_all.of_peers(run_of(problem, result.plans.front()));
  const std::vector<Observation> observations = observations_of(asked.measured);
  Decision decision;
  Runs runs;
  const auto choice_of = [&](const Plan& plan, const std::string& name) -> Decision::Choice& {
    const std::size_t at = runs.add(run_of(problem, plan), plan.prediction.step_time, name);
    if (at == decision.choices.size()) decision.choices.emplace_back();
    return decision.choices[at];
  };
  for (std::size_t i = 0; i < result.plans.size(); ++i) {
    Decision::Choice& choice = choice_of(result.plans[i], fmt::format("plan {}", i + 1));
    choice.plan = i;
  }
  for (std::size_t i = 0; i < result.alternatives.size(); ++i)
    if (const Alternative& a = result.alternatives[i]; a.plan) {
      Decision::Choice& choice = choice_of(*a.plan, a.choice);
      if (!choice.alternative) choice.alternative = i;
    }
  for (std::size_t i = 0; i < decision.choices.size(); ++i) {
    Decision::Choice& choice = decision.choices[i];
    choice.name = runs.names[i];
    if (choice.plan && choice.alternative) choice.name += ": " + result.alternatives[*choice.alternative].choice;
  }
  std::vector<std::size_t> observed;
  for (const Observation& e : observations) {
    observed.push_back(runs.add(e.run, e.step_time, e.name));
    decision.measured.push_back(e.name);
  }
  const std::vector<std::size_t> among =
      asked.suggest > 0 ? to_measure(runs, decision.choices.size(), asked.suggest_gpus) : std::vector<std::size_t>{};
  runs.expose(errors);
  const std::vector<Contender> contenders(runs.known.begin(), runs.known.begin() + std::ssize(decision.choices));
  Beliefs beliefs(runs.known, errors);
  for (std::size_t i = 0; i < observations.size(); ++i) beliefs.learn(observed[i], observations[i].error);
  const std::vector<Odds> all = odds(contenders, beliefs);
  for (std::size_t i = 0; i < all.size(); ++i) {
    decision.choices[i].odds = all[i];
    decision.choices[i].unmeasured = errors.unmeasured(contenders[i].causes, problem.hardware.traits.generation);
    decision.choices[i].expected = contenders[i].step_time * std::exp(beliefs.mean[static_cast<Eigen::Index>(i)]);
  }
  const auto loss = [](const Decision::Choice& choice) { return choice.odds.expected_loss; };
  decision.answer =
      static_cast<std::size_t>(std::ranges::min_element(decision.choices, {}, loss) - decision.choices.begin());
  if (asked.suggest > 0) {
    decision.suggestions.emplace();
    for (const Informative& best :
         most_informative(contenders, beliefs, among, static_cast<std::size_t>(asked.suggest)))
      decision.suggestions->push_back(
          {runs.names[best.run], runs.list[best.run], runs.known[best.run].step_time, best.expected_loss});
  }
  return decision;
}

nlohmann::json decision_json(const Decision& decision) {
  nlohmann::json choices = nlohmann::json::array(), suggestions = nlohmann::json::array();
  for (const Decision::Choice& c : decision.choices)
    choices.push_back({{"name", c.name},
                       {"plan", c.plan ? nlohmann::json(*c.plan) : nlohmann::json(nullptr)},
                       {"alternative", c.alternative ? nlohmann::json(*c.alternative) : nlohmann::json(nullptr)},
                       {"best_probability", c.odds.best},
                       {"expected_loss_pct", 100.0 * c.odds.expected_loss},
                       {"expected_step_time_s", c.expected.to<double>()},
                       {"unmeasured", c.unmeasured}});
  nlohmann::json result = {
      {"draws", kDraws}, {"answer", decision.answer}, {"choices", std::move(choices)}, {"measured", decision.measured}};
  if (!decision.suggestions) return result;
  for (const Decision::Suggestion& s : *decision.suggestions)
    suggestions.push_back({{"name", s.name},
                           {"run", write_run(s.run)},
                           {"step_time_s", s.step_time.to<double>()},
                           {"expected_loss_pct", 100.0 * s.expected_loss}});
  result["suggestions"] = std::move(suggestions);
  return result;
}

std::string decision_text(const Decision& decision) {
  if (decision.choices.size() < 2) return "";
  const bool learnt = !decision.measured.empty();
  std::vector<std::string> titles = {"<choice", "fastest %", "expected loss %"};
  if (learnt) titles.emplace_back("expected step s");
  titles.emplace_back("<never measured");
  Table table(titles);
  std::size_t left = 0;
  const auto percent = [](double share) { return fmt::format("{:.1f}", 100.0 * share); };
  for (std::size_t i = 0; i < decision.choices.size(); ++i) {
    const Decision::Choice& c = decision.choices[i];
    if (c.odds.best < kLikely && i != decision.answer && i != 0) {
      ++left;
      continue;
    }
    std::vector<std::string> cells = {shortened(c.name, 36), fmt::format("{:.0f}", 100.0 * c.odds.best),
                                      percent(c.odds.expected_loss)};
    if (learnt) cells.push_back(seconds_text(c.expected.to<double>()));
    cells.push_back(shortened(fmt::format("{}", fmt::join(c.unmeasured, ", ")), 36));
    table.add(std::move(cells));
  }
  const Decision::Choice& answer = decision.choices[decision.answer];
  std::string out = "Probability that each plan is the fastest, with errors like the measured ones";
  if (learnt) out += fmt::format(", after {}", fmt::join(decision.measured, ", "));
  out += '\n' + table.text();
  if (left > 0) out += fmt::format("  {} others: less than {:.0f} % each\n", left, 100.0 * kLikely);
  std::string name = answer.name;
  if (name.starts_with("plan ")) name.front() = 'P';
  return out + fmt::format("  {} has the lowest expected loss.\n", name);
}

std::string suggestions_text(const Decision& decision) {
  if (!decision.suggestions) return "";
  std::string out = "Runs to measure first, a few steps of each, and the expected loss of the choice after them\n";
  if (decision.suggestions->empty()) return out + "  None on so many GPUs tells more.\n";
  Table runs({"<run", "GPUs", "step s", "expected loss %"});
  for (const Decision::Suggestion& s : *decision.suggestions)
    runs.add({shortened(s.name, 52), fmt::format("{}", s.run.num_gpus), seconds_text(s.step_time.to<double>()),
              fmt::format("{:.1f}", 100.0 * s.expected_loss)});
  return out + runs.text() + "  --measured takes their run files with measured.step_time_s.\n";
}

}  // namespace foldwise::planner

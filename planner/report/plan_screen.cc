#include "planner/report/plan_screen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "planner/report/explanation.h"
#include "planner/report/plan_report.h"
#include "planner/report/prediction_report.h"
#include "planner/report/run_screen.h"
#include "planner/rules/evidence.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/run/requirements.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

constexpr std::size_t kLeastPlans = 5;

double seconds_of(const Plan& plan) { return plan.prediction.step_time.to<double>(); }

double slower_pct(const Plan& plan, const Plan& first) { return 100.0 * (seconds_of(plan) / seconds_of(first) - 1.0); }

bool has_precisions(const PlanProblem& problem) { return problem.space.find("precision")->values.size() > 1; }

/// Choices of a plan that have no column in the table.
std::vector<RunChoice> choices_of(const PlanProblem& problem, const Plan& plan) {
  const costmodel::TrainingOptions& o = plan.options;
  std::vector<RunChoice> list;
  if (has_precisions(problem)) list.push_back({"precision", name_of(o.layer.precision), ""});
  if (o.layer.etp > 1) list.push_back({"etp", fmt::format("ETP {}", o.layer.etp), "ETP 1"});
  for (RunChoice& choice : run_choices(problem.model, o)) list.push_back(std::move(choice));
  return list;
}

/// The question as a run, without the choices of a plan.
Run asked_run(const PlanProblem& problem) {
  Run run;
  run.model_name = problem.model_name;
  run.system_name = problem.system_name;
  run.num_gpus = problem.num_gpus;
  run.model = problem.model;
  run.release = problem.release;
  run.options.layer.seq_len = problem.stated.at("seq_len").get<std::int64_t>();
  run.options.pipeline.global_batch = problem.stated.at("global_batch").get<std::int64_t>();
  return run;
}

std::string question_line(const Screen& screen, const PlanProblem& problem) {
  std::vector<std::string> precisions, besides;
  for (const json& precision : problem.space.find("precision")->values)
    precisions.push_back(precision.get<std::string>());
  for (const auto& [key, value] : problem.model_set.items())
    if (key != "model") besides.push_back(fmt::format("{} {}", key, value_text(value)));
  if (!problem.folding) besides.emplace_back("no folding");
  std::string out = headline(screen, asked_run(problem), fmt::format("{}", fmt::join(precisions, ", ")), besides);
  const auto schedule = problem.stated.at("schedule").get<std::string>();
  for (const auto& [name, value] : schedule_names())
    if (name == schedule && !costmodel::runnable(value)) out += study_note(value);
  return out;
}

std::string evidence_line(const Screen& screen, const Run& first) {
  const RunEvidence evidence = evidence_of(first);
  if (evidence.nearest.empty())
    return one_line_of(screen, "Evidence",
                       {fmt::format("no run on {} was measured", first.hardware.traits.generation)});
  if (evidence.lacks.empty()) return line_of(screen, "Evidence", {"measured together:", evidence.nearest});
  const char* const level = evidence.level == Evidence::kParts ? "each choice was measured, no run joins them"
                                                               : "not all of its choices were measured";
  return line_of(screen, "Evidence",
                 {fmt::format("{}: {}", level, fmt::join(evidence.lacks, ", ")), "nearest run " + evidence.nearest});
}

/// ", with fp32 18.14 s (+16.6 %)"
std::string other_states(const PlanResult& result) {
  if (!result.other_states) return "";
  const std::string& choice = result.other_states->choice;  // "fp32 states"
  const std::string type = choice.substr(0, choice.find(' '));
  if (!result.other_states->plan) return fmt::format(" (with {} no plan was found)", type);
  return fmt::format(" (with {} {} s, {:+.1f} %)", type, seconds_text(seconds_of(*result.other_states->plan)),
                     slower_pct(*result.other_states->plan, result.plans.front()));
}

std::string unproven_lines(const Screen& screen, const PlanProblem& problem, const PlanResult& result) {
  if (result.unproven.empty()) return "";
  std::string out =
      screen.in(fmt::emphasis::bold, "Faster, not proven") + ": never run with the rest (unproven-N.json of --out)\n";
  for (std::size_t i = 0; i < result.unproven.size(); ++i) {
    const Plan& plan = result.unproven[i];
    std::vector<std::string> lacks;
    for (const std::string& lack : evidence_of(run_of(problem, plan)).lacks)
      lacks.push_back(lack.substr(0, lack.find(" (")));
    const std::string text = fmt::format("{:>2}  {:>6}  {:+.1f} %  {}", i + 1, seconds_text(seconds_of(plan)),
                                         slower_pct(plan, result.plans.front()), fmt::join(lacks, ", "));
    out += shortened(text, screen.width) + '\n';
  }
  return out;
}

std::string sure_line(const Screen& screen, const PlanResult& result, const Decision& decision) {
  if (decision.choices.size() < 2) return "";
  const Decision::Choice& answer = decision.choices[decision.answer];
  const Decision::Choice& first = decision.choices.front();
  std::string name = answer.name;
  if (name.starts_with("plan ")) name = "Plan " + name.substr(5, name.find(':') - 5);
  const bool is_first = decision.answer == 0;
  std::vector<std::string> pieces = {
      fmt::format("{} has the lowest expected loss ({:.1f} %){}", name, 100.0 * answer.odds.expected_loss,
                  is_first ? fmt::format(", is fastest with {:.0f} %", 100.0 * first.odds.best) : "")};
  if (!is_first)
    pieces.push_back(fmt::format("plan 1 is fastest with {:.0f} %, loss {:.1f} %", 100.0 * first.odds.best,
                                 100.0 * first.odds.expected_loss));
  const auto group = groups_of(result.plans).front();
  if (group.second > group.first)
    pieces.push_back(
        fmt::format("plans {}-{} are within {:g} %", group.first + 1, group.second + 1, 100.0 * kIndistinguishable));
  return one_line_of(screen, "Sure", pieces, "; ");
}

/// Gains of the choices of plan 1, largest first.
std::string worth_line(const Screen& screen, const PlanResult& result) {
  std::vector<std::string> pieces, same;
  for (const Alternative& alternative : result.alternatives) {
    if (!alternative.plan) {
      pieces.push_back(alternative.choice + " does not fit");
    } else if (const double slower = slower_pct(*alternative.plan, result.plans.front());
               slower > 100.0 * kIndistinguishable) {
      pieces.push_back(fmt::format("{} {:+.1f} %", alternative.choice, slower));
    } else {
      same.push_back(alternative.choice);
    }
  }
  if (!same.empty()) pieces.push_back("too close to tell: " + fmt::format("{}", fmt::join(same, ", ")));
  return pieces.empty() ? "" : one_line_of(screen, "Worth", pieces);
}

std::string limit_line(const Screen& screen, const Plan& first, const Insight& insight) {
  std::vector<std::string> pieces;
  if (insight.binding && !insight.sensitivities.empty())
    pieces.push_back(
        fmt::format("{}: 10 % more saves {:.1f} %", to_string(*insight.binding),
                    100.0 * (insight.sensitivities.front().gain / first.prediction.step_time).to<double>()));
  if (insight.best)
    pieces.push_back(fmt::format("best single change {:+.1f} %: {}",
                                 100.0 * (insight.best->step_time / first.prediction.step_time).to<double>() - 100.0,
                                 insight.best->text()));
  else
    pieces.emplace_back("no single change is faster");
  return one_line_of(screen, "Limit", pieces, "; ");
}

std::string search_line(const Screen& screen, const PlanResult& result, bool too_slow) {
  std::vector<std::string> pieces;
  if (result.plans.empty() && too_slow)
    pieces.emplace_back(result.proven ? "proven: no plan is fast enough" : "no plan that is fast enough was found");
  else if (result.plans.empty())
    pieces.emplace_back(result.proven ? "proven: nothing fits" : "nothing that fits was found");
  else
    pieces.push_back(result.least >= result.plans.front().prediction.step_time
                         ? "proven: nothing is faster than plan 1"
                         : fmt::format("not proven: nothing below {} s", seconds_text(result.least.to<double>())));
  pieces.push_back(fmt::format("searched {:.1f} s, explained {:.1f} s", result.seconds, result.explained_seconds));
  pieces.push_back(fmt::format("{:.3g} candidates", result.enumerated));
  return one_line_of(screen, "Search", pieces, "; ");
}

std::string ending(const PlanScreen& how) {
  std::string out;
  if (!how.defaults.empty()) out += one_line_of(how.screen, "Defaults", how.defaults);
  if (!how.not_exported.empty()) out += line_of(how.screen, "Export", {"refused: " + how.not_exported});
  for (std::size_t i = 0; i < how.next.size(); ++i) out += command_of(how.screen, i == 0 ? "Next" : "", how.next[i]);
  return out;
}

std::string nothing_screen(const PlanProblem& problem, const PlanResult& result, const PlanScreen& how) {
  const Screen& screen = how.screen;
  std::string out = question_line(screen, problem);
  if (!how.about.empty()) out += wrapped(how.about, screen.width, 1) + '\n';
  const std::string said = how.too_slow    ? "No plan is fast enough."
                           : result.proven ? "Nothing fits."
                                           : "Nothing that fits was found before the search ended.";
  out += screen.in(fmt::emphasis::bold, said) + '\n';
  if (result.shortage) out += shortage_text(problem, *result.shortage, screen);
  out += '\n' + search_line(screen, result, how.too_slow);
  std::vector<std::string> rules;
  for (const auto& [rule, count] : result.rejected_by_rule) rules.push_back(fmt::format("{} {:.2g}", rule, count));
  if (!rules.empty()) out += one_line_of(screen, "Rejected", rules);
  return out + ending(how);
}

}  // namespace

std::string plan_lines(const Screen& screen, const PlanProblem& problem, const std::vector<Plan>& plans,
                       std::size_t most) {
  if (plans.empty()) return "";
  const bool vpp = std::ranges::any_of(plans, [](const Plan& plan) { return plan.options.pipeline.vpp > 1; });
  const bool moe = problem.model.has_moe();
  std::vector<std::string> titles = {"#", "step s", "vs 1", "left", "TP", "CP", "PP"};
  if (vpp) titles.emplace_back("VPP");
  if (moe) titles.emplace_back("EP");
  titles.emplace_back("mbs");
  titles.emplace_back("<what differs");
  Table table(titles);
  const std::vector<RunChoice> first = choices_of(problem, plans.front());
  for (std::size_t i = 0; i < std::min(most, plans.size()); ++i) {
    const Plan& plan = plans[i];
    const costmodel::Layout l = plan.options.layout();
    std::vector<std::string> cells = {
        fmt::format("{}", i + 1),
        seconds_text(seconds_of(plan)),
        i == 0 ? "" : fmt::format("{:+.1f} %", slower_pct(plan, plans.front())),
        fmt::format("{:.1f}", in_gib(problem.hardware.hbm_capacity - plan.prediction.peak_memory)),
        fmt::format("{}", l.tp),
        fmt::format("{}", l.cp),
        fmt::format("{}", l.pp)};
    if (vpp) cells.push_back(fmt::format("{}", l.vpp));
    if (moe) cells.push_back(fmt::format("{}", l.ep));
    cells.push_back(fmt::format("{}", plan.options.layer.micro_batch));
    cells.push_back(i == 0 ? "" : differing_choices(choices_of(problem, plan), first));
    table.add(std::move(cells));
  }
  std::string out = table.text(0, screen.width);
  if (most < plans.size()) out += fmt::format("{} more: --explain plans\n", plans.size() - most);
  return out;
}

std::string plan_screen(const PlanProblem& problem, const PlanResult& result, const std::optional<Decision>& decision,
                        const std::optional<Insight>& insight, const ErrorModel& errors, const PlanScreen& how) {
  if (result.plans.empty()) return nothing_screen(problem, result, how);
  const Screen& screen = how.screen;
  const Plan& first = result.plans.front();
  const Run run = run_of(problem, first);
  std::string head = question_line(screen, problem);
  if (!how.about.empty()) head += wrapped(how.about, screen.width, 1) + '\n';
  head += step_lines(screen, "Plan 1", first.prediction, step_time_interval(errors, run, first.prediction.step_time));
  head += layout_lines(screen, problem.model, first.options);
  std::vector<std::string> options;
  for (const RunChoice& choice : run_choices(problem.model, first.options)) options.push_back(choice.text);
  if (!first.options.pipeline.layout.empty()) options.push_back("layers " + first.options.pipeline.layout);
  if (!options.empty()) head += line_of(screen, "Options", {fmt::format("{}", fmt::join(options, ", "))});
  if (const std::string needs = requirements_text(requirements(run.model, run.options)); !needs.empty())
    head += one_line_of(screen, "Needs", {needs});
  head += memory_lines(screen, run, first.prediction,
                       problem.model.has_moe() ? std::optional(first.imbalance) : std::nullopt);
  if (const std::string note = pressed_note(first.prediction, problem.hardware.hbm_capacity); !note.empty())
    head += line_of(screen, "Allocator", {note});
  head += time_lines(screen, first.prediction) + evidence_line(screen, run);
  head += numerics_line(screen, first.options, other_states(result));
  if (!first.preferred.empty()) head += line_of(screen, "Why first", {first.preferred});
  if (const std::string note = unread_keys_note(problem.model, first.options.layer); !note.empty())
    head += line_of(screen, "MFU", {note.substr(0, note.size() - 1)});

  std::string tail = unproven_lines(screen, problem, result);
  if (decision) tail += sure_line(screen, result, *decision);
  tail += worth_line(screen, result);
  if (insight) tail += limit_line(screen, first, *insight);
  tail += search_line(screen, result, false) + ending(how);

  std::size_t most = result.plans.size();
  const auto others = static_cast<std::size_t>(std::ranges::count(head + tail, '\n')) + 3;  // Two blank lines, titles.
  if (how.most_lines > 0 && others + most > how.most_lines)
    most = std::min(most, std::max(kLeastPlans, how.most_lines - std::min(how.most_lines, others + 1)));
  return head + '\n' + plan_lines(screen, problem, result.plans, most) + '\n' + tail;
}

}  // namespace foldwise::planner

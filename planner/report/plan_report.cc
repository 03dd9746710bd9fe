#include "planner/report/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/report/explanation.h"
#include "planner/report/prediction_report.h"
#include "planner/report/run_screen.h"
#include "planner/rules/evidence.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/run/requirements.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

json plan_json(const PlanProblem& problem, const Plan& plan, const ErrorModel& errors) {
  const Run run = run_of(problem, plan);
  std::vector<std::string> why = plan.why;
  if (!plan.preferred.empty()) why.push_back(plan.preferred);
  if (!plan.lead.empty()) why.push_back(plan.lead);
  const auto interval = step_time_interval(errors, run, plan.prediction.step_time);
  json result = {
      {"run", write_run(run)},
      {"prediction", prediction_json(run, plan.prediction, interval)},
      {"on_virtual_machine_s", plan.on_virtual_machine ? json(plan.on_virtual_machine->to<double>()) : json(nullptr)},
      {"why", why},
      {"evidence", evidence_json(evidence_of(run))},
      {"requires", requirements_json(requirements(run.model, run.options))}};
  if (problem.model.has_moe())
    result["imbalance"] = {{"p99_load", plan.imbalance.p99_load},
                           {"p99_memory_gib", in_gib(plan.imbalance.p99_memory)}};
  return result;
}

std::string gib_text(Bytes bytes) { return fmt::format("{:.1f}", in_gib(bytes)); }

std::string percent_of(Seconds part, Seconds whole) {
  return fmt::format("{:.1f}", 100.0 * part.to<double>() / whole.to<double>());
}

/// Options that change the computed numbers and that the user left at their defaults, equal in every candidate.
std::string kept(const PlanProblem& problem, const TrainingOptions& o) {
  std::vector<std::string> list;
  for (const Field& f : fields())
    if (f.numerics && f.is_option() && f.applies_to(o) && f.matters != nullptr && f.matters(problem.model, o) &&
        problem.space.find(f.key) == nullptr)
      list.push_back(fmt::format("{} {}", f.key, value_text(f.value.get(o))));
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Number, from 1, of a plan of the Pareto front among the plans.
std::size_t number_of(const PlanResult& result, const Plan& plan) {
  const auto same = [&](const Plan& other) { return other.options == plan.options; };
  return static_cast<std::size_t>(std::ranges::find_if(result.plans, same) - result.plans.begin()) + 1;
}

/// Percent of plan 1's step time that a faster plan saves.
double gain_pct(const PlanResult& result, const Plan& faster) {
  return 100.0 * (1.0 - faster.prediction.step_time / result.plans.front().prediction.step_time).to<double>();
}

/// Step times of the plans and their plainer alternatives on a slower host than assumed.
std::string hosts_text(const Screen& screen, const PlanResult& result) {
  constexpr double kWorth = 0.01;
  std::vector<std::string> times;
  const auto add = [&](const std::string& name, const Plan& plan) {
    if (plan.on_virtual_machine)
      times.push_back(fmt::format("{} {} s", name, seconds_text(plan.on_virtual_machine->to<double>())));
  };
  const Plan& first = result.plans.front();
  if (!first.on_virtual_machine || *first.on_virtual_machine < (1.0 + kWorth) * first.prediction.step_time) return "";
  for (std::size_t i = 0; i < result.plans.size(); ++i) add(fmt::format("plan {}", i + 1), result.plans[i]);
  for (const Alternative& alternative : result.alternatives)
    if (alternative.plan && *alternative.plan->on_virtual_machine < *first.on_virtual_machine)
      add(alternative.choice, *alternative.plan);
  return wrapped(fmt::format("The host's prices are assumed. On virtual machines like the measured ones: {}",
                             fmt::join(times, ", ")),
                 screen.width, 2) +
         '\n';
}

/// How the answer changes with the other type of optimizer states.
std::string other_states_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result) {
  if (!result.other_states) return "";
  const std::string text = fmt::format("Optimizer states are {}, as defaults {} have them. With {}",
                                       result.other_states->choice == "fp32 states" ? "bf16" : "fp32", problem.defaults,
                                       result.other_states->choice);
  if (!result.other_states->plan) return text + " no plan was found\n";
  const Plan& plan = *result.other_states->plan;
  return wrapped(fmt::format("{} the fastest plan takes {} s, plan 1 {}; it needs {} GiB", text,
                             seconds_text(plan.prediction.step_time.to<double>()),
                             seconds_text(result.plans.front().prediction.step_time.to<double>()),
                             gib_text(plan.prediction.peak_memory)),
                 screen.width, 2) +
         '\n';
}

std::string tried_table(const Answered& answer) {
  Table table({"GPUs", "GiB allowed", "step s", "GiB", "<"});
  for (const Tried& t : answer.tried)
    table.add({fmt::format("{}", t.num_gpus), t.memory_allowed > Bytes{} ? gib_text(t.memory_allowed) : "-",
               t.step_time > Seconds{} ? seconds_text(t.step_time.to<double>()) : "-",
               t.peak_memory > Bytes{} ? gib_text(t.peak_memory) : "-",
               t.within   ? "within the limit"
               : t.proven ? "none is within the limit: proven"
                          : "none found within the limit"});
  return table.text(0);
}

}  // namespace

std::string plan_table(const Screen& screen, const PlanProblem& problem, const PlanResult& result,
                       const std::vector<Plan>& plans) {
  const bool mixed = problem.space.find("precision")->values.size() > 1;
  Table table({"#", "<TPxCPxDPxPP", "VPP", "<ETPxEP", "mbs", "step s", "tokens/s", "MFU", "GiB", "comm%", "bub.%"});
  for (const Plan& plan : plans) {
    const TrainingOptions& o = plan.options;
    const costmodel::Prediction& p = plan.prediction;
    table.add({fmt::format("{}", number_of(result, plan)),
               fmt::format("{}x{}x{}x{}", o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp),
               fmt::format("{}", o.pipeline.vpp), fmt::format("{}x{}", o.layer.etp, o.layer.ep),
               fmt::format("{}", o.layer.micro_batch), seconds_text(p.step_time.to<double>()),
               fmt::format("{:.0f}", p.tokens_per_s_per_gpu), fmt::format("{:.1f}", p.mfu_pct), gib_text(p.peak_memory),
               percent_of(p.breakdown.exposed_communication, p.step_time),
               percent_of(p.breakdown.bubble, p.step_time)});
    std::vector<std::string> besides;
    if (mixed) besides.push_back(name_of(o.layer.precision));
    for (const RunChoice& choice : run_choices(problem.model, o)) besides.push_back(choice.text);
    if (!o.pipeline.layout.empty()) besides.push_back("layers " + o.pipeline.layout);
    if (!besides.empty()) table.note(wrapped(fmt::format("   {}", fmt::join(besides, ", ")), screen.width, 5));
  }
  return table.text(0);
}

json unproven_json(const PlanProblem& problem, const PlanResult& result) {
  json list = json::array();
  for (const Plan& plan : result.unproven) {
    const Run run = run_of(problem, plan);
    list.push_back({{"run", write_run(run)},
                    {"step_time_s", plan.prediction.step_time.to<double>()},
                    {"gain_pct", gain_pct(result, plan)},
                    {"evidence", evidence_json(evidence_of(run))}});
  }
  return list;
}

json other_states_json(const PlanProblem& problem, const PlanResult& result) {
  if (!result.other_states) return nullptr;
  const std::optional<Plan>& plan = result.other_states->plan;
  return {{"set", result.other_states->set},
          {"run", plan ? write_run(run_of(problem, *plan)) : json(nullptr)},
          {"step_time_s", plan ? json(plan->prediction.step_time.to<double>()) : json(nullptr)}};
}

json plan_json(const PlanProblem& problem, const PlanResult& result, const ErrorModel& errors) {
  json rejected = json::object(), plans = json::array(), pareto = json::array(), set = json::object();
  for (const Dimension& dimension : problem.space.dimensions)
    if (dimension.named) set[dimension.field->key] = dimension.values;
  for (const auto& [key, value] : problem.model_set.items()) set[key] = json::array({value});
  for (const auto& [rule, count] : result.rejected_by_rule) rejected[rule] = count;
  for (const Plan& plan : result.plans) plans.push_back(plan_json(problem, plan, errors));
  for (const Plan& plan : result.pareto) {
    pareto.push_back(plan_json(problem, plan, errors));
    pareto.back()["number"] = number_of(result, plan);
  }
  return {{"problem",
           {{"model", problem.model_name},
            {"system", problem.system_name},
            {"num_gpus", problem.num_gpus},
            {"seq_len", problem.stated.at("seq_len")},
            {"global_batch", problem.stated.at("global_batch")},
            {"precision", problem.space.find("precision")->values},
            {"schedule", problem.stated.at("schedule")},
            {"defaults", problem.defaults},
            {"release", problem.release == nullptr ? json(nullptr) : json(problem.release->name)},
            {"evidence", name_of(problem.evidence)},
            {"headroom", problem.headroom},
            {"folding", problem.folding},
            {"set", set},
            {"objective", "time"}}},
          {"search",
           {{"enumerated", result.enumerated},
            {"nodes", result.nodes},
            {"composed", result.composed},
            {"fitting", result.fitting},
            {"simulated", result.simulated},
            {"proven", result.proven},
            {"least_s", result.least.to<double>()},
            {"effort", result.effort},
            {"seconds", result.seconds},
            {"explained_seconds", result.explained_seconds},
            {"rejected_by_rule", rejected}}},
          {"plans", plans},
          {"pareto", pareto},
          {"groups", groups_of(result.plans)},
          {"alternatives", alternatives_json(problem, result)},
          {"other_states", other_states_json(problem, result)},
          {"shortage", result.shortage ? shortage_json(problem, *result.shortage) : json(nullptr)}};
}

std::string why_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result) {
  const Plan& best = result.plans.front();
  std::string out = "Why plan 1, and what limits it\n";
  const auto line = [&](const std::string& text) { out += "  " + wrapped("- " + text, screen.width - 2, 4) + '\n'; };
  if (!best.preferred.empty()) line(best.preferred);
  for (const std::string& text : best.why) line(text);
  if (!best.lead.empty()) line(best.lead);
  for (const RunChoice& choice : run_choices(problem.model, best.options)) line(choice.text);
  if (!best.options.pipeline.layout.empty())
    line("--pipeline-model-parallel-layout \"" + best.options.pipeline.layout + "\"");
  const RunEvidence evidence = evidence_of(run_of(problem, best));
  for (const std::string& lack : evidence.lacks) line("not in the nearest measured run: " + lack);
  return out + hosts_text(screen, result) + groups_text(result.plans, screen);
}

std::string pareto_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result) {
  return "Plans that no other beats in both time and memory\n" + plan_table(screen, problem, result, result.pareto);
}

std::string assumptions_text(const Screen& screen, const PlanProblem& problem, const PlanResult& result) {
  std::string out = "What plans take as given\n";
  const auto line = [&](const std::string& text) { out += "  " + wrapped("- " + text, screen.width - 2, 4) + '\n'; };
  line(
      fmt::format("Other values change what is computed, so these are as defaults {} have them: {}. --set KEY=V1,V2 "
                  "searches others too.",
                  problem.defaults, kept(problem, result.plans.front().options)));
  line("Tokens are spread evenly over the experts; plans fit at the 99th percentile of random routing.");
  line(fmt::format("{:g} % of the device's memory stays free (--headroom).", 100.0 * problem.headroom));
  const Run first = run_of(problem, result.plans.front());
  for (const Requirement& needed : requirements(first.model, first.options))
    line(fmt::format("{} {} or later, because of {}", needed.library,
                     needed.version.empty() ? "of any version" : needed.version, needed.because));
  if (const std::string states = other_states_text(screen, problem, result); !states.empty()) out += "  " + states;
  return out;
}

std::string search_text(const Screen& screen, const Answered& answer) {
  const PlanResult& result = answer.result;
  std::string out = fmt::format("Search\n  {:.3g} candidates; {} bounded, {} composed, {} fit, {} simulated\n",
                                result.enumerated, result.nodes, result.composed, result.fitting, result.simulated);
  out += fmt::format("  {:.2f} of {:.2f} core-seconds of effort\n", 1e-6 * static_cast<double>(result.effort),
                     1e-6 * static_cast<double>(answer.problem.effort));
  if (!answer.tried.empty()) out += "\nSearches behind the answer\n" + tried_table(answer);
  std::vector<std::string> rejected;
  for (const auto& [rule, count] : result.rejected_by_rule) rejected.push_back(fmt::format("{} {:.3g}", rule, count));
  return out + "  " + wrapped(fmt::format("Rejected: {}", fmt::join(rejected, ", ")), screen.width - 2, 4) +
         "\n  foldwise rules NAME says what a rule demands\n";
}

json answer_json(const Answered& answer, const std::string& objective, const ErrorModel& errors) {
  json result = plan_json(answer.problem, answer.result, errors), tried = json::array();
  const auto or_null = [](bool known, double value) { return known ? json(value) : json(nullptr); };
  for (const Tried& t : answer.tried)
    tried.push_back({{"num_gpus", t.num_gpus},
                     {"memory_allowed_gib", or_null(t.memory_allowed > Bytes{}, in_gib(t.memory_allowed))},
                     {"step_time_s", or_null(t.step_time > Seconds{}, t.step_time.to<double>())},
                     {"peak_device_memory_gib", or_null(t.peak_memory > Bytes{}, in_gib(t.peak_memory))},
                     {"within", t.within},
                     {"proven", t.proven}});
  result["problem"]["objective"] = objective;
  result["problem"]["max_step_time_s"] = or_null(answer.limit > Seconds{}, answer.limit.to<double>());
  result["tried"] = std::move(tried);
  return result;
}

const Tried* fastest_too_slow(const Answered& answer) {
  if (!answer.result.plans.empty()) return nullptr;
  const Tried* fastest = nullptr;
  for (const Tried& t : answer.tried)
    if (t.step_time > Seconds{} && (fastest == nullptr || t.step_time < fastest->step_time)) fastest = &t;
  return fastest;
}

std::string objective_text(const Answered& answer, const std::string& objective) {
  if (objective == "time") return "";
  std::string text =
      fmt::format("Objective {}: {}", objective, objective == "gpus" ? "the fewest GPUs" : "the plans of least memory");
  if (answer.limit > Seconds{})
    text += fmt::format(" whose step takes no longer than {} s", seconds_text(answer.limit.to<double>()));
  text += fmt::format("; {} searches (--explain search)", answer.tried.size());
  if (const Tried* fastest = fastest_too_slow(answer))
    text += fmt::format("; the fastest plan that was found takes {} s, on {} GPUs",
                        seconds_text(fastest->step_time.to<double>()), fastest->num_gpus);
  return text;
}

}  // namespace foldwise::planner

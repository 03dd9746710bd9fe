#include "planner/report/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "planner/report/explanation.h"
#include "planner/report/prediction_report.h"
#include "planner/report/table.h"
#include "planner/rules/evidence.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/run/requirements.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

constexpr std::size_t kRejectionLines = 8;
constexpr std::size_t kWidth = 100;  ///< Of a line.

json plan_json(const PlanProblem& problem, const Plan& plan, const ErrorModel& errors) {
  const Run run = run_of(problem, plan);
  std::vector<std::string> why = plan.why;
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

/// Values that every candidate has because its user named no others, and that change the numbers a run computes.
std::string kept(const PlanProblem& problem, const TrainingOptions& o) {
  std::vector<std::string> list;
  for (const Field& f : fields())
    if (f.numerics && f.is_option() && f.applies_to(o) && f.matters != nullptr && f.matters(problem.model, o) &&
        problem.space.find(f.key) == nullptr)
      list.push_back(fmt::format("{} {}", f.key, value_text(f.value.get(o))));
  return fmt::format("{}", fmt::join(list, ", "));
}

/// What a plan does that a table has no columns for: how it saves memory, shards, overlaps EP and runs its experts.
std::string beside_columns(const PlanProblem& problem, const TrainingOptions& o) {
  std::vector<std::string> list = {"recompute " + text_of(o.recompute())};
  if (o.pipeline.cpu_offloading_num_layers > 0) {
    list.push_back(fmt::format("offload {} layers", o.pipeline.cpu_offloading_num_layers));
  } else if (!o.layer.offload_modules.empty()) {
    list.push_back(fmt::format("offload {}", fmt::join(names_of(o.layer.offload_modules), " ")));
  }
  if (o.step.offload.optimizer_fraction > 0.0)
    list.push_back(fmt::format("{:.0f} % of the optimizer on the host", 100.0 * o.step.offload.optimizer_fraction));
  if (costmodel::is_fsdp(o.step.sharding)) list.push_back(name_of(o.step.sharding));
  if (o.layout().tp_pp_dp) list.emplace_back("tp-pp-dp");
  if (o.pipeline.overlaps.ep_a2a) list.emplace_back("EP overlap");
  if (problem.model.has_moe() && o.layer.software.experts != costmodel::Experts::kGrouped)
    list.push_back("experts " + value_text(field("software.experts").value.get(o)));
  return fmt::format("{}", fmt::join(list, "; "));
}

/// What a table's columns do not show: recomputation, what is unusual of the other searched fields, and those of
/// several values that the user named.
std::string other_choices(const PlanProblem& problem, const TrainingOptions& o) {
  static const std::set<std::string_view> in_columns = {
      "precision",  "micro_batch",     "tp",          "cp", "pp", "vpp", "ep", "etp",
      "dispatcher", "overlaps.ep_a2a", "offload.type"};
  std::vector<std::string> list;
  if (o.recompute().granularity != costmodel::RecomputeGranularity::kNone)
    list.push_back("recompute " + text_of(o.recompute()));
  for (const Dimension& dimension : problem.space.dimensions) {
    const Field& f = *dimension.field;
    if (in_columns.contains(f.key) || f.key.starts_with("recompute.") || !f.applies_to(o)) continue;
    const json value = f.value.get(o);
    if (value != f.value.get(TrainingOptions{}) || (dimension.named && dimension.values.size() > 1))
      list.push_back(fmt::format("{} {}", f.key, value_text(value)));
  }
  return fmt::format("{}", fmt::join(list, "; "));
}

/// ", mtp 0, model_overrides {...}"; empty: the model's own.
std::string stated_of_model(const PlanProblem& problem) {
  std::string text;
  for (const auto& [key, value] : problem.model_set.items())
    if (key != "model") text += fmt::format(", {} {}", key, value_text(value));
  return text;
}

/// Percent of the first plan's time that a faster one saves.
double gain_pct(const PlanResult& result, const Plan& faster) {
  return 100.0 * (1.0 - faster.prediction.step_time / result.plans.front().prediction.step_time).to<double>();
}

/// The release, what it must bring, and what of the first plan was measured.
std::string software_and_evidence(const PlanProblem& problem, const PlanResult& result) {
  const Run first = run_of(problem, result.plans.front());
  std::string text;
  if (const std::string needs = requirements_text(requirements(first.model, first.options)); !needs.empty())
    text += wrapped("Plan 1 needs " + needs, kWidth, 2) + '\n';
  const RunEvidence evidence = evidence_of(first);
  if (evidence.nearest.empty())
    return text + fmt::format("No run on {} was measured\n", first.hardware.traits.generation);
  if (evidence.lacks.empty())
    return text + wrapped("Its choices were measured together: " + evidence.nearest, kWidth, 2) + '\n';
  return text +
         wrapped(fmt::format("No measured run joins its choices{}. The nearest is {}; plan 1 has {}",
                             evidence.level == Evidence::kParts ? ", but each was measured" : "", evidence.nearest,
                             fmt::join(evidence.lacks, ", ")),
                 kWidth, 2) +
         '\n';
}

std::string unproven_text(const PlanProblem& problem, const PlanResult& result) {
  if (result.unproven.empty()) return "";
  std::string text = "\nFaster, not proven: never run together (--evidence any plans with these)\n";
  for (std::size_t i = 0; i < result.unproven.size(); ++i) {
    const Plan& plan = result.unproven[i];
    const RunEvidence evidence = evidence_of(run_of(problem, plan));
    text += "  " +
            wrapped(fmt::format("- {} s, {:.1f} % less: {}. Run unproven-{}.json of --out to know",
                                seconds_text(plan.prediction.step_time.to<double>()), gain_pct(result, plan),
                                fmt::join(evidence.lacks, ", "), i + 1),
                    98, 4) +
            '\n';
  }
  return text;
}

/// What the plans and the plainer choices take where the host is slower than assumed.
std::string hosts_text(const PlanResult& result) {
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
                 98, 2) +
         '\n';
}

/// What the kept types of the optimizer's states decide.
std::string other_states_text(const PlanProblem& problem, const PlanResult& result) {
  if (!result.other_states) return "";
  const std::string text = fmt::format("Optimizer states are {}, as defaults {} have them. With {}",
                                       result.other_states->choice == "fp32 states" ? "bf16" : "fp32", problem.defaults,
                                       result.other_states->choice);
  if (!result.other_states->plan) return text + " no plan was found\n";
  const Plan& plan = *result.other_states->plan;
  const Plan& fastest =
      *std::ranges::min_element(result.plans, {}, [](const Plan& p) { return p.prediction.step_time; });
  return wrapped(fmt::format("{} the fastest plan takes {} s instead of {}, and {} GiB", text,
                             seconds_text(plan.prediction.step_time.to<double>()),
                             seconds_text(fastest.prediction.step_time.to<double>()),
                             gib_text(plan.prediction.peak_memory)),
                 98, 2) +
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

std::string plan_table(const PlanProblem& problem, const std::vector<Plan>& plans) {
  const bool mixed = problem.space.find("precision")->values.size() > 1;
  Table table({"#", "<TPxCPxDPxPP", "VPP", "<ETPxEP", "mbs", "step s", "TFLOPS", "MFU", "GiB", "left", "comm%",
               "bubble%", "host%", "<dispatch"});
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const TrainingOptions& o = plans[i].options;
    const costmodel::Prediction& p = plans[i].prediction;
    table.add({fmt::format("{}", i + 1), fmt::format("{}x{}x{}x{}", o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp),
               fmt::format("{}", o.pipeline.vpp), fmt::format("{}x{}", o.layer.etp, o.layer.ep),
               fmt::format("{}", o.layer.micro_batch), seconds_text(p.step_time.to<double>()),
               fmt::format("{:.0f}", p.model_tflops_per_gpu), fmt::format("{:.1f}", p.mfu_pct),
               fmt::format("{:.1f}", in_gib(p.peak_memory)),
               fmt::format("{:.1f}", in_gib(problem.hardware.hbm_capacity - p.peak_memory)),
               percent_of(p.breakdown.exposed_communication, p.step_time), percent_of(p.breakdown.bubble, p.step_time),
               percent_of(p.breakdown.host, p.step_time), name_of(o.layer.dispatcher)});
    const std::string besides = (mixed ? name_of(o.layer.precision) + "; " : "") + beside_columns(problem, o);
    table.note(wrapped("   " + besides, kWidth, 5));
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
  for (const Plan& plan : result.pareto) pareto.push_back(plan_json(problem, plan, errors));
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

std::string plan_text(const PlanProblem& problem, const PlanResult& result, const std::optional<Decision>& decision,
                      const std::string& about) {
  std::vector<std::string> precisions;
  for (const json& precision : problem.space.find("precision")->values)
    precisions.push_back(precision.get<std::string>());
  std::string out = fmt::format("{} on {} {}, sequences of {}, global batch {}, {}{}{}{}\n", problem.model_name,
                                problem.num_gpus, problem.system_name, problem.stated.at("seq_len").get<std::int64_t>(),
                                problem.stated.at("global_batch").get<std::int64_t>(), fmt::join(precisions, ", "),
                                stated_of_model(problem), problem.folding ? "" : ", no folding",
                                problem.release == nullptr ? "" : ", Megatron-Core " + problem.release->text());
  out += fmt::format("{:.3g} candidates; {} bounded, {} composed, {} simulated, in {:.1f}{} s\n", result.enumerated,
                     result.nodes, result.composed, result.simulated, result.seconds,
                     result.explained_seconds > 0.0 ? fmt::format(" + {:.1f}", result.explained_seconds) : "");
  if (!about.empty()) {
    out += about;
  } else if (!result.plans.empty()) {
    const Seconds fastest = result.plans.front().prediction.step_time;
    out += result.least >= fastest
               ? "Nothing is faster than the first plan: proven\n"
               : fmt::format("Not proven: the search ended knowing only that nothing is faster than {} s\n",
                             seconds_text(result.least.to<double>()));
  }
  const auto schedule = problem.stated.at("schedule").get<std::string>();
  for (const auto& [name, value] : schedule_names())
    if (name == schedule && !costmodel::runnable(value)) out += study_note(value);
  if (result.plans.empty()) {
    out += !about.empty()  ? "\nNo plan."
           : result.proven ? "\nNothing fits."
                           : "\nNothing that fits was found before the search ended.";
    out += '\n';
    if (result.shortage) out += shortage_text(problem, *result.shortage);
    out += "\nWhat rejected most candidates\n";
    for (std::size_t i = 0; i < std::min(result.rejected_by_rule.size(), kRejectionLines); ++i)
      out += fmt::format("  {:>12.3g}  {}\n", result.rejected_by_rule[i].second, result.rejected_by_rule[i].first);
    return out;
  }
  out += '\n' + plan_table(problem, result.plans);
  out += software_and_evidence(problem, result);
  out += hosts_text(result) + other_states_text(problem, result);
  out += unread_keys_note(problem.model, result.plans.front().options.layer) + groups_text(result.plans);
  out += unproven_text(problem, result);
  if (decision) out += decision_text(*decision);

  const Plan& best = result.plans.front();
  out += "\nWhy the first one, and what limits it\n";
  for (const std::string& line : best.why) out += "  " + wrapped("- " + line, 98, 4) + '\n';
  if (!best.lead.empty()) out += "  " + wrapped("- " + best.lead, 98, 4) + '\n';
  if (const std::string other = other_choices(problem, best.options); !other.empty())
    out += "  " + wrapped("- " + other, 98, 4) + '\n';
  if (!best.options.pipeline.layout.empty())
    out += "  " + wrapped("- --pipeline-model-parallel-layout \"" + best.options.pipeline.layout + "\"", 98, 4) + '\n';
  out += alternatives_text(problem, result);
  if (result.pareto.size() > 1)
    out += "\nThose that no other beats in both time and memory\n" + plan_table(problem, result.pareto);
  out += '\n' +
         wrapped(fmt::format("Kept, because other values change what is computed (defaults {}): {}; balanced "
                             "routing. --set KEY=V1,V2 searches them too.",
                             problem.defaults, kept(problem, best.options)),
                 100, 2) +
         '\n';
  std::vector<std::string> rejected;
  for (const auto& [rule, count] : result.rejected_by_rule) rejected.push_back(fmt::format("{} {:.3g}", rule, count));
  out += wrapped(fmt::format("Rejected: {}", fmt::join(rejected, ", ")), 100, 2) + '\n';
  return out;
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

std::string answer_text(const Answered& answer, const std::string& objective, const std::optional<Decision>& decision) {
  const std::string about =
      fmt::format("Objective {}: {} whose step takes no longer than {} s. Searches for it:\n\n{}", objective,
                  objective == "gpus" ? "the fewest GPUs" : "the plans of least memory",
                  seconds_text(answer.limit.to<double>()), tried_table(answer));
  return plan_text(answer.problem, answer.result, decision, about);
}

}  // namespace foldwise::planner

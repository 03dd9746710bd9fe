#include "planner/report/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/report/prediction_report.h"
#include "planner/report/table.h"
#include "planner/run/names.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

constexpr std::size_t kRejectionLines = 8;

json plan_json(const PlanProblem& problem, const Plan& plan, const Residuals& residuals) {
  Run run;
  run.model_name = problem.model_name;
  run.system_name = problem.system_name;
  run.num_gpus = problem.num_gpus;
  run.model = problem.model;
  run.hardware = problem.hardware;
  run.options = plan.options;
  run.defaults = problem.defaults;
  const auto interval = step_time_interval(residuals, problem.hardware.traits.generation, plan.prediction.step_time);
  return {{"run", write_run(run)}, {"prediction", prediction_json(run, plan.prediction, interval)}, {"why", plan.why}};
}

std::string percent_of(Seconds part, Seconds whole) {
  return fmt::format("{:.1f}", 100.0 * part.to<double>() / whole.to<double>());
}

/// What the defaults chose for every candidate.
std::string fixed_choices(const TrainingOptions& o) {
  std::string text = o.step.optimizer.precision_aware ? "precision-aware Adam" : "Adam";
  text += fmt::format(", moments {}, gradients reduced in {}",
                      o.step.optimizer.exp_avg == costmodel::DataType::kFp32 ? "fp32" : "bf16",
                      o.layer.grad_reduce_in_fp32 ? "fp32" : "bf16");
  if (o.step.optimizer.low_precision_param_gather) text += ", low-precision parameter gather";
  text += ", data-parallel overlap";
  if (o.layer.cuda_graph.impl != costmodel::GraphImpl::kNone) text += ", CUDA graphs of attention and router";
  return text + "; balanced routing";
}

}  // namespace

std::string plan_table(const std::vector<Plan>& plans, const costmodel::Hardware& hardware) {
  const bool mixed = std::any_of(plans.begin(), plans.end(), [&](const Plan& plan) {
    return plan.options.layer.precision != plans.front().options.layer.precision;
  });
  Table table({"#", "<TPxCPxDPxPP", "VPP", "<ETPxEP", "mbs", "step s", "TFLOPS", "MFU", "<GiB", "comm%", "bubble%",
               "<dispatch", mixed ? "<precision" : "<recompute"});
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const TrainingOptions& o = plans[i].options;
    const costmodel::Prediction& p = plans[i].prediction;
    table.add({fmt::format("{}", i + 1), fmt::format("{}x{}x{}x{}", o.layer.tp, o.layer.cp, o.step.dp, o.pipeline.pp),
               fmt::format("{}", o.pipeline.vpp), fmt::format("{}x{}", o.layer.etp, o.layer.ep),
               fmt::format("{}", o.layer.micro_batch), seconds_text(p.step_time.to<double>()),
               fmt::format("{:.0f}", p.model_tflops_per_gpu), fmt::format("{:.1f}", p.mfu_pct),
               fmt::format("{:.0f}/{:.0f}", in_gib(p.peak_memory), in_gib(hardware.hbm_capacity)),
               percent_of(p.breakdown.exposed_communication, p.step_time), percent_of(p.breakdown.bubble, p.step_time),
               name_of(o.layer.dispatcher) + (o.pipeline.overlaps.ep_a2a ? "+ov" : ""),
               mixed ? name_of(o.layer.precision) : shortened(text_of(o.recompute()), 15)});
  }
  return table.text(0);
}

json plan_json(const PlanProblem& problem, const Pins& pins, const PlanResult& result, const Residuals& residuals) {
  json precisions = json::array(), rejected = json::object(), plans = json::array(), pareto = json::array();
  for (const costmodel::Precision precision : problem.space.precision) precisions.push_back(name_of(precision));
  for (const auto& [rule, count] : result.rejected_by_rule) rejected[rule] = count;
  for (const Plan& plan : result.plans) plans.push_back(plan_json(problem, plan, residuals));
  for (const Plan& plan : result.pareto) pareto.push_back(plan_json(problem, plan, residuals));
  return {{"problem",
           {{"model", problem.model_name},
            {"system", problem.system_name},
            {"num_gpus", problem.num_gpus},
            {"seq_len", problem.base.front().layer.seq_len},
            {"global_batch", problem.base.front().pipeline.global_batch},
            {"precision", precisions},
            {"schedule", name_of(problem.base.front().pipeline.schedule)},
            {"defaults", problem.defaults},
            {"pins", pins}}},
          {"search",
           {{"enumerated", result.enumerated},
            {"valid", result.valid},
            {"fitting", result.fitting},
            {"simulated", result.simulated},
            {"seconds", result.seconds},
            {"rejected_by_rule", rejected}}},
          {"plans", plans},
          {"pareto", pareto}};
}

std::string plan_text(const PlanProblem& problem, const PlanResult& result) {
  std::vector<std::string> precisions;
  for (const costmodel::Precision precision : problem.space.precision) precisions.push_back(name_of(precision));
  std::string out = fmt::format("{} on {} {}, sequences of {}, global batch {}, {}\n", problem.model_name,
                                problem.num_gpus, problem.system_name, problem.base.front().layer.seq_len,
                                problem.base.front().pipeline.global_batch, fmt::join(precisions, ", "));
  out += fmt::format("{} candidates, {} valid, {} fit, {} simulated, in {:.1f} s\n", result.enumerated, result.valid,
                     result.fitting, result.simulated, result.seconds);
  if (!costmodel::runnable(problem.base.front().pipeline.schedule))
    out += study_note(problem.base.front().pipeline.schedule);
  if (result.plans.empty()) {
    out += "\nNothing fits. What rejected most candidates:\n";
    for (std::size_t i = 0; i < std::min(result.rejected_by_rule.size(), kRejectionLines); ++i)
      out += fmt::format("  {:>12}  {}\n", result.rejected_by_rule[i].second, result.rejected_by_rule[i].first);
    return out;
  }
  out += '\n' + plan_table(result.plans, problem.hardware);

  const Plan& best = result.plans.front();
  out += "\nWhy the first one, and what limits it\n";
  for (const std::string& line : best.why) out += "  " + wrapped("- " + line, 98, 4) + '\n';
  out += "  " + wrapped("- recompute " + text_of(best.options.recompute()), 98, 4) + '\n';
  if (!best.options.pipeline.layout.empty())
    out += "  " + wrapped("- --pipeline-model-parallel-layout \"" + best.options.pipeline.layout + "\"", 98, 4) + '\n';
  if (result.pareto.size() > 1)
    out += "\nFastest within less memory (90, 80, ... % of the device)\n" + plan_table(result.pareto, problem.hardware);
  out += '\n' +
         wrapped(fmt::format("Not searched, from the defaults {}: {}", problem.defaults, fixed_choices(best.options)),
                 100, 2) +
         '\n';
  std::vector<std::string> rejected;
  for (const auto& [rule, count] : result.rejected_by_rule) rejected.push_back(fmt::format("{} {}", rule, count));
  out += wrapped(fmt::format("Rejected: {}", fmt::join(rejected, ", ")), 100, 2) + '\n';
  return out;
}

}  // namespace foldwise::planner

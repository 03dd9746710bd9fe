#include "planner/foldwise.h"

#include <fmt/format.h>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/run/names.h"

namespace foldwise {

using costmodel::Precision;

ModelSpec load_model(const std::string& name) { return planner::load_model(name); }

Hardware load_system(const std::string& name) { return hwprofiles::load_profile(name).hardware; }

Run load_run(const std::string& path) { return planner::load_run(path); }

Run parse_run(std::string_view text, const std::string& name) {
  const config::Document document = config::Document::parse(std::string(text), name);
  config::Diagnostics diagnostics;
  config::ObjectReader reader(document, diagnostics);
  Run run = planner::read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

std::vector<Rejection> check(const Run& run) {
  return planner::violations({run.model, run.hardware, run.num_gpus}, run.options);
}

Prediction predict(const Run& run) {
  config::Diagnostics diagnostics;
  for (const Rejection& rejection : check(run))
    diagnostics.error({run.file, run.line, ""}, fmt::format("{}: {}", rejection.rule, rejection.reason));
  diagnostics.throw_if_any();
  return costmodel::predict(run.model, run.options, run.hardware);
}

PlanProblem plan_problem(const PlanRequest& request) {
  PlanProblem problem;
  problem.model_name = request.model;
  problem.system_name = request.system;
  problem.model = load_model(request.model);
  problem.hardware = load_system(request.system);
  problem.num_gpus = request.num_gpus;
  std::vector<Precision> precisions = request.precisions;
  if (precisions.empty())
    precisions = {problem.hardware.supports(Precision::kMxfp8) ? Precision::kMxfp8 : Precision::kBf16};
  config::Diagnostics diagnostics;
  for (const Precision precision : precisions)
    if (!problem.hardware.supports(precision))
      diagnostics.error({"plan", 0, "precision"},
                        fmt::format("{} has no {}", request.system, planner::name_of(precision)));
  diagnostics.throw_if_any();
  problem.space =
      planner::default_space(problem.model, problem.hardware, request.num_gpus, request.seq_len, precisions);
  problem.defaults = planner::newest_defaults("megatron-bridge");
  problem.base =
      planner::not_searched(planner::load_defaults(problem.defaults), problem.model, problem.hardware, problem.space,
                            {{"seq_len", request.seq_len}, {"global_batch", request.global_batch}});
  return problem;
}

PlanResult plan(const PlanProblem& problem, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return planner::plan(problem, progress);
}

std::string run_file(const PlanProblem& problem, const Plan& plan) {
  return planner::write_run(problem.model_name, problem.system_name, problem.num_gpus, plan.options).dump(2);
}

}  // namespace foldwise

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

Prediction predict(const Run& run) { return costmodel::predict(compose(run)); }

costmodel::Step compose(const Run& run) {
  config::Diagnostics diagnostics;
  for (const Rejection& rejection : check(run))
    diagnostics.error({run.file, run.line, ""}, fmt::format("{}: {}", rejection.rule, rejection.reason));
  diagnostics.throw_if_any();
  return costmodel::compose_step(run.model, run.options, run.hardware);
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
  for (const Precision precision : precisions) {
    if (problem.hardware.supports(precision)) continue;
    std::vector<std::string> has;
    for (const auto& [name, supported] : planner::precision_names())
      if (problem.hardware.supports(supported)) has.push_back(name);
    diagnostics.error({request.system, 0, ""},
                      fmt::format("has no precision {}; it has {}", planner::name_of(precision), fmt::join(has, ", ")));
  }
  diagnostics.throw_if_any();
  problem.base = planner::recipe_defaults(problem.model, problem.hardware, precisions.front());
  problem.base.layer.seq_len = request.seq_len;
  problem.base.pipeline.global_batch = request.global_batch;
  problem.space =
      planner::default_space(problem.model, problem.hardware, request.num_gpus, request.seq_len, precisions);
  return problem;
}

PlanResult plan(const PlanProblem& problem, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return planner::plan(problem, progress);
}

std::string run_file(const PlanProblem& problem, const Plan& plan) {
  return planner::write_run(problem.model_name, problem.system_name, problem.num_gpus, plan.options).dump(2);
}

}  // namespace foldwise

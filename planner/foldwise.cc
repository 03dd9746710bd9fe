#include "planner/foldwise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/search/shortage.h"

namespace foldwise {

using costmodel::Precision;

namespace {

/// Fields that something else decides.
const std::vector<std::pair<std::string_view, std::string_view>> decided_elsewhere = {
    {"seq_len", "give --seq-len"},
    {"global_batch", "give --global-batch"},
    {"schedule", "give --schedule"},
    {"dp", "it follows from the other sizes"},
    {"task", "only pretraining is planned"}};

/// Leaves only the named values of a dimension, or adds it.
void set_values(const std::string& key, const std::vector<std::string>& texts, planner::SearchSpace& space,
                config::Diagnostics& diagnostics) {
  const auto mistake = [&](std::string message) {
    diagnostics.error({"command line", 0, "--set " + key}, std::move(message));
  };
  const planner::Field* field = planner::find_field(key);
  if (field == nullptr || !field->value.set) {
    std::vector<std::string> known;
    for (const planner::Field& f : planner::fields())
      if (f.value.set) known.push_back(f.key);
    const std::string nearest = config::nearest(key, known);
    return mistake(nearest.empty() ? "cannot be set; `foldwise fields` lists what can"
                                   : fmt::format("cannot be set; the nearest that can is \"{}\"", nearest));
  }
  for (const auto& [decided, why] : decided_elsewhere)
    if (decided == field->key) return mistake(fmt::format("cannot be set: {}", why));
  std::vector<nlohmann::json> values;
  for (const std::string& text : texts) {
    const nlohmann::json value = planner::typed_value(*field, text);
    if (const std::string wrong = planner::mistake_in(*field, value); !wrong.empty()) {
      mistake(wrong);
    } else if (std::ranges::count(values, value) > 0) {
      mistake(fmt::format("{} stands there twice", text));
    } else {
      values.push_back(value);
    }
  }
  if (texts.empty()) mistake("expected at least one value, found none");
  if (!values.empty()) space.set(field->key, std::move(values));
}

}  // namespace

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

Step compose(const Run& run) {
  config::Diagnostics diagnostics;
  for (const Rejection& rejection : check(run))
    diagnostics.error({run.file, run.line, ""}, fmt::format("{}: {}", rejection.rule, rejection.reason));
  diagnostics.throw_if_any();
  return costmodel::compose_step(run.model, run.options, run.hardware);
}

Prediction predict(const Run& run) { return costmodel::predict(compose(run)); }

PlanProblem plan_problem(const PlanRequest& request) {
  PlanProblem problem;
  problem.model_name = request.model;
  problem.system_name = request.system;
  problem.model = load_model(request.model);
  problem.hardware = load_system(request.system);
  problem.num_gpus = request.num_gpus;
  problem.headroom = request.headroom;
  problem.space = planner::default_space({.model = problem.model,
                                          .hardware = problem.hardware,
                                          .num_gpus = request.num_gpus,
                                          .seq_len = request.seq_len,
                                          .global_batch = request.global_batch});
  problem.defaults = planner::newest_defaults("megatron-bridge");
  problem.stated = {{"seq_len", request.seq_len},
                    {"global_batch", request.global_batch},
                    {"schedule", planner::name_of(request.schedule)}};
  std::vector<nlohmann::json> precisions;
  for (const Precision precision : request.precisions) precisions.emplace_back(planner::name_of(precision));
  if (precisions.empty()) precisions = {problem.hardware.supports(Precision::kMxfp8) ? "mxfp8" : "bf16"};
  problem.space.set("precision", std::move(precisions));
  config::Diagnostics diagnostics;
  for (const auto& [key, texts] : request.set) set_values(key, texts, problem.space, diagnostics);
  std::vector<std::string> has;
  for (const auto& [name, precision] : planner::precision_names())
    if (problem.hardware.supports(precision)) has.push_back(name);
  for (const nlohmann::json& precision : problem.space.find("precision")->values)
    if (std::ranges::count(has, precision.get<std::string>()) == 0)
      diagnostics.error({request.system, 0, ""}, fmt::format("has no precision {}; it has {}",
                                                             precision.get<std::string>(), fmt::join(has, ", ")));
  diagnostics.throw_if_any();
  return problem;
}

PlanResult plan(const PlanProblem& problem, const std::function<bool(const planner::Progress&)>& progress) {
  PlanResult result = planner::plan(problem, progress);
  planner::explain(problem, result, [&] {
    const Seconds best = result.plans.empty() ? Seconds{} : result.plans.front().prediction.step_time;
    return !progress || progress({.effort = 1.0, .best = best, .least = result.least});
  });
  return result;
}

std::string run_file(const PlanProblem& problem, const Plan& plan) {
  return planner::write_run(problem.model_name, problem.system_name, problem.num_gpus, plan.options).dump(2);
}

}  // namespace foldwise

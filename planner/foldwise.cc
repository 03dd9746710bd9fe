#include "planner/foldwise.h"

#include <fmt/format.h>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"

namespace foldwise {

using costmodel::Precision;

namespace {

/// Fields that something else decides.
const std::vector<std::pair<std::string_view, std::string_view>> decided_elsewhere = {
    {"seq_len", "give --seq-len"},
    {"global_batch", "give --global-batch"},
    {"schedule", "give --schedule"},
    {"dp", "it follows from the other sizes"},
    {"pipeline_layout", "the search splits the layers"},
    {"overlaps.delay_wgrad", "it follows overlaps.ep_a2a"},
    {"task", "only pretraining is planned"}};

/// Leaves only the pinned value of a dimension; the value of a field that is none is fixed for all candidates.
void pin(const std::string& key, const std::string& text, planner::SearchSpace& space,
         std::map<std::string, nlohmann::json>& stated, config::Diagnostics& diagnostics) {
  const auto mistake = [&](std::string message) {
    diagnostics.error({"command line", 0, "--pin " + key}, std::move(message));
  };
  const planner::Field* field = planner::find_field(key);
  if (field == nullptr || !field->value.set) {
    std::vector<std::string> known;
    for (const planner::Field& f : planner::fields())
      if (f.value.set) known.push_back(f.key);
    const std::string nearest = config::nearest(key, known);
    return mistake(nearest.empty() ? "cannot be pinned; `foldwise fields` lists what can"
                                   : fmt::format("cannot be pinned; the nearest that can is \"{}\"", nearest));
  }
  for (const auto& [decided, why] : decided_elsewhere)
    if (decided == field->key) return mistake(fmt::format("cannot be pinned: {}", why));
  const nlohmann::json value = planner::typed_value(*field, text);
  if (const std::string wrong = planner::mistake_in(*field, value); !wrong.empty()) return mistake(wrong);
  if (!space.pin(field->key, value)) stated[field->key] = value;
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
  std::vector<Precision> precisions = request.precisions;
  if (precisions.empty())
    precisions = {problem.hardware.supports(Precision::kMxfp8) ? Precision::kMxfp8 : Precision::kBf16};
  problem.space =
      planner::default_space(problem.model, problem.hardware, request.num_gpus, request.seq_len, precisions);
  config::Diagnostics diagnostics;
  std::map<std::string, nlohmann::json> stated = {{"seq_len", request.seq_len},
                                                  {"global_batch", request.global_batch},
                                                  {"schedule", planner::name_of(request.schedule)}};
  for (const auto& [key, value] : request.pins) pin(key, value, problem.space, stated, diagnostics);
  for (const Precision precision : problem.space.precision) {
    if (problem.hardware.supports(precision)) continue;
    std::vector<std::string> has;
    for (const auto& [name, supported] : planner::precision_names())
      if (problem.hardware.supports(supported)) has.push_back(name);
    diagnostics.error({request.system, 0, ""},
                      fmt::format("has no precision {}; it has {}", planner::name_of(precision), fmt::join(has, ", ")));
  }
  diagnostics.throw_if_any();
  problem.defaults = planner::newest_defaults("megatron-bridge");
  problem.base = planner::not_searched(planner::load_defaults(problem.defaults), problem.model, problem.hardware,
                                       problem.space, std::move(stated));
  return problem;
}

PlanResult plan(const PlanProblem& problem, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return planner::plan(problem, progress);
}

std::string run_file(const PlanProblem& problem, const Plan& plan) {
  return planner::write_run(problem.model_name, problem.system_name, problem.num_gpus, plan.options).dump(2);
}

}  // namespace foldwise

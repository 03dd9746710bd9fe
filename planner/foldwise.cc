#include "planner/foldwise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/pipeline/limits.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/run/defaults.h"
#include "planner/run/derive.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/search/contradiction.h"
#include "planner/search/shortage.h"
#include "planner/search/unproven.h"
#include "planner/search/whole_work.h"
#include "planner/search/workbench.h"

namespace foldwise {

using costmodel::Precision;

namespace {

/// Fields that something else decides.
const std::vector<std::pair<std::string_view, std::string_view>> decided_elsewhere = {
    {"model", "--model gives it, or the run of --from"},
    {"system", "--system gives it, or the run of --from"},
    {"num_gpus", "--gpus gives it, or the run of --from"},
    {"release", "--release gives it, or the run of --from"},
    {"seq_len", "--seq-len gives it, or the run of --from"},
    {"global_batch", "--global-batch gives it, or the run of --from"},
    {"schedule", "--schedule gives it, or the run of --from"},
    {"dp", "it follows from the other sizes"}};

config::Location option(const std::string& key, const char* name = "set") {
  return {config::kArguments, 0, fmt::format("{} {}", name, key)};
}

/// The field that may be set; null: it may not be set, which is reported.
const planner::Field* settable(const std::string& key, const config::Location& where,
                               config::Diagnostics& diagnostics) {
  const planner::Field* field = planner::find_field(key);
  for (const auto& [decided, why] : decided_elsewhere)
    if (field != nullptr && decided == field->key) {
      diagnostics.error(where, fmt::format("cannot be set: {}", why));
      return nullptr;
    }
  const bool of_model = field != nullptr && (field->key == "mtp" || field->key == "mtp_use_repeated_layer");
  if (field == nullptr || (!field->value.set && !of_model)) {
    std::vector<std::string> known = {"mtp", "mtp_use_repeated_layer"};
    for (const planner::Field& f : planner::fields())
      if (f.value.set) known.push_back(f.key);
    std::string hint = key.starts_with("overrides.")
                           ? fmt::format("; a key of the model's config.json is \"model_{}\"", key)
                           : config::nearest_hint(key, known, "that can");
    if (const std::size_t dot = key.find('.'); hint.empty() && dot != std::string::npos)
      if (const std::string object =
              config::nearest(key.substr(0, dot), {"model_overrides", "system_overrides", "system"});
          !object.empty())
        hint = fmt::format("; keys of \"{}\" can", object);
    diagnostics.error(where, field != nullptr
                                 ? "cannot be set: it is a key of run files alone"
                                 : "cannot be set" + (hint.empty() ? "; `foldwise fields` lists what can" : hint));
    return nullptr;
  }
  return field;
}

/// Values of a field as typed; what is wrong with them is reported.
std::vector<nlohmann::json> read_values(const planner::Field& field, const std::vector<std::string>& texts,
                                        const config::Location& where, config::Diagnostics& diagnostics) {
  std::vector<nlohmann::json> values;
  for (const std::string& text : texts) {
    const nlohmann::json value = planner::typed_value(field, text);
    if (const std::string wrong = planner::mistake_in(field, value); !wrong.empty())
      diagnostics.error(where, wrong);
    else if (std::ranges::count(values, value) > 0)
      diagnostics.error(where, fmt::format("{} stands there twice", text));
    else
      values.push_back(value);
  }
  return values;
}

/// What a request names, read before model and system are known.
struct Named {
  std::map<std::string, std::vector<nlohmann::json>> values;  ///< By key of the field.
  nlohmann::json model_set = nlohmann::json::object();        ///< PlanProblem::model_set.
};

Named read_set(const std::map<std::string, std::vector<std::string>>& set, config::Diagnostics& diagnostics) {
  Named named;
  for (const auto& [key, texts] : set) {
    const auto mistake = [&, &name = key](std::string message) { diagnostics.error(option(name), std::move(message)); };
    const planner::Override* place = planner::override_of(key);
    const planner::Field* field = place != nullptr ? nullptr : settable(key, option(key), diagnostics);
    if (place == nullptr && field == nullptr) continue;
    if (texts.empty() || (texts.size() == 1 && texts.front().empty())) {
      mistake("expected at least one value, found none");
      continue;
    }
    const bool of_question = place != nullptr || !field->value.set || field->key == "task";
    if (of_question && texts.size() > 1) {
      mistake(
          fmt::format("expected one value, found {}: all plans have the same model, system and task", texts.size()));
      continue;
    }
    if (place != nullptr) {
      named.model_set[std::string(place->object)][key.substr(place->prefix.size())] =
          planner::override_value(texts.front());
      continue;
    }
    std::vector<nlohmann::json> values = read_values(*field, texts, option(key), diagnostics);
    if (values.empty()) continue;
    if (values.front() == "sft" && field->key == "task") {  // Pretraining to the cost model, with another name.
      named.model_set["task"] = "sft";
      values.front() = "pretrain";
    }
    if (!field->value.set) {
      named.model_set[field->key] = values.front();
    } else if (!named.values.emplace(field->key, std::move(values)).second) {
      mistake(fmt::format("is {}, which is set too", field->key));
    }
  }
  return named;
}

void check_sizes(const PlanRequest& request, config::Diagnostics& diagnostics) {
  const auto check = [&](const char* name, const char* key, std::int64_t value) {
    if (const std::string wrong = planner::mistake_in(planner::field(key), value); !wrong.empty())
      diagnostics.error({config::kArguments, 0, name}, wrong);
  };
  check("gpus", "num_gpus", request.num_gpus);
  check("seq_len", "seq_len", request.seq_len);
  check("global_batch", "global_batch", request.global_batch);
  if (!(request.headroom >= 0.0 && request.headroom <= 0.99))
    diagnostics.error({config::kArguments, 0, "headroom"},
                      fmt::format("expected 0 to 99 percent, found {:g}", 100.0 * request.headroom));
}

void report_refusals(const std::vector<std::string>& reasons, config::Diagnostics& diagnostics) {
  for (const std::string& reason : reasons)
    diagnostics.error({config::kArguments, 0, ""}, "no candidate is valid: " + reason);
}

/// What load() gives; nothing if it throws, which is reported.
template <typename Load>
auto loaded(const Load& load, config::Diagnostics& diagnostics) -> std::optional<decltype(load())> {
  try {
    return load();
  } catch (const ConfigError& error) {
    diagnostics.add(error);
    return std::nullopt;
  }
}

std::vector<nlohmann::json> precisions_of(const PlanRequest& request, const Hardware& hardware) {
  std::vector<nlohmann::json> result;
  for (const auto& [name, precision] : planner::precision_names())
    if (request.all_precisions ? hardware.supports(precision) && precision != Precision::kFp16
                               : std::ranges::count(request.precisions, precision) > 0)
      result.emplace_back(name);
  if (result.empty()) result = {hardware.supports(Precision::kMxfp8) ? "mxfp8" : "bf16"};
  return result;
}

void check_precisions(const std::string& system, const Hardware& hardware,
                      const std::vector<nlohmann::json>& precisions, config::Diagnostics& diagnostics) {
  std::vector<std::string> has;
  for (const auto& [name, precision] : planner::precision_names())
    if (hardware.supports(precision)) has.push_back(name);
  for (const nlohmann::json& precision : precisions)
    if (std::ranges::count(has, precision.get<std::string>()) == 0)
      diagnostics.error({system, 0, ""}, fmt::format("has no precision {}; it has {}", precision.get<std::string>(),
                                                     fmt::join(has, ", ")));
}

/// Values that are named and that the release lacks.
void check_release(const std::string& key, const std::vector<nlohmann::json>& values, const planner::Release& release,
                   config::Diagnostics& diagnostics) {
  const planner::Field& field = planner::field(key);
  for (const nlohmann::json& value : values)
    if (!field.has_value_in(release, value)) diagnostics.error(option(key), field.lacks(release, value));
}

}  // namespace

ModelSpec load_model(const std::string& name) { return planner::load_model(name); }

Hardware load_system(const std::string& name) { return hwprofiles::load_profile(name).hardware; }

Run load_run(const std::string& path, const planner::Release* release) { return planner::load_run(path, release); }

Run parse_run(std::string_view text, const std::string& name) { return planner::parse_run(text, name); }

std::vector<Rejection> check(const Run& run) { return planner::violations(run); }

Step compose(const Run& run) {
  config::Diagnostics diagnostics;
  planner::report_violations(run, diagnostics);
  diagnostics.throw_if_any();
  Step step = costmodel::compose_step(run.model, run.options, run.hardware);
  const Seconds most = costmodel::makespan_upper_bound(step.composition.times);
  if (!(most <= costmodel::kLongestStep))
    throw ConfigError({{{run.file, run.line, ""}, costmodel::too_long(most, costmodel::kLongestStep)}});
  return step;
}

Prediction predict(const Run& run) { return predict(run, compose(run)); }

Prediction predict(const Run& run, const Step& step, bool with_detail) {
  try {
    return costmodel::predict(step, with_detail);
  } catch (const std::logic_error& error) {
    throw std::logic_error(fmt::format("{}\nof the run\n{}", error.what(), planner::write_run(run).dump(1)));
  }
}

namespace {

/// Named sizes of a hierarchical exchange decide CP, which is their product (derive.cc).
void take_hierarchical_sizes(Named& named, config::Diagnostics& diagnostics) {
  const std::string key = "hierarchical_context_parallel_sizes";
  const auto sizes = named.values.find(key);
  if (sizes == named.values.end()) return;
  std::set<std::int64_t> products;
  for (const nlohmann::json& pair : sizes->second)
    products.insert(pair.size() == 2 ? pair[0].get<std::int64_t>() * pair[1].get<std::int64_t>() : 0);
  std::vector<nlohmann::json>& cp = named.values[std::string("cp")];
  if (products.size() != 1 || products.contains(0) ||
      (!cp.empty() && std::ranges::count(cp, nlohmann::json(*products.begin())) == 0))
    diagnostics.error(option(key), "expected the ranks of the all-to-all and of the ring, 4+2, whose product is cp");
  else
    cp = {*products.begin()};
}

/// What is offloaded needs its type.
void check_offload(const Named& named, config::Diagnostics& diagnostics) {
  const auto type = named.values.find("offload.type"), modules = named.values.find("offload.modules");
  if (type == named.values.end() || modules == named.values.end()) return;
  if (std::ranges::count(type->second, nlohmann::json("fine-grained-activation")) == 0 &&
      std::ranges::any_of(modules->second, [](const nlohmann::json& list) { return !list.empty(); }))
    diagnostics.error(option("offload.modules"), "needs type = fine-grained-activation");
}

/// Of a model without experts nothing is laid out over their ranks, as a run file's reader says (derive.cc).
void check_experts(const PlanProblem& problem, const Named& named, config::Diagnostics& diagnostics) {
  for (const char* key : {"ep", "etp"})
    if (const auto set = named.values.find(key); set != named.values.end() && !problem.model.has_moe())
      for (const nlohmann::json& ranks : set->second)
        if (ranks != 1)
          diagnostics.error(option(key), fmt::format("{} contradicts model = {}, which has no experts", ranks.dump(),
                                                     problem.model_name));
}

}  // namespace

PlanProblem plan_problem(const PlanRequest& request) {
  config::Diagnostics diagnostics;
  check_sizes(request, diagnostics);
  if (!request.release.empty())
    if (std::string wrong = planner::mistake_in_release(request.release); !wrong.empty())
      diagnostics.error({config::kArguments, 0, "release"}, std::move(wrong));
  Named named = read_set(request.set, diagnostics);
  take_hierarchical_sizes(named, diagnostics);
  check_offload(named, diagnostics);
  const nlohmann::json of_model = named.model_set.value("model_overrides", nlohmann::json()),
                       of_system = named.model_set.value("system_overrides", nlohmann::json());
  const auto model = loaded([&] { return planner::load_model(request.model, &of_model); }, diagnostics);
  const auto hardware =
      loaded([&] { return hwprofiles::load_profile(request.system, of_system).hardware; }, diagnostics);
  std::vector<nlohmann::json> precisions;
  if (hardware) {
    const auto set = named.values.find("precision");
    if (set != named.values.end() && (request.all_precisions || !request.precisions.empty()))
      diagnostics.error(option("precision"), "contradicts --precision: give one of them");
    precisions = set == named.values.end() ? precisions_of(request, *hardware) : set->second;
    check_precisions(request.system, *hardware, precisions, diagnostics);
  }
  diagnostics.throw_if_any();

  PlanProblem problem;
  problem.model_name = request.model;
  problem.system_name = request.system;
  problem.model = *model;
  problem.model_set = named.model_set;
  problem.release = request.release.empty() ? &planner::newest_release() : planner::find_release(request.release);
  // Multi-token prediction that cannot be had, unless it is named: a hybrid's is in Megatron-Core since 0.17.
  if (planner::excludes_mtp(problem.model) ||
      (problem.model.hybrid && !planner::in_releases("0.17.1").has(*problem.release)))
    problem.model_set.emplace("mtp", 0);
  if (const auto mtp = problem.model_set.find("mtp"); mtp != problem.model_set.end())
    planner::set_mtp_depth(problem.model, mtp->get<std::int64_t>());
  if (const auto repeated = named.model_set.find("mtp_use_repeated_layer"); repeated != named.model_set.end())
    problem.model.mtp_use_repeated_layer = repeated->get<bool>();
  problem.hardware = *hardware;
  problem.num_gpus = request.num_gpus;
  problem.folding = request.folding;
  problem.headroom = request.headroom;
  problem.space = planner::default_space({.model = problem.model,
                                          .hardware = problem.hardware,
                                          .num_gpus = request.num_gpus,
                                          .seq_len = request.seq_len,
                                          .global_batch = request.global_batch,
                                          .release = problem.release});
  problem.defaults = planner::newest_defaults("megatron-bridge");
  problem.stated = {{"seq_len", request.seq_len},
                    {"global_batch", request.global_batch},
                    {"schedule", planner::name_of(request.schedule)}};
  for (const auto& [key, values] : named.values) check_release(key, values, *problem.release, diagnostics);
  diagnostics.throw_if_any();
  check_experts(problem, named, diagnostics);
  for (const auto& [key, values] : named.values) problem.space.set(key, values);
  problem.space.set("precision", std::move(precisions));
  ask_evidence(request.evidence, problem);
  report_refusals(planner::contradiction(problem), diagnostics);
  diagnostics.throw_if_any();
  return problem;
}

void ask_evidence(planner::Evidence evidence, PlanProblem& problem) {
  for (problem.evidence = evidence; problem.evidence != planner::Evidence::kAny;
       problem.evidence = less(problem.evidence))
    if (planner::contradiction(problem).empty()) return;
}

PlanProblem question_of(const Run& run, const std::map<std::string, std::vector<std::string>>& set) {
  config::Diagnostics diagnostics;
  Named named = read_set(set, diagnostics);
  take_hierarchical_sizes(named, diagnostics);
  check_offload(named, diagnostics);
  for (const auto& [key, value] : named.model_set.items())
    diagnostics.error(option(key), "is of the run's model or system: it is changed in the run file");
  diagnostics.throw_if_any();
  const TrainingOptions& o = run.options;
  std::vector<TrainingOptions> precisions;  // The run's, with each precision of `set`: not all fields matter in each.
  if (const auto found = named.values.find("precision"); found != named.values.end())
    for (const nlohmann::json& precision : found->second)
      planner::field("precision").value.set(precisions.emplace_back(o), precision);
  PlanProblem problem;
  problem.model_name = run.model_name;
  problem.system_name = run.system_name;
  problem.model = run.model;
  if (run.json.is_object())
    for (const char* key : {"model", "model_overrides", "system_overrides"})
      if (const auto stated = run.json.find(key); stated != run.json.end() && stated->is_object())
        problem.model_set[key] = *stated;
  if (run.task == "sft") problem.model_set["task"] = run.task;
  problem.hardware = run.hardware;
  problem.num_gpus = run.num_gpus;
  problem.release = run.release;
  problem.defaults = planner::newest_defaults("megatron-bridge");
  problem.space = planner::default_space({.model = problem.model,
                                          .hardware = problem.hardware,
                                          .num_gpus = run.num_gpus,
                                          .seq_len = o.layer.seq_len,
                                          .global_batch = o.pipeline.global_batch,
                                          .release = problem.release});
  for (const planner::Field& f : planner::fields()) {
    const bool of_software = f.key.starts_with("software.");  // The run's release may have no other.
    if (!f.is_option() || (f.tried != nullptr && !of_software) || f.key == "dp" || f.key == "pipeline_layout") continue;
    if (f.key == "seq_len" || f.key == "global_batch" || f.key == "schedule")
      problem.stated[f.key] = f.value.get(o);
    else if (f.acts_in(o) && std::ranges::all_of(precisions, [&](const TrainingOptions& p) {
               return f.acts_in(p) && (f.matters == nullptr || f.matters(run.model, p));
             }))
      problem.space.set(f.key, {f.value.get(o)});
  }
  check_experts(problem, named, diagnostics);
  for (const auto& [key, values] : named.values) problem.space.set(key, values);
  report_refusals(planner::contradiction(problem), diagnostics);
  diagnostics.throw_if_any();
  return problem;
}

ConfigError no_candidate_is_valid(const PlanProblem& problem) {
  config::Diagnostics diagnostics;
  report_refusals(planner::least_refused(problem), diagnostics);
  return ConfigError(diagnostics.list());
}

namespace {

/// Adds plans of other layouts until there are `top`, behind the last one, and cuts a longer list.
void list(const PlanProblem& problem, std::int64_t top, planner::WholeWork& work, planner::SharedCosts& costs,
          PlanResult& result) {
  std::vector<planner::Plan>& plans = result.plans;
  const Seconds first = plans.front().prediction.step_time;
  for (std::int64_t size = problem.top; size < top && std::ssize(plans) == size;) {
    PlanProblem longer = problem;
    longer.top = size *= kChosenAmong;
    std::vector<planner::Solution> known;
    Seconds last = first;
    for (const planner::Plan& plan : plans) {
      known.push_back({plan.prediction.step_time, plan.assignment, plan.options});
      last = std::max(last, plan.prediction.step_time);
    }
    const auto progress = [&](const planner::Progress& now) { return work.searching(planner::Work::kList, now); };
    for (planner::Plan& plan : planner::plan(longer, progress, &costs, known).plans)
      if (plan.prediction.step_time >= last && std::ranges::none_of(plans, [&](const planner::Plan& other) {
            return other.options.layout() == plan.options.layout();
          }))
        plans.push_back(std::move(plan));
  }
  if (std::ssize(plans) > top) {
    plans.resize(static_cast<std::size_t>(top));
    plans.back().lead.clear();
  }
  result.pareto = planner::pareto_of(plans);
}

/// The plans of the problem, or of the next level of evidence that has one.
PlanResult searched(PlanProblem& problem, planner::WholeWork& work, planner::SharedCosts& costs) {
  const auto progress = [&](const planner::Progress& now) { return work.searching(planner::Work::kSearch, now); };
  PlanResult result;
  problem.top = kChosenAmong;
  try {
    result = planner::plan(problem, progress, &costs);
    while (result.plans.empty() && problem.evidence != planner::Evidence::kAny) {
      problem.evidence = less(problem.evidence);
      result = planner::plan(problem, progress, &costs);
    }
  } catch (const std::range_error& error) {
    throw ConfigError({{{config::kArguments, 0, ""}, error.what()}});
  }
  result.evidence = problem.evidence;
  problem.reserve = result.reserve;
  return result;
}

}  // namespace

PlanResult plan(const PlanProblem& problem, const std::function<bool(const planner::Progress&)>& progress) {
  planner::SharedCosts costs;
  planner::WholeWork work(progress, true, problem.top > kChosenAmong);
  PlanProblem answered = problem;
  PlanResult result = searched(answered, work, costs);
  if (result.refused) return result;
  const planner::Doing doing = [&](planner::Work part, double done) { return work.following(part, done, result); };
  planner::explain(answered, result, doing, &costs);
  planner::find_unproven(
      answered, result, [&](double done) { return doing(planner::Work::kUnproven, done); }, costs);
  if (!result.plans.empty()) list(answered, problem.top, work, costs, result);
  return result;
}

PlanResult first_plan(const PlanProblem& problem, const std::function<bool(const planner::Progress&)>& progress) {
  planner::SharedCosts costs;
  planner::WholeWork work(progress, false, false);
  PlanProblem answered = problem;
  PlanResult result = searched(answered, work, costs);
  const planner::Doing doing = [&](planner::Work part, double done) { return work.following(part, done, result); };
  if (!result.plans.empty())
    planner::choose_first(answered, result, doing);
  else if (!result.refused)
    result.shortage = planner::nearest_misses(answered, [&] { return doing(planner::Work::kHosts, 0.0); });
  return result;
}

planner::Asked read_question(const std::map<std::string, std::vector<std::string>>& texts) {
  config::Diagnostics diagnostics;
  planner::Asked asked;
  for (const auto& [key, values] : texts) {
    const config::Location where = option(key, "why_not");
    const planner::Field* const field = settable(key, where, diagnostics);
    if (field != nullptr && !field->value.set)
      diagnostics.error(where, "cannot be asked about: all plans have the same model");
    else if (field != nullptr)
      asked[field->key] = read_values(*field, values, where, diagnostics);
  }
  diagnostics.throw_if_any();
  return asked;
}

std::string run_file(const PlanProblem& problem, const Plan& plan) {
  return planner::write_run(planner::run_of(problem, plan)).dump(2);
}

}  // namespace foldwise

#include "planner/sweep/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "costmodel/config/input_file.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "planner/models/models.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/sweep/axes.h"

namespace foldwise::planner {
namespace {

using config::Diagnostics;
using nlohmann::json;

constexpr std::size_t kMostPoints = 1'000'000;

const std::vector<std::string> answer_columns = {"status",
                                                 "step_time_s",
                                                 "tokens_per_s_per_gpu",
                                                 "model_tflops_per_gpu",
                                                 "mfu_pct",
                                                 "peak_device_memory_gib",
                                                 "capacity_gib",
                                                 "compute_s",
                                                 "exposed_communication_s",
                                                 "exposed_copy_s",
                                                 "bubble_s",
                                                 "host_s"};
const std::vector<std::string> run_columns = {"num_gpus", "precision", "tp", "cp",  "dp",
                                              "pp",       "vpp",       "ep", "etp", "micro_batch"};
const std::vector<std::string> plan_columns = {"proven", "least_s"};
const std::vector<std::string> cost_columns = {"days", "gpu_hours", "money", "energy_mwh", "goodput"};

/// Loads every model and system of the points, each with one value at a time of the axes that change it.
void check_catalog(const std::vector<std::string>& models, const std::vector<std::string>& systems,
                   const std::vector<Axis>& axes, Diagnostics& diagnostics) {
  const auto attempt = [&](const auto& load) {
    try {
      static_cast<void>(load());
      return true;
    } catch (const ConfigError& error) {
      diagnostics.add(error);
      return false;
    }
  };
  bool sound = true;
  for (const std::string& model : models) sound = attempt([&] { return load_model(model); }) && sound;
  for (const std::string& system : systems) sound = attempt([&] { return hwprofiles::load_profile(system); }) && sound;
  if (!sound) return;
  for (const Axis& axis : axes) {
    const Override* place = override_of(axis.key);
    if (place == nullptr) continue;
    for (const std::string& text : axis.values) {
      const json change = {{axis.key.substr(place->prefix.size()), override_value(text)}};
      for (const std::string& name : place->of_system() ? systems : models)
        attempt([&] {
          if (place->of_system())
            static_cast<void>(hwprofiles::load_profile(name, change));
          else
            static_cast<void>(load_model(name, &change));
          return 0;
        });
    }
  }
}

bool changes_system(const std::string& key) {
  const Override* place = override_of(key);
  return place != nullptr && place->of_system();
}

/// The text of a run file's key; empty if it has none there: an object, null, nothing.
std::string text_at(const json& run, const char* key) {
  const auto it = run.find(key);
  return it != run.end() && it->is_string() ? it->get<std::string>() : "";
}

/// Checks the form of the run file itself: an unknown key is an error at every point.
void check_form(const RunQuestion& question, const std::vector<Axis>& axes, Diagnostics& diagnostics) {
  const config::Document document = question.text.empty() ? config::Document::load(question.file)
                                                          : config::Document::parse(question.text, question.file);
  Diagnostics form, content;
  config::ObjectReader reader(document, form);
  if (form.ok()) static_cast<void>(read_run(reader, content));
  for (const config::Diagnostic& mistake : form.list()) {
    const bool swept = std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) {
      return pointer_of(axis.key).to_string() == mistake.where.field;
    });
    if (!swept) diagnostics.error(mistake.where, mistake.message);
  }
}

/// Refuses axes over fields that a plan decides, and several values of a pinned field.
void check_plan_axes(const PlanRequest& request, const std::vector<Axis>& axes, Diagnostics& diagnostics) {
  const std::vector<std::string_view> besides = {"model", "system", "num_gpus", "mtp", "mtp_use_repeated_layer"};
  for (const Axis& axis : axes) {
    if (request.set.contains(axis.key)) diagnostics.error(axis_location(axis.key), "contradicts --pin of it");
    if (override_of(axis.key) != nullptr) continue;
    const bool settable = field(axis.key).value.set && axis.key != "dp" && axis.key != "task";
    if (!settable && std::find(besides.begin(), besides.end(), axis.key) == besides.end())
      diagnostics.error(axis_location(axis.key), "cannot be set for plans");
  }
}

/// 64-bit FNV-1a. Source: draft-eastlake-fnv.
std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

/// Contents of a file that a run names; empty if `name` is not a file.
std::string file_text(const std::string& name) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(name, error)) return "";
  return config::read_input_file(name);
}

json request_json(const PlanQuestion& question) {
  const PlanRequest& r = question.request;
  json precisions = json::array();
  for (const costmodel::Precision precision : r.precisions) precisions.push_back(name_of(precision));
  return {{"model", r.model},
          {"system", r.system},
          {"num_gpus", r.num_gpus},
          {"seq_len", r.seq_len},
          {"global_batch", r.global_batch},
          {"precisions", precisions},
          {"all_precisions", r.all_precisions},
          {"schedule", name_of(r.schedule)},
          {"release", r.release},
          {"evidence", name_of(r.evidence)},
          {"set", r.set},
          {"headroom", r.headroom},
          {"folding", r.folding},
          {"effort", question.effort}};
}

json long_run_json(const LongRun& question) {
  json result = {{"tokens", question.tokens}};
  if (question.price_per_gpu_hour) result["price"] = *question.price_per_gpu_hour;
  if (const auto& f = question.failures)
    result["failures"] = {f->mtbf_per_gpu.to<double>(), f->storage.to<double>(), f->restart.to<double>()};
  return result;
}

/// Mistakes on one line, without the file name, which would be the one of the unchanged run.
std::string reason_of(const ConfigError& error) {
  std::vector<std::string> reasons;
  for (config::Diagnostic mistake : error.diagnostics()) {
    mistake.where.file.clear();
    mistake.where.line = 0;
    reasons.push_back(mistake.where.field.empty() ? mistake.message
                                                  : fmt::format("{}: {}", mistake.where.field, mistake.message));
  }
  std::string text = fmt::format("{}", fmt::join(reasons, "; "));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Memory needed and available on the fullest stage.
std::string shortage_reason(const Run& run, const Prediction& prediction) {
  std::size_t fullest = 0;
  Bytes host{};
  for (std::size_t i = 0; i < prediction.memory.size(); ++i) {
    if (prediction.memory[i].total() > prediction.memory[fullest].total()) fullest = i;
    host = std::max(host, prediction.memory[i].host);
  }
  const costmodel::StageMemory& memory = prediction.memory.at(fullest);
  if (memory.total() > run.hardware.hbm_capacity)
    return fmt::format("needs {:.2f} of {:.2f} GiB on stage {} ({})", in_gib(memory.total()),
                       in_gib(run.hardware.hbm_capacity), fullest, memory.moment);
  return fmt::format("needs {:.2f} of {:.2f} GiB of host memory a GPU", in_gib(host),
                     in_gib(run.hardware.host.memory_per_gpu));
}

}  // namespace

Sweep::Sweep(SweepQuestion question, std::vector<Axis> axes, std::optional<LongRun> long_run,
             const std::string& program)
    : question_(std::move(question)), long_run_(long_run) {
  Diagnostics diagnostics;
  axes_ = known_axes(std::move(axes), diagnostics);
  diagnostics.throw_if_any();
  std::vector<std::string> systems;
  json what;
  if (const auto* run = std::get_if<RunQuestion>(&question_)) {
    check_form(*run, axes_, diagnostics);
    diagnostics.throw_if_any();
    if (const std::string model = text_at(run->run, "model"); !model.empty()) models_ = {find_model(model, run->file)};
    systems = {hwprofiles::find_system(text_at(run->run, "system"), run->file)};
    what = run->run;
  } else {
    const auto& plan = std::get<PlanQuestion>(question_);
    check_plan_axes(plan.request, axes_, diagnostics);
    models_ = {plan.request.model};
    systems = {plan.request.system};
    what = request_json(plan);
  }
  if (const auto* swept = values_of(axes_, "model")) models_ = *swept;
  if (const auto* swept = values_of(axes_, "system")) systems = *swept;
  if (diagnostics.ok()) check_catalog(models_, systems, axes_, diagnostics);
  double points = 1.0;
  for (const Axis& axis : axes_) points *= static_cast<double>(axis.values.size());
  if (points > static_cast<double>(kMostPoints))
    diagnostics.error({config::kArguments, 0, "set"},
                      fmt::format("expected at most {} points, found {:.3g}", kMostPoints, points));
  diagnostics.throw_if_any();
  if (std::holds_alternative<PlanQuestion>(question_)) check_plans(diagnostics);
  diagnostics.throw_if_any();

  json name = {{"program", program}, {"question", what}, {"axes", json::array()}, {"files", json::array()}};
  for (const Axis& axis : axes_) name["axes"].push_back({axis.key, axis.values});
  for (const auto* list : {&models_, &systems})
    for (const std::string& file : *list) name["files"].push_back(fnv1a(file_text(file)));
  std::vector<std::string> defaults;
  if (const auto* run = std::get_if<RunQuestion>(&question_)) defaults = {text_at(run->run, "defaults")};
  if (const auto* swept = values_of(axes_, "defaults")) defaults = *swept;
  for (const std::string& file : defaults) name["files"].push_back(fnv1a(file_text(file)));
  if (long_run_) name["long_run"] = long_run_json(*long_run_);
  name_ = fmt::format("{:016x}", fnv1a(name.dump()));
}

/// Reports what is wrong with the question at every point.
void Sweep::check_plans(Diagnostics& diagnostics) const {
  const PlanRequest& request = std::get<PlanQuestion>(question_).request;
  std::vector<config::Diagnostic> everywhere;
  for (std::size_t point = 0; point < size(); ++point) {
    Diagnostics here;
    try {
      static_cast<void>(plan_problem(request_of_point(request, axes_, values(point))));
    } catch (const ConfigError& error) {
      here.add(error);
    }
    if (point == 0) everywhere = here.list();
    std::erase_if(everywhere, [&](const config::Diagnostic& mistake) {
      return std::ranges::none_of(here.list(), [&](const config::Diagnostic& other) {
        return other.where.field == mistake.where.field && other.message == mistake.message;
      });
    });
    if (everywhere.empty()) return;
  }
  for (const config::Diagnostic& mistake : everywhere) diagnostics.error(mistake.where, mistake.message);
}

std::size_t Sweep::size() const {
  std::size_t points = 1;
  for (const Axis& axis : axes_) points *= axis.values.size();
  return points;
}

std::vector<std::string> Sweep::columns() const {
  std::vector<std::string> result = {"sweep"};
  for (const Axis& axis : axes_) result.push_back(axis.key);
  const auto add = [&](const std::vector<std::string>& columns) {
    for (const std::string& column : columns)
      if (std::find(result.begin(), result.end(), column) == result.end()) result.push_back(column);
  };
  add(answer_columns);
  add(run_columns);
  if (std::holds_alternative<PlanQuestion>(question_)) add(plan_columns);
  if (long_run_) add(cost_columns);
  add({"reason"});
  return result;
}

std::vector<json> Sweep::systems() const {
  json asked;
  if (const auto* run = std::get_if<RunQuestion>(&question_)) {
    asked["system"] = hwprofiles::find_system(text_at(run->run, "system"), run->file);
    if (run->run.contains("system_overrides")) asked["system_overrides"] = run->run.at("system_overrides");
  } else {
    const PlanRequest& request = std::get<PlanQuestion>(question_).request;
    asked["system"] = request.system;
    for (const auto& [key, pinned] : request.set)
      if (changes_system(key)) set_in_run(asked, key, pinned.front());
  }
  std::vector<json> result = {asked};
  for (const Axis& axis : axes_) {
    if (axis.key != "system" && !changes_system(axis.key)) continue;
    std::vector<json> changed;
    for (const json& system : result)
      for (const std::string& value : axis.values) set_in_run(changed.emplace_back(system), axis.key, value);
    result = std::move(changed);
  }
  return result;
}

std::vector<std::string> Sweep::values(std::size_t point) const {
  std::vector<std::string> result(axes_.size());
  for (std::size_t i = axes_.size(); i-- > 0;) {
    const std::vector<std::string>& list = axes_[i].values;
    result[i] = list[point % list.size()];
    point /= list.size();
  }
  return result;
}

SweepRow Sweep::known_cells(std::size_t point) const {
  SweepRow row = {{"sweep", name_}};
  const std::vector<std::string> list = values(point);
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const std::string& key = axes_[i].key;
    row[key] = override_of(key) != nullptr ? override_value(list[i]) : typed_value(field(key), list[i]);
    if (row[key].is_array()) row[key] = list[i];  // A cell holds one value.
  }
  return row;
}

SweepRow Sweep::row(std::size_t point) const {
  SweepRow row = known_cells(point);
  for (const std::string& column : columns())
    if (!row.contains(column)) row[column] = nullptr;
  row["run"] = nullptr;
  try {
    if (std::holds_alternative<RunQuestion>(question_))
      predict_point(values(point), row);
    else
      plan_point(values(point), row);
  } catch (const ConfigError& error) {
    row["status"] = "refused";
    row["reason"] = reason_of(error);
  }
  return row;
}

void Sweep::predict_point(const std::vector<std::string>& values, SweepRow& row) const {
  const auto& question = std::get<RunQuestion>(question_);
  const Run run = parse_run(run_of_point(question.run, axes_, values).dump(), question.file);
  const Prediction prediction = foldwise::predict(run, compose(run), false);
  fill(run, prediction, row);
  row["status"] = prediction.fits ? "fits" : "does not fit";
  if (!prediction.fits) row["reason"] = shortage_reason(run, prediction);
}

void Sweep::plan_point(const std::vector<std::string>& values, SweepRow& row) const {
  const auto& question = std::get<PlanQuestion>(question_);
  PlanProblem problem = plan_problem(request_of_point(question.request, axes_, values));
  problem.effort = question.effort;
  const PlanResult result = foldwise::first_plan(problem);
  if (result.refused) throw no_candidate_is_valid(problem);
  row["num_gpus"] = problem.num_gpus;
  row["proven"] = result.proven;
  row["capacity_gib"] = in_gib(problem.hardware.hbm_capacity);
  if (result.plans.empty()) {
    row["status"] = "does not fit";
    row["reason"] = result.proven ? "nothing fits" : "nothing that fits was found before the search ended";
    if (result.shortage && !result.shortage->nearest.empty()) {
      const NearMiss& miss = result.shortage->nearest.front();
      row["reason"] = fmt::format("{}; the nearest lacks {:.2f} GiB, and {:.2f} on the host",
                                  row["reason"].get<std::string>(), in_gib(miss.over), in_gib(miss.host_over));
    }
    return;
  }
  row["status"] = "fits";
  row["least_s"] = result.least.to<double>();
  fill(planner::run_of(problem, result.plans.front()), result.plans.front().prediction, row);
}

void Sweep::fill(const Run& run, const Prediction& prediction, SweepRow& row) const {
  const costmodel::Breakdown& b = prediction.breakdown;
  row["step_time_s"] = prediction.step_time.to<double>();
  row["tokens_per_s_per_gpu"] = prediction.tokens_per_s_per_gpu;
  row["model_tflops_per_gpu"] = prediction.model_tflops_per_gpu;
  row["mfu_pct"] = prediction.mfu_pct;
  row["peak_device_memory_gib"] = in_gib(prediction.peak_memory);
  row["capacity_gib"] = in_gib(run.hardware.hbm_capacity);
  row["compute_s"] = b.compute.to<double>();
  row["exposed_communication_s"] = b.exposed_communication.to<double>();
  row["exposed_copy_s"] = b.exposed_copy.to<double>();
  row["bubble_s"] = b.bubble.to<double>();
  row["host_s"] = b.host.to<double>();
  row["num_gpus"] = run.num_gpus;
  for (const std::string& key : run_columns)
    if (const Field& f = field(key); f.is_option()) row[key] = f.value.get(run.options);
  if (long_run_) {
    const json cost = training_cost_json(*long_run_, training_cost(*long_run_, run, prediction));
    for (const char* key : {"days", "gpu_hours", "money", "energy_mwh"}) row[key] = cost.at(key);
    if (cost.at("goodput").is_object()) row["goodput"] = cost["goodput"]["share"];
  }
  row["run"] = write_run(run);
}

void for_rows(const Sweep& sweep, std::size_t first, int threads, const std::function<void(const SweepRow&)>& take) {
  const auto cores = static_cast<std::size_t>(threads > 0 ? threads : tbb::info::default_concurrency());
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, cores);
  std::size_t next = first;
  const auto points =
      tbb::make_filter<void, std::size_t>(tbb::filter_mode::serial_in_order, [&](tbb::flow_control& end) {
        if (next == sweep.size()) end.stop();
        return next++;
      });
  // Isolated: a search that waits for its own tasks must not start another point.
  const auto rows = tbb::make_filter<std::size_t, SweepRow>(tbb::filter_mode::parallel, [&](std::size_t point) {
    return tbb::this_task_arena::isolate([&] { return sweep.row(point); });
  });
  const auto writer =
      tbb::make_filter<SweepRow, void>(tbb::filter_mode::serial_in_order, [&](const SweepRow& row) { take(row); });
  tbb::parallel_pipeline(2 * cores, points & rows & writer);
}

}  // namespace foldwise::planner

#include "planner/search/changes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "costmodel/step/step.h"
#include "planner/run/names.h"
#include "planner/search/neighbourhood.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

/// Collects the neighbours of one run.
class Collector {
 public:
  Collector(const Problem& problem, const TrainingOptions& base)
      : problem_(problem),
        base_(base),
        facts_{.model = problem.model,
               .hardware = problem.hardware,
               .num_gpus = problem.num_gpus,
               .seq_len = base.layer.seq_len,
               .global_batch = base.pipeline.global_batch,
               .release = problem.release} {}

  Neighbours collect() && {
    for (const Field& field : fields())
      if (searched(field, base_)) change(field, {}, base_);
    tbb::parallel_for(std::size_t{0}, found_.changes.size(), [&](std::size_t i) { predict(found_.changes[i]); });
    found_.predicted = std::ssize(found_.changes);
    std::ranges::stable_sort(found_.changes, {}, &Change::step_time);
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool searched(const Field& field, const TrainingOptions& options) const {
    return field.tried != nullptr && field.counts_in(problem_.model, options);
  }

  /// Whether fields that did not count before have values that runs have: not the empty list or the 0 of an option that
  /// is off, such as no layers to offload by layer.
  [[nodiscard]] bool is_complete(const TrainingOptions& options) const {
    return std::ranges::all_of(fields(), [&](const Field& f) {
      if (!searched(f, options) || searched(f, base_)) return true;
      const json now = f.value.get(options);
      if (now != 0 && now != json::array()) return true;
      const std::vector<json> tried = f.tried(facts_);
      return std::ranges::find(tried, now) != tried.end();
    });
  }

  void change(const Field& field, const std::vector<Change::Setting>& before, const TrainingOptions& options) {
    const json now = field.value.get(options);
    for (const std::vector<json>& values : directions(field, field.tried(facts_), now))
      for (const json& value : values) {
        std::vector<Change::Setting> settings = before;
        settings.push_back({&field, now, value});
        TrainingOptions changed = with_value(problem_, options, field, value);
        const bool allowed = consider(settings, changed);
        if (before.empty())
          for (const Field& other : fields())
            if (searched(other, changed) && !searched(other, base_)) change(other, settings, changed);
        if (allowed) break;
      }
  }

  bool consider(const std::vector<Change::Setting>& settings, const TrainingOptions& options) {
    if (options == base_ || !is_complete(options)) return false;
    if (first_violation(problem_, options)) {
      ++found_.refused;
      return false;
    }
    found_.changes.push_back({.settings = settings, .options = options});
    return true;
  }

  void predict(Change& change) const {
    const costmodel::Step step = costmodel::compose_step(problem_.model, change.options, problem_.hardware);
    change.step_time = costmodel::step_time(step);
    change.fits_host = true;
    for (const costmodel::StageMemory& rank : costmodel::step_memory(step)) {
      change.peak_memory = std::max(change.peak_memory, rank.total());
      change.fits_host = change.fits_host && costmodel::fits_host(rank.host, problem_.hardware);
    }
  }

  const Problem& problem_;
  const TrainingOptions& base_;
  PlanFacts facts_;
  Neighbours found_;
};

}  // namespace

std::string Change::text() const {
  std::vector<std::string> list;
  for (const Setting& s : settings)
    list.push_back(fmt::format("{} {} -> {}", s.field->key, value_text(s.from), value_text(s.to)));
  return fmt::format("{}{}", fmt::join(list, ", "), gives_memory_back ? " (torch then gives memory back)" : "");
}

json Change::set(const TrainingOptions& base) const {
  json values = json::object();
  for (const Field& f : fields()) {
    if (!f.is_option()) continue;
    const json from = f.applies_to(base) ? f.value.get(base) : json(nullptr),
               to = f.applies_to(options) ? f.value.get(options) : json(nullptr);
    if (from != to) values[f.key] = to;
  }
  return values;
}

bool split_layers(const Problem& problem, TrainingOptions& o) {
  const costmodel::ModelSpec& model = problem.model;
  const std::int64_t slots = o.pipeline.pp * o.pipeline.vpp;
  if (slots > model.num_layers() + 2) return false;
  if (o.pipeline.microbatch_group_size < o.pipeline.pp) o.pipeline.microbatch_group_size = 0;
  o.pipeline.layout.clear();
  if (model.hybrid || model.num_layers() % slots == 0) return true;
  for (const Rejection& rejection : violations(problem, o))
    if (rejection.rule != "pp.even" && rejection.rule != "pp.vpp_even") return false;
  const costmodel::ModelKinds kinds = model_kinds(model);
  const costmodel::ModelCosts costs = model_costs({model, o, problem.hardware}, kinds);
  o.pipeline.layout =
      to_layout_string(balanced_stages(kinds, costs, model.mtp_num_layers, o.pipeline.pp, o.pipeline.vpp));
  return true;
}

TrainingOptions with_value(const Problem& problem, TrainingOptions options, const Field& field, const json& value) {
  static const TrainingOptions untouched;
  const TrainingOptions before = options;
  const std::int64_t pp = before.pipeline.pp, vpp = before.pipeline.vpp;
  field.value.set(options, value);
  settle(options);
  for (const Field& f : fields())
    if (f.value.set && f.acts_in(before) && !f.acts_in(options)) f.value.set(options, f.value.get(untouched));
  const std::int64_t model_parallel = options.layer.tp * options.layer.cp * options.pipeline.pp;
  if (model_parallel > 0 && problem.num_gpus % model_parallel == 0) options.step.dp = problem.num_gpus / model_parallel;
  if (options.pipeline.pp == 1) options.pipeline.vpp = 1;
  if (options.pipeline.pp != pp || options.pipeline.vpp != vpp) static_cast<void>(split_layers(problem, options));
  return options;
}

std::vector<LoneDifference> lone_differences(const Run& from, const Run& to) {
  std::vector<LoneDifference> result;
  const auto add = [&](std::string name, const Run& changed) {
    const Problem problem{changed.model, changed.hardware, changed.num_gpus};
    LoneDifference lone{.field = std::move(name), .refused = violations(problem, changed.options)};
    if (lone.refused.empty()) {
      const costmodel::Prediction p =
          costmodel::predict(costmodel::compose_step(changed.model, changed.options, changed.hardware), false);
      lone.step_time = p.step_time;
      lone.fits = p.fits;
    }
    result.push_back(std::move(lone));
  };
  Run changed = from;
  if (changed.model = to.model; changed.model != from.model) add("model", changed);
  changed = from;
  if (changed.hardware = to.hardware; changed.hardware != from.hardware) add("system", changed);
  const Problem problem{from.model, from.hardware, from.num_gpus};
  changed = from;
  if (to.num_gpus != from.num_gpus) {
    changed.num_gpus = to.num_gpus;
    const Field& tp = field("tp");
    changed.options =
        with_value({changed.model, changed.hardware, changed.num_gpus}, from.options, tp, tp.value.get(from.options));
    add("num_gpus", changed);
  }
  const bool same_stages =
      from.options.pipeline.pp == to.options.pipeline.pp && from.options.pipeline.vpp == to.options.pipeline.vpp;
  const auto differs = [&](const Field& f, const TrainingOptions& here) {
    return f.is_option() && f.key != "dp" && (f.key != "pipeline_layout" || same_stages) && f.applies_to(here) &&
           f.applies_to(to.options) && f.value.get(here) != f.value.get(to.options);
  };
  for (const Field& f : fields()) {
    if (!differs(f, from.options)) continue;
    changed = from;
    changed.options = with_value(problem, from.options, f, f.value.get(to.options));
    for (const Field& other : fields())
      if (!other.counts_in(from.model, from.options) && other.counts_in(from.model, changed.options) &&
          differs(other, changed.options))
        changed.options = with_value(problem, changed.options, other, other.value.get(to.options));
    if (changed.options != from.options) add(f.key, changed);
  }
  return result;
}

const Change* Neighbours::fastest(const Problem& problem, Bytes most, Bytes capacity) const {
  for (const Change& change : changes) {
    if (change.peak_memory > most || !change.fits_host) continue;
    if (problem.model.has_moe() &&
        costmodel::imbalance(problem.model, change.options, problem.hardware).p99_memory > capacity)
      continue;
    return &change;
  }
  return nullptr;
}

Neighbours neighbours(const Problem& problem, const TrainingOptions& options) {
  return Collector(problem, options).collect();
}

}  // namespace foldwise::planner

#include "planner/sweep/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planner/run/fields.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

config::Location axis_location(const std::string& key) { return {config::kArguments, 0, "set " + key}; }

json::json_pointer pointer_of(const std::string& key) {
  std::string pointer = "/" + key;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return json::json_pointer(pointer);
}

void set_in_run(json& run, const std::string& key, const std::string& text) {
  if (const Override* place = override_of(key)) {
    run[std::string(place->object)][key.substr(place->prefix.size())] = override_value(text);
    return;
  }
  const Field& f = field(key);
  if (!f.older_key.empty()) run.erase(f.older_key);
  run[pointer_of(f.key)] = typed_value(f, text);
}

json run_of_point(json run, const std::vector<Axis>& axes, const std::vector<std::string>& values) {
  bool sizes = false, dp = false;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::string& key = axes[i].key;
    sizes = sizes || key == "num_gpus" || key == "tp" || key == "cp" || key == "pp";
    dp = dp || key == "dp";
    set_in_run(run, key, values[i]);
  }
  if (sizes && !dp) run.erase("dp");
  return run;
}

PlanRequest request_of_point(PlanRequest request, const std::vector<Axis>& axes,
                             const std::vector<std::string>& values) {
  const auto whole = [](const std::string& key, const std::string& text) {
    return typed_value(field(key), text).get<std::int64_t>();
  };
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::string &key = axes[i].key, &value = values[i];
    if (key == "model") {
      request.model = value;
    } else if (key == "system") {
      request.system = value;
    } else if (key == "num_gpus") {
      request.num_gpus = whole(key, value);
    } else if (key == "seq_len") {
      request.seq_len = whole(key, value);
    } else if (key == "global_batch") {
      request.global_batch = whole(key, value);
    } else if (key == "schedule") {
      for (const auto& [name, schedule] : schedule_names())
        if (name == value) request.schedule = schedule;
    } else {
      request.set[key] = {value};
    }
  }
  return request;
}

namespace {

/// Checks each value of a field on its own.
void check_values(const Axis& axis, Diagnostics& diagnostics) {
  if (axis.values.empty() || (axis.values.size() == 1 && axis.values.front().empty()))
    return diagnostics.error(axis_location(axis.key), "expected at least one value, found none");
  const bool overrides = override_of(axis.key) != nullptr;
  std::vector<json> values;
  for (const std::string& text : axis.values) {
    json value = overrides ? override_value(text) : typed_value(field(axis.key), text);
    if (std::ranges::count(values, value) > 0)
      diagnostics.error(axis_location(axis.key), fmt::format("{} stands there twice", text));
    values.push_back(std::move(value));
  }
  if (overrides) return;
  const Field& f = field(axis.key);
  for (const std::string& text : axis.values)
    if (const std::string mistake = mistake_in(f, typed_value(f, text)); !mistake.empty())
      diagnostics.error(axis_location(axis.key), mistake);
}

}  // namespace

std::vector<Axis> known_axes(std::vector<Axis> axes, Diagnostics& diagnostics) {
  std::vector<std::string> known;
  for (const Field& f : fields())
    if (f.value.type != FieldType::kObject) known.push_back(f.key);
  std::vector<Axis> result;
  for (Axis& axis : axes) {
    if (override_of(axis.key) == nullptr) {
      const Field* f = find_field(axis.key);
      if (f == nullptr || f->value.type == FieldType::kObject) {
        diagnostics.error(axis_location(axis.key), "no field of a run file, nor model_overrides.KEY or system.KEY" +
                                                       config::nearest_hint(axis.key, known));
        continue;
      }
      axis.key = f->key;
    }
    if (std::any_of(result.begin(), result.end(), [&](const Axis& other) { return other.key == axis.key; }))
      diagnostics.error(axis_location(axis.key), "given twice");
    check_values(axis, diagnostics);
    result.push_back(std::move(axis));
  }
  return result;
}

const std::vector<std::string>* values_of(const std::vector<Axis>& axes, std::string_view key) {
  for (const Axis& axis : axes)
    if (axis.key == key) return &axis.values;
  return nullptr;
}

}  // namespace foldwise::planner

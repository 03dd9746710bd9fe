#include "planner/serve/values.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/foldwise.h"
#include "planner/run/fields.h"
#include "planner/run/release.h"
#include "planner/serve/requests.h"

namespace foldwise::serve {
namespace {

using config::Diagnostics;
using config::ObjectReader;
using nlohmann::json;
using planner::Field;
using planner::FieldType;

/// The place of a key in a run file: "recompute.modules" is {"recompute": {"modules": ...}}.
json::json_pointer place_of(const std::string& key) {
  const std::size_t dot = key.find('.');
  return dot == std::string::npos ? json::json_pointer("/" + key)
                                  : json::json_pointer("/" + key.substr(0, dot) + "/" + key.substr(dot + 1));
}

/// Values to offer; none: there are too many.
std::vector<json> values_of(const Field& field, const planner::Run& run, const json& now) {
  std::vector<json> values;
  if (field.value.type == FieldType::kBoolean)
    values = {false, true};
  else if (field.value.type == FieldType::kName)
    values.assign(field.value.names.begin(), field.value.names.end());
  else if (field.tried != nullptr)
    values = field.tried({run.model, run.hardware, run.num_gpus, run.options.layer.seq_len,
                          run.options.pipeline.global_batch, run.release});
  if (!values.empty() && std::ranges::find(values, now) == values.end()) values.push_back(now);
  if (std::ranges::all_of(values, [](const json& value) { return value.is_number() || value.is_null(); }))
    std::ranges::sort(values);
  return values;
}

/// What speaks against the run with `value` at `place`.
json refused(const ObjectReader& reader, const json::json_pointer& place, const json& value) {
  json changed = reader.json();
  const json::json_pointer group = place.parent_pointer();
  if (!group.empty() && (!changed.contains(group) || !changed.at(group).is_object())) changed[group] = json::object();
  changed[place] = value;
  json list = json::array();
  try {
    ObjectReader other = reader.of(changed);
    const planner::Run run = run_in(other);
    list = planner::rejections_json(foldwise::check(run));
  } catch (const config::ConfigError& error) {
    for (const config::Diagnostic& mistake : error.diagnostics())
      list.push_back({{"rule", nullptr}, {"reason", mistake.message}});
  }
  return list;
}

/// Value of a field in the complete run file.
json value_now(const json& run, const json::json_pointer& place) {
  return run.contains(place) ? run.at(place) : json(nullptr);
}

}  // namespace

json values_json(const config::Document& document) {
  const planner::Run run = run_in(document);
  Diagnostics errors;
  const ObjectReader reader(document, errors);
  const json whole = planner::write_run(run);
  json fields = json::object();
  for (const Field& field : planner::fields()) {
    if (!field.is_option() && field.value.type != FieldType::kBoolean && field.value.type != FieldType::kName) continue;
    const json::json_pointer place = place_of(field.key);
    json now = value_now(field.is_option() ? whole : document.root(), place);
    json values = json::array();
    for (json& value : values_of(field, run, now)) {
      json against = refused(reader, place, value);
      values.push_back({{"value", std::move(value)}, {"refused", std::move(against)}});
    }
    fields[field.key] = {
        {"value", std::move(now)}, {"applies", field.applies_to(run.options)}, {"values", std::move(values)}};
  }
  return {{"run", whole}, {"refused", planner::rejections_json(foldwise::check(run))}, {"fields", std::move(fields)}};
}

}  // namespace foldwise::serve

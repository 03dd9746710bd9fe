#include "planner/run/defaults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>

#include "costmodel/config/json.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"

namespace foldwise::planner::defaults {
std::span<const std::pair<std::string, std::string>> embedded_files();
const std::string* embedded_file(std::string_view name);
}  // namespace foldwise::planner::defaults

namespace foldwise::planner {
namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::TrainingOptions;
using nlohmann::json;

const std::vector<std::string> facts = {"model.moe", "model.hybrid", "system.recipe_graphs"};

/// The values of a case's condition: one, or any of a list.
std::vector<json> alternatives(const json& value) {
  return value.is_array() ? value.get<std::vector<json>>() : std::vector<json>{value};
}

DefaultValue read_value(ObjectReader& in, const Field& field) {
  DefaultValue result;
  if (const json* value = in.raw("value"); value == nullptr)
    in.error("value", "expected a value, found nothing");
  else if (const std::string mistake = mistake_in(field, *value); !mistake.empty())
    in.error("value", mistake);
  else
    result.value = *value;
  result.source = in.required_string("source");
  if (auto when = in.object("when")) {
    for (const std::string& key : when->keys()) {
      const bool fact = std::find(facts.begin(), facts.end(), key) != facts.end();
      const Field* other = find_field(key);
      const json& asked = *when->raw(key);
      if (!fact && (other == nullptr || !other->is_option())) {
        when->error(key, fmt::format("neither a field nor one of {}", fmt::join(facts, ", ")));
      } else if (!fact) {
        for (const json& item : alternatives(asked))
          if (const std::string mistake = mistake_in(*other, item); !mistake.empty()) when->error(key, mistake);
      }
      result.when.emplace_back(key, alternatives(asked));
    }
  }
  in.finish();
  return result;
}

Defaults read_defaults(const Document& document) {
  Diagnostics diagnostics;
  ObjectReader in(document, diagnostics);
  Defaults result{.name = in.required_string("name"),
                  .title = in.required_string("title"),
                  .megatron = in.boolean_or("megatron", true),
                  .extends = in.string("extends").value_or(""),
                  .values = {}};
  if (auto values = in.object("values")) {
    for (const std::string& key : values->keys()) {
      const Field* field = find_field(key);
      std::vector<DefaultValue> cases;
      if (field == nullptr || !field->value.set) {
        values->error(key, "no field that can have a default");
        static_cast<void>(values->raw(key));
      } else if (values->json().at(key).is_array()) {
        for (ObjectReader& item : values->objects(key)) cases.push_back(read_value(item, *field));
      } else if (auto one = values->object(key)) {
        cases.push_back(read_value(*one, *field));
      }
      result.values.emplace_back(key, std::move(cases));
    }
    values->finish();
  }
  in.finish();
  diagnostics.throw_if_any();
  return result;
}

json fact(const std::string& key, const costmodel::ModelSpec& model, const costmodel::Hardware& hardware,
          const TrainingOptions& options) {
  if (key == "model.moe") return model.has_moe();
  if (key == "model.hybrid") return model.hybrid;
  if (key == "system.recipe_graphs") return !hardware.recipe.graph_modules.empty();
  return field(key).value.get(options);
}

}  // namespace

const std::vector<DefaultValue>* Defaults::find(std::string_view key) const {
  for (const auto& [field, cases] : values)
    if (field == key) return &cases;
  return nullptr;
}

std::vector<std::string> built_in_defaults() {
  std::vector<std::string> names;
  for (const auto& [name, text] : defaults::embedded_files()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string newest_defaults(std::string_view family) {
  std::string newest;
  for (const std::string& name : built_in_defaults())
    if (name.starts_with(std::string(family) + '-')) newest = std::max(newest, name);
  if (newest.empty()) throw std::logic_error(fmt::format("no set of defaults \"{}\"", family));
  return newest;
}

const Defaults& load_defaults(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Defaults>> known;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = known.find(name); it != known.end()) return *it->second;
  }
  const std::string* text = defaults::embedded_file(name);
  if (text == nullptr && !name.ends_with(".json")) {
    const std::vector<std::string> names = built_in_defaults();
    throw config::ConfigError(
        {{{"defaults", 0, ""},
          fmt::format("expected a built-in set of defaults ({}) or a path that ends in .json, found \"{}\"{}",
                      fmt::join(names, ", "), name, config::nearest_hint(name, names))}});
  }
  Defaults set =
      read_defaults(text == nullptr ? Document::load(name) : Document::parse(*text, "built-in defaults " + name));
  for (std::string base = set.extends; !base.empty(); base = load_defaults(base).extends)
    if (base == set.name) throw config::ConfigError({{{name, 0, "/extends"}, "a set cannot extend itself"}});
  const std::lock_guard<std::mutex> lock(mutex);
  return *known.emplace(name, std::make_unique<const Defaults>(std::move(set))).first->second;
}

std::vector<Assumed> fill_silent(const Defaults& defaults, const costmodel::ModelSpec& model,
                                 const costmodel::Hardware& hardware, const std::set<std::string, std::less<>>& stated,
                                 TrainingOptions& options, const Release* release) {
  std::vector<const Defaults*> sets = {&defaults};
  while (!sets.back()->extends.empty()) sets.push_back(&load_defaults(sets.back()->extends));
  const auto holds = [&](const DefaultValue& value) {
    return std::all_of(value.when.begin(), value.when.end(), [&](const auto& condition) {
      const json found = fact(condition.first, model, hardware, options);
      return std::find(condition.second.begin(), condition.second.end(), found) != condition.second.end();
    });
  };
  std::vector<Assumed> assumed;
  for (const Field& f : fields()) {
    if (!f.value.set || stated.contains(f.key) || !f.applies_to(options)) continue;
    const bool as_another =
        f.megatron.is_string() && f.value.type == FieldType::kInteger;  // The default is another field: "tp" for etp.
    json value = as_another ? field(f.megatron.get<std::string>()).value.get(options) : f.megatron;
    std::string from = "Megatron's default";
    for (const DefaultIn& in : f.megatron_in)
      if (release != nullptr && in.releases.has(*release)) {
        value = in.value;
        from = "Megatron-Core " + release->name;
      }
    const auto take = [&](const Defaults& set) {
      const std::vector<DefaultValue>* cases = set.find(f.key);
      if (cases == nullptr) return false;
      const auto found = std::find_if(cases->begin(), cases->end(), holds);
      if (found == cases->end()) return false;
      value = found->value;
      from = set.name;
      return true;
    };
    static_cast<void>(std::find_if(sets.begin(), sets.end(), [&](const Defaults* set) { return take(*set); }));
    if (value.is_null() && !mistake_in(f, value).empty()) continue;  // It follows from other fields.
    if (release != nullptr && !f.has_value_in(*release, value)) {
      value = f.instead_of(value);
      from = "Megatron-Core " + release->name;
    }
    f.value.set(options, value);
    if (f.matters != nullptr && f.matters(model, options))
      assumed.push_back({f.key, std::move(value), std::move(from)});
  }
  return assumed;
}

TrainingOptions options_of(const Defaults& defaults, const costmodel::ModelSpec& model,
                           const costmodel::Hardware& hardware, const std::map<std::string, json>& stated,
                           const Release* release) {
  TrainingOptions options;
  std::set<std::string, std::less<>> keys;
  for (const Field& f : fields())  // In the table's order, because some setters change fields before them.
    if (const auto it = stated.find(f.key); it != stated.end()) {
      f.value.set(options, it->second);
      keys.insert(f.key);
    }
  fill_silent(defaults, model, hardware, keys, options, release);
  return options;
}

}  // namespace foldwise::planner

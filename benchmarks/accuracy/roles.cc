#include "benchmarks/accuracy/roles.h"

#include <algorithm>
#include <optional>

#include "costmodel/check.h"
#include "costmodel/config/json.h"

namespace foldwise::accuracy::data {
const std::string* embedded_file(std::string_view name);  // Generated.
}

namespace foldwise::accuracy {
namespace {

const std::vector<std::pair<std::string, Quantity>>& quantities() {
  static const std::vector<std::pair<std::string, Quantity>> names = {{"step_time", Quantity::kStepTime},
                                                                      {"memory", Quantity::kMemory}};
  return names;
}

Role read_role(config::ObjectReader& entry) {
  Role role;
  role.number = entry.required_string("number");
  role.how = entry.required_string("how");
  role.where = entry.required_string("where");
  role.quantity = entry.choice("quantity", quantities()).value_or(Quantity::kStepTime);
  if (const nlohmann::json* instead = entry.raw("instead"); instead != nullptr)
    for (const auto& [key, value] : instead->items()) role.instead.emplace(key, value);
  for (std::string& id : entry.strings("rows").value_or(std::vector<std::string>{})) role.rows.insert(std::move(id));
  if (role.rows.empty()) entry.error("rows", "expected ids of rows, found none");
  entry.finish();
  return role;
}

}  // namespace

const std::string& name_of(Quantity quantity) {
  return std::ranges::find(quantities(), quantity, [](const auto& entry) { return entry.second; })->first;
}

std::vector<const Role*> Roles::of(const std::string& id, Quantity quantity) const {
  std::vector<const Role*> result;
  for (const Role& role : list)
    if (role.quantity == quantity && role.rows.contains(id)) result.push_back(&role);
  return result;
}

Origin Roles::origin(const std::string& id) const {
  const auto it = std::ranges::find_if(origins, [&](const Origin& origin) { return id.starts_with(origin.ids); });
  return it == origins.end() ? Origin{} : *it;
}

Roles read_roles(const std::string& text, const std::string& name) {
  const config::Document document = config::Document::parse(text, name);
  config::Diagnostics diagnostics;
  config::ObjectReader root(document, diagnostics);
  Roles roles;
  for (config::ObjectReader& entry : root.objects("origins")) {
    roles.origins.push_back({.name = entry.required_string("name"),
                             .ids = entry.required_string("ids"),
                             .own = entry.boolean("own").value_or(false)});
    entry.finish();
  }
  for (config::ObjectReader& entry : root.objects("roles")) roles.list.push_back(read_role(entry));
  root.ignore_prefix('_');
  root.finish();
  diagnostics.throw_if_any();
  return roles;
}

const Roles& built_in_roles() {
  static const Roles roles = [] {
    const std::string* text = data::embedded_file("roles");
    FW_CHECK(text != nullptr, "the roles are not built in");
    return read_roles(*text, "built-in roles");
  }();
  return roles;
}

nlohmann::json numbers_set_by(const std::string& id) {
  nlohmann::json result = nlohmann::json::array();
  for (const Quantity quantity : {Quantity::kStepTime, Quantity::kMemory})
    for (const Role* role : built_in_roles().of(id, quantity))
      result.push_back(
          {{"number", role->number}, {"how", role->how}, {"where", role->where}, {"for", name_of(quantity)}});
  return result;
}

}  // namespace foldwise::accuracy

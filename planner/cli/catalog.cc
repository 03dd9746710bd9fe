#include "planner/answer/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "planner/cli/commands.h"
#include "planner/models/models.h"
#include "planner/report/facts.h"
#include "planner/report/table.h"
#include "planner/run/near_names.h"

// `models` and `systems`: what is built in, and every fact with its source.
namespace foldwise::cli {
namespace {

using nlohmann::json;
using planner::Table;

struct CatalogOptions {
  std::string name;
  std::string format = "text";
};

int list(const std::vector<std::string>& names, const char* key, bool as_json) {
  if (as_json) {
    print_result(json{{key, names}});
    return kDone;
  }
  std::string text;
  for (const std::string& name : names) text += name + '\n';
  print_result(text);
  return kDone;
}

void add_leaves(Table& table, const json& value, const std::string& path) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, child] : value.items())
      add_leaves(table, child, path.empty() ? key : fmt::format("{}.{}", path, key));
  } else if (value.is_array() && !value.empty() && value[0].is_object()) {
    for (std::size_t i = 0; i < value.size(); ++i) table.add({fmt::format("{}[{}]", path, i), value[i].dump()});
  } else {
    table.add({path, value.is_string() ? value.get<std::string>() : value.dump()});
  }
}

int models(const CatalogOptions& options) {
  const bool as_json = options.format == "json";
  if (options.name.empty()) return list(planner::built_in_models(), "models", as_json);
  json result = planner::model_json(planner::model_meant(options.name));
  if (as_json) {
    print_result(result);
    return kDone;
  }
  const json source = std::exchange(result["config"], {});
  result.erase("config");
  Table table({"<as Megatron builds it", "<"});
  add_leaves(table, result, "");
  std::string text = table.text();
  if (source.is_object()) {
    Table config({"<config.json", "<"});
    for (const auto& [key, value] : source.items())
      config.add({key, planner::shortened(value.is_string() ? value.get<std::string>() : value.dump(), 60)});
    text += '\n' + config.text();
  }
  print_result(text);
  return kDone;
}

/// Facts by name, each with the number of its source; the sources follow.
std::string facts_text(const hwprofiles::Profile& profile) {
  std::vector<std::string> sources;
  const auto number = [&](const std::string& source) {
    const auto known = std::find(sources.begin(), sources.end(), source);
    const auto index = known - sources.begin();
    if (known == sources.end()) sources.push_back(source);
    return fmt::format("[{}]", index + 1);
  };
  Table table({"<fact", "<value", "<kind", "<date", "<source", "<note"});
  for (const auto& [pointer, provenance] : profile.provenance)
    table.add({pointer.substr(1), planner::fact_text(profile, pointer), provenance.kind, provenance.date,
               number(provenance.source), planner::shortened(provenance.note, 60)});
  std::string text = fmt::format("{}: {}\n{}\nSources\n", profile.hardware.name, profile.hardware.gpu, table.text());
  for (std::size_t i = 0; i < sources.size(); ++i)
    text += "  " + planner::wrapped(fmt::format("[{}] {}", i + 1, sources[i]), 98, 6) + '\n';
  return text;
}

int systems(const CatalogOptions& options) {
  const bool as_json = options.format == "json";
  if (options.name.empty()) return list(hwprofiles::built_in_systems(), "systems", as_json);
  const hwprofiles::Profile profile = hwprofiles::load_profile(planner::system_meant(options.name));
  if (as_json) {
    print_result(planner::system_json(profile));
    return kDone;
  }
  print_result(facts_text(profile));
  return kDone;
}

void add(CLI::App& app, Command& chosen, const char* name, const char* help, int (*run)(const CatalogOptions&)) {
  auto options = std::make_shared<CatalogOptions>();
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("name", options->name, "Built-in name or file; without it, the list of names");
  add_format(*command, options->format);
  command->callback([options, run, &chosen] { chosen = [options, run] { return run(*options); }; });
}

}  // namespace

void add_models(CLI::App& app, Command& chosen) {
  add(app, chosen, "models", "List the built-in models, or show one with its sources", models);
}

void add_systems(CLI::App& app, Command& chosen) {
  add(app, chosen, "systems", "List the built-in systems, or show every fact of one with its source", systems);
}

}  // namespace foldwise::cli

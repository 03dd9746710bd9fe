#include "planner/answer/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/number.h"
#include "costmodel/config/output_file.h"
#include "costmodel/ops/block_ops.h"
#include "hwprofiles/load/cluster.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "planner/cli/commands.h"
#include "planner/cli/outputs.h"
#include "planner/models/models.h"
#include "planner/report/facts.h"
#include "planner/report/screen.h"
#include "planner/run/near_names.h"

// `models` and `systems`: the built-in ones, and the source of every number.
namespace foldwise::cli {
namespace {

using nlohmann::json;
using planner::Table;

struct CatalogOptions {
  std::string name;
  std::string format = "text";
};

struct SystemOptions : CatalogOptions {
  std::string written, base;                   ///< --new, --base
  std::map<std::string, std::string> changes;  ///< Keys: hwprofiles::cluster_keys().
};

int list_models(bool as_json) {
  if (as_json) {
    print_result(planner::models_json());
    return kDone;
  }
  std::string text;
  for (const std::string& name : planner::built_in_models()) text += name + '\n';
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

/// "48 layers, 32 heads, 128 experts of which a token takes 8; 30.53 B parameters, 3.35 B active", and reading notes.
std::string model_line(const costmodel::ModelSpec& model) {
  const auto billions = [](std::int64_t count) { return fmt::format("{:.2f} B", static_cast<double>(count) * 1e-9); };
  const costmodel::ParameterTotals totals = costmodel::parameter_totals(model);
  std::string text = fmt::format("{}: {} layers", model.name, model.num_layers());
  if (model.query_heads() > 0) text += fmt::format(", {} heads", model.query_heads());
  if (model.has_moe()) text += fmt::format(", {} experts of which a token takes {}", model.moe.experts, model.moe.topk);
  text += fmt::format("; {} parameters", billions(totals.main_total));
  if (model.has_moe()) text += fmt::format(", {} active", billions(totals.main_active));
  if (model.mtp_num_layers > 0)
    text += fmt::format("; {} with multi-token prediction", billions(totals.total_with_mtp));
  text += '\n';
  for (const std::string& note : model.notes.lines) text += "  " + planner::wrapped(note, 98, 4) + '\n';
  for (const std::string& part : model.approximated)
    text += fmt::format("  {}: approximated; no kernels of it were measured, which widens intervals\n", part);
  return text + '\n';
}

int models(const CatalogOptions& options) {
  const bool as_json = options.format == "json";
  if (options.name.empty()) return list_models(as_json);
  const std::string name = planner::model_meant(options.name);
  json result = planner::model_json(name);
  if (as_json) {
    print_result(result);
    return kDone;
  }
  const json source = std::exchange(result["config"], {});
  for (const char* said : {"config", "read_as", "approximated"}) result.erase(said);
  Table table({"<as Megatron builds it", "<"});
  add_leaves(table, result, "");
  std::string text = model_line(planner::load_model(name)) + table.text();
  if (source.is_object()) {
    Table config({"<config.json", "<"});
    for (const auto& [key, value] : source.items())
      config.add({key, planner::shortened(value.is_string() ? value.get<std::string>() : value.dump(), 60)});
    text += '\n' + config.text();
  }
  print_result(text);
  return kDone;
}

/// Numbers by name, each with a reference to its source; then the list of sources.
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

int list_systems(bool as_json) {
  const json all = planner::systems_json();
  if (as_json) {
    print_result(all);
    return kDone;
  }
  Table table({"<system", "<GPU", ">memory", ">NVLink GPUs", ">NVLink GB/s", ">NIC Gb/s", ">measured", "<"});
  for (const json& line : all.at("lines"))
    table.add({line.at("name").get<std::string>(), line.at("gpu").get<std::string>(),
               fmt::format("{:.0f} GiB", line.at("memory_gib").get<double>()),
               fmt::format("{}", line.at("nvlink_domain").get<std::int64_t>()),
               fmt::format("{:.0f}", line.at("nvlink_gb_s").get<double>()),
               fmt::format("{:.0f}", line.at("nic_gbit_s").get<double>()),
               fmt::format("{:.0f} %", 100.0 * line.at("measured_share").get<double>()),
               line.at("unmeasured").get<std::string>()});
  print_result(table.text() + "\nNVLink and NIC of a GPU, one way; measured: of the profile's numbers.\n");
  return kDone;
}

/// Writes the profile of the user's cluster, after checking it.
int write_cluster(const SystemOptions& options) {
  json cluster = {{"base", options.base}};
  for (const auto& [key, value] : options.changes)
    if (!value.empty()) {
      const auto number = config::number_in<std::int64_t>(value);
      cluster[key] = number ? json(*number) : json(value);
    }
  const std::string text = cluster.dump(2) + '\n';
  const hwprofiles::Profile profile = hwprofiles::parse_profile(text, options.written);
  config::write_output_file(options.written, text);
  print_result(fmt::format("{}: {} with {} GPUs on NVLink, for --system\n", options.written, profile.hardware.gpu,
                           profile.hardware.network.nvlink_domain));
  return kDone;
}

int systems(const SystemOptions& options) {
  const bool as_json = options.format == "json";
  if (!options.written.empty()) return write_cluster(options);
  if (options.name.empty()) return list_systems(as_json);
  const hwprofiles::Profile profile = hwprofiles::load_profile(planner::system_meant(options.name));
  if (as_json) {
    print_result(planner::system_json(profile));
    return kDone;
  }
  print_result(facts_text(profile));
  return kDone;
}

/// Adds a subcommand with a name argument and --format.
template <typename Options>
CLI::App* add(CLI::App& app, Command& chosen, const char* name, const char* help, std::shared_ptr<Options> options,
              int (*run)(const Options&)) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("name", options->name, "Built-in name or file; without it, the list");
  add_format(*command, options->format);
  command->callback([options, run, &chosen] { chosen = [options, run] { return run(*options); }; });
  return command;
}

}  // namespace

void add_models(CLI::App& app, Command& chosen) {
  add(app, chosen, "models", "List the built-in models, or show how one was read", std::make_shared<CatalogOptions>(),
      models);
}

void add_systems(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<SystemOptions>();
  CLI::App* command = add(app, chosen, "systems",
                          "List the built-in systems, show every fact of one with its source, or write a file of one's "
                          "own",
                          options, systems);
  CLI::Option* written =
      add_output_file(*command, "--new", options->written, "File of a cluster of one's own to write");
  CLI::Option* base =
      command->add_option("--base", options->base, "Built-in system that it differs from")->needs(written);
  written->needs(base)->excludes(command->get_option("name"))->excludes(command->get_option("--format"));
  for (const hwprofiles::ClusterKey& key : hwprofiles::cluster_keys()) {
    std::string flag = "--" + key.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    command->add_option(flag, options->changes[key.name], key.help)->needs(written);
  }
}

}  // namespace foldwise::cli

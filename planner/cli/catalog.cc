#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "costmodel/ops/block_ops.h"
#include "hwprofiles/load/profile.h"
#include "planner/cli/commands.h"
#include "planner/models/models.h"
#include "planner/report/facts.h"
#include "planner/report/table.h"
#include "planner/run/near_names.h"

// `models` and `systems`: what is built in, and every fact with its source.
namespace foldwise::cli {
namespace {

using costmodel::LayerSpec;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using nlohmann::json;
using planner::Table;

struct CatalogOptions {
  std::string name;
  std::string format = "text";
};

std::string_view mixer_name(const costmodel::Mixer* mixer) {
  return mixer == nullptr ? "none" : std::visit([](const auto& spec) { return spec.kName; }, *mixer);
}

const char* mlp_name(MlpKind kind) {
  switch (kind) {
    case MlpKind::kNone:
      return "none";
    case MlpKind::kDense:
      return "dense";
    case MlpKind::kMoe:
      return "moe";
  }
  return "";
}

/// Runs of equal layers, in order.
json layers_json(const ModelSpec& model) {
  const std::vector<LayerSpec>& layers = model.layers;
  json result = json::array();
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    json run = {{"count", end - i}, {"mixer", mixer_name(model.mixer(layers[i]))}, {"mlp", mlp_name(layers[i].mlp)}};
    if (layers[i].window > 0) run["window"] = layers[i].window;
    if (layers[i].compress_ratio > 0) run["compress_ratio"] = layers[i].compress_ratio;
    result.push_back(std::move(run));
    i = end;
  }
  return result;
}

json geometry_json(const ModelSpec& m) {
  json result = {{"name", m.name},
                 {"num_layers", m.num_layers()},
                 {"hidden_size", m.hidden_size},
                 {"ffn_hidden_size", m.ffn_hidden_size},
                 {"gated_linear_unit", m.gated_linear_unit},
                 {"add_bias_linear", m.add_bias_linear},
                 {"normalization", m.normalization == costmodel::Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm"},
                 {"vocab_size", m.vocab_size},
                 {"make_vocab_size_divisible_by", m.make_vocab_size_divisible_by},
                 {"share_embeddings_and_output_weights", m.share_embeddings_and_output_weights},
                 {"max_position_embeddings", m.max_position_embeddings},
                 {"mtp_num_layers", m.mtp_num_layers},
                 {"layers", layers_json(m)}};
  for (const costmodel::Mixer& mixer : m.mixers) {
    json sizes = json::object();
    std::visit([&](const auto& spec) { spec.fields([&](const char* name, auto value) { sizes[name] = value; }); },
               mixer);
    json& entry = result[std::string(mixer_name(&mixer))];  // Of several geometries of a kind: a list.
    if (entry.is_null())
      entry = std::move(sizes);
    else if (entry.is_array())
      entry.push_back(std::move(sizes));
    else
      entry = json::array({std::move(entry), std::move(sizes)});
  }
  if (m.has_moe())
    result["moe"] = {{"experts", m.moe.experts},
                     {"topk", m.moe.topk},
                     {"ffn_hidden_size", m.moe.ffn_hidden_size},
                     {"shared_ffn_hidden_size", m.moe.shared_ffn_hidden_size},
                     {"latent_size", m.moe.latent_size}};
  const costmodel::ParameterTotals totals = costmodel::parameter_totals(m);
  result["parameters"] = {{"total", totals.main_total},
                          {"active", totals.main_active},
                          {"total_with_mtp", totals.total_with_mtp},
                          {"active_with_mtp", totals.active_with_mtp},
                          {"embedding_and_output", totals.embedding_and_output}};
  return result;
}

/// The config.json itself, when the model is built in: every value there is the publisher's, "_" keys say whose.
json source_of(const std::string& name) {
  for (const std::string& built_in : planner::built_in_models())
    if (built_in == name) return json::parse(planner::built_in_model_text(name));
  return nullptr;
}

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
  const std::string name = planner::model_meant(options.name);
  json result = geometry_json(planner::load_model(name));
  const json source = source_of(name);
  if (as_json) {
    result["config"] = source;
    print_result(result);
    return kDone;
  }
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
    print_result(json{{"name", profile.hardware.name},
                      {"gpu", profile.hardware.gpu},
                      {"facts", planner::facts_json(profile)},
                      {"profile", profile.json}});
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

#include "planner/answer/catalog.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/ops/block_ops.h"
#include "hwprofiles/load/systems.h"
#include "planner/models/models.h"
#include "planner/report/facts.h"

namespace foldwise::planner {
namespace {

using costmodel::LayerSpec;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using nlohmann::json;

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

/// Consecutive equal layers as one entry each.
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
    json& entry = result[std::string(mixer_name(&mixer))];  // A list if the kind occurs with several sizes.
    if (entry.is_null())
      entry = std::move(sizes);
    else if (entry.is_array())
      entry.push_back(std::move(sizes));
    else
      entry = json::array({std::move(entry), std::move(sizes)});
  }
  if (m.sandwich_norms) result["sandwich_norms"] = true;
  if (!m.notes.lines.empty()) result["read_as"] = m.notes.lines;
  if (!m.approximated.empty()) result["approximated"] = m.approximated;
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

/// config.json of a built-in model. Its values are the publisher's; the "_" keys name the source.
json source_of(const std::string& name) {
  for (const std::string& built_in : built_in_models())
    if (built_in == name) return json::parse(built_in_model_text(name));
  return nullptr;
}

}  // namespace

json model_json(const std::string& name) {
  json result = geometry_json(load_model(name));
  result["config"] = source_of(name);
  return result;
}

json models_json() { return {{"models", built_in_models()}}; }

json systems_json() {
  json lines = json::array();
  for (const std::string& name : hwprofiles::built_in_systems()) {
    const hwprofiles::Profile profile = hwprofiles::load_profile(name);
    const auto measured = std::ranges::count_if(profile.provenance, [](const auto& entry) {
      return entry.second.kind == "measured" || entry.second.kind == "fitted";
    });
    const double share = static_cast<double>(measured) / static_cast<double>(profile.provenance.size());
    lines.push_back(system_line(profile, profile.hardware.unmeasured.empty() ? share : 0.0));
  }
  return {{"systems", hwprofiles::built_in_systems()}, {"lines", std::move(lines)}};
}

json system_line(const hwprofiles::Profile& profile, double measured_share) {
  const costmodel::Hardware& hardware = profile.hardware;
  return {{"name", hardware.name},
          {"gpu", hardware.gpu},
          {"memory_gib", in_gib(hardware.hbm_capacity)},
          {"nvlink_domain", hardware.network.nvlink_domain},
          {"nvlink_gb_s", profile.json.at("/network/nvlink_bandwidth"_json_pointer).at("value")},
          {"nic_gbit_s", hardware.network.nic_bandwidth.to<double>() * 8e-9},
          {"measured_share", measured_share},
          {"unmeasured", hardware.unmeasured}};
}

json system_json(const hwprofiles::Profile& profile) {
  return {{"name", profile.hardware.name},
          {"gpu", profile.hardware.gpu},
          {"facts", facts_json(profile)},
          {"profile", profile.json}};
}

}  // namespace foldwise::planner

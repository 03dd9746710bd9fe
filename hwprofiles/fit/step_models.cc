#include "hwprofiles/fit/step_models.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace foldwise::hwprofiles {
namespace {

struct StepLayer {
  std::string_view name;  ///< Key of MODELS in megatron_steps.py.
  std::int64_t hidden, heads, query_groups, head_dim, ffn, topk, vocab;
  bool qk_layernorm;
};
constexpr std::array<StepLayer, 5> kLayers{{{"q235", 4096, 64, 4, 128, 1536, 8, 151936, true},
                                            {"q30", 2048, 32, 4, 128, 768, 8, 151936, true},
                                            {"gpt-oss", 2880, 64, 8, 64, 2880, 4, 201088, false},
                                            {"mix", 4096, 32, 8, 128, 14336, 2, 32000, false},
                                            {"mix22", 6144, 48, 8, 128, 16384, 2, 32768, false}}};

}  // namespace

costmodel::ModelSpec step_model(const nlohmann::ordered_json& run) {
  const auto* const layer = std::find_if(kLayers.begin(), kLayers.end(), [&](const StepLayer& l) {
    return l.name == run.at("model").get_ref<const std::string&>();
  });
  if (layer == kLayers.end())
    throw std::runtime_error(fmt::format("{}: sizes of this model are not known", run.at("model").dump()));
  costmodel::ModelSpec model;
  model.hidden_size = layer->hidden;
  model.vocab_size = run.value("vocab", layer->vocab);
  model.mixers = {costmodel::GqaSpec{.heads = layer->heads,
                                     .query_groups = layer->query_groups,
                                     .head_dim = layer->head_dim,
                                     .qk_layernorm = layer->qk_layernorm}};
  model.layers.assign(run.at("layers").get<std::size_t>(), {.mixer = 0, .mlp = costmodel::MlpKind::kMoe});
  model.moe = {.experts = run.at("experts").get<std::int64_t>(), .topk = layer->topk, .ffn_hidden_size = layer->ffn};
  return model;
}

}  // namespace foldwise::hwprofiles

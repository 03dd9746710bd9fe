#pragma once
#include <nlohmann/json.hpp>

#include "costmodel/model/model.h"

// Models of kernels/torch/megatron_steps.py. Its records name a model and state the number of layers and experts.
namespace foldwise::hwprofiles {

/// The model of `run`, with the run's number of layers and experts, and its vocabulary. Throws std::runtime_error for a
/// model that is not in MODELS of megatron_steps.py.
[[nodiscard]] costmodel::ModelSpec step_model(const nlohmann::ordered_json& run);

}  // namespace foldwise::hwprofiles

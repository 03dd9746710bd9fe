#pragma once
#include <nlohmann/json.hpp>

#include "costmodel/model/model.h"

// The layers that kernels/torch/megatron_steps.py runs: its records name a model and say how many layers and experts.
namespace foldwise::hwprofiles {

/// A layer of `run`'s model, as often as the run has it, with its experts and its vocabulary. Throws
/// std::runtime_error: a model that MODELS of megatron_steps.py lacks.
[[nodiscard]] costmodel::ModelSpec step_model(const nlohmann::ordered_json& run);

}  // namespace foldwise::hwprofiles

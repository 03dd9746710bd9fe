#pragma once
#include "costmodel/model/model.h"
#include "planner/launch/arguments.h"

// The arguments that give Megatron a model's geometry. geometry.h is the way back.
namespace foldwise::planner {

/// The arguments that build `model` in Megatron-Core. Reports parts that no argument of the release can build.
[[nodiscard]] Settings settings_of_model(const costmodel::ModelSpec& model, const Release& release,
                                         config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

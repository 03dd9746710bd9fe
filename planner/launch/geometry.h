#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/model/model.h"
#include "planner/launch/arguments.h"

// Between a model and the arguments that give Megatron its geometry.
namespace foldwise::planner {

/// The arguments that build `model` in Megatron-Core. Adds to `diagnostics` what no argument of the release builds.
[[nodiscard]] Settings settings_of_model(const costmodel::ModelSpec& model, const Release& release,
                                         config::Diagnostics& diagnostics);

/// What a run file says of the model that these settings build: the name of a built-in model of equal geometry, else
/// an object that the reader of models takes (model_type "megatron"; docs/run-file.md). The depth of multi-token
/// prediction is a field of its own. Adds what Megatron could not build, or we cannot read, to `diagnostics`.
[[nodiscard]] nlohmann::json model_of(const Settings& settings, const std::string& file,
                                      config::Diagnostics& diagnostics);

/// The built-in model that these settings build if their vocabulary, which they do not say, is its own; empty: none, or
/// models of several vocabularies.
[[nodiscard]] std::string model_but_for_vocabulary(const Settings& settings);

/// Number of decoder layers.
[[nodiscard]] std::int64_t layers_of(const Settings& settings);

/// Members of the Namespace that this file reads.
[[nodiscard]] const std::vector<std::string>& geometry_members();

}  // namespace foldwise::planner

#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/model/model.h"
#include "planner/launch/arguments.h"

// Converts between models and the arguments that give Megatron their geometry.
namespace foldwise::planner {

/// The arguments that build `model` in Megatron-Core. Reports parts that no argument of the release can build.
[[nodiscard]] Settings settings_of_model(const costmodel::ModelSpec& model, const Release& release,
                                         config::Diagnostics& diagnostics);

/// The run file's model for these settings: the name of a built-in model of equal geometry, otherwise an object for the
/// reader of models (model_type "megatron"; docs/run-file.md). The depth of multi-token prediction is a separate field.
/// Reports what Megatron could not build or we cannot read.
[[nodiscard]] nlohmann::json model_of(const Settings& settings, const std::string& file,
                                      config::Diagnostics& diagnostics);

/// The built-in model of these settings, which do not state a vocabulary. Empty if there is none, or if models with
/// different vocabularies match.
[[nodiscard]] std::string model_but_for_vocabulary(const Settings& settings);

/// Number of decoder layers.
[[nodiscard]] std::int64_t layers_of(const Settings& settings);

/// Members of the Namespace that this file reads.
[[nodiscard]] const std::vector<std::string>& geometry_members();

}  // namespace foldwise::planner

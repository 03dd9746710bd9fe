#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/launch/arguments.h"

// The model that Megatron builds of its arguments. model_arguments.h is the way back.
namespace foldwise::planner {

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

#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "costmodel/config/json.h"
#include "planner/run/fields.h"

// Reads the value of one field of a run file.
namespace foldwise::planner {

/// The value at `key` of `in`; nothing if it is missing or a mistake. Mistakes of form go to `in`'s diagnostics,
/// mistakes of content to `content`.
[[nodiscard]] std::optional<nlohmann::json> read_field(const Field& field, config::ObjectReader& in,
                                                       const std::string& key, config::Diagnostics& content);

}  // namespace foldwise::planner

#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace foldwise::planner {

/// "foldwise 0.1.0 (1a2b3c4)": version, and the commit if known at build time.
[[nodiscard]] std::string version();

/// Version of docs/schema.json, the schema of the JSON answers; "schema" in each of them. It changes when a key moves
/// or changes its meaning, not when a key is added.
inline constexpr int kSchema = 1;
[[nodiscard]] nlohmann::json with_schema(nlohmann::json answer);

}  // namespace foldwise::planner

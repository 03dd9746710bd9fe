#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace foldwise::planner {

/// "foldwise 0.1.0 (1a2b3c4)": version and commit, if it was built from one.
[[nodiscard]] std::string version();

/// Version of what docs/schema.json says of the JSON answers: "schema" in each of them. It changes where a key goes or
/// means something else, not where one comes.
inline constexpr int kSchema = 1;
[[nodiscard]] nlohmann::json with_schema(nlohmann::json answer);

}  // namespace foldwise::planner

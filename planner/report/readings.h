#pragma once
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/report/roles.h"
#include "planner/report/validation.h"

// What a source leaves unsaid is read somehow (the `inferred` keys of a row, the readings among the roles). Each such
// choice, taken back for all rows at once, shows how much of the errors it decides.
namespace foldwise::planner {

struct VariedReading {
  std::string what;  ///< "mtp: not inferred", "overlaps.tp false".
  /// Predictions that change, by index in Validation::rows.
  std::map<std::size_t, ValidatedRow> rows;
};

/// Every reading taken back by itself, most rows first. Readings that no prediction depends on are left out, and so are
/// rows that are no run without theirs.
[[nodiscard]] std::vector<VariedReading> vary_readings(const Validation& validation, const Roles& roles);

[[nodiscard]] std::string readings_text(const Validation& validation, const std::vector<VariedReading>& varied);
[[nodiscard]] nlohmann::json readings_json(const Validation& validation, const std::vector<VariedReading>& varied);

}  // namespace foldwise::planner

#pragma once
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"

// Gaps in a source are filled by assumptions, called readings (`inferred` keys of a row, readings among the roles).
// Undoing each reading for all rows at once shows its influence on the errors.
namespace foldwise::accuracy {

struct VariedReading {
  std::string what;  ///< "mtp not inferred", "overlaps.tp false".
  /// Changed predictions, by index in Validation::rows.
  std::map<std::size_t, planner::ValidatedRow> rows;
};

/// Undoes each reading on its own, most rows first. An inferred layout, which the run cannot do without, is replaced by
/// a balanced one. Readings without influence on any prediction are left out.
[[nodiscard]] std::vector<VariedReading> vary_readings(const planner::Validation& validation, const Roles& roles);

/// Range of a row's step-time error, in percent, over the readings taken one at a time.
struct ReadingSpread {
  std::size_t row = 0;
  double least = 0.0, most = 0.0;  ///< They include the error as read.
  std::string by;                  ///< The reading with the largest change.
  double moved = 0.0;              ///< Its change in percentage points.
};
/// Rows that a reading changes, largest change first.
[[nodiscard]] std::vector<ReadingSpread> reading_spreads(const planner::Validation& validation,
                                                         const std::vector<VariedReading>& varied);

[[nodiscard]] std::string readings_text(const planner::Validation& validation,
                                        const std::vector<VariedReading>& varied);
[[nodiscard]] nlohmann::json readings_json(const planner::Validation& validation,
                                           const std::vector<VariedReading>& varied);

}  // namespace foldwise::accuracy

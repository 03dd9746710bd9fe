#pragma once
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"

// What a source leaves unsaid is read somehow (the `inferred` keys of a row, the readings among the roles). Each such
// choice, taken back for all rows at once, shows how much of the errors it decides.
namespace foldwise::accuracy {

struct VariedReading {
  std::string what;  ///< "mtp not inferred", "overlaps.tp false".
  /// Predictions that change, by index in Validation::rows.
  std::map<std::size_t, planner::ValidatedRow> rows;
};

/// Every reading taken back by itself, most rows first; an inferred split of layers, without which there is no run, is
/// replaced by a balanced one. Readings that no prediction depends on are left out.
[[nodiscard]] std::vector<VariedReading> vary_readings(const planner::Validation& validation, const Roles& roles);

/// What the readings, each by itself, make of one row's step-time error, in percent.
struct ReadingSpread {
  std::size_t row = 0;
  double least = 0.0, most = 0.0;  ///< The error as read lies between them.
  std::string by;                  ///< The reading that moves it most.
  double moved = 0.0;              ///< How far, in percentage points.
};
/// Of every row that a reading changes, those that are moved most first.
[[nodiscard]] std::vector<ReadingSpread> reading_spreads(const planner::Validation& validation,
                                                         const std::vector<VariedReading>& varied);

[[nodiscard]] std::string readings_text(const planner::Validation& validation,
                                        const std::vector<VariedReading>& varied);
[[nodiscard]] nlohmann::json readings_json(const planner::Validation& validation,
                                           const std::vector<VariedReading>& varied);

}  // namespace foldwise::accuracy

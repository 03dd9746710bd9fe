#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/validation.h"

// The few parameters that no kernel microbenchmark shows (what the host's Python costs, what clocks a power limit
// leaves) are fitted to whole runs: `--fit`. docs/measuring.md says which profile fields were set so.
namespace foldwise::accuracy {

/// Profile fields, by JSON pointer, that share one factor: "/host/module", "/host/eager_op".
using FieldGroup = std::vector<std::string>;

struct FittedGroup {
  FieldGroup fields;
  double factor = 1.0;  ///< On the values of each row's own profile.
  /// system -> field -> what the factor makes of it, in the profile's unit ("350 us").
  std::map<std::string, std::map<std::string, std::string>> values;
};

/// One machine that rows were measured on: their `host`, else the file that they stand in.
struct FittedMachine {
  std::string name, system;
  std::int64_t rows = 0, following = 0;  ///< All, and those whose step changes by half of what the fields do and more.
  double factor = 1.0;                   ///< On all fitted fields, beside the groups'.
};

struct PlatformFit {
  std::vector<FittedGroup> groups;
  std::vector<FittedMachine> machines;  ///< Empty unless each has a factor.
  planner::ErrorStatistics before, training;
  planner::ErrorStatistics
      left_out;  ///< Every model's rows predicted with the factors of the others; empty with one model.
};

/// Factors by robust least squares of log(predicted / measured) over the step times of `validation`'s rows. Machines
/// differ by more than runs of one do: with `per_machine` each has a factor on all fields, so that the groups' tell
/// what one field takes beside another. Throws config::ConfigError for a field that a row's profile lacks, or no row
/// with a measured step.
[[nodiscard]] PlatformFit fit_platform(const planner::Validation& validation, const std::vector<FieldGroup>& groups,
                                       bool per_machine = false);

[[nodiscard]] std::string platform_fit_text(const PlatformFit& fit);
/// {errors: {before, training, left_out}, groups: [{fields, factor, values}], machines: [{name, system, rows,
/// following, factor}]}
[[nodiscard]] nlohmann::json platform_fit_json(const PlatformFit& fit);

}  // namespace foldwise::accuracy

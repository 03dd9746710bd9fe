#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/validation.h"

// `--fit`: fits the few parameters that no kernel microbenchmark determines (time of the host's Python, clocks under a
// power limit) to whole runs. docs/measuring.md lists the profile fields that were set in this way.
namespace foldwise::accuracy {

/// Profile fields with a common factor, by JSON pointer: "/host/module", "/host/eager_op".
using FieldGroup = std::vector<std::string>;

struct FittedGroup {
  FieldGroup fields;
  double factor = 1.0;  ///< Multiplies the values of each row's profile.
  /// system -> field -> value after the factor, in the profile's unit ("350 us").
  std::map<std::string, std::map<std::string, std::string>> values;
};

/// A machine with measured rows: their `host`, or else their file.
struct FittedMachine {
  std::string name, system;
  /// `following`: rows whose step time changes by at least half of the change of the fields.
  std::int64_t rows = 0, following = 0;
  double factor = 1.0;  ///< On all fitted fields, in addition to the groups' factors.
};

struct PlatformFit {
  std::vector<FittedGroup> groups;
  std::vector<FittedMachine> machines;  ///< Empty unless machines have factors.
  planner::ErrorStatistics before, training;
  planner::ErrorStatistics
      left_out;  ///< Each model's rows predicted with the factors from the other models; empty with one model.
};

/// Fits factors by robust least squares of log(predicted / measured) over the step times of `validation`'s rows.
/// Machines differ by more than the runs of one machine. `per_machine` gives each a factor on all fields, so that the
/// groups' factors only describe the ratios between fields. Throws config::ConfigError if a row's profile lacks a
/// field, or if no row has a measured step time.
[[nodiscard]] PlatformFit fit_platform(const planner::Validation& validation, const std::vector<FieldGroup>& groups,
                                       bool per_machine = false);

[[nodiscard]] std::string platform_fit_text(const PlatformFit& fit);
/// {errors: {before, training, left_out}, groups: [{fields, factor, values}], machines: [{name, system, rows,
/// following, factor}]}
[[nodiscard]] nlohmann::json platform_fit_json(const PlatformFit& fit);

}  // namespace foldwise::accuracy

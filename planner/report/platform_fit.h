#pragma once
#include <map>
#include <string>
#include <vector>

#include "planner/report/validation.h"

// The few parameters that no kernel microbenchmark shows (what the host's Python costs, what clocks a power limit
// leaves) are fitted to whole runs: `validate --fit`. docs/measuring.md says which profile fields were set so.
namespace foldwise::planner {

/// Profile fields, by JSON pointer, that share one factor: "/host/module", "/host/eager_op".
using FieldGroup = std::vector<std::string>;

struct FittedGroup {
  FieldGroup fields;
  double factor = 1.0;  ///< On the values of each row's own profile.
  /// system -> field -> what the factor makes of it, in the profile's unit ("350 us").
  std::map<std::string, std::map<std::string, std::string>> values;
};

struct PlatformFit {
  std::vector<FittedGroup> groups;
  ErrorStatistics before, training;
  ErrorStatistics left_out;  ///< Every model's rows predicted with the factors of the others; empty with one model.
};

/// Factors that minimise the mean of |log(predicted / measured)| of the step times of `validation`'s rows. Throws
/// std::invalid_argument for a field that a row's profile lacks, or no row with a measured step.
[[nodiscard]] PlatformFit fit_platform(const Validation& validation, const std::vector<FieldGroup>& groups);

[[nodiscard]] std::string platform_fit_text(const PlatformFit& fit);

}  // namespace foldwise::planner

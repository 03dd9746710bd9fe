#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"
#include "planner/uncertainty/error_model.h"

// Learns the errors of predictions from measured rows, and tests on each group of rows what was learnt from the others.
namespace foldwise::accuracy {

/// A run determines its host's time if its step time changes by at least this share of the change of the host.
inline constexpr double kFollows = 0.5;
/// A machine counts with at least this many such runs. A single run may be slow for another reason.
inline constexpr std::int64_t kFewestRuns = 2;

/// How often intervals contain the measured time if they are learnt from the other groups of rows (by model, system and
/// software, never row by row). Our own runs are left out by group, too, each without the host of its machine.
struct Coverage {
  std::string group;  ///< "h200", "moe", "published", "own H100 runs", ...
  std::int64_t predictions = 0;
  double share_80 = 0.0, share_95 = 0.0;  ///< Share of predictions inside.
  double half_width_pct = 0.0;            ///< Median of sqrt(high / low) - 1 of the narrower interval.
};

struct Learnt {
  planner::ErrorModel errors;
  std::vector<Coverage> coverage;
};

/// Learns the most likely errors by cause from absolute errors of untouched predictions, and from error differences
/// between any two runs of one question. Errors have a Laplace distribution with the model's deviation, which limits
/// the effect of outliers. Deviations between hosts come from our own machines if there are at least five. `hosts`:
/// more runs of such machines; untouched ones count equally. Rows that only showed that something was missing
/// (Role::only_showed) are used like untouched ones, but not counted. Deviations are scaled so that 80 % intervals
/// contain 80 % of left-out predictions; groups with many peers have their own scale (V. Vovk, "Conditional validity of
/// inductive conformal predictors", 2012). Empty if such rows are of fewer than two groups.
[[nodiscard]] Learnt learn_errors(const planner::Validation& validation, const Roles& roles,
                                  const planner::Validation& hosts = {});

[[nodiscard]] std::string errors_text(const Learnt& learnt);
[[nodiscard]] nlohmann::json coverage_json(const std::vector<Coverage>& coverage);

}  // namespace foldwise::accuracy

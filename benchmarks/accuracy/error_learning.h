#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"
#include "planner/uncertainty/error_model.h"

// What measured rows tell about the errors of predictions, and how well what some rows tell holds for the others.
namespace foldwise::accuracy {

/// A run whose step changes by at least this share of what its host does tells what its host takes.
inline constexpr double kFollows = 0.5;
/// A machine counts from so many of them on: one alone may have been slow for something else.
inline constexpr std::int64_t kFewestRuns = 2;

/// How often intervals that the other groups of rows give (model, system and software; never row by row) hold the
/// measured time. Our own runs are left out by group as well, each without its machine's host.
struct Coverage {
  std::string group;  ///< "h200", "moe", "published", "own H100 runs", ...
  std::int64_t predictions = 0;
  double share_80 = 0.0, share_95 = 0.0;  ///< Of predictions inside.
  double half_width_pct = 0.0;            ///< Median: sqrt(high / low) - 1, of the narrower interval.
};

struct Learnt {
  planner::ErrorModel errors;
  std::vector<Coverage> coverage;
};

/// Errors by cause, such that the rows are likeliest: absolute errors of untouched predictions, and differences between
/// those of two runs of one question, whatever they set and whoever measured them. Errors have a Laplace distribution
/// of the model's deviation, which outliers bend less than a normal one. What hosts differ by is of machines of our
/// own, where there are five and more. `hosts`: more runs of such machines, untouched ones of which count alike. Rows
/// that only showed that something was missing (Role::only_showed) teach as untouched ones, and are not counted.
/// Deviations are scaled such that intervals of 80 % hold 80 % of left-out predictions, those of many peers by
/// themselves (V. Vovk, "Conditional validity of inductive conformal predictors", 2012).
/// Empty where such rows are of fewer than two groups.
[[nodiscard]] Learnt learn_errors(const planner::Validation& validation, const Roles& roles,
                                  const planner::Validation& hosts = {});

[[nodiscard]] std::string errors_text(const Learnt& learnt);
[[nodiscard]] nlohmann::json coverage_json(const std::vector<Coverage>& coverage);

}  // namespace foldwise::accuracy

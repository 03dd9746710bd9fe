#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/error_model.h"
#include "planner/report/roles.h"
#include "planner/report/validation.h"

// What measured rows tell about the errors of predictions, and how well what some rows tell holds for the others.
namespace foldwise::planner {

/// Errors by cause, such that the rows are likeliest: absolute errors of untouched predictions of runs that others
/// measured (planner/report/roles.h), and differences between those of two runs of one question, whatever they set and
/// whoever measured them. Errors have a Laplace distribution of the model's deviation, which outliers bend less than a
/// normal one. What hosts differ by is of machines of our own, where there are five and more, of these rows and of
/// `hosts`, which teach nothing else. Empty where untouched rows are of fewer than two groups.
[[nodiscard]] ErrorModel learn_errors(const Validation& validation, const Roles& roles, const Validation& hosts = {});

/// How often intervals that the other groups of rows give (model, system and software; never row by row) hold the
/// measured time. Our own runs are groups of their own, each without its machine's host.
struct Coverage {
  std::string group;  ///< "hopper", "moe", ...
  std::int64_t predictions = 0;
  double share_80 = 0.0, share_95 = 0.0;  ///< Of predictions inside.
  double half_width_pct = 0.0;            ///< Median: sqrt(high / low) - 1, of the narrower interval.
};
[[nodiscard]] std::vector<Coverage> left_out_coverage(const Validation& validation, const Roles& roles,
                                                      const Validation& hosts = {});

[[nodiscard]] std::string errors_text(const ErrorModel& errors, const std::vector<Coverage>& coverage);
[[nodiscard]] nlohmann::json coverage_json(const std::vector<Coverage>& coverage);

}  // namespace foldwise::planner

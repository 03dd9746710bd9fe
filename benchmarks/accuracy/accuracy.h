#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/accuracy/readings.h"
#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"
#include "planner/uncertainty/reservation.h"

// How right predictions are, said apart for rows that set a number of the model and rows that did not, and once for
// each problem: a run that several releases measured again is one prediction.
namespace foldwise::accuracy {

/// Equal for runs for which the same is predicted.
[[nodiscard]] std::string problem_text(const planner::Run& run);

/// Errors of a group, in percent of the measured value, where each prediction counts once: with the mean of its rows'
/// absolute errors, in `bias` with the mean of their signed ones.
struct Accuracy {
  std::string group;  ///< "step time, untouched, hopper moe"
  Quantity quantity = Quantity::kStepTime;
  std::int64_t rows = 0, predictions = 0;
  double mean = 0.0, median = 0.0, p90 = 0.0, bias = 0.0;
  std::optional<double> least_mean, most_mean;  ///< Over the readings that were varied.
};

/// Groups of all rows that have an error: step times by use of the row, GPU generation and kind of model; memory by
/// use, by who measured it, and allocated and reserved apart. In the order in which they are printed.
[[nodiscard]] std::vector<Accuracy> accuracy(const planner::Validation& validation, const Roles& roles,
                                             const std::vector<VariedReading>& varied = {});

/// What the rows of `validation` were used for: a line for each role.
[[nodiscard]] std::string roles_text(const planner::Validation& validation, const Roles& roles);
[[nodiscard]] std::string accuracy_text(const std::vector<Accuracy>& groups);
[[nodiscard]] nlohmann::json accuracy_json(const std::vector<Accuracy>& groups);

/// Writes what `groups` are today, with the margins within which they may move: tests/accuracy_bounds.json.
void write_accuracy_bounds(const std::vector<Accuracy>& groups, const std::string& path);

/// A line for each group that is not as the file of bounds says. Throws ConfigError for a file that is none.
[[nodiscard]] std::vector<std::string> outside_bounds(const std::vector<Accuracy>& groups, const std::string& path);

}  // namespace foldwise::accuracy

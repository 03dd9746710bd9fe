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

// Errors of predictions, separately for rows that set a number of the model and rows that did not. Each problem counts
// once: a run that several releases measured is one prediction.
namespace foldwise::accuracy {

/// Equal for runs with equal predictions.
[[nodiscard]] std::string problem_text(const planner::Run& run);

/// Errors of a group, in percent of the measured value. Each prediction counts once: with the mean of its rows'
/// absolute errors, in `bias` with the mean of their signed errors.
struct Accuracy {
  std::string group;  ///< "step time, untouched, hopper moe"
  Quantity quantity = Quantity::kStepTime;
  std::int64_t rows = 0, predictions = 0;
  double mean = 0.0, median = 0.0, p90 = 0.0, bias = 0.0;
  std::optional<double> least_mean, most_mean;  ///< Over the varied readings.
};

/// Groups of all rows that have an error, in printing order: step times by use of the row, GPU generation and kind of
/// model; memory by use, by who measured it, and by allocated or reserved.
[[nodiscard]] std::vector<Accuracy> accuracy(const planner::Validation& validation, const Roles& roles,
                                             const std::vector<VariedReading>& varied = {});

/// How the rows of `validation` were used: one line per role.
[[nodiscard]] std::string roles_text(const planner::Validation& validation, const Roles& roles);
[[nodiscard]] std::string accuracy_text(const std::vector<Accuracy>& groups);
[[nodiscard]] nlohmann::json accuracy_json(const std::vector<Accuracy>& groups);

/// Writes the present errors of `groups` and their margins: tests/accuracy_bounds.json.
void write_accuracy_bounds(const std::vector<Accuracy>& groups, const std::string& path);

/// One line for each group that is not within the bounds of the file. Throws ConfigError if the file is invalid.
[[nodiscard]] std::vector<std::string> outside_bounds(const std::vector<Accuracy>& groups, const std::string& path);

}  // namespace foldwise::accuracy

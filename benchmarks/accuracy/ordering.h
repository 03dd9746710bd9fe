#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"

// Tests the predicted order of measured runs that answer the same question, which is what `plan` needs. Errors that all
// of them share cancel.
namespace foldwise::accuracy {

/// Equal for rows of one question (source, model, system, batch, software) that differ only in choices of `plan`.
[[nodiscard]] std::string question_text(const planner::Run& run);

/// Pairs of runs, and those that are predicted in the measured order.
struct Ordered {
  std::int64_t pairs = 0, right = 0;
};

struct Ordering {
  std::string group;                        ///< "all rows", or "untouched": both runs of each pair are.
  Ordered measured_apart;                   ///< Measured step times differ by more than kApart.
  Ordered predicted_apart, predicted_near;  ///< Predicted step times differ by at least kIndistinguishable, or by less.
  std::int64_t questions = 0;               ///< Questions with at least two runs.
  double mean_loss_pct = 0.0;               ///< Excess of the run predicted to be the fastest over the fastest run.
  double worst_loss_pct = 0.0;
  std::string worst;  ///< Question and choice with that loss.
};
inline constexpr double kApart = 0.05;

[[nodiscard]] std::vector<Ordering> orderings(const planner::Validation& validation, const Roles& roles);

[[nodiscard]] std::string orderings_text(const std::vector<Ordering>& orderings);
[[nodiscard]] nlohmann::json orderings_json(const std::vector<Ordering>& orderings);

}  // namespace foldwise::accuracy

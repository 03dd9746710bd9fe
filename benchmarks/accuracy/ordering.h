#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/accuracy/roles.h"
#include "planner/report/validation.h"

// Which of several measured runs that answer one question is the faster: what the model has wrong about all of them
// goes away, and it is what `plan` is asked.
namespace foldwise::accuracy {

/// Rows of one question (source, model, system, batch, software) that differ in what `plan` chooses have equal text.
[[nodiscard]] std::string question_text(const planner::Run& run);

/// Pairs of runs that are in the measured order by prediction, of all.
struct Ordered {
  std::int64_t pairs = 0, right = 0;
};

struct Ordering {
  std::string group;                        ///< "all rows", "untouched": both runs of each pair.
  Ordered measured_apart;                   ///< Whose measured steps are more than kApart apart.
  Ordered predicted_apart, predicted_near;  ///< Whose predicted steps are apart by kIndistinguishable, or not.
  std::int64_t questions = 0;               ///< Of two runs or more.
  double mean_loss_pct = 0.0;               ///< What the run predicted to be the fastest takes longer than the fastest.
  double worst_loss_pct = 0.0;
  std::string worst;  ///< The run that was chosen there.
};
inline constexpr double kApart = 0.05;

[[nodiscard]] std::vector<Ordering> orderings(const planner::Validation& validation, const Roles& roles);

[[nodiscard]] std::string orderings_text(const std::vector<Ordering>& orderings);
[[nodiscard]] nlohmann::json orderings_json(const std::vector<Ordering>& orderings);

}  // namespace foldwise::accuracy

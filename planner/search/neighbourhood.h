#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "costmodel/parallel/options.h"
#include "planner/run/fields.h"
#include "planner/search/order.h"

// Neighbours of values and of assignments. They follow from the table of fields.
namespace foldwise::planner {

/// Values of a field to try instead of `now`, as lists to try in order. A number has two lists, the smaller and the
/// larger values, nearest first. A set has those with one member more or less. A name has all other values.
[[nodiscard]] std::vector<std::vector<nlohmann::json>> directions(const Field& field,
                                                                  const std::vector<nlohmann::json>& values,
                                                                  const nlohmann::json& now);

/// Another value of one dimension.
struct Move {
  std::size_t position = 0;  ///< In the order of decision.
  std::uint16_t value = 0;   ///< Its index.
  bool next = false;         ///< The nearest value of its direction.
};
/// The moves from an assignment: [positions], in the order of decision.
[[nodiscard]] std::vector<std::vector<Move>> moves_from(const DecisionOrder& order, const Assignment& assignment);

/// Assignments one move away (`ones`) and two moves away (`twos`). A pair consists of two moves to the next value each,
/// or of any move and any move of a field that counts only after it. `twos` also has sets with one member replaced.
/// Fields that do not count in `options` do not move.
struct Neighbourhood {
  std::vector<Assignment> ones, twos;
};
/// `assignment` is in the order of decision; it may cover only the first dimensions.
[[nodiscard]] Neighbourhood neighbourhood_of(const PlanProblem& problem, const DecisionOrder& order,
                                             const Assignment& assignment, const costmodel::TrainingOptions& options);

}  // namespace foldwise::planner

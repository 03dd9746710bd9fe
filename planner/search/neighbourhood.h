#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "costmodel/parallel/options.h"
#include "planner/run/fields.h"
#include "planner/search/order.h"

// Neighbours of values and of assignments, derived from the table of fields.
namespace foldwise::planner {

/// Values of a field to try beside `now`, in each list one after the other: of numbers those below and those above, the
/// nearest first; of sets those with one member more or less; of names all others.
[[nodiscard]] std::vector<std::vector<nlohmann::json>> directions(const Field& field,
                                                                  const std::vector<nlohmann::json>& values,
                                                                  const nlohmann::json& now);

/// Another value of one dimension.
struct Move {
  std::size_t position = 0;  ///< In the order of decision.
  std::uint16_t value = 0;   ///< Its index.
  bool next = false;         ///< The first of its direction.
};
/// The moves from the values of an assignment, in the order of decision: [positions].
[[nodiscard]] std::vector<std::vector<Move>> moves_from(const DecisionOrder& order, const Assignment& assignment);

/// Assignments that differ from one by one move, and by two: by the next value each, or, where the first move lets
/// another field count which did not, by any of that one; and by a member of a set in another's place. Moves of fields
/// that do not count in `options` are left out.
struct Neighbourhood {
  std::vector<Assignment> ones, twos;
};
/// `assignment`: in the order of decision, of all dimensions or of the first ones.
[[nodiscard]] Neighbourhood neighbourhood_of(const PlanProblem& problem, const DecisionOrder& order,
                                             const Assignment& assignment, const costmodel::TrainingOptions& options);

}  // namespace foldwise::planner

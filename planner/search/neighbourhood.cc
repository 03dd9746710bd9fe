#include "planner/search/neighbourhood.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

bool one_member_apart(const json& a, const json& b) {
  const json& larger = a.size() > b.size() ? a : b;
  const json& smaller = a.size() > b.size() ? b : a;
  return larger.size() == smaller.size() + 1 &&
         std::ranges::all_of(smaller, [&](const json& member) { return std::ranges::count(larger, member) > 0; });
}

/// Whether the two sets differ in one member each.
bool one_member_swapped(const json& a, const json& b) {
  return a.is_array() && b.is_array() && a.size() == b.size() &&
         std::ranges::count_if(a, [&](const json& member) { return std::ranges::count(b, member) == 0; }) == 1;
}

}  // namespace

std::vector<std::vector<json>> directions(const Field& field, const std::vector<json>& values, const json& now) {
  std::vector<std::vector<json>> lists;
  const bool number = field.value.type == FieldType::kInteger || field.value.type == FieldType::kNumber;
  if (number) {
    std::vector<json> below, above;
    for (const json& value : values)
      if (value != now) (value < now ? below : above).push_back(value);
    std::ranges::sort(below, std::ranges::greater{});
    std::ranges::sort(above);
    return {below, above};
  }
  for (const json& value : values)
    if (value != now && (field.value.type != FieldType::kNames || one_member_apart(value, now)))
      lists.push_back({value});
  return lists;
}

std::vector<std::vector<Move>> moves_from(const DecisionOrder& order, const Assignment& assignment) {
  std::vector<std::vector<Move>> moves(assignment.size());
  for (std::size_t i = 0; i < assignment.size(); ++i) {
    const auto& [field, values, named] = order.at(i);
    for (const std::vector<json>& direction : directions(*field, values, values[assignment[i]]))
      for (const json& value : direction)
        moves[i].push_back({i, static_cast<std::uint16_t>(std::ranges::find(values, value) - values.begin()),
                            &value == &direction.front()});
  }
  return moves;
}

Neighbourhood neighbourhood_of(const PlanProblem& problem, const DecisionOrder& order, const Assignment& at,
                               const TrainingOptions& options) {
  const std::vector<std::vector<Move>> moves = moves_from(order, at);
  const auto counts = [&](std::size_t i, const TrainingOptions& with) {
    return order.at(i).field->counts_in(problem.model, with);
  };
  const auto moved = [&](std::initializer_list<Move> made) {
    Assignment other = at;
    for (const Move& move : made) other[move.position] = move.value;
    return other;
  };
  Neighbourhood result;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (!counts(i, options)) continue;
    const std::vector<json>& values = order.at(i).values;
    for (std::size_t value = 0; value < values.size(); ++value)
      if (one_member_swapped(values[value], values[at[i]]))
        result.twos.push_back(moved({{i, static_cast<std::uint16_t>(value)}}));
    for (const Move& one : moves[i]) {
      result.ones.push_back(moved({one}));
      TrainingOptions changed = options;
      order.at(i).field->value.set(changed, values[one.value]);
      for (std::size_t k = 0; k < at.size(); ++k) {
        const bool lets = !counts(k, options) && counts(k, changed);
        for (const Move& two : moves[k])
          if (lets || (k < i && one.next && two.next && counts(k, options))) result.twos.push_back(moved({one, two}));
      }
    }
  }
  return result;
}

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/best.h"
#include "planner/search/workbench.h"

// What is left to gain beside a candidate, found by trying.
namespace foldwise::planner {

/// The candidate with what its digits do not say made faster, where the problem leaves it open. Of the optimizer on the
/// host only so many sixteenths stay there as must. The layers are split anew: while that is faster, one moves to the
/// neighbouring stage, where Megatron can be told (not of hybrid models). Ends once `bench` has spent `most`.
[[nodiscard]] Found refined(Workbench& bench, Found found, std::int64_t most);

/// A whole candidate with the fastest of its splits, that of `near` among them where it has as many stages; nothing if
/// it breaks a rule, does not fit or takes more than 0.9999 of the time of `near`.
[[nodiscard]] std::optional<Found> faster_than(Workbench& bench, const Found& near, const State& state);

/// Digits of candidates, all of the order, that differ from one in a dimension, and in two: by the next value each (of
/// numbers the next smaller and larger one, of sets one member more or less, or one in another's place), or, where the
/// one lets the other count which did not, by any.
struct NearDigits {
  std::vector<Digits> ones, twos;
};
[[nodiscard]] NearDigits near_digits(const PlanProblem& problem, const DecisionOrder& order, const Found& found);

}  // namespace foldwise::planner

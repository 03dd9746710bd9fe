#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/incumbents.h"
#include "planner/search/workbench.h"

// Whole candidates, tried by themselves and not below a node.
namespace foldwise::planner {

/// The candidate with what its assignment does not say made faster, where the problem leaves it open. Of the optimizer
/// on the host only so many sixteenths stay there as must. The layers are split anew: while that is faster, one moves
/// to the neighbouring stage, where Megatron can be told (not of hybrid models). Ends once `bench` has spent `most`.
[[nodiscard]] Solution refined(Workbench& bench, Solution found, std::int64_t most);

/// A whole candidate with the fastest of its splits, that of `near` among them where it has as many stages; nothing if
/// it breaks a rule, does not fit or takes more than 0.9999 of the time of `near`.
[[nodiscard]] std::optional<Solution> faster_than(Workbench& bench, const Solution& near, const State& state);

}  // namespace foldwise::planner

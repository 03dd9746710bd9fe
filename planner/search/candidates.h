#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/incumbents.h"
#include "planner/search/workbench.h"

// Tries whole candidates one by one, without exploring a node.
namespace foldwise::planner {

/// Makes a candidate faster in what its assignment does not say and the problem leaves open. As few sixteenths of the
/// optimizer as possible stay on the host. Then one layer at a time moves to a neighbouring stage while that is faster
/// and Megatron can express the split (not in hybrid models). Ends once `bench` has spent `most`.
[[nodiscard]] Solution refined(Workbench& bench, Solution found, std::int64_t most);

/// The whole candidate `state` with the fastest of its splits. The split of `near` is one of these if it has as many
/// stages. Nothing if the candidate breaks a rule, does not fit or takes more than 0.9999 of the time of `near`.
[[nodiscard]] std::optional<Solution> faster_than(Workbench& bench, const Solution& near, const State& state);

}  // namespace foldwise::planner

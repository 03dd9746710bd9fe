#pragma once
#include <cstdint>

#include "planner/search/best.h"
#include "planner/search/space.h"

// What is left to gain beside a candidate, found by trying.
namespace foldwise::planner {

/// The candidate with its layers split anew: while it gets faster, one layer moves to the neighbouring stage. It stays
/// as it is where the problem gives the split, or where Megatron cannot be told another one (hybrid models).
[[nodiscard]] Found with_layers_moved(const PlanProblem& problem, Bytes capacity, Found found);

/// The candidate after changes of one field at a time (changes.h), each to values that the problem allows, the fastest
/// first, while it gets faster within `capacity` bytes and `effort` microseconds of a core, about, which it takes
/// from.
[[nodiscard]] Found with_fields_changed(const PlanProblem& problem, Bytes capacity, Found found, std::int64_t& effort);

}  // namespace foldwise::planner

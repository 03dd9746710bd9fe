#pragma once
#include <string>
#include <vector>

#include "planner/search/space.h"

namespace foldwise::planner {

/// Why rules refuse every candidate of the problem, as far as parallel sizes, micro-batch and what is fixed tell: the
/// rules that refuse most, each with an example ("grid.experts_div_ep: --expert-model-parallel-size 3 does not divide
/// ..."). Empty: some may be valid, or the space is too large to say soon. Takes milliseconds.
[[nodiscard]] std::vector<std::string> contradiction(const PlanProblem& problem);

}  // namespace foldwise::planner

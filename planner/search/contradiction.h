#pragma once
#include <string>
#include <vector>

#include "planner/search/space.h"

// Whether what a user wants can be had at all, and what speaks against it.
namespace foldwise::planner {

/// Whether rules refuse every candidate of the problem, as far as parallel sizes, micro-batch and what is fixed tell.
/// False: some may be valid, or the space is too large to say soon. Takes milliseconds.
[[nodiscard]] bool contradictory(const PlanProblem& problem);

/// Of a problem none of whose candidates is valid: the rules that a candidate breaks of which each change of one field
/// breaks as many or more ("grid.experts_div_ep: --expert-model-parallel-size 3 does not divide ..."), and the named
/// fields that do not apply in it.
[[nodiscard]] std::vector<std::string> least_refused(const PlanProblem& problem);

}  // namespace foldwise::planner

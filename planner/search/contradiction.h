#pragma once
#include <string>
#include <vector>

#include "planner/search/space.h"

// Whether what a user wants can be had at all, and what speaks against it.
namespace foldwise::planner {

/// Of a problem none of whose candidates is valid: the rules that a candidate breaks of which each change of one field
/// breaks as many or more ("grid.experts_div_ep: --expert-model-parallel-size 3 does not divide ..."), and the named
/// fields that do not apply in it. Empty: there is a valid one.
[[nodiscard]] std::vector<std::string> least_refused(const PlanProblem& problem);

/// The same, soon, of a problem that cannot have a valid candidate as far as parallel sizes, micro-batch and what each
/// rule leaves to its fields tell. Empty: some may be valid, or the space is too large to say. Takes milliseconds.
[[nodiscard]] std::vector<std::string> contradiction(const PlanProblem& problem);

}  // namespace foldwise::planner

#pragma once
#include <string>
#include <vector>

#include "costmodel/step/step.h"
#include "hwprofiles/load/profile.h"

namespace foldwise::planner {

/// Ops of the stages that lie outside the range that their curve was fitted on. One line per curve and property names
/// the op that is farthest outside: "/gemm/bf16: n 1.283e+05, fitted to 512 to 6.554e+04 (output_layer)". Ops that take
/// less than 1 % of the stages' time are left out. `profile`: the profile of the run's system.
[[nodiscard]] std::vector<std::string> beyond_fit(const costmodel::Step& step, const hwprofiles::Profile& profile);

}  // namespace foldwise::planner

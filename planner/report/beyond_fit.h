#pragma once
#include <string>
#include <vector>

#include "costmodel/step/step.h"
#include "hwprofiles/load/profile.h"

namespace foldwise::planner {

/// Where the ops of the stages lie beyond what their curves were fitted to, a line a curve and property with the op
/// that is farthest out: "/gemm/bf16: n 1.283e+05, fitted to 512 to 6.554e+04 (output_layer)". Ops that take less than
/// a percent of the stages' time are left out. `profile` is that of the run's system.
[[nodiscard]] std::vector<std::string> beyond_fit(const costmodel::Step& step, const hwprofiles::Profile& profile);

}  // namespace foldwise::planner

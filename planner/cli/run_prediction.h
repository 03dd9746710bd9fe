#pragma once
#include "costmodel/step/step.h"
#include "planner/run/run_file.h"

namespace foldwise::cli {

/// The step of `run`, which must outlive it; throws config::ConfigError with every rule that the run violates.
[[nodiscard]] costmodel::Step checked_step(const planner::Run& run);

}  // namespace foldwise::cli

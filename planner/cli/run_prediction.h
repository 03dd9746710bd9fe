#pragma once
#include "costmodel/step/prediction.h"
#include "planner/run/run_file.h"

namespace foldwise::cli {

/// Predicts `run`, or throws config::ConfigError with every rule that it violates.
[[nodiscard]] costmodel::Prediction checked_prediction(const planner::Run& run);

}  // namespace foldwise::cli

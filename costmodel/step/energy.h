#pragma once
#include <optional>

#include "costmodel/step/step.h"

namespace foldwise::costmodel {

/// Mean power of the job's GPUs in a step: PowerSpec::base all the time, plus the energy of all products, including
/// recomputed ones, by format. This is the model from which the clocks follow (docs/formulas.md#power). Hosts, network
/// and cooling are not included. Nothing if the system's profile has no power limit.
[[nodiscard]] std::optional<Watts> mean_power(const Step& step, Seconds step_time);

}  // namespace foldwise::costmodel

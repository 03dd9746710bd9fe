#pragma once
#include <optional>

#include "costmodel/step/step.h"

namespace foldwise::costmodel {

/// Mean power of the job's GPUs over a step: PowerSpec::base all the time, and the energy of the products that run
/// (recomputed ones too) by their format; the same model that the clocks follow from (docs/formulas.md#power). Hosts,
/// network and cooling are not in it. Unset where the system's profile has no power limit.
[[nodiscard]] std::optional<Watts> mean_power(const Step& step, Seconds step_time);

}  // namespace foldwise::costmodel

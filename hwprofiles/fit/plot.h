#pragma once
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::hwprofiles {

/// Measured against predicted time of the settings that a fit left out, a panel a curve: an SVG image.
[[nodiscard]] std::string plot(const std::vector<FittedCurve>& curves, const std::string& title);

}  // namespace foldwise::hwprofiles

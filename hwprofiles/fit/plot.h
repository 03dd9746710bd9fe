#pragma once
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::hwprofiles {

/// An SVG image of measured and predicted time of the left-out settings, one panel per curve.
[[nodiscard]] std::string plot(const std::vector<FittedCurve>& curves, const std::string& title);

}  // namespace foldwise::hwprofiles

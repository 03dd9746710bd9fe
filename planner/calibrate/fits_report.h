#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::planner {

/// Errors of fitted curves, on the fitted samples and on those left out of the fit.
[[nodiscard]] nlohmann::json fits_json(const std::vector<hwprofiles::FittedCurve>& curves);
[[nodiscard]] std::string fits_text(const std::vector<hwprofiles::FittedCurve>& curves);

}  // namespace foldwise::planner

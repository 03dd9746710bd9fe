#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::planner {

/// Errors of fitted curves: of the samples themselves, and of those left out of the fit.
[[nodiscard]] nlohmann::json fits_json(const std::vector<hwprofiles::FittedCurve>& curves);
[[nodiscard]] std::string fits_text(const std::vector<hwprofiles::FittedCurve>& curves);

}  // namespace foldwise::planner

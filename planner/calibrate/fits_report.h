#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::planner {

/// Errors of fitted curves, on the fitted samples and on those left out of the fit.
[[nodiscard]] nlohmann::json fits_json(const std::vector<hwprofiles::FittedCurve>& curves);
/// A row a curve; `fitted_values` as a last column, where they are asked for.
[[nodiscard]] std::string fits_text(const std::vector<hwprofiles::FittedCurve>& curves, bool fitted_values);
/// "11 curves, 2.4 % off in the median, 3.8 % where left out of the fit": medians of the curves' medians.
[[nodiscard]] std::string fits_in_short(const std::vector<hwprofiles::FittedCurve>& curves);

}  // namespace foldwise::planner

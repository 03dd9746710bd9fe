#pragma once
#include <string>
#include <vector>

#include "planner/sweep/sweep.h"

namespace foldwise::planner {

/// Throws ConfigError if `y` is not a column of the rows, or has no numbers.
void check_column(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& y);

/// A line chart of a sweep as SVG: first axis across, column `y` up, and one line for each combination of the other
/// axes. Points that do not fit are hollow; refused points leave a gap. Throws ConfigError if `y` is not a column of
/// numbers.
[[nodiscard]] std::string sweep_svg(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& y);

}  // namespace foldwise::planner

#pragma once
#include <string>
#include <vector>

#include "planner/sweep/sweep.h"

namespace foldwise::planner {

/// Throws ConfigError where `y` is no column of the rows, or none of numbers.
void check_column(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& y);

/// A line chart of a sweep, as SVG: the first axis across, column `y` up, a line for each combination of the other
/// axes. What does not fit is hollow, what was refused a gap. Throws ConfigError where `y` is no column, or none of
/// numbers.
[[nodiscard]] std::string sweep_svg(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& y);

}  // namespace foldwise::planner

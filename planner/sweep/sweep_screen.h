#pragma once
#include <string>
#include <vector>

#include "planner/report/screen.h"
#include "planner/sweep/sweep.h"

namespace foldwise::planner {

/// The rows as text: axes, times and a bar of column `y`; below, each reason for a refusal or a lack of memory once.
/// Throws ConfigError if `y` is not a column of numbers.
[[nodiscard]] std::string sweep_screen(const Screen& screen, const Sweep& sweep, const std::vector<SweepRow>& rows,
                                       const std::string& y);

}  // namespace foldwise::planner

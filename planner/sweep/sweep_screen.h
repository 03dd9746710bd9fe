#pragma once
#include <string>
#include <vector>

#include "planner/report/screen.h"
#include "planner/sweep/sweep.h"

namespace foldwise::planner {

/// The rows of a sweep for people: the axes, the times, and a bar of column `y`; below, each reason why points were
/// refused or do not fit, once. Throws ConfigError where `y` is no column of numbers.
[[nodiscard]] std::string sweep_screen(const Screen& screen, const Sweep& sweep, const std::vector<SweepRow>& rows,
                                       const std::string& y);

}  // namespace foldwise::planner

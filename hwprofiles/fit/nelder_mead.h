#pragma once
#include <functional>
#include <vector>

namespace foldwise::hwprofiles {

/// Nelder-Mead from `start` with a first simplex of `step`; deterministic. For costs that have kinks, where least
/// squares does not apply.
[[nodiscard]] std::vector<double> minimise(const std::function<double(const std::vector<double>&)>& cost,
                                           std::vector<double> start, double step, int iterations);

}  // namespace foldwise::hwprofiles

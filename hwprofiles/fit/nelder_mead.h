#pragma once
#include <functional>
#include <vector>

namespace foldwise::hwprofiles {

/// Nelder-Mead from `start` with an initial simplex of `step`. Deterministic. For costs with kinks, which rule out
/// least squares.
[[nodiscard]] std::vector<double> minimise(const std::function<double(const std::vector<double>&)>& cost,
                                           std::vector<double> start, double step, int iterations);

}  // namespace foldwise::hwprofiles

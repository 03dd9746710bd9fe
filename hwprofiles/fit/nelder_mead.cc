#include "hwprofiles/fit/nelder_mead.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace foldwise::hwprofiles {

std::vector<double> minimise(const std::function<double(const std::vector<double>&)>& cost, std::vector<double> start,
                             double step, int iterations) {
  const std::size_t dimensions = start.size();
  std::vector<std::pair<double, std::vector<double>>> simplex{{cost(start), start}};
  for (std::size_t i = 0; i < dimensions; ++i) {
    std::vector<double> point = start;
    point[i] += step;
    simplex.emplace_back(cost(point), std::move(point));
  }
  const auto along = [&](const std::vector<double>& from, const std::vector<double>& to, double factor) {
    std::vector<double> point(dimensions);
    for (std::size_t i = 0; i < dimensions; ++i) point[i] = from[i] + factor * (to[i] - from[i]);
    return point;
  };
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::stable_sort(simplex.begin(), simplex.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<double> centre(dimensions, 0.0);
    for (std::size_t p = 0; p < dimensions; ++p)
      for (std::size_t i = 0; i < dimensions; ++i) centre[i] += simplex[p].second[i] / static_cast<double>(dimensions);
    auto& worst = simplex.back();
    const auto attempt = [&](double factor) {
      std::vector<double> point = along(centre, worst.second, factor);
      const double value = cost(point);
      return std::pair{value, std::move(point)};
    };
    const auto reflected = attempt(-1.0);
    if (reflected.first < simplex.front().first) {
      const auto expanded = attempt(-2.0);
      worst = expanded.first < reflected.first ? expanded : reflected;
    } else if (reflected.first < simplex[dimensions - 1].first) {
      worst = reflected;
    } else {
      const auto contracted = attempt(reflected.first < worst.first ? -0.5 : 0.5);
      if (contracted.first < std::min(reflected.first, worst.first)) {
        worst = contracted;
      } else {
        for (std::size_t p = 1; p < simplex.size(); ++p) {
          simplex[p].second = along(simplex.front().second, simplex[p].second, 0.5);
          simplex[p].first = cost(simplex[p].second);
        }
      }
    }
  }
  return std::min_element(simplex.begin(), simplex.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

}  // namespace foldwise::hwprofiles

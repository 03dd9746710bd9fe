#include "costmodel/ops/routing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

// The walk goes down a token's experts, best first. Until `group_topk` groups are met every expert counts, then only
// experts of these groups. The probabilities below are of walks that have not met the place.

/// Probability that `marked` whole groups are missed.
double groups_missed(const Routing& r, double marked) {
  const auto all = static_cast<double>(r.groups), size = static_cast<double>(r.experts) / all;
  std::vector<double> met(static_cast<std::size_t>(r.group_topk) + 1, 0.0);  // By number of groups met.
  met[0] = 1.0;
  for (std::int64_t drawn = 0; drawn < r.topk; ++drawn) {
    for (std::size_t d = met.size(); d-- > 0;) {
      const auto groups = static_cast<double>(d);
      const double open = d + 1 < met.size() ? (all - groups) * size : 0.0;  // Experts of groups not met yet.
      const double seen = groups * size - static_cast<double>(drawn);
      if (met[d] <= 0.0 || open + seen <= 0.0) continue;
      const double here = met[d];
      met[d] = here * seen / (open + seen);
      if (open > 0.0) met[d + 1] += here * std::max(0.0, (all - marked - groups) * size) / (open + seen);
    }
  }
  double missed = 0.0;
  for (const double p : met) missed += p;
  return missed;
}

/// Probability that a block of `block` experts inside one group is missed.
double block_missed(const Routing& r, double block) {
  const auto all = static_cast<double>(r.groups), size = static_cast<double>(r.experts) / all;
  const auto limit = static_cast<std::size_t>(r.group_topk), draws = static_cast<std::size_t>(r.topk);
  // [groups met][experts drawn from the block's group]; 0 drawn: the group has not been met.
  std::vector<std::vector<double>> walk(limit + 1, std::vector<double>(draws + 1, 0.0));
  walk[0][0] = 1.0;
  for (std::size_t drawn = 0; drawn < draws; ++drawn) {
    auto next = std::vector<std::vector<double>>(limit + 1, std::vector<double>(draws + 1, 0.0));
    for (std::size_t d = 0; d <= limit; ++d) {
      for (std::size_t own = 0; own <= drawn; ++own) {
        const double here = walk[d][own];
        if (here <= 0.0) continue;
        const auto groups = static_cast<double>(d), count = static_cast<double>(own);
        const bool met = own > 0, open = d < limit;
        const double fresh = open ? (all - groups) * size : 0.0;
        const double seen = groups * size - static_cast<double>(drawn);
        if (fresh + seen <= 0.0) continue;
        const double own_rest = met || open ? std::max(0.0, size - block - count) : 0.0;
        const double others = seen - (met ? size - count : 0.0);
        const double p = here / (fresh + seen);
        next[d][own] += p * others;
        if (met) next[d][own + 1] += p * own_rest;
        if (open) {
          next[d + 1][own] += p * (met ? fresh : fresh - size);
          if (!met) next[d + 1][1] += p * own_rest;
        }
      }
    }
    walk = std::move(next);
  }
  double missed = 0.0;
  for (const auto& row : walk)
    for (const double p : row) missed += p;
  return missed;
}

}  // namespace

double expected_destinations(const Routing& r, std::int64_t places) {
  FW_CHECK(places >= 1 && r.groups >= 1 && r.group_topk >= 1 && r.group_topk <= r.groups);
  const double per_place = static_cast<double>(r.experts) / static_cast<double>(places);
  const double groups_per_place = static_cast<double>(r.groups) / static_cast<double>(places);
  const double missed =
      groups_per_place > 1.0 ? groups_missed(r, std::round(groups_per_place)) : block_missed(r, per_place);
  return static_cast<double>(places) * (1.0 - missed);
}

}  // namespace foldwise::costmodel

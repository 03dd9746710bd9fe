#include "costmodel/ops/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace foldwise::costmodel::routing_test {
namespace {

enum class Scores { kSigmoid, kSoftmax };

/// Mean number of distinct places of a token's experts, simulating Megatron's router: scores of normal logits
/// (--moe-router-force-load-balancing), groups by the sum of their topk / group_topk best, top-k of the selected
/// groups.
double simulated(const Routing& r, Scores scores, std::int64_t places, int tokens) {
  std::mt19937 random(20251121);
  std::normal_distribution<double> logit;
  const auto experts = static_cast<std::size_t>(r.experts), groups = static_cast<std::size_t>(r.groups);
  const std::size_t size = experts / groups;
  const auto best = static_cast<std::ptrdiff_t>(r.topk / r.group_topk);
  std::vector<double> score(experts);
  double sum = 0.0;
  for (int token = 0; token < tokens; ++token) {
    for (double& s : score) {
      const double odds = std::exp(logit(random));
      s = scores == Scores::kSigmoid ? odds / (1.0 + odds) : odds;  // Softmax up to its sum, which changes no order.
    }
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<double> own(score.begin() + static_cast<std::ptrdiff_t>(g * size),
                              score.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      const auto end = own.begin() + std::min(best, static_cast<std::ptrdiff_t>(size));
      std::partial_sort(own.begin(), end, own.end(), std::greater<>());
      ranked.emplace_back(std::accumulate(own.begin(), end, 0.0), g);
    }
    std::sort(ranked.rbegin(), ranked.rend());
    std::vector<std::pair<double, std::size_t>> kept;
    for (std::size_t i = 0; i < static_cast<std::size_t>(r.group_topk); ++i)
      for (std::size_t e = ranked[i].second * size; e < (ranked[i].second + 1) * size; ++e)
        kept.emplace_back(score[e], e);
    std::sort(kept.rbegin(), kept.rend());
    std::set<std::size_t> seen;
    for (std::size_t i = 0; i < static_cast<std::size_t>(r.topk); ++i)
      seen.insert(kept[i].second * static_cast<std::size_t>(places) / experts);
    sum += static_cast<double>(seen.size());
  }
  return sum / tokens;
}

// Are the closed forms what a router does, within 1 %?
TEST(ExpectedDestinations, EqualASimulatedRouter) {
  const Routing deepseek_v3{.experts = 256, .topk = 8, .groups = 8, .group_topk = 4};
  const Routing deepseek_v2{.experts = 160, .topk = 6, .groups = 8, .group_topk = 3};
  const Routing qwen3{.experts = 128, .topk = 8};
  const Routing mixtral{.experts = 8, .topk = 2};
  struct Case {
    Routing routing;
    Scores scores;
    std::vector<std::int64_t> places;
  };
  for (const Case& c : {Case{deepseek_v3, Scores::kSigmoid, {2, 4, 8, 16, 32, 64}},
                        Case{deepseek_v2, Scores::kSoftmax, {2, 4, 8, 16, 40}},
                        Case{qwen3, Scores::kSoftmax, {2, 4, 8, 32}}, Case{mixtral, Scores::kSoftmax, {2, 4, 8}}}) {
    for (const std::int64_t places : c.places) {
      const double expected = simulated(c.routing, c.scores, places, 8000);
      EXPECT_NEAR(expected_destinations(c.routing, places), expected, 0.01 * expected)
          << c.routing.experts << " experts on " << places;
    }
  }
}

// Does a router without groups give the hypergeometric closed form?
TEST(ExpectedDestinations, WithoutGroupsAreHypergeometric) {
  // 4 places with 32 of 128 experts each, 8 chosen: 4 (1 - C(96, 8) / C(128, 8)).
  double missed = 1.0;
  for (int i = 0; i < 8; ++i) missed *= (96.0 - i) / (128.0 - i);
  EXPECT_NEAR(expected_destinations({.experts = 128, .topk = 8}, 4), 4.0 * (1.0 - missed), 1e-12);
  EXPECT_NEAR(expected_destinations({.experts = 128, .topk = 8}, 128), 8.0, 1e-12);
  EXPECT_NEAR(expected_destinations({.experts = 128, .topk = 8}, 1), 1.0, 1e-12);
}

// Does a group limit bound the places, and reach none of the others?
TEST(ExpectedDestinations, AreAtMostTheGroupsKept) {
  const Routing one{.experts = 64, .topk = 8, .groups = 8, .group_topk = 1};
  EXPECT_NEAR(expected_destinations(one, 8), 1.0, 1e-12);
  EXPECT_NEAR(expected_destinations(one, 64), 8.0, 1e-12);  // All eight experts of the only group.
  EXPECT_NEAR(expected_destinations(one, 2), 1.0, 1e-12);
}

}  // namespace
}  // namespace foldwise::costmodel::routing_test

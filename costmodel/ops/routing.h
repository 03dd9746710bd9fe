#pragma once
#include <cstdint>

// Destinations of tokens under a balanced router.
namespace foldwise::costmodel {

/// A router over `experts`. It takes top-k of all, or with a group limit top-k of the experts in the best `group_topk`
/// of `groups` equal groups. One group means no limit.
struct Routing {
  std::int64_t experts = 1, topk = 1;
  std::int64_t groups = 1, group_topk = 1;
};

/// Expected number of `places` (ranks, nodes) that hold the experts of one token. Each place has an equal block of
/// consecutive experts. Every order of the experts' scores is equally likely, and a group is scored by its best expert.
/// Source: docs/formulas.md#moe. megatron/core/transformer/moe/moe_utils.py (group_limited_topk) scores a group by the
/// sum of its topk / group_topk best experts, which differs by less than 1 % (tests/routing_test.cc).
[[nodiscard]] double expected_destinations(const Routing& routing, std::int64_t places);

}  // namespace foldwise::costmodel

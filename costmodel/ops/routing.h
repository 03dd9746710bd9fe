#pragma once
#include <cstdint>

// Where the tokens of a balanced router go.
namespace foldwise::costmodel {

/// A router over `experts`: top-k of all of them, or group-limited: of `groups` equal groups the `group_topk` best ones
/// are kept, and top-k is taken of their experts. One group: no limit.
struct Routing {
  std::int64_t experts = 1, topk = 1;
  std::int64_t groups = 1, group_topk = 1;
};

/// Expected number of `places` (ranks, nodes), each holding an equal block of consecutive experts, that the experts of
/// one token lie on. Every order of the experts' scores is equally likely, and a group is as good as its best expert.
/// Source: docs/formulas.md#moe; megatron/core/transformer/moe/moe_utils.py (group_limited_topk) scores a group by the
/// sum of its topk / group_topk best experts instead, which is within 1 % (tests/routing_test.cc).
[[nodiscard]] double expected_destinations(const Routing& routing, std::int64_t places);

}  // namespace foldwise::costmodel

#include <algorithm>

#include "costmodel/ops/dispatchers/dispatchers.h"

// --moe-flex-dispatcher-backend hybridep.
namespace foldwise::costmodel {
namespace {

// csrc/hybrid_ep/hybrid_ep.cu. Dispatch and combine share the receive buffer. It has room for every token of the group,
// so no routing overflows it. Tokens that cross domains are also in send and receive buffers of the NIC.
Bytes buffers(const ExchangeSizes& sizes) {
  constexpr double kFewestTokens = 512.0;
  const double tokens = std::max(kFewestTokens, sizes.tokens), ranks = static_cast<double>(sizes.group.ranks);
  const double probabilities =
      kFp32 * static_cast<double>(sizes.experts) / static_cast<double>(sizes.group.domains());  // Of one domain.
  const double row = kBf16 * sizes.hidden + probabilities;
  const auto others = static_cast<double>(sizes.group.domains() - 1);
  return Bytes{tokens * row * (ranks + 2.0 * others)};
}

void exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  if (dispatch) {
    // Every rank gets the routing map (a byte per token and expert) of all ranks, and scans it for its tokens.
    const double map = z.t * z.experts * static_cast<double>(b.options().ep * b.options().etp);
    b.collective("routing_map", Phase::kForward, CollectiveKind::kAllGather, Group::kEtpEp, map);
    b.forward("routing_map", MemoryWork{MemoryOp::kRouter, Bytes{2.0 * map}});
  }
  fused_exchange(b, z, dispatch);
  if (dispatch && !b.options().pad_to_capacity) wait_for_counts(b, 4, false);
}

}  // namespace

DispatcherSpec hybrid_ep_dispatcher() {
  return {.name = "hybridep",
          .flag = "--moe-flex-dispatcher-backend hybridep",
          .once_per_rank = true,
          .permutes_fused = true,
          .pads_rows = true,
          .overlaps_micro_batches = true,
          .overlaps_shared_experts = true,
          .exchange = exchange,
          .buffers = buffers};
}

}  // namespace foldwise::costmodel

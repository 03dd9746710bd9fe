#include "costmodel/ops/dispatchers/dispatchers.h"

// --moe-token-dispatcher-type alltoall: NCCL sends one row for each of a token's experts.
namespace foldwise::costmodel {
namespace {

void exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  const LayerOptions& o = b.options();
  const auto etp = static_cast<double>(o.etp), ep = static_cast<double>(o.ep);
  const double tokens = kBf16 * z.routed * z.hr;
  const double gathered_bytes = kBf16 * z.routed * etp * z.hr;
  if (dispatch) {
    // Sums over the routing map, and copies of counts and splits to the host, each with an allocation and a copy
    // (token_dispatcher.py: MoEAlltoAllTokenDispatcher.preprocess, _maybe_dtoh_and_synchronize).
    if (!o.pad_to_capacity) {
      b.collective("token_counts", Phase::kForward, CollectiveKind::kAllGather, Group::kEtpEp,
                   8.0 * z.experts * ep * etp);
      wait_for_counts(b, ep * etp > 1.0 ? 16 : 4, true);
    }
    both_ways(b, "token_dispatch", CollectiveKind::kAllToAll, CollectiveKind::kAllToAll, Group::kEp, tokens);
    both_ways(b, "probability_dispatch", CollectiveKind::kAllToAll, CollectiveKind::kAllToAll, Group::kEp,
              kProbabilityBytes * z.routed);
    both_ways(b, "etp_gather", CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, Group::kEtp, gathered_bytes);
  } else {
    // Partial sums are reduced in the type of the probabilities, which is FP32 with an FP32 router.
    both_ways(b, "etp_reduce", CollectiveKind::kReduceScatter, CollectiveKind::kAllGather, Group::kEtp,
              (o.software.router_fp32 ? 2.0 : 1.0) * gathered_bytes);
    if (o.etp > 1 && o.software.router_fp32) {  // FP32 copies around the reduction, in both directions.
      b.forward_transient({kFp32 * z.rows * z.hr, kFp32 * z.routed * z.hr});
      b.backward_transient({kFp32 * z.rows * z.hr, kFp32 * z.routed * z.hr});
    }
    both_ways(b, "token_combine", CollectiveKind::kAllToAll, CollectiveKind::kAllToAll, Group::kEp, tokens);
  }
}

}  // namespace

DispatcherSpec all_to_all_dispatcher() {
  return {.name = "alltoall",
          .flag = "--moe-token-dispatcher-type alltoall",
          .sorts_chunks = true,
          .overlaps_micro_batches = true,
          .overlaps_shared_experts = true,
          .exchange = exchange};
}

}  // namespace foldwise::costmodel

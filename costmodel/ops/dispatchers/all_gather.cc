#include "costmodel/ops/dispatchers/dispatchers.h"

// --moe-token-dispatcher-type allgather: every rank of the group gets all tokens and keeps those of its experts.
namespace foldwise::costmodel {
namespace {

void exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  const LayerOptions& o = b.options();
  const auto ranks = static_cast<double>(o.ep * o.etp);
  const double tokens = kBf16 * z.t * ranks * z.hr;
  if (dispatch) {
    both_ways(b, "token_all_gather", CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, Group::kEtpEp, tokens);
    both_ways(b, "probability_all_gather", CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, Group::kEtpEp,
              (kProbabilityBytes + 1.0) * z.t * ranks * z.experts);
    wait_for_counts(b, 2, true);
  } else {
    if (o.software.router_fp32 && ranks > 1.0) {  // Reduced in the type of the probabilities, so cast before and after.
      const Bytes cast{3.0 * tokens + 6.0 * z.t * z.hr};
      b.op_pair("token_cast", MemoryWork{MemoryOp::kElementwise, cast}, MemoryWork{MemoryOp::kElementwise, cast}, 2, 2);
    }
    both_ways(b, "token_reduce_scatter", CollectiveKind::kReduceScatter, CollectiveKind::kAllGather, Group::kEtpEp,
              (o.software.router_fp32 ? 2.0 : 1.0) * tokens);
  }
}

}  // namespace

DispatcherSpec all_gather_dispatcher() {
  return {
      .name = "allgather", .flag = "--moe-token-dispatcher-type allgather", .gathers_all = true, .exchange = exchange};
}

}  // namespace foldwise::costmodel

#pragma once
#include "costmodel/ops/builder.h"
#include "costmodel/ops/dispatcher.h"
#include "costmodel/ops/routing.h"

// For the dispatchers and the MoE layer only.
namespace foldwise::costmodel {

/// Sizes of a MoE layer on one rank: T, h, width of what is routed, k, E, Te and T k (docs/formulas.md#symbols).
struct MoeSizes {
  Routing routing;
  double t, h, hr, k, experts, rows, routed;
  std::int64_t latent;
};

constexpr double kProbabilityBytes = kFp32;  // fp32 router, required by DeepEP and HybridEP.

/// A forward collective, and the backward collective with as many bytes that returns its gradients.
void both_ways(Builder& b, std::string_view name, CollectiveKind there, CollectiveKind back, Group group, double bytes);
/// Fused dispatch or combine of the run's dispatcher. It sends a token once to each rank and merges copies for other
/// domains. Source: docs/formulas.md#moe.
void fused_exchange(Builder& b, const MoeSizes& z, bool dispatch);
/// The host waits for token counts unless the whole iteration is a graph. `copied`: the copy engine brings the counts;
/// otherwise a kernel writes them into host memory.
void wait_for_counts(Builder& b, int launches, bool copied);

[[nodiscard]] DispatcherSpec all_gather_dispatcher();
[[nodiscard]] DispatcherSpec all_to_all_dispatcher();
[[nodiscard]] DispatcherSpec deep_ep_dispatcher();
[[nodiscard]] DispatcherSpec hybrid_ep_dispatcher();

}  // namespace foldwise::costmodel

#include <algorithm>
#include <array>

#include "costmodel/ops/dispatchers/dispatchers.h"

// --moe-flex-dispatcher-backend deepep.
namespace foldwise::costmodel {
namespace {

// deep_ep/buffer.py (get_dispatch_config, get_combine_config) and csrc/config.hpp (get_nvl_buffer_size_hint,
// get_rdma_buffer_size_hint). Receive queues hold this many tokens for each channel and peer.
struct Queues {
  std::int64_t ranks;  // Largest group size of this configuration.
  double nvlink_tokens, rdma_tokens;
};
constexpr std::array<Queues, 4> kQueues{{{8, 256, 128}, {64, 288, 128}, {128, 560, 128}, {160, 720, 128}}};
constexpr double kPeersPerNode = 8.0;
constexpr double kMostTopk = 128.0, kMostScales = 128.0, kSourceMeta = 8.0;
// Sent with a token: 64-bit indices of its experts, their weights, and scales of FP8.
constexpr double kRowExtra = kSourceMeta + kMostTopk * (8.0 + kFp32) + kMostScales * kFp32;

Bytes buffers(const ExchangeSizes& sizes) {
  const auto ranks = static_cast<double>(sizes.group.ranks);
  const auto* const queues =
      std::find_if(kQueues.begin(), kQueues.end() - 1, [&](const Queues& q) { return sizes.group.ranks <= q.ranks; });
  const double channels = sizes.kernel_sms / 2.0, row = kBf16 * sizes.hidden + kRowExtra;  // A channel has two SMs.
  const double nvlink = channels * std::min(ranks, kPeersPerNode) * queues->nvlink_tokens * row;
  if (ranks <= kPeersPerNode) return Bytes{nvlink};
  // Sent and received tokens have separate buffers, with 16 bytes more per token.
  const double rdma = 2.0 * channels * (ranks / kPeersPerNode) * queues->rdma_tokens * (row + 16.0);
  return Bytes{nvlink + rdma};
}

// The indices of the routed experts come before it. The counts become a tensor after it (token_dispatcher.py,
// fused_a2a.py).
void exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  fused_exchange(b, z, dispatch);
  if (dispatch) wait_for_counts(b, 4, false);
}

}  // namespace

DispatcherSpec deep_ep_dispatcher() {
  return {.name = "deepep",
          .flag = "--moe-flex-dispatcher-backend deepep",
          .once_per_rank = true,
          .needs_group = true,
          .overlaps_micro_batches = true,
          .overlaps_shared_experts = true,
          .exchange = exchange,
          .buffers = buffers};
}

}  // namespace foldwise::costmodel

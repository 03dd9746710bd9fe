#include "costmodel/memory/exchange_buffers.h"

#include <algorithm>
#include <array>

namespace foldwise::costmodel {
namespace {

constexpr double kBf16 = 2.0, kFp32 = 4.0;

// DeepEP: deep_ep/buffer.py (get_dispatch_config, get_combine_config) and csrc/config.hpp (get_nvl_buffer_size_hint,
// get_rdma_buffer_size_hint). Receive queues hold as many tokens for each channel and peer.
struct DeepEpQueues {
  std::int64_t ranks;  // Configurations are tuned for groups of these sizes.
  double nvlink_tokens, rdma_tokens;
};
constexpr std::array<DeepEpQueues, 4> kQueues{{{8, 256, 128}, {64, 288, 128}, {128, 560, 128}, {160, 720, 128}}};
constexpr double kPeersPerNode = 8.0;
constexpr double kMostTopk = 128.0, kMostScales = 128.0, kSourceMeta = 8.0;
// Beside a token: indices of its experts in 64 bits, their weights, and scales of FP8.
constexpr double kRowExtra = kSourceMeta + kMostTopk * (8.0 + kFp32) + kMostScales * kFp32;

Bytes deep_ep(const ExchangeSizes& sizes) {
  const auto ranks = static_cast<double>(sizes.group.ranks);
  const auto* const queues = std::find_if(kQueues.begin(), kQueues.end() - 1,
                                          [&](const DeepEpQueues& q) { return sizes.group.ranks <= q.ranks; });
  const double channels = sizes.deep_ep_sms / 2.0, row = kBf16 * sizes.hidden + kRowExtra;
  const double nvlink = channels * std::min(ranks, kPeersPerNode) * queues->nvlink_tokens * row;
  if (ranks <= kPeersPerNode) return Bytes{nvlink};
  // Sent and received separately, and 16 bytes more a token.
  const double rdma = 2.0 * channels * (ranks / kPeersPerNode) * queues->rdma_tokens * (row + 16.0);
  return Bytes{nvlink + rdma};
}

// HybridEP: csrc/hybrid_ep/hybrid_ep.cu. Dispatch and combine share the receive buffer, sized for every token of the
// group: no routing overflows it. Tokens that cross domains lie once more in a buffer of the NIC, sent and received.
Bytes hybrid_ep(const ExchangeSizes& sizes) {
  constexpr double kFewestTokens = 512.0;
  const double tokens = std::max(kFewestTokens, sizes.tokens), ranks = static_cast<double>(sizes.group.ranks);
  const double probabilities =
      kFp32 * static_cast<double>(sizes.experts) / static_cast<double>(sizes.group.domains());  // Of one domain.
  const double row = kBf16 * sizes.hidden + probabilities;
  const auto others = static_cast<double>(sizes.group.domains() - 1);
  return Bytes{tokens * row * (ranks + 2.0 * others)};
}

}  // namespace

Bytes exchange_buffers(Dispatcher dispatcher, const ExchangeSizes& sizes) {
  if (sizes.group.ranks <= 1) return {};
  switch (dispatcher) {
    case Dispatcher::kDeepEp:
      return deep_ep(sizes);
    case Dispatcher::kHybridEp:
      return hybrid_ep(sizes);
    case Dispatcher::kAllGather:
    case Dispatcher::kAllToAll:
      break;
  }
  return {};
}

}  // namespace foldwise::costmodel

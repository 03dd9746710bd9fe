#include "costmodel/ops/dispatchers/dispatchers.h"

#include <algorithm>
#include <array>

#include "costmodel/enums.h"

namespace foldwise::costmodel {

std::span<const DispatcherSpec> dispatcher_specs() {
  static const std::array kTable{all_gather_dispatcher(), all_to_all_dispatcher(), deep_ep_dispatcher(),
                                 hybrid_ep_dispatcher()};  // By Dispatcher.
  static_assert(kTable.size() == enumerators<Dispatcher>() && kDispatchers == enumerators<Dispatcher>());
  return kTable;
}

const DispatcherSpec& dispatcher_spec(Dispatcher dispatcher) {
  return dispatcher_specs()[static_cast<std::size_t>(dispatcher)];
}

Bytes exchange_buffers(Dispatcher dispatcher, const ExchangeSizes& sizes) {
  const auto buffers = dispatcher_spec(dispatcher).buffers;
  return buffers == nullptr || sizes.group.ranks <= 1 ? Bytes{} : buffers(sizes);
}

void both_ways(Builder& b, std::string_view name, CollectiveKind there, CollectiveKind back, Group group,
               double bytes) {
  b.collective(name, Phase::kForward, there, group, bytes);
  b.collective(name, Phase::kDgrad, back, group, bytes);
}

void fused_exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  const LayerOptions& o = b.options();
  const GroupShape shape = group_shape(b.layout(), Group::kEtpEp, b.hardware().network);
  const double sent = z.t * std::min(1.0, o.capacity_factor.value_or(1.0)), row = kBf16 * z.hr;
  const double copies = sent * expected_destinations(z.routing, o.ep) * static_cast<double>(o.etp);
  const ExchangeVolume volume{.to_ranks = Bytes{copies * row},
                              .to_domains = Bytes{sent * expected_destinations(z.routing, shape.domains()) * row},
                              .rows = copies};
  const char* name = dispatch ? "fused_dispatch" : "fused_combine";
  const auto kind = dispatch ? CollectiveKind::kDispatch : CollectiveKind::kCombine;
  const auto back = dispatch ? CollectiveKind::kCombine : CollectiveKind::kDispatch;
  b.exchange(name, Phase::kForward, kind, Group::kEtpEp, volume);
  b.exchange(name, Phase::kDgrad, back, Group::kEtpEp, volume);
}

void wait_for_counts(Builder& b, int launches, bool copied) {
  if (b.options().cuda_graph.impl != GraphImpl::kFullIteration)
    b.forward("token_counts", HostSyncWork{.to_host = copied}, launches);
}

}  // namespace foldwise::costmodel

#include "costmodel/network/network.h"

#include <algorithm>
#include <cmath>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

/// Share of the line rate that is payload if flags travel with the data: 4 of 8 bytes in NCCL's LL protocol, its only
/// low-latency protocol between nodes. Source: NCCL, src/include/device.h (ncclLLFifoLine).
constexpr double kLowLatencyPayload = 0.5;

/// Pattern aggregated trees: bandwidth relative to a ring, divisor of a network step, and time per rank.
/// Source: NCCL, src/graph/tuning.cc (ncclTopoTuneModel).
constexpr double kPatBandwidth = 0.75, kPatSteps = 3.5;
constexpr Seconds kPatRank{2.8e-6};

const CollectiveCurve& curve_of(const Network& network, CollectiveKind kind) {
  return network.nvlink.at(
      static_cast<std::size_t>(kind == CollectiveKind::kBroadcast ? CollectiveKind::kAllGather : kind));
}

bool is_exchange(CollectiveKind kind) { return kind == CollectiveKind::kDispatch || kind == CollectiveKind::kCombine; }

/// Levels of a binary tree over `domains` domains.
double tree_steps(std::int64_t domains) { return std::ceil(std::log2(static_cast<double>(domains))); }

/// Network steps of a ring over `domains` domains; for an all-reduce, of the better of ring and tree.
double domain_steps(CollectiveKind kind, std::int64_t domains) {
  const auto ring = static_cast<double>(domains - 1);
  return kind == CollectiveKind::kAllReduce ? 2.0 * std::min(ring, tree_steps(domains)) : ring;
}

Seconds inside_domain(const CollectiveCurve& curve, CollectiveKind kind, Bytes bytes, std::int64_t ranks) {
  const auto n = static_cast<double>(ranks);
  const Bytes wire = wire_factor(kind, n) * bytes;
  const auto by = [&](const ProtocolCurve& protocol) {
    return protocol.base + protocol.per_rank * (n - 1.0) + wire / protocol.bandwidth;
  };
  Seconds best = by(curve.bulk);
  if (curve.own_share > Bandwidth{} && kind != CollectiveKind::kBroadcast) best += bytes / n / curve.own_share;
  if (curve.low_latency.bandwidth > Bandwidth{}) best = std::min(best, by(curve.low_latency));
  if (curve.in_switch_ranks > 0 && ranks >= curve.in_switch_ranks) best = std::min(best, by(curve.in_switch));
  return best;
}

/// Rings enter and leave each domain through the NICs of its members; their number is that of the members in the domain
/// with the fewest. Every link of a ring carries the same bytes. Without neighbours in a domain nothing runs over
/// NVLink. Where they apply and are faster, NCCL's other algorithms between domains are used: NVLSTree (all-reduce; the
/// switches reduce inside the domains) and PAT (all-gather and reduce-scatter with one rank per domain).
Seconds between_domains(const Network& network, CollectiveKind kind, Bytes bytes, GroupShape group) {
  const CollectiveCurve& curve = curve_of(network, kind);
  const std::int64_t domains = group.domains();
  const auto members = static_cast<double>(group.ranks_per_domain);
  const bool neighbours = group.ranks > domains;
  const Bytes wire = wire_factor(kind, static_cast<double>(group.ranks)) * bytes;
  // The chains of an all-reduce inside the domains run side by side, so the longest counts.
  const std::int64_t longest =
      std::min(network.ranks_per_domain, group.ranks - (domains - 1) * group.ranks_per_domain) - 1;
  const auto hops = static_cast<double>(kind == CollectiveKind::kAllReduce ? longest : group.ranks - domains);
  // One of a leaf's domains passes a ring on to the next leaf, and all of them share the uplinks.
  const double spine = group.leaves > 1
                           ? static_cast<double>(domains) / static_cast<double>(group.leaves) / network.oversubscription
                           : 1.0;
  const Bandwidth nics = members * network.nic_bandwidth * network.nic_efficiency * std::min(1.0, spine);
  const auto by = [&](const ProtocolCurve& protocol, Bandwidth between, Seconds step) {
    const Bandwidth ring = neighbours ? std::min(protocol.bandwidth, between) : between;
    return protocol.base + protocol.per_rank * hops + step * domain_steps(kind, domains) + wire / ring;
  };
  Seconds best = by(curve.bulk, nics, network.nic_latency);
  if (curve.low_latency.bandwidth > Bandwidth{})
    best = std::min(best, by(curve.low_latency, kLowLatencyPayload * nics, network.nic_low_latency));
  if (curve.in_switch_ranks > 0 && group.ranks_per_domain >= curve.in_switch_ranks)
    best = std::min(best, curve.in_switch.base + 2.0 * tree_steps(domains) * network.nic_latency +
                              wire / std::min(curve.in_switch.bandwidth, nics));
  if (!neighbours && (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter))
    best = std::min(best, curve.bulk.base + tree_steps(domains) / kPatSteps * network.nic_latency +
                              static_cast<double>(group.ranks) * kPatRank + wire / (kPatBandwidth * nics));
  return best;
}

/// Time of the bytes over the rank's own NIC at `efficiency`, or of those that leave its leaf over the shared uplinks.
Seconds over_nic(const Network& network, const LinkBytes& bytes, double efficiency) {
  const Bandwidth rate = network.nic_bandwidth * efficiency;
  return std::max(bytes.nic / rate, bytes.spine * network.oversubscription / rate);
}

}  // namespace

const char* to_string(LinkType type) {
  switch (type) {
    case LinkType::kInfiniband:
      return "infiniband";
    case LinkType::kEthernet:
      return "ethernet";
    case LinkType::kPcie:
      return "pcie";
    case LinkType::kNvlinkC2c:
      return "nvlink-c2c";
  }
  return "";
}

double wire_factor(CollectiveKind kind, double ranks) {
  if (kind == CollectiveKind::kSendRecv || kind == CollectiveKind::kBroadcast) return 1.0;
  return (kind == CollectiveKind::kAllReduce ? 2.0 : 1.0) * (ranks - 1.0) / ranks;
}

LinkBytes link_bytes(CollectiveKind kind, Bytes bytes, GroupShape group) {
  if (group.ranks <= 1) return {};
  const auto n = static_cast<double>(group.ranks), m = static_cast<double>(group.ranks_per_domain);
  const auto leaves = static_cast<double>(group.leaves);
  const bool between = group.domains() > 1;
  const Bytes wire = wire_factor(kind, n) * bytes;
  if (!between) return {.nvlink = wire, .nic = {}, .spine = {}};
  if (kind == CollectiveKind::kSendRecv) return {.nvlink = {}, .nic = wire, .spine = group.leaves > 1 ? wire : Bytes{}};
  if (kind == CollectiveKind::kAllToAll) {
    const Bytes nic = bytes * ((n - m) / n);
    // PXN: data for another rail first goes to the local GPU on that rail.
    return {.nvlink = bytes * ((m - 1.0) / n) + nic * ((m - 1.0) / m),
            .nic = nic,
            .spine = bytes * ((leaves - 1.0) / leaves)};
  }
  const Bytes nic = wire / m;
  return {.nvlink = group.ranks > group.domains() ? wire : Bytes{},
          .nic = nic,
          .spine = group.leaves > 1 ? nic * (leaves / static_cast<double>(group.domains())) : Bytes{}};
}

LinkBytes link_bytes(const ExchangeVolume& volume, GroupShape group) {
  const auto ranks = static_cast<double>(group.ranks), domains = static_cast<double>(group.domains()),
             leaves = static_cast<double>(group.leaves);
  return {.nvlink = volume.to_ranks * ((ranks - 1.0) / ranks),
          .nic = volume.to_domains * ((domains - 1.0) / domains),
          .spine = volume.to_domains * ((leaves - 1.0) / leaves)};
}

Seconds collective_time(const Network& network, CollectiveKind kind, Bytes bytes, GroupShape group) {
  FW_CHECK(!is_exchange(kind));
  if (group.ranks <= 1 || bytes <= Bytes{0.0}) return Seconds{};
  const CollectiveCurve& curve = curve_of(network, kind);
  if (group.domains() == 1) return inside_domain(curve, kind, bytes, group.ranks);
  if (kind != CollectiveKind::kSendRecv && kind != CollectiveKind::kAllToAll)
    return between_domains(network, kind, bytes, group);
  const LinkBytes links = link_bytes(kind, bytes, group);
  const double peers = kind == CollectiveKind::kAllToAll ? static_cast<double>(group.ranks) - 1.0 : 0.0;
  return curve.bulk.base + curve.bulk.per_rank * peers + network.nic_latency +
         std::max({links.nvlink / curve.bulk.bandwidth, over_nic(network, links, network.nic_all_to_all_efficiency)});
}

Seconds exchange_sm_time(const ExchangeKernel& kernel, const ExchangeVolume& volume) {
  if (kernel.rate_per_sm <= Bandwidth{}) return Seconds{};
  return (volume.rows * kernel.row_overhead + volume.to_ranks / kernel.rate_per_sm) / kernel.sms;
}

Seconds exchange_time(const Network& network, const ExchangeKernel& kernel, CollectiveKind kind,
                      const ExchangeVolume& volume, GroupShape group) {
  FW_CHECK(is_exchange(kind));
  if (group.ranks <= 1 || volume.to_ranks <= Bytes{0.0}) return Seconds{};
  const ProtocolCurve& curve = network.nvlink.at(static_cast<std::size_t>(kind)).bulk;
  const LinkBytes links = link_bytes(volume, group);
  Seconds moving = links.nvlink / curve.bandwidth;
  moving = std::max(moving, exchange_sm_time(kernel, volume));
  const bool between = group.domains() > 1;
  if (between) moving = std::max(moving, over_nic(network, links, network.nic_exchange_efficiency));
  return curve.base + curve.per_rank * static_cast<double>(group.ranks - 1) +
         (between ? network.nic_latency : Seconds{}) + moving;
}

}  // namespace foldwise::costmodel

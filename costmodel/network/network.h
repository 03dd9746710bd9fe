#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "costmodel/enums.h"
#include "costmodel/units/units.h"

// The network of a system, and the time of collectives on it.
// Source of each formula: docs/formulas.md#collectives.
namespace foldwise::costmodel {

enum class CollectiveKind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendRecv,
  kDispatch,
  kCombine,
  kBroadcast
};
inline constexpr std::size_t kCollectiveKinds = enumerators<CollectiveKind>();
/// All but broadcast, which uses the curve of all-gather.
inline constexpr std::size_t kMeasuredKinds = kCollectiveKinds - 1;

/// t = base + per_rank * (ranks - 1) + wire bytes per GPU / bandwidth. Bandwidth 0: there is no such protocol.
struct ProtocolCurve {
  Seconds base{}, per_rank{};
  Bandwidth bandwidth{};  ///< One direction, per GPU.
  bool operator==(const ProtocolCurve&) const = default;
};

/// One kind of collective inside an NVLink domain. NCCL's fastest protocol is used.
struct CollectiveCurve {
  ProtocolCurve low_latency;         ///< LL and LL128: flags travel with the data.
  ProtocolCurve bulk;                ///< Simple: large messages.
  Bandwidth own_share{};             ///< Rate of moving the rank's own share of a bulk message; 0: nothing to move.
  ProtocolCurve in_switch;           ///< NVLS: the switch reduces.
  std::int64_t in_switch_ranks = 0;  ///< Fewest ranks that NCCL uses in_switch for; 0: never.
  bool operator==(const CollectiveCurve&) const = default;
};

/// How tokens reach the ranks of their experts: --moe-token-dispatcher-type, --moe-flex-dispatcher-backend.
enum class Dispatcher { kAllGather, kAllToAll, kDeepEp, kHybridEp };
inline constexpr std::size_t kDispatchers = 4;
/// --moe-token-dispatcher-type flex: a library that sends a token once per rank.
[[nodiscard]] constexpr bool is_flex(Dispatcher dispatcher) {
  return dispatcher == Dispatcher::kDeepEp || dispatcher == Dispatcher::kHybridEp;
}

/// A kernel of a flex dispatcher (DeepEP, HybridEP). It moves tokens between the experts' ranks and merges copies.
struct ExchangeKernel {
  double sms = 0;           ///< Streaming multiprocessors that it occupies.
  Bandwidth rate_per_sm{};  ///< Payload rate of one of these SMs; 0: only links limit it.
  Seconds row_overhead{};   ///< Time of one SM for a row (a token's copy) besides moving it.
  bool operator==(const ExchangeKernel&) const = default;
};

/// Type of a NIC's or a host's link, for names in reports.
enum class LinkType { kInfiniband, kEthernet, kPcie, kNvlinkC2c };
[[nodiscard]] const char* to_string(LinkType type);

struct Network {
  std::int64_t nvlink_domain = 8;     ///< GPUs with direct NVLink to each other.
  std::int64_t ranks_per_domain = 8;  ///< GPUs of a domain that a job uses (64 of 72 in the published NVL72 recipes).
  std::array<CollectiveCurve, kMeasuredKinds> nvlink{};  ///< By CollectiveKind.
  Bandwidth nic_bandwidth{};                             ///< Line rate per GPU, one direction.
  double nic_efficiency = 0.9;                           ///< Share of line rate that ring collectives reach.
  double nic_all_to_all_efficiency = 0.9;  ///< Share of line rate of all-to-all and send/receive between domains.
  double nic_exchange_efficiency = 0.9;    ///< Share of line rate of fused dispatch and combine between domains.
  Seconds nic_latency{};                   ///< Per step between domains, for the bulk protocol.
  Seconds nic_low_latency{};               ///< Per step between domains, for the low-latency protocol.
  std::int64_t domains_per_leaf = 0;       ///< NVLink domains below one leaf switch of a rail; 0: no limit.
  double oversubscription = 1.0;           ///< Bandwidth into a leaf over its bandwidth to the spine.
  std::int64_t domains = 0;                ///< NVLink domains of the cluster; 0: as many as a run needs.
  std::int64_t gpus_per_nic = 1;           ///< GPUs that share a NIC; nic_bandwidth is the share of one GPU.
  LinkType nic_link = LinkType::kInfiniband, host_link = LinkType::kPcie;
  double collective_sms = 0;      ///< Number of SMs from which a NCCL collective has its full effect on products.
  Bandwidth channel_bandwidth{};  ///< Wire bytes per second of one channel of a collective, which occupies one SM.
  std::array<ExchangeKernel, kDispatchers> exchange{};  ///< By Dispatcher, for flex dispatchers.
  bool operator==(const Network&) const = default;
};

/// Shape of one communication group on the network. A group is even if each of its NVLink domains has the same number
/// of its members. An uneven group is limited by the domain with the fewest.
struct GroupShape {
  std::int64_t ranks = 1;
  /// Members in an NVLink domain; in an uneven group, in the domain with the fewest.
  std::int64_t ranks_per_domain = 1;
  std::int64_t leaves = 1;          ///< Leaf switches of a rail that the group's domains are connected to.
  std::int64_t uneven_domains = 0;  ///< Number of NVLink domains if the group is uneven; else 0.
  [[nodiscard]] std::int64_t domains() const {
    return uneven_domains > 0 ? uneven_domains : (ranks + ranks_per_domain - 1) / ranks_per_domain;
  }
  bool operator==(const GroupShape&) const = default;
};

/// Bytes that one rank sends through a fused dispatch or combine, including those to itself.
struct ExchangeVolume {
  Bytes to_ranks{};    ///< A token counts once per destination rank: what NVLink carries.
  Bytes to_domains{};  ///< A token counts once per destination NVLink domain: what the NIC carries.
  double rows = 0;     ///< Copies in `to_ranks`.
  bool operator==(const ExchangeVolume&) const = default;
};

/// Wire bytes that one GPU sends, relative to the `bytes` of collective_time: docs/formulas.md#collectives.
[[nodiscard]] double wire_factor(CollectiveKind kind, double ranks);

/// `bytes` is the full tensor. For all-gather and broadcast that is the result of each rank, for reduce-scatter its
/// input, for all-reduce either. For all-to-all it is what one rank sends (including to itself), and for send/receive
/// what one rank sends. One rank or no bytes take no time. Requires a kind other than kDispatch and kCombine.
[[nodiscard]] Seconds collective_time(const Network& network, CollectiveKind kind, Bytes bytes, GroupShape group);

/// Requires kind kDispatch or kCombine.
[[nodiscard]] Seconds exchange_time(const Network& network, const ExchangeKernel& kernel, CollectiveKind kind,
                                    const ExchangeVolume& volume, GroupShape group);

/// Part of exchange_time that the kernel's SMs need to move their rows; zero if they are no limit.
[[nodiscard]] Seconds exchange_sm_time(const ExchangeKernel& kernel, const ExchangeVolume& volume);

/// Bytes that one GPU sends over each tier.
struct LinkBytes {
  Bytes nvlink{};
  Bytes nic{};
  Bytes spine{};  ///< Part of `nic` that leaves the leaf switch.
};
[[nodiscard]] LinkBytes link_bytes(CollectiveKind kind, Bytes bytes, GroupShape group);
[[nodiscard]] LinkBytes link_bytes(const ExchangeVolume& volume, GroupShape group);

}  // namespace foldwise::costmodel

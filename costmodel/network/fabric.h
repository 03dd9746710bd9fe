#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/network/network.h"

// The network link by link: the topology, the routes of messages, and the busiest link. For equal groups the routes
// give the closed forms of network.h (tests/fabric_test.cc).
namespace foldwise::costmodel {

/// A used link, in one direction.
struct LinkLoad {
  std::string name;  ///< "gpu 3 -> nvswitch 0"
  std::string tier;  ///< "nvlink", "pcie", "nic", "spine", or the link of the host.
  Bandwidth bandwidth{};
  Bytes bytes{};
  [[nodiscard]] Seconds busy() const { return bytes / bandwidth; }
};

/// GPUs 0 to n - 1, one NVLink domain after another, in the order of ranks. A GPU is connected to its domain's
/// NVSwitch, to a NIC that it may share, and to a host. NICs of one rail (the same place in their domains) connect to
/// leaf switches, and those to a spine of all rails. The last domain has only the job's remaining GPUs.
class Fabric {
 public:
  /// A part of the job that is left out: `times` copies of the `period` GPUs before GPU `at`, whose links carry the
  /// same load. Names count the copies, and so does what many domains share: an uplink of a leaf switch without a
  /// limit. `at` and `period` are multiples of leaf_span().
  struct Repeat {
    std::int64_t at, period, times;
  };

  /// Requires gpus >= 1, not counting the repeats. `host_link`: bandwidth of a GPU's link to the host.
  Fabric(const Network& network, Bandwidth host_link, std::int64_t gpus, std::vector<Repeat> repeats = {});

  struct Place {
    std::int64_t domain, rail, leaf;
  };
  [[nodiscard]] const Place& place(std::int64_t gpu) const;

  /// Sends `bytes` from one GPU to another: over NVLink within a domain. Between domains, if one of the communicator's
  /// `ranks` (ascending) in the sender's domain is on the receiver's rail, through that rank's NIC (NCCL's PXN);
  /// otherwise through the sender's own NIC and, if the rails differ, over the spine.
  void send(std::int64_t from, std::int64_t to, Bytes bytes, const std::vector<std::int64_t>& ranks = {});
  void copy_to_host(std::int64_t gpu, Bytes bytes);

  /// A collective over `ranks` (ascending), with bytes as in collective_time. The number of rings is that of the
  /// members in the domain with the fewest. Each ring leaves every domain through the NIC of one member.
  void collective(CollectiveKind kind, const std::vector<std::int64_t>& ranks, Bytes bytes);
  /// Fused dispatch or combine: one copy to each domain through the sender's NIC, from there to each rank.
  void exchange(const std::vector<std::int64_t>& ranks, const ExchangeVolume& volume);

  /// Links with any load, busiest first.
  [[nodiscard]] std::vector<LinkLoad> loads() const;
  /// The busiest link of each tier, busiest first. Links equal up to rounding are represented by the first.
  [[nodiscard]] std::vector<LinkLoad> busiest() const;
  /// Bytes that left `gpu` over its link to the NVSwitch, and over its NIC's link to the leaf switch.
  [[nodiscard]] LinkBytes sent(std::int64_t gpu) const;

 private:
  /// Directed links of every GPU, NIC and leaf switch.
  enum class Link : std::uint8_t {
    kGpuHost,
    kGpuSwitch,
    kGpuNic,
    kSwitchGpu,
    kNicGpu,
    kNicLeaf,
    kLeafNic,
    kLeafSpine,
    kSpineLeaf
  };
  static constexpr std::size_t kLinks = enumerators<Link>();

  [[nodiscard]] std::vector<Bytes>& carried(Link link) { return carried_.at(static_cast<std::size_t>(link)); }
  [[nodiscard]] const std::vector<Bytes>& carried(Link link) const {
    return carried_.at(static_cast<std::size_t>(link));
  }
  /// Sends between domains through the NIC of `relay`, a GPU of the sender's domain.
  void send_through(std::int64_t relay, std::int64_t from, std::int64_t to, Bytes bytes);
  [[nodiscard]] std::vector<std::vector<std::int64_t>> by_domain(const std::vector<std::int64_t>& ranks) const;
  [[nodiscard]] std::int64_t nic_at(std::int64_t domain, std::int64_t rail) const { return domain * rails_ + rail; }
  [[nodiscard]] LinkLoad load(Link link, std::size_t index) const;
  /// Index of a domain in the whole job.
  [[nodiscard]] std::int64_t in_job(std::int64_t domain) const;

  Network network_;
  std::int64_t rails_;
  Bandwidth host_link_;
  std::int64_t per_leaf_;  ///< Domains below a leaf switch, in the whole job.
  std::vector<Repeat> repeats_;
  std::vector<Place> places_;   ///< By GPU.
  std::vector<double> copies_;  ///< By domain: number of domains that it stands for below its leaf switch.
  std::array<std::vector<Bytes>, kLinks> carried_;
};

/// Number of GPUs below one leaf switch, or in a domain if a leaf has no limit. Two GPUs at the same place in such a
/// span use corresponding links.
[[nodiscard]] std::int64_t leaf_span(const Network& network);

}  // namespace foldwise::costmodel

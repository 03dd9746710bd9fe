#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/network/network.h"

// The network link by link: what hangs where, over which links a message goes, and which link is the busiest. The
// closed forms of network.h are what these routes give for equal groups (tests/fabric_test.cc).
namespace foldwise::costmodel {

/// A link in use, one way.
struct LinkLoad {
  std::string name;  ///< "gpu 3 -> nvswitch 0"
  std::string tier;  ///< "nvlink", "pcie", "nic", "spine", and what the host hangs on.
  Bandwidth bandwidth{};
  Bytes bytes{};
  [[nodiscard]] Seconds busy() const { return bytes / bandwidth; }
};

/// GPUs 0 to n - 1, one NVLink domain after the other, as a launcher numbers ranks. A GPU hangs on its domain's
/// NVSwitch, on a NIC that it may share, and on a host; NICs of one rail (the same place in their domains) meet in leaf
/// switches, those of all rails in a spine. The last domain has no more GPUs than the job has left for it.
class Fabric {
 public:
  /// A part of the job that the fabric goes without: `times` copies of the `period` GPUs before GPU `at`, whose links
  /// carry what theirs do. Names count them, and so does what many domains share: an uplink of a leaf switch without a
  /// limit. `at` and `period` are multiples of leaf_span().
  struct Repeat {
    std::int64_t at, period, times;
  };

  /// Requires gpus >= 1, of which the repeats are not. `host_link`: bandwidth of a GPU's link to the host.
  Fabric(const Network& network, Bandwidth host_link, std::int64_t gpus, std::vector<Repeat> repeats = {});

  struct Place {
    std::int64_t domain, rail, leaf;
  };
  [[nodiscard]] const Place& place(std::int64_t gpu) const;

  /// `bytes` from one GPU to another: over NVLink within a domain; else, where `ranks` of the communicator (ascending)
  /// have a member on the receiver's rail in the sender's domain, to it and out of its NIC (NCCL's PXN); else out of
  /// the sender's own NIC and, from one rail to another, over the spine.
  void send(std::int64_t from, std::int64_t to, Bytes bytes, const std::vector<std::int64_t>& ranks = {});
  void copy_to_host(std::int64_t gpu, Bytes bytes);

  /// A collective over `ranks` (ascending); bytes as collective_time defines them. Rings: one for each member that the
  /// domain with the fewest has, leaving every domain through the NIC of one member.
  void collective(CollectiveKind kind, const std::vector<std::int64_t>& ranks, Bytes bytes);
  /// Fused dispatch or combine: once to each domain, out of the sender's NIC, and there to each rank.
  void exchange(const std::vector<std::int64_t>& ranks, const ExchangeVolume& volume);

  /// Links that carry anything, busiest first.
  [[nodiscard]] std::vector<LinkLoad> loads() const;
  /// Of them the busiest of each tier, busiest first; of those that are equal but for rounding, the first.
  [[nodiscard]] std::vector<LinkLoad> busiest() const;
  /// What the link of `gpu` to its NVSwitch, or of its NIC to the leaf switch, has carried out of it.
  [[nodiscard]] LinkBytes sent(std::int64_t gpu) const;

 private:
  /// Links, one way: of every GPU, of every NIC, of every leaf switch.
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
  /// Between domains, out of the NIC of `relay`, a GPU of the sender's domain.
  void send_through(std::int64_t relay, std::int64_t from, std::int64_t to, Bytes bytes);
  [[nodiscard]] std::vector<std::vector<std::int64_t>> by_domain(const std::vector<std::int64_t>& ranks) const;
  [[nodiscard]] std::int64_t nic_at(std::int64_t domain, std::int64_t rail) const { return domain * rails_ + rail; }
  [[nodiscard]] LinkLoad load(Link link, std::size_t index) const;
  /// Number of a domain in the whole job.
  [[nodiscard]] std::int64_t in_job(std::int64_t domain) const;

  Network network_;
  std::int64_t rails_;
  Bandwidth host_link_;
  std::int64_t per_leaf_;  ///< Domains below a leaf switch, in the whole job.
  std::vector<Repeat> repeats_;
  std::vector<Place> places_;   ///< By GPU.
  std::vector<double> copies_;  ///< By domain: as how many it counts below its leaf switch.
  std::array<std::vector<Bytes>, kLinks> carried_;
};

/// GPUs below one leaf switch, or, where that has no limit, of a domain: where one lies in it decides which links are
/// the same for two.
[[nodiscard]] std::int64_t leaf_span(const Network& network);

}  // namespace foldwise::costmodel

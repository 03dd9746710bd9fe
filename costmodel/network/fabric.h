#pragma once
#include <boost/graph/adjacency_list.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/network/network.h"

// The network as a graph: what hangs where, over which links a message goes, and which link is the busiest. The closed
// forms of network.h are what this graph gives for equal groups (tests/fabric_test.cc).
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
  /// Requires gpus >= 1. `host_link`: bandwidth of a GPU's link to the host.
  Fabric(const Network& network, Bandwidth host_link, std::int64_t gpus);

  struct Place {
    std::int64_t domain, rail, leaf;
  };
  [[nodiscard]] Place place(std::int64_t gpu) const;

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
  /// What the link of `gpu` to its NVSwitch, or of its NIC to the leaf switch, has carried out of it.
  [[nodiscard]] LinkBytes sent(std::int64_t gpu) const;

 private:
  enum class Kind : std::uint8_t { kGpu, kSwitch, kNic, kLeaf, kSpine, kHost };
  struct Node {
    Kind kind;
    std::int64_t index;
  };
  struct Link {
    const char* tier;
    Bandwidth bandwidth{};
    Bytes bytes{};
  };
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, Node, Link>;
  using Vertex = Graph::vertex_descriptor;

  Vertex add(Kind kind, std::int64_t index);
  void connect(Vertex a, Vertex b, const char* tier, Bandwidth bandwidth);
  void over(const std::vector<Vertex>& route, Bytes bytes);
  /// Between domains, out of the NIC of `relay`, a GPU of the sender's domain.
  void send_through(std::int64_t relay, std::int64_t from, std::int64_t to, Bytes bytes);
  [[nodiscard]] std::vector<std::vector<std::int64_t>> by_domain(const std::vector<std::int64_t>& ranks) const;
  [[nodiscard]] Bytes carried(Vertex from, Vertex to) const;

  Network network_;
  std::int64_t gpus_;
  Graph graph_;
  std::vector<Vertex> gpu_, switch_, nic_, leaf_, host_;
  Vertex spine_{};
};

}  // namespace foldwise::costmodel

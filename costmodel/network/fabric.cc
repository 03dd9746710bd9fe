#include "costmodel/network/fabric.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <boost/range/iterator_range.hpp>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

Fabric::Fabric(const Network& network, Bandwidth host_link, std::int64_t gpus) : network_(network), gpus_(gpus) {
  FW_CHECK(gpus >= 1);
  const std::int64_t domains = ceil_div(gpus, network_.ranks_per_domain);
  const std::int64_t nics_per_domain = ceil_div(network_.ranks_per_domain, network_.gpus_per_nic);
  const std::int64_t per_leaf = network_.domains_per_leaf > 0 ? network_.domains_per_leaf : domains;
  const std::int64_t blocks = ceil_div(domains, per_leaf);
  const Bandwidth nvlink = network_.nvlink.at(static_cast<std::size_t>(CollectiveKind::kSendRecv)).bulk.bandwidth;
  const Bandwidth nic = network_.nic_bandwidth * static_cast<double>(network_.gpus_per_nic);

  for (std::int64_t i = 0; i < gpus; ++i) gpu_.push_back(add(Kind::kGpu, i));
  for (std::int64_t i = 0; i < gpus; ++i) host_.push_back(add(Kind::kHost, i));
  for (std::int64_t i = 0; i < domains; ++i) switch_.push_back(add(Kind::kSwitch, i));
  for (std::int64_t i = 0; i < domains * nics_per_domain; ++i) nic_.push_back(add(Kind::kNic, i));
  for (std::int64_t i = 0; i < blocks * nics_per_domain; ++i) leaf_.push_back(add(Kind::kLeaf, i));
  spine_ = add(Kind::kSpine, 0);

  for (std::int64_t i = 0; i < gpus; ++i) {
    const Place here = place(i);
    connect(gpu_[at(i)], host_[at(i)], to_string(network_.host_link), host_link);
    connect(gpu_[at(i)], switch_[at(here.domain)], "nvlink", nvlink);
    connect(gpu_[at(i)], nic_[at(here.domain * nics_per_domain + here.rail)], "pcie", nic);
  }
  for (std::int64_t domain = 0; domain < domains; ++domain)
    for (std::int64_t rail = 0; rail < nics_per_domain; ++rail)
      connect(nic_[at(domain * nics_per_domain + rail)], leaf_[at(domain / per_leaf * nics_per_domain + rail)],
              to_string(network_.nic_link), nic);
  if (leaf_.size() > 1)
    for (const Vertex leaf : leaf_)
      connect(leaf, spine_, "spine", nic * static_cast<double>(per_leaf) / network_.oversubscription);
}

Fabric::Vertex Fabric::add(Kind kind, std::int64_t index) {
  const Vertex vertex = boost::add_vertex(graph_);  // With a property, GCC 12 warns inside Boost.
  graph_[vertex] = Node{kind, index};
  return vertex;
}

void Fabric::connect(Vertex a, Vertex b, const char* tier, Bandwidth bandwidth) {
  boost::add_edge(a, b, Link{tier, bandwidth, {}}, graph_);
  boost::add_edge(b, a, Link{tier, bandwidth, {}}, graph_);
}

Fabric::Place Fabric::place(std::int64_t gpu) const {
  FW_CHECK(gpu >= 0 && gpu < gpus_);
  const std::int64_t domain = gpu / network_.ranks_per_domain;
  return {.domain = domain,
          .rail = gpu % network_.ranks_per_domain / network_.gpus_per_nic,
          .leaf = network_.domains_per_leaf > 0 ? domain / network_.domains_per_leaf : 0};
}

void Fabric::over(const std::vector<Vertex>& route, Bytes bytes) {
  for (std::size_t i = 0; i + 1 < route.size(); ++i) {
    const auto [link, exists] = boost::edge(route[i], route[i + 1], graph_);
    FW_CHECK(exists);
    graph_[link].bytes += bytes;
  }
}

void Fabric::send(std::int64_t from, std::int64_t to, Bytes bytes, const std::vector<std::int64_t>& ranks) {
  if (from == to) return;
  const Place a = place(from), b = place(to);
  if (a.domain == b.domain) {
    over({gpu_[at(from)], switch_[at(a.domain)], gpu_[at(to)]}, bytes);
    return;
  }
  const std::int64_t relay = a.domain * network_.ranks_per_domain + to % network_.ranks_per_domain;
  send_through(std::binary_search(ranks.begin(), ranks.end(), relay) ? relay : from, from, to, bytes);
}

void Fabric::send_through(std::int64_t relay, std::int64_t from, std::int64_t to, Bytes bytes) {
  const std::int64_t nics = ceil_div(network_.ranks_per_domain, network_.gpus_per_nic);
  const Place a = place(from), b = place(to), out = place(relay);
  std::vector<Vertex> route{gpu_[at(from)]};
  if (a.rail != out.rail) {
    route.push_back(switch_[at(a.domain)]);
    route.push_back(gpu_[at(relay)]);
  }
  route.push_back(nic_[at(a.domain * nics + out.rail)]);
  const Vertex up = leaf_[at(a.leaf * nics + out.rail)], down = leaf_[at(b.leaf * nics + b.rail)];
  route.push_back(up);
  if (up != down) {
    route.push_back(spine_);
    route.push_back(down);
  }
  route.push_back(nic_[at(b.domain * nics + b.rail)]);
  route.push_back(gpu_[at(to)]);
  over(route, bytes);
}

void Fabric::copy_to_host(std::int64_t gpu, Bytes bytes) { over({gpu_[at(gpu)], host_[at(gpu)]}, bytes); }

std::vector<std::vector<std::int64_t>> Fabric::by_domain(const std::vector<std::int64_t>& ranks) const {
  std::vector<std::vector<std::int64_t>> result;
  std::int64_t last = -1;
  for (const std::int64_t rank : ranks) {
    const std::int64_t domain = place(rank).domain;
    if (domain != last) result.emplace_back();
    last = domain;
    result.back().push_back(rank);
  }
  return result;
}

void Fabric::collective(CollectiveKind kind, const std::vector<std::int64_t>& ranks, Bytes bytes) {
  if (ranks.size() < 2) return;
  const auto n = static_cast<double>(ranks.size());
  if (kind == CollectiveKind::kSendRecv) {
    for (std::size_t i = 0; i + 1 < ranks.size(); ++i) send(ranks[i], ranks[i + 1], bytes);
    return;
  }
  if (kind == CollectiveKind::kAllToAll) {
    for (const std::int64_t from : ranks)
      for (const std::int64_t to : ranks) send(from, to, bytes / n, ranks);
    return;
  }
  const std::vector<std::vector<std::int64_t>> domains = by_domain(ranks);
  const std::size_t rings = std::min_element(domains.begin(), domains.end(), [](const auto& a, const auto& b) {
                              return a.size() < b.size();
                            })->size();
  const bool broadcast = kind == CollectiveKind::kBroadcast;  // From the first rank to the last: no ring closes.
  const Bytes wire = broadcast ? bytes : (kind == CollectiveKind::kAllReduce ? 2.0 : 1.0) * ((n - 1.0) / n) * bytes;
  const Bytes part = wire / static_cast<double>(rings);
  for (std::size_t ring = 0; ring < rings; ++ring) {
    for (std::size_t d = 0; d < domains.size(); ++d) {
      const std::vector<std::int64_t>& members = domains[d];
      for (std::size_t i = 0; i < members.size(); ++i) {
        const std::int64_t from = members[(ring + i) % members.size()];
        if (i + 1 < members.size()) {
          send(from, members[(ring + i + 1) % members.size()], part);
        } else if (domains.size() == 1) {
          if (!broadcast) send(from, members[ring], part);
        } else if (d + 1 < domains.size() || !broadcast) {
          send_through(members[ring], from, domains[(d + 1) % domains.size()][ring], part);
        }
      }
    }
  }
}

void Fabric::exchange(const std::vector<std::int64_t>& ranks, const ExchangeVolume& volume) {
  const std::vector<std::vector<std::int64_t>> domains = by_domain(ranks);
  const auto n = static_cast<double>(ranks.size()), d = static_cast<double>(domains.size());
  for (const auto& own : domains) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      for (const auto& members : domains) {
        const std::int64_t relay = members[i % members.size()];
        if (&members != &own) send_through(own[i], own[i], relay, volume.to_domains / d);
        for (const std::int64_t to : members) send(&members == &own ? own[i] : relay, to, volume.to_ranks / n);
      }
    }
  }
}

std::vector<LinkLoad> Fabric::loads() const {
  static constexpr std::array<const char*, 6> kNames{"gpu", "nvswitch", "nic", "leaf", "spine", "host"};
  const auto name = [&](Vertex v) {
    return fmt::format("{} {}", kNames.at(static_cast<std::size_t>(graph_[v].kind)), graph_[v].index);
  };
  std::vector<LinkLoad> result;
  for (Vertex from = 0; from < boost::num_vertices(graph_); ++from) {
    for (const auto& edge : boost::make_iterator_range(boost::out_edges(from, graph_))) {
      const Link& link = graph_[edge];
      if (link.bytes > Bytes{})
        result.push_back({fmt::format("{} -> {}", name(from), name(boost::target(edge, graph_))), link.tier,
                          link.bandwidth, link.bytes});
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const LinkLoad& a, const LinkLoad& b) { return a.busy() > b.busy(); });
  return result;
}

Bytes Fabric::carried(Vertex from, Vertex to) const {
  const auto [link, exists] = boost::edge(from, to, graph_);
  return exists ? graph_[link].bytes : Bytes{};
}

LinkBytes Fabric::sent(std::int64_t gpu) const {
  const Place here = place(gpu);
  const std::int64_t nics = ceil_div(network_.ranks_per_domain, network_.gpus_per_nic);
  const Vertex leaf = leaf_[at(here.leaf * nics + here.rail)];
  return {.nvlink = carried(gpu_[at(gpu)], switch_[at(here.domain)]),
          .nic = carried(nic_[at(here.domain * nics + here.rail)], leaf),
          .spine = carried(leaf, spine_)};
}

}  // namespace foldwise::costmodel

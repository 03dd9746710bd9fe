#include "costmodel/network/fabric.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/units/integers.h"

namespace foldwise::costmodel {
namespace {

/// Equal sums of many messages, added in another order, differ by a smaller share than this.
constexpr double kRounding = 1e-9;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

std::int64_t leaf_span(const Network& network) {
  return network.ranks_per_domain * std::max<std::int64_t>(1, network.domains_per_leaf);
}

Fabric::Fabric(const Network& network, Bandwidth host_link, std::int64_t gpus, std::vector<Repeat> repeats)
    : network_(network),
      rails_(ceil_div(network.ranks_per_domain, network.gpus_per_nic)),
      host_link_(host_link),
      per_leaf_(network.domains_per_leaf),
      repeats_(std::move(repeats)) {
  FW_CHECK(gpus >= 1);
  const std::int64_t domains = ceil_div(gpus, network_.ranks_per_domain);
  const bool limited = network_.domains_per_leaf > 0;
  if (!limited) per_leaf_ = in_job(domains - 1) + 1;
  places_.reserve(at(gpus));
  for (std::int64_t gpu = 0; gpu < gpus; ++gpu) {
    const std::int64_t domain = gpu / network_.ranks_per_domain;
    places_.push_back({.domain = domain,
                       .rail = gpu % network_.ranks_per_domain / network_.gpus_per_nic,
                       .leaf = limited ? domain / per_leaf_ : 0});
  }
  copies_.assign(at(domains), 1.0);
  for (const Repeat& repeat : repeats_) {
    FW_CHECK(repeat.at % leaf_span(network_) == 0 && repeat.period % leaf_span(network_) == 0);
    const std::int64_t end = repeat.at / network_.ranks_per_domain;
    for (std::int64_t d = end - repeat.period / network_.ranks_per_domain; d < end && !limited; ++d)
      copies_[at(d)] += static_cast<double>(repeat.times);
  }
  const std::int64_t leaves = limited ? ceil_div(domains, per_leaf_) : 1;
  for (const Link link : {Link::kGpuHost, Link::kGpuSwitch, Link::kGpuNic, Link::kSwitchGpu, Link::kNicGpu})
    carried(link).resize(at(gpus));
  for (const Link link : {Link::kNicLeaf, Link::kLeafNic}) carried(link).resize(at(domains * rails_));
  for (const Link link : {Link::kLeafSpine, Link::kSpineLeaf}) carried(link).resize(at(leaves * rails_));
}

const Fabric::Place& Fabric::place(std::int64_t gpu) const {
  FW_CHECK(gpu >= 0 && at(gpu) < places_.size());
  return places_[at(gpu)];
}

void Fabric::send(std::int64_t from, std::int64_t to, Bytes bytes, const std::vector<std::int64_t>& ranks) {
  if (from == to) return;
  const std::int64_t size = network_.ranks_per_domain, domain = place(from).domain;
  if (domain == place(to).domain) {
    carried(Link::kGpuSwitch)[at(from)] += bytes;
    carried(Link::kSwitchGpu)[at(to)] += bytes;
    return;
  }
  const std::int64_t relay = domain * size + to % size;
  send_through(std::binary_search(ranks.begin(), ranks.end(), relay) ? relay : from, from, to, bytes);
}

void Fabric::send_through(std::int64_t relay, std::int64_t from, std::int64_t to, Bytes bytes) {
  const Place &a = place(from), &b = place(to), &out = place(relay);
  const bool passed_on = a.rail != out.rail;
  if (passed_on) {
    carried(Link::kGpuSwitch)[at(from)] += bytes;
    carried(Link::kSwitchGpu)[at(relay)] += bytes;
  }
  carried(Link::kGpuNic)[at(passed_on ? relay : from)] += bytes;
  carried(Link::kNicLeaf)[at(nic_at(a.domain, out.rail))] += bytes;
  const std::int64_t up = a.leaf * rails_ + out.rail, down = b.leaf * rails_ + b.rail;
  if (up != down) {
    carried(Link::kLeafSpine)[at(up)] += copies_[at(a.domain)] * bytes;
    carried(Link::kSpineLeaf)[at(down)] += copies_[at(b.domain)] * bytes;
  }
  carried(Link::kLeafNic)[at(nic_at(b.domain, b.rail))] += bytes;
  carried(Link::kNicGpu)[at(to)] += bytes;
}

void Fabric::copy_to_host(std::int64_t gpu, Bytes bytes) { carried(Link::kGpuHost).at(at(gpu)) += bytes; }

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
  const bool broadcast =
      kind == CollectiveKind::kBroadcast;  // From the first rank to the last, so the ring is not closed.
  const Bytes part = wire_factor(kind, n) * bytes / static_cast<double>(rings);
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

std::int64_t Fabric::in_job(std::int64_t domain) const {
  std::int64_t gpu = domain * network_.ranks_per_domain;
  for (const Repeat& repeat : repeats_)
    if (repeat.at <= domain * network_.ranks_per_domain) gpu += repeat.period * repeat.times;
  return gpu / network_.ranks_per_domain;
}

LinkLoad Fabric::load(Link link, std::size_t index) const {
  const std::int64_t size = network_.ranks_per_domain, i = static_cast<std::int64_t>(index);
  const bool of_gpu = link <= Link::kNicGpu, of_nic = !of_gpu && link <= Link::kLeafNic;
  const std::int64_t domain = in_job(of_gpu ? i / size : i / rails_ * (of_nic ? 1 : network_.domains_per_leaf));
  const std::int64_t rail = of_gpu ? i % size / network_.gpus_per_nic : i % rails_,
                     in_domain = domain * size + i % size;
  const std::string gpu = fmt::format("gpu {}", in_domain), host = fmt::format("host {}", in_domain);
  const std::string nvswitch = fmt::format("nvswitch {}", domain), nic = fmt::format("nic {}", nic_at(domain, rail));
  const std::string leaf = fmt::format("leaf {}", domain / per_leaf_ * rails_ + rail), spine = "spine 0";
  const auto load = [&](const std::string& from, const std::string& to, const char* tier, Bandwidth bandwidth) {
    return LinkLoad{fmt::format("{} -> {}", from, to), tier, bandwidth, carried(link)[index]};
  };
  const Bandwidth nvlink = network_.nvlink.at(static_cast<std::size_t>(CollectiveKind::kSendRecv)).bulk.bandwidth;
  const Bandwidth line = network_.nic_bandwidth * static_cast<double>(network_.gpus_per_nic);
  const Bandwidth uplink = line * static_cast<double>(per_leaf_) / network_.oversubscription;
  switch (link) {
    case Link::kGpuHost:
      return load(gpu, host, to_string(network_.host_link), host_link_);
    case Link::kGpuSwitch:
      return load(gpu, nvswitch, "nvlink", nvlink);
    case Link::kGpuNic:
      return load(gpu, nic, "pcie", line);
    case Link::kSwitchGpu:
      return load(nvswitch, gpu, "nvlink", nvlink);
    case Link::kNicGpu:
      return load(nic, gpu, "pcie", line);
    case Link::kNicLeaf:
      return load(nic, leaf, to_string(network_.nic_link), line);
    case Link::kLeafNic:
      return load(leaf, nic, to_string(network_.nic_link), line);
    case Link::kLeafSpine:
      return load(leaf, spine, "spine", uplink);
    case Link::kSpineLeaf:
      return load(spine, leaf, "spine", uplink);
  }
  return {};
}

std::vector<LinkLoad> Fabric::loads() const {
  std::vector<LinkLoad> result;
  for (std::size_t link = 0; link < kLinks; ++link)
    for (std::size_t i = 0; i < carried_.at(link).size(); ++i)
      if (carried_.at(link)[i] > Bytes{}) result.push_back(load(static_cast<Link>(link), i));
  std::stable_sort(result.begin(), result.end(),
                   [](const LinkLoad& a, const LinkLoad& b) { return a.busy() > b.busy(); });
  return result;
}

std::vector<LinkLoad> Fabric::busiest() const {
  const auto busier = [](const LinkLoad& a, const LinkLoad& b) { return a.busy() > (1.0 + kRounding) * b.busy(); };
  std::vector<LinkLoad> result;
  for (std::size_t link = 0; link < kLinks; ++link) {
    const std::vector<Bytes>& bytes = carried_.at(link);
    const Bytes most = *std::max_element(bytes.begin(), bytes.end());
    if (most <= Bytes{}) continue;
    const auto first = std::find_if(bytes.begin(), bytes.end(), [&](Bytes b) { return (1.0 + kRounding) * b >= most; });
    LinkLoad found = load(static_cast<Link>(link), static_cast<std::size_t>(first - bytes.begin()));
    const auto of_tier = std::ranges::find(result, found.tier, &LinkLoad::tier);
    if (of_tier != result.end()) {
      if (!busier(found, *of_tier)) continue;
      result.erase(of_tier);
    }
    const auto less = std::ranges::find_if(result, [&](const LinkLoad& other) { return busier(found, other); });
    result.insert(less, std::move(found));
  }
  return result;
}

LinkBytes Fabric::sent(std::int64_t gpu) const {
  const Place& here = place(gpu);
  return {.nvlink = carried(Link::kGpuSwitch)[at(gpu)],
          .nic = carried(Link::kNicLeaf)[at(nic_at(here.domain, here.rail))],
          .spine = carried(Link::kLeafSpine)[at(here.leaf * rails_ + here.rail)]};
}

}  // namespace foldwise::costmodel

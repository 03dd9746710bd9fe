#include "kernels/cuda/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace foldwise::kernels {
namespace {

/// All processes must call it.
std::string trouble_of(const World& world, std::vector<std::string> hosts, int devices, int domain) {
  std::vector<double> ends = {static_cast<double>(devices), -static_cast<double>(devices)};
  world.take_largest(ends);
  if (ends[0] != -ends[1])
    return fmt::format("processes with {} and with {} devices: give --devices", -ends[1], ends[0]);
  if (devices == 0)
    return world.size() == 1 ? "no CUDA device on this machine"
                             : fmt::format("no CUDA device on {}", fmt::join(hosts, ", "));
  std::sort(hosts.begin(), hosts.end());
  if (const auto twice = std::adjacent_find(hosts.begin(), hosts.end()); twice != hosts.end())
    return fmt::format("two processes on {}: start one a host, which takes all devices (srun --ntasks-per-node=1)",
                       *twice);
  if (domain % devices != 0)
    return fmt::format("--nvlink-domain: expected a multiple of the {} devices of a host, found {}", devices, domain);
  return "";
}

}  // namespace

Topology::Topology(const World& world, int devices, int domain)
    : world_(world), hosts_(world.hosts()), devices_(devices), domain_(domain > 0 ? domain : devices) {
  trouble_ = trouble_of(world_, hosts_, devices_, domain_);
  for (int size = 2; size < world_.size(); size *= 2)
    if (std::unique_ptr<World> members = world_.first(size); members != nullptr) some_.push_back(std::move(members));
}

std::vector<Group> Topology::groups() const {
  std::vector<Group> list;
  if (first())
    for (int ranks = 2; ranks <= devices_; ranks *= 2) list.push_back({ranks, ranks, nullptr});
  const auto add = [&](const World& members) {
    const int of_domain = std::min(domain_ / devices_, members.size());
    for (int devices = 1; devices <= devices_; devices *= 2)
      list.push_back({devices * members.size(), devices * of_domain, &members});
  };
  for (const std::unique_ptr<World>& members : some_) add(*members);
  if (world_.size() > 1) add(world_);
  return list;
}

}  // namespace foldwise::kernels

// Replaces foldwise-kernels-cuda where there is no GPU. Has its processes, groups and record file, with times of a
// known network instead of measured ones. Each process has four devices, and treats this machine as a separate host.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "costmodel/network/network.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/records/record.h"
#include "kernels/cuda/topology.h"

namespace foldwise {
namespace {

void expect(bool right, const char* what) {
  if (!right) throw std::runtime_error(what);
}

costmodel::Network known_network() {
  costmodel::Network network = hwprofiles::load_profile("h200").hardware.network;
  network.nic_efficiency = 0.71;
  network.nic_all_to_all_efficiency = 0.55;
  network.nic_latency = Seconds{23e-6};
  network.nic_low_latency = Seconds{8e-6};
  return network;
}

/// Time of the slowest process, which is the last.
double microseconds(const kernels::Group& group, double us) {
  if (group.world == nullptr) return us;
  const bool last = group.world->rank() + 1 == group.world->size();
  std::vector<double> mine = {last ? us : 0.9 * us, group.world->rank() == 0 ? 1.0 : 0.0};
  group.world->barrier();
  group.world->take_largest(mine);
  expect(mine[1] == 1.0, "a group without its first process");
  return mine[0];
}

int run(const std::string& out, int domain) {
  const kernels::World world;
  const kernels::Topology topology(world, 4, domain);
  expect(topology.hosts().size() == static_cast<std::size_t>(world.size()), "a name for every process");
  if (world.size() > 1) expect(topology.trouble().starts_with("two processes on "), "processes of one host");
  std::vector<std::string> hosts;
  hosts.reserve(topology.hosts().size());
  for (int host = 0; host < world.size(); ++host) hosts.push_back("host" + std::to_string(host));
  std::optional<hwprofiles::RecordFile> file;
  if (topology.first())
    file.emplace(out, hwprofiles::Session{.id = "a",
                                          .program = "foldwise-kernels-cuda",
                                          .started = "2026-11-23T12:00:00Z",
                                          .device = "NVIDIA H200",
                                          .devices = 4 * world.size(),
                                          .hosts = hosts,
                                          .nvlink_domain = topology.domain(),
                                          .nics = {{"mlx5_0", "400 Gb/sec (4X NDR), InfiniBand"}}});
  const costmodel::Network network = known_network();
  for (const kernels::Group& group : topology.groups())
    for (const auto& [name, kind] : hwprofiles::collective_kind_names())
      for (std::int64_t bytes = 1 << 12; kind < costmodel::CollectiveKind::kDispatch && bytes <= 1 << 30; bytes *= 4) {
        hwprofiles::Measurement m{.kernel = "collective",
                                  .of = {{"collective", name}, {"distribution", "even"}},
                                  .shape = {{"ranks", group.ranks}, {"bytes", bytes}},
                                  .correct = true};
        if (group.of_domain < group.ranks) m.shape["ranks_per_domain"] = group.of_domain;
        bool known = file && file->has(m);
        if (group.world != nullptr) group.world->broadcast(&known, sizeof known);
        if (known) continue;
        const Seconds time = collective_time(network, kind, Bytes{static_cast<double>(bytes)},
                                             {.ranks = group.ranks, .ranks_per_domain = group.of_domain});
        m.samples_us = {microseconds(group, 1e6 * time.to<double>())};
        if (file) file->append(m);
      }
  return 0;
}

}  // namespace
}  // namespace foldwise

int main(int argc, char** argv) {
  CLI::App app;
  std::string out;
  int domain = 0;
  app.add_option("--out", out)->required();
  app.add_option("--nvlink-domain", domain);
  CLI11_PARSE(app, argc, argv);
  try {
    return foldwise::run(out, domain);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stand_in_kernels: %s\n", error.what());
    return 1;
  }
}

#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/world.h"

namespace foldwise::kernels {

/// Ranks of a collective, one per device.
struct Group {
  int ranks = 2;
  int of_domain = 2;             ///< Ranks in one NVLink domain.
  const World* world = nullptr;  ///< Its processes hold equally many of the ranks; nullptr: this process holds all.
};

/// The devices of all processes, and the groups that measure together.
class Topology {
 public:
  /// `devices` of each process. `domain` consecutive devices share NVLink; 0: those of a process. All processes must
  /// call it, and get the same trouble().
  Topology(const World& world, int devices, int domain);

  /// Why the processes cannot measure together, for example two on one host; "" if they can.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  [[nodiscard]] const World& world() const { return world_; }
  [[nodiscard]] const std::vector<std::string>& hosts() const { return hosts_; }
  [[nodiscard]] int devices() const { return devices_; }
  [[nodiscard]] int domain() const { return domain_; }
  /// Whether this process writes records, coordinates, and runs single-process measurements.
  [[nodiscard]] bool first() const { return world_.rank() == 0; }

  /// Groups of this process: 2, 4, ... devices of the first process; 1, 2, 4, ... devices of each of the first 2, 4,
  /// ... and of all processes.
  [[nodiscard]] std::vector<Group> groups() const;

 private:
  const World& world_;
  std::vector<std::string> hosts_;
  int devices_, domain_;
  std::string trouble_;
  std::vector<std::unique_ptr<World>> some_;  ///< Worlds of the first 2, 4, ... processes that contain this one.
};

}  // namespace foldwise::kernels

#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/world.h"

namespace foldwise::kernels {

/// Ranks of a collective: one a device.
struct Group {
  int ranks = 2;
  int of_domain = 2;             ///< Of them in one NVLink domain.
  const World* world = nullptr;  ///< Whose processes have as many of the ranks each; null: this one has all.
};

/// The devices of all processes, and who of them measures together.
class Topology {
 public:
  /// `devices` of each process; `domain` of them in a row share NVLink, 0: those of a process. Of all processes, which
  /// then have the same trouble.
  Topology(const World& world, int devices, int domain);

  /// What keeps the processes from measuring together, such as two on one host; "" for nothing.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  [[nodiscard]] const World& world() const { return world_; }
  [[nodiscard]] const std::vector<std::string>& hosts() const { return hosts_; }
  [[nodiscard]] int devices() const { return devices_; }
  [[nodiscard]] int domain() const { return domain_; }
  /// Whether this process writes, tells, and measures what one process does.
  [[nodiscard]] bool first() const { return world_.rank() == 0; }

  /// Those that this process takes part in: 2, 4, ... devices of the first one; 1, 2, 4, ... of each of the first 2, 4,
  /// ... and of all processes.
  [[nodiscard]] std::vector<Group> groups() const;

 private:
  const World& world_;
  std::vector<std::string> hosts_;
  int devices_, domain_;
  std::string trouble_;
  std::vector<std::unique_ptr<World>> some_;  ///< Those of the first 2, 4, ... that this process is among.
};

}  // namespace foldwise::kernels

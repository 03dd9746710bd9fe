#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

// The processes that measure together: one a host, each with all devices of its host, as `srun --ntasks-per-node=1` or
// `mpirun --map-by ppr:1:node` start them. MPI introduces them; NCCL moves what is measured.
namespace foldwise::kernels {

class World {
 public:
  /// This process alone where no launcher started it. Throws std::runtime_error: a launcher started several, and they
  /// cannot find each other.
  World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();  ///< The first made is the last to go; it ends the others too where it is left by an exception.

  /// Its first `size` processes; called by all, null for the others.
  [[nodiscard]] std::unique_ptr<World> first(int size) const;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Of all its processes; each must call them, one thread at a time.
  void barrier() const;
  void broadcast(void* data, std::size_t bytes) const;   ///< What the first process has.
  void take_largest(std::vector<double>& values) const;  ///< Value by value.
  [[nodiscard]] std::vector<std::string> hosts() const;  ///< Name of each process's host.

 private:
  struct Members;
  World(int rank, int size, std::unique_ptr<Members> members);
  int rank_ = 0, size_ = 1;
  std::unique_ptr<Members> members_;  ///< Null: alone.
};

/// Active ports of this host's InfiniBand and RoCE adapters, as Linux names them: {"mlx5_0": "400 Gb/sec (4X NDR),
/// InfiniBand"}.
[[nodiscard]] std::map<std::string, std::string> nics(const std::filesystem::path& adapters = "/sys/class/infiniband");

}  // namespace foldwise::kernels

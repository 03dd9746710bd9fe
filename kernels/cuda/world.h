#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Processes that measure together: one per host, with all of its devices, as started by `srun --ntasks-per-node=1` or
// `mpirun --map-by ppr:1:node`. MPI connects them; NCCL moves the measured data.
namespace foldwise::kernels {

class World {
 public:
  /// This process alone if no launcher started it. Throws std::runtime_error if a launcher started several that cannot
  /// find each other.
  World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();  ///< Destroy the first one last. During unwinding it ends the other processes, too.

  /// World of the first `size` processes. All must call it; the others get nullptr.
  [[nodiscard]] std::unique_ptr<World> first(int size) const;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Collective: every process must call them, one thread at a time.
  void barrier() const;
  void broadcast(void* data, std::size_t bytes) const;   ///< Sends the first process' data.
  void take_largest(std::vector<double>& values) const;  ///< Elementwise maximum.
  [[nodiscard]] std::vector<std::string> hosts() const;  ///< Host name of each process.

 private:
  struct Members;
  World(int rank, int size, std::unique_ptr<Members> members);
  int rank_ = 0, size_ = 1;
  std::unique_ptr<Members> members_;  ///< Null: a single process.
};

/// Active ports of this host's InfiniBand and RoCE adapters, by Linux name: {"mlx5_0": "400 Gb/sec (4X NDR),
/// InfiniBand"}.
[[nodiscard]] std::map<std::string, std::string> nics(const std::filesystem::path& adapters = "/sys/class/infiniband");

}  // namespace foldwise::kernels

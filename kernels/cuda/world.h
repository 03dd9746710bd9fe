#pragma once
#include <cstddef>
#include <vector>

// The processes that measure together: one a host, each with all devices of its host, as `srun --ntasks-per-node=1` or
// `mpirun --map-by ppr:1:node` start them. MPI introduces them; NCCL moves what is measured.
namespace foldwise::kernels {

class World {
 public:
  /// This process alone where it was not started by MPI's launcher, or the program was built without MPI.
  World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();  ///< Ends the others too where it is left by an exception.

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Of all processes; each must call them, one thread at a time.
  void barrier() const;
  void broadcast(void* data, std::size_t bytes) const;   ///< What the first process has.
  void take_largest(std::vector<double>& values) const;  ///< Value by value.

 private:
  int rank_ = 0, size_ = 1;
};

}  // namespace foldwise::kernels

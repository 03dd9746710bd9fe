#include "kernels/cuda/world.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <stdexcept>

#ifdef FW_HAVE_MPI
#include <mpi.h>
#endif

namespace foldwise::kernels {

#ifdef FW_HAVE_MPI

namespace {

/// What Open MPI's mpirun, MPICH's and srun's plugins set.
bool launched() {
  constexpr std::array names = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  return std::any_of(names.begin(), names.end(), [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

World::World() {
  if (!launched()) return;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED) throw std::runtime_error("MPI: no MPI_THREAD_SERIALIZED");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

World::~World() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) return;
  if (std::uncaught_exceptions() > 0) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
}

void World::barrier() const {
  if (size_ > 1) MPI_Barrier(MPI_COMM_WORLD);
}

void World::broadcast(void* data, std::size_t bytes) const {
  if (size_ > 1) MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD);
}

void World::take_largest(std::vector<double>& values) const {
  if (size_ > 1)
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

#else

World::World() = default;
World::~World() = default;
void World::barrier() const {}
void World::broadcast(void*, std::size_t) const {}
void World::take_largest(std::vector<double>&) const {}

#endif

}  // namespace foldwise::kernels

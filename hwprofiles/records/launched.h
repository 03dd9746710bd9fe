#pragma once

// Processes that a launcher started to measure together.
namespace foldwise::hwprofiles {

struct Launched {
  int rank = 0, size = 1;
};

/// Rank and size from the environment variables of Open MPI's and MPICH's mpirun and Slurm's srun; a single process
/// without them.
[[nodiscard]] Launched launched();

}  // namespace foldwise::hwprofiles

#pragma once

// Processes that a launcher started together to measure together.
namespace foldwise::hwprofiles {

struct Launched {
  int rank = 0, size = 1;
};

/// What Open MPI's and MPICH's mpirun and Slurm's srun say in the environment of their processes; alone without them.
[[nodiscard]] Launched launched();

}  // namespace foldwise::hwprofiles

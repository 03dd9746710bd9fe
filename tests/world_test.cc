// Do two processes that mpirun starts find each other, and agree on what the first says and on the largest of what they
// measured? What NCCL then moves needs a device each.
#include "kernels/cuda/world.h"

#include <cstdio>
#include <vector>

int main() {
  const foldwise::kernels::World world;
  int said = 40 + world.rank();
  world.broadcast(&said, sizeof said);
  std::vector<double> values = {1.0 + world.rank(), -1.0 - world.rank()};
  world.take_largest(values);
  world.barrier();
  const bool right = world.size() == 2 && said == 40 && values == std::vector{2.0, -1.0};
  if (!right)
    std::fprintf(stderr, "process %d of %d: %d, %g, %g\n", world.rank(), world.size(), said, values[0], values[1]);
  return right ? 0 : 1;
}

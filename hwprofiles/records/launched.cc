#include "hwprofiles/records/launched.h"

#include <array>
#include <cstdlib>
#include <optional>

#include "costmodel/config/number.h"

namespace foldwise::hwprofiles {
namespace {

std::optional<int> number(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return {};
  return config::number_in<int>(text);
}

}  // namespace

Launched launched() {
  struct Launcher {
    const char *rank, *size;
  };
  // mpirun comes before srun, which starts mpirun's daemons. The shell of an sbatch file is not a launched process: it
  // has SLURM_PROCID but not SLURM_STEP_NUM_TASKS.
  constexpr std::array kLaunchers = {Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                     Launcher{"PMI_RANK", "PMI_SIZE"},
                                     Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<int> rank = number(launcher.rank), size = number(launcher.size);
    if (rank && size && *rank >= 0 && *rank < *size) return {*rank, *size};
  }
  return {};
}

}  // namespace foldwise::hwprofiles

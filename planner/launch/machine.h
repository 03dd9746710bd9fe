#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "costmodel/hardware/hardware.h"
#include "planner/run/release.h"

// What a node of the cluster says about itself: the answers of nvidia-smi, torch.cuda and pip in the sandbox.
namespace foldwise::planner {

struct Machine {
  std::int64_t gpus_per_node = 8;
  std::string gpu = "NVIDIA GPU";               ///< Name that nvidia-smi prints.
  std::int64_t memory_mib = 81'559;             ///< Of a GPU, as nvidia-smi prints it.
  int capability = 9;                           ///< Major compute capability.
  std::map<std::string, std::string> versions;  ///< Of Python's modules, and of "cuda".
};

/// A node of the system with the software stack of the release.
[[nodiscard]] Machine machine_of(const costmodel::Hardware& hardware, const Release& release);

/// Major compute capability of the GPU.
[[nodiscard]] int compute_capability(const costmodel::Hardware& hardware);

/// Number of GPUs that a process with this environment sees of a node's.
[[nodiscard]] std::int64_t visible_gpus(const std::map<std::string, std::string>& environment,
                                        std::int64_t gpus_per_node);

}  // namespace foldwise::planner

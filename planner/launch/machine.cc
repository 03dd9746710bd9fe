#include "planner/launch/machine.h"

#include <algorithm>
#include <cmath>

#include "planner/launch/export.h"

namespace foldwise::planner {

Machine machine_of(const costmodel::Hardware& hardware, const Release& release) {
  static const std::map<std::string, std::string> modules = {
      {"Transformer Engine", "transformer_engine"}, {"PyTorch", "torch"},
      {"cuDNN frontend", "nvidia_cudnn_frontend"},  {"emerging_optimizers", "emerging_optimizers"},
      {"Megatron-FSDP", "megatron_fsdp"},           {"CUDA", "cuda"}};
  constexpr double kMib = 1 << 20;
  Machine machine{.gpus_per_node = gpus_of_node(hardware.network.ranks_per_domain),
                  .gpu = "NVIDIA " + hardware.gpu,
                  .memory_mib = std::llround(hardware.hbm_capacity.to<double>() / kMib),
                  .capability = compute_capability(hardware),
                  .versions = {}};
  for (const Component& component : release.stack)
    if (const auto module = modules.find(component.name); module != modules.end())
      machine.versions[module->second] = component.version;
  if (release.numbered())
    for (const char* name : {"megatron", "megatron_core"}) machine.versions[name] = release.name;
  return machine;
}

int compute_capability(const costmodel::Hardware& hardware) {
  // NVIDIA's table of compute capabilities: FP8 came with 9 (among GPUs for training), MXFP8 with 10.
  if (!hardware.before_blackwell()) return 10;
  return hardware.supports(costmodel::Precision::kFp8Current) ? 9 : 8;
}

std::int64_t visible_gpus(const std::map<std::string, std::string>& environment, std::int64_t gpus_per_node) {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
    if (const auto found = environment.find(name); found != environment.end() && !found->second.empty() &&
                                                   found->second != "all" && found->second != "void" &&
                                                   found->second != "none")
      return 1 + std::ranges::count(found->second, ',');
  return gpus_per_node;
}

}  // namespace foldwise::planner

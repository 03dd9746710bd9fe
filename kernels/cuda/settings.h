#pragma once
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/topology.h"

// What is measured: one function a kernel kind. `quick` keeps a few settings of each.
namespace foldwise::kernels {

/// cuBLASLt products in the three phases of a linear layer, in every format of the device.
[[nodiscard]] std::vector<Setting> gemm_settings(Device& device, bool quick);
/// One product an expert, spread over four streams.
[[nodiscard]] std::vector<Setting> grouped_gemm_settings(Device& device, bool quick);
/// cuDNN's fused causal attention, forward and backward. Empty where built without cudnn-frontend.
[[nodiscard]] std::vector<Setting> attention_settings(Device& device, bool quick);
/// Our own kernels for the memory-bound operations of a training step.
[[nodiscard]] std::vector<Setting> memory_settings(Device& device, bool quick);
/// Copies inside the device, from and to pinned host memory, and both ways at once.
[[nodiscard]] std::vector<Setting> copy_settings(Device& device, bool quick);
/// What one small kernel costs in a stream and in a replayed graph.
[[nodiscard]] std::vector<Setting> launch_settings(Device& device, bool quick);
/// NCCL over the groups. Empty for one device or where built without NCCL.
[[nodiscard]] std::vector<Setting> collective_settings(const Topology& topology, const Effort& effort, bool quick);
/// Products and memory-bound kernels beside a running collective, and the collective beside them.
[[nodiscard]] std::vector<Setting> overlap_settings(const Topology& topology, const Effort& effort, bool quick);

}  // namespace foldwise::kernels

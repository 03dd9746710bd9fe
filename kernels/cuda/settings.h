#pragma once
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/topology.h"

// Settings to measure: one function per kernel kind. `quick` keeps a few of each.
namespace foldwise::kernels {

/// cuBLASLt products in the three phases of a linear layer, in every format of the device.
[[nodiscard]] std::vector<Setting> gemm_settings(Device& device, bool quick);
/// One product per expert, on four streams.
[[nodiscard]] std::vector<Setting> grouped_gemm_settings(Device& device, bool quick);
/// cuDNN's fused causal attention, forward and backward. Empty if built without cudnn-frontend.
[[nodiscard]] std::vector<Setting> attention_settings(Device& device, bool quick);
/// Our own kernels for the memory-bound operations of a training step.
[[nodiscard]] std::vector<Setting> memory_settings(Device& device, bool quick);
/// Copies inside the device, from and to pinned host memory, and in both directions at once.
[[nodiscard]] std::vector<Setting> copy_settings(Device& device, bool quick);
/// Cost of a small kernel in a stream, and in a replayed graph.
[[nodiscard]] std::vector<Setting> launch_settings(Device& device, bool quick);
/// NCCL collectives over the groups. Empty for one device, or if built without NCCL.
[[nodiscard]] std::vector<Setting> collective_settings(const Topology& topology, const Effort& effort, bool quick);
/// GEMMs and memory-bound kernels beside a running collective, and the collective beside them.
[[nodiscard]] std::vector<Setting> overlap_settings(const Topology& topology, const Effort& effort, bool quick);

}  // namespace foldwise::kernels

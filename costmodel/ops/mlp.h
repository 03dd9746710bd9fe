#pragma once
#include <cstdint>

#include "costmodel/ops/builder.h"
#include "costmodel/ops/dispatchers/dispatchers.h"

// Parts of a layer's MLP or MoE half (mlp_ops.cc). For this target only.
namespace foldwise::costmodel {

/// Outputs of fc1 per input of fc2: 2 with a gate.
[[nodiscard]] inline double gate_factor(const ModelSpec& model) { return model.gated_linear_unit ? 2.0 : 1.0; }
/// fc1, activation and fc2 of a dense MLP or of the shared experts. `width` is over the whole TP group.
void dense_mlp(Builder& b, std::int64_t width, bool bias, BitSet<RecomputeModule> region);
/// Norm, router, shared experts, routed experts with their exchange, and residual add.
void moe(Builder& b, const LayerSpec& layer);
/// Grouped fc1, activation times probability, and grouped fc2 over this rank's experts.
void experts(Builder& b, const MoeSizes& z);

}  // namespace foldwise::costmodel

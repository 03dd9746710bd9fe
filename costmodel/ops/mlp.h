#pragma once
#include <cstdint>

#include "costmodel/ops/builder.h"
#include "costmodel/ops/dispatchers/dispatchers.h"

// Parts of the feed-forward half of a layer (mlp_ops.cc); not for other targets.
namespace foldwise::costmodel {

/// Outputs of fc1 for an input of fc2: 2 with a gate.
[[nodiscard]] inline double gate_factor(const ModelSpec& model) { return model.gated_linear_unit ? 2.0 : 1.0; }
/// fc1, activation, fc2 of a dense MLP or of the shared experts, `width` wide over the whole TP group.
void dense_mlp(Builder& b, std::int64_t width, bool bias, BitSet<RecomputeModule> region);
/// Norm, router, shared and routed experts with the exchange around them, and residual add.
void moe(Builder& b, const LayerSpec& layer);
/// Grouped fc1, activation times probability, grouped fc2 over the experts of this rank.
void experts(Builder& b, const MoeSizes& z);

}  // namespace foldwise::costmodel

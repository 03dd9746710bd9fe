#pragma once
#include "costmodel/ops/op.h"

// Recomputation and offloading as edits of an op list. Tensors that are no longer kept are removed, and ops that run
// again or copy are added.
namespace foldwise::costmodel {

struct RecomputeEdit {
  Bytes rematerialised{};  ///< Bytes of dropped tensors that are rebuilt for backward.
};
/// Drops the tensors that `selected` frees. The replayed forward ops, including collectives, and the tensors that they
/// rebuild come before the backward of the last step that needs them.
RecomputeEdit apply_recompute(OpList& list, BitSet<RecomputeModule> selected);

struct OffloadEdit {
  Bytes host_bytes{};  ///< Host memory of the offloaded tensors.
  Bytes offloaded{};   ///< Part of `host_bytes` that leaves the device. A copied tensor may stay on the device.
};
/// Moves tensors of at least `min_bytes` that `selected` covers to the host: one copy after the op or block that keeps
/// them, one before its backward. `min_bytes` is min_offloaded_tensor_size, by default 2^20 elements of two bytes.
OffloadEdit apply_offload(OpList& list, BitSet<OffloadModule> selected, std::int64_t gpus,
                          Bytes min_bytes = Bytes{2.0 * 1048576.0});

}  // namespace foldwise::costmodel

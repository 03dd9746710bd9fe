#pragma once
#include "costmodel/ops/op.h"

// Recomputation and offloading as edits of the op list: what is no longer kept disappears from it, what runs again or
// is copied appears in it.
namespace foldwise::costmodel {

struct RecomputeEdit {
  Bytes rematerialised{};  ///< Bytes of dropped tensors that exist again during backward.
};
/// Drops tensors that `selected` frees and puts the replayed forward ops, collectives included, in front of
/// the backward of the last step that needs them, with the tensors that they rebuild.
RecomputeEdit apply_recompute(OpList& list, BitSet<RecomputeModule> selected);

struct OffloadEdit {
  Bytes host_bytes{};  ///< Host memory of the offloaded tensors.
  Bytes offloaded{};   ///< Part of that: what leaves the device. A tensor may be copied and stay.
};
/// Moves tensors of at least `min_bytes` that `selected` covers to the host: a copy after the op, or the block, that
/// keeps them, one before backward. Default of min_offloaded_tensor_size: 2^20 elements of two bytes.
OffloadEdit apply_offload(OpList& list, BitSet<OffloadModule> selected, std::int64_t gpus,
                          Bytes min_bytes = Bytes{2.0 * 1048576.0});

}  // namespace foldwise::costmodel

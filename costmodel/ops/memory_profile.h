#pragma once
#include <cstdint>
#include <functional>

#include "costmodel/ops/op.h"

// Device memory from the lifetimes of tensors: a walk over an op list, and four numbers that compose such walks.
namespace foldwise::costmodel {

/// Memory levels of a piece of a stage for one micro-batch, above the memory between steps. Composing the profiles of a
/// sequence gives the walk over the concatenated list (tests/composition_test.cc).
///   forward of A, then B:   high = max(A.forward_high + B.rests, A.kept + B.forward_high)
///   backward of B, then A:  high = max(A.kept + B.backward_high, B.rests + A.backward_high)
struct MemoryProfile {
  Bytes kept{};           ///< From forward until backward.
  Bytes rests{};          ///< Left by backward until the next forward.
  Bytes forward_high{};   ///< Highest level of forward, which goes from `rests` to `kept`.
  Bytes backward_high{};  ///< Highest level of backward, which goes from `kept` to `rests`.

  /// Appends `next`, which follows in the order of forward.
  MemoryProfile& operator+=(const MemoryProfile& next);
  /// `times` equal pieces in sequence.
  [[nodiscard]] MemoryProfile repeated(std::int64_t times) const;
  bool operator==(const MemoryProfile&) const = default;
};

/// Walks over forward and backward of `list`. An op allocates what it keeps, holds and needs for itself. Then it frees
/// what it needed for itself and what it releases. The last backward op of a step frees what the step's forward kept.
/// Tensors of ops with `captured` true are in the private pool of a CUDA graph and do not count.
[[nodiscard]] MemoryProfile walk(const OpList& list, const std::function<bool(const Op&)>& captured = nullptr);

/// Appends `next` to the list of a piece: its forward comes after, its backward before.
void append(OpList& list, OpList next);

}  // namespace foldwise::costmodel

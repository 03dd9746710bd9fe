#pragma once
#include <cstdint>
#include <functional>

#include "costmodel/ops/op.h"

// Device memory over the lifetimes of tensors: a walk over an op list, and the few numbers that compose such walks.
namespace foldwise::costmodel {

/// Levels of a piece of a stage above the memory that is there between steps, for one micro-batch. Composed in
/// sequence they equal the walk over the concatenated list (tests/composition_test.cc).
///   forward of A, then B:   high = max(A.forward_high + B.rests, A.kept + B.forward_high)
///   backward of B, then A:  high = max(A.kept + B.backward_high, B.rests + A.backward_high)
struct MemoryProfile {
  Bytes kept{};           ///< From forward until backward.
  Bytes rests{};          ///< Left by backward until the next forward.
  Bytes forward_high{};   ///< Highest level of forward, which starts with `rests` and ends with `kept`.
  Bytes backward_high{};  ///< Highest level of backward, which starts with `kept` and ends with `rests`.

  /// This piece, then `next` (in the order of forward).
  MemoryProfile& operator+=(const MemoryProfile& next);
  /// `times` equal pieces in sequence.
  [[nodiscard]] MemoryProfile repeated(std::int64_t times) const;
  bool operator==(const MemoryProfile&) const = default;
};

/// Walks forward and backward of `list`. An op allocates what it keeps, holds and needs for itself, then drops what it
/// needed for itself and what it releases; the last backward op of a step frees what the step's forward kept. Tensors
/// of ops for which `captured` is true lie in the private pool of a CUDA graph and do not count.
[[nodiscard]] MemoryProfile walk(const OpList& list, const std::function<bool(const Op&)>& captured = nullptr);

/// The list of a piece followed by `next`: forward after forward, backward before backward.
void append(OpList& list, OpList next);

}  // namespace foldwise::costmodel

#pragma once
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "costmodel/ops/block_cost.h"

namespace foldwise::costmodel {

enum class Piece : std::uint8_t { kMixer, kMlp, kLayer, kEmbedding, kHead, kMtp };

/// Remembers the cost of each piece by what the piece depends on, so that the candidates of a search share them: of the
/// options only tp, cp, ep, etp, micro-batch, precision, dispatcher, recomputation, offload modules, EP overlap and
/// graphs may differ between the contexts that use one cache; model and hardware must be the same.
class BlockCache {
 public:
  /// `layer` matters for kMixer, kMlp and kLayer (both, for what is recomputed as a whole). The reference stays valid
  /// as long as the cache.
  const BlockCost& get(const BuildContext& context, Piece piece, const LayerSpec& layer,
                       BitSet<RecomputeModule> recompute);
  /// The tensors of its parameters, likewise.
  const BufferTensors& tensors(const BuildContext& context, Piece piece, const LayerSpec& layer,
                               BitSet<RecomputeModule> recompute);
  [[nodiscard]] std::size_t size() const { return costs_.size(); }

 private:
  struct Entry {
    BlockCost cost;
    BufferTensors tensors;
  };
  const Entry& entry(const BuildContext& context, Piece piece, const LayerSpec& layer,
                     BitSet<RecomputeModule> recompute);

  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return (key.first * 0x9E3779B97F4A7C15ULL) ^ (key.second * 0xC2B2AE3D27D4EB4FULL);
    }
  };
  std::vector<LayerSpec> kinds_;
  std::unordered_map<Key, Entry, Hash> costs_;
};

}  // namespace foldwise::costmodel

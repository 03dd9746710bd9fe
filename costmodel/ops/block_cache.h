#pragma once
#include <tbb/concurrent_unordered_map.h>

#include <cstddef>
#include <cstdint>

#include "costmodel/ops/block_cost.h"

namespace foldwise::costmodel {

enum class Piece : std::uint8_t { kMixer, kMlp, kLayer, kEmbedding, kHead, kMtp };

/// Ops of a piece. `layer` matters for kMixer, kMlp and kLayer: both, for what is recomputed as a whole.
[[nodiscard]] OpList piece_ops(const BuildContext& context, Piece piece, const LayerSpec& layer);

/// Modules of recomputation and offloading that change a piece: others may differ without a new cost.
[[nodiscard]] BitSet<RecomputeModule> recomputable(Piece piece, const LayerSpec& layer);
[[nodiscard]] BitSet<OffloadModule> offloadable(Piece piece);

/// `options` with the defaults of what cannot change the ops of `piece`, recomputed and offloaded: equal results mean
/// equal costs. Who reads an option each_option() says.
[[nodiscard]] LayerOptions relevant(const LayerOptions& options, Piece piece, const LayerSpec& layer);

/// Remembers the cost of each piece by the value of the options that it depends on, so that the candidates of a search
/// share them. Model, hardware and number of GPUs must be the same in all contexts that use one cache. Threads may
/// share it.
class BlockCache {
 public:
  BlockCache() { costs_.max_load_factor(1.0F); }  // A search asks far more often than it adds.
  /// `layer` as for piece_ops. The reference stays valid as long as the cache.
  const BlockCost& get(const BuildContext& context, Piece piece, const LayerSpec& layer) {
    return entry(context, piece, layer).cost;
  }
  /// The tensors of its parameters, likewise.
  const BufferTensors& tensors(const BuildContext& context, Piece piece, const LayerSpec& layer) {
    return entry(context, piece, layer).tensors;
  }
  [[nodiscard]] std::size_t size() const { return costs_.size(); }

 private:
  struct Entry {
    BlockCost cost;
    BufferTensors tensors;
  };
  const Entry& entry(const BuildContext& context, Piece piece, const LayerSpec& layer);

  struct Key {
    Piece piece{};
    LayerSpec layer;
    LayerOptions options;
    bool one_queue = false;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  tbb::concurrent_unordered_map<Key, Entry, Hash> costs_;
};

}  // namespace foldwise::costmodel

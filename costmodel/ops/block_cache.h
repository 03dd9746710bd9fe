#pragma once
#include <tbb/concurrent_unordered_map.h>

#include <cstddef>
#include <cstdint>

#include "costmodel/ops/block_cost.h"

namespace foldwise::costmodel {

enum class Piece : std::uint8_t { kMixer, kMlp, kLayer, kEmbedding, kHead, kMtp };

/// Ops of a piece. kMixer, kMlp and kLayer read `layer`. kLayer is both, for layers that are recomputed as a whole.
[[nodiscard]] OpList piece_ops(const BuildContext& context, Piece piece, const LayerSpec& layer);

/// Recomputation and offloading modules that change a piece. Other modules do not change its cost.
[[nodiscard]] BitSet<RecomputeModule> recomputable(Piece piece, const LayerSpec& layer);
[[nodiscard]] BitSet<OffloadModule> offloadable(Piece piece);

/// `options` with defaults for everything that cannot change the ops of `piece` under its recomputation and offloading.
/// Equal results mean equal costs. each_option() says which ops read an option.
[[nodiscard]] LayerOptions relevant(const LayerOptions& options, Piece piece, const LayerSpec& layer);

/// Remembers the cost of each piece by the options that it depends on, so that candidates of a search share costs. All
/// contexts of a cache must have the same model, hardware and number of GPUs. Threads may share it.
class BlockCache {
 public:
  BlockCache() { costs_.max_load_factor(1.0F); }  // A search reads far more often than it adds.
  /// `layer` as in piece_ops. The reference is valid as long as the cache.
  const BlockCost& get(const BuildContext& context, Piece piece, const LayerSpec& layer) {
    return entry(context, piece, layer).cost;
  }
  /// The tensors of the piece's parameters; the same rules apply.
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

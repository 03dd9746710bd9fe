#include "costmodel/ops/block_cache.h"

#include <algorithm>
#include <utility>

namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;

// Modules that change a piece: others may differ without a new cost.
BitSet<RM> relevant(Piece piece, const LayerSpec& layer) {
  switch (piece) {
    case Piece::kMixer:
      return layer.mixer == MixerKind::kMla
                 ? BitSet<RM>{RM::kCoreAttn, RM::kLayerNorm, RM::kMlaUpProj, RM::kAlternateMatmuls, RM::kFull}
                 : BitSet<RM>{RM::kCoreAttn, RM::kLayerNorm, RM::kAlternateMatmuls, RM::kFull};
    case Piece::kMlp:
      return layer.mlp == MlpKind::kMoe
                 ? BitSet<RM>{RM::kLayerNorm, RM::kMoeAct, RM::kMoe, RM::kSharedExperts, RM::kFull}
                 : BitSet<RM>{RM::kMlp, RM::kAlternateMatmuls, RM::kFull};
    case Piece::kLayer:
      return {RM::kFull};
    case Piece::kEmbedding:
    case Piece::kHead:
    case Piece::kMtp:
      return {};
  }
  return {};
}

OpList piece_ops(const BuildContext& context, Piece piece, const LayerSpec& layer) {
  switch (piece) {
    case Piece::kMixer:
      return mixer_ops(context, layer);
    case Piece::kMlp:
      return mlp_ops(context, layer);
    case Piece::kLayer: {
      OpList list = mixer_ops(context, layer);
      append(list, mlp_ops(context, layer));
      return list;
    }
    case Piece::kEmbedding:
      return embedding_ops(context);
    case Piece::kHead:
      return head_ops(context, 1 + context.model.mtp_num_layers);
    case Piece::kMtp:
      return mtp_ops(context);
  }
  return {};
}

}  // namespace

const BlockCost& BlockCache::get(const BuildContext& context, Piece piece, const LayerSpec& layer,
                                 BitSet<RM> recompute) {
  return entry(context, piece, layer, recompute).cost;
}

const BufferTensors& BlockCache::tensors(const BuildContext& context, Piece piece, const LayerSpec& layer,
                                         BitSet<RM> recompute) {
  return entry(context, piece, layer, recompute).tensors;
}

const BlockCache::Entry& BlockCache::entry(const BuildContext& context, Piece piece, const LayerSpec& layer,
                                           BitSet<RM> recompute) {
  const TrainingOptions& o = context.options;
  auto kind = std::find(kinds_.begin(), kinds_.end(), layer);
  if (kind == kinds_.end()) kind = kinds_.insert(kinds_.end(), layer);
  const bool experts = (piece == Piece::kMlp || piece == Piece::kLayer) && layer.mlp == MlpKind::kMoe;
  recompute.bits = static_cast<std::uint16_t>(recompute.bits & relevant(piece, layer).bits);
  std::uint64_t first = 0, second = 0;
  const auto pack = [](std::uint64_t& word, auto value, int bits) {
    word = (word << bits) | static_cast<std::uint64_t>(value);
  };
  pack(first, piece, 3);
  pack(first, kind - kinds_.begin(), 8);
  pack(first, o.layout.tp, 10);
  pack(first, o.layout.cp, 12);
  pack(first, o.micro_batch, 12);
  pack(first, o.precision, 3);
  pack(first, recompute.bits, 16);
  pack(second, experts ? o.layout.ep : 0, 14);
  pack(second, experts ? o.layout.etp : 0, 10);
  pack(second, experts ? static_cast<int>(o.dispatcher) : 0, 3);
  pack(second, o.cuda_graph.impl, 2);
  pack(second, o.cuda_graph.modules.bits, 8);
  pack(second, o.offload.modules.bits, 16);
  const auto [found, inserted] = costs_.try_emplace({first, second});
  if (inserted) {
    OpList list = piece_ops(context, piece, layer);
    found->second.tensors = buffer_tensors(context, list);
    found->second.cost = block_cost(context, std::move(list), recompute);
  }
  return found->second;
}

}  // namespace foldwise::costmodel

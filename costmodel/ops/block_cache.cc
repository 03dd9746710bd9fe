#include "costmodel/ops/block_cache.h"

#include <boost/container_hash/hash.hpp>
#include <utility>

namespace foldwise::costmodel {

using RM = RecomputeModule;

BitSet<RM> recomputable(Piece piece, const LayerSpec& layer) {
  switch (piece) {
    case Piece::kMixer:
      return {RM::kCoreAttn, RM::kLayerNorm, RM::kMlaUpProj, RM::kAlternateMatmuls, RM::kFull};
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

using OM = OffloadModule;

BitSet<OM> offloadable(Piece piece) {
  const BitSet<OM> mixer = {OM::kAttnNorm, OM::kQkvLinear, OM::kCoreAttn, OM::kAttnProj, OM::kLayer},
                   mlp = {OM::kMlpNorm, OM::kExpertFc1, OM::kMoeAct, OM::kFusedGroupMlp, OM::kLayer};
  return piece == Piece::kMixer   ? mixer
         : piece == Piece::kMlp   ? mlp
         : piece == Piece::kLayer ? mixer | mlp
                                  : BitSet<OM>{};
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

LayerOptions relevant(const LayerOptions& options, Piece piece, const LayerSpec& layer) {
  LayerOptions o = options;
  const LayerOptions defaults;
  const BitSet<RM> recomputed = recomputed_modules(o), possible = recomputable(piece, layer);
  o.recompute = {};
  if (recomputed.contains(RM::kFull) && possible.contains(RM::kFull)) {
    o.recompute.granularity = RecomputeGranularity::kFull;
  } else if (recomputed.intersects(possible)) {
    o.recompute = {RecomputeGranularity::kSelective, recomputed & possible};
  }
  o.offload_modules = o.offload_modules & offloadable(piece);
  if (piece != Piece::kMixer && piece != Piece::kLayer) {
    o.cp_comm = defaults.cp_comm;
    o.cp_a2a_size = defaults.cp_a2a_size;
  }
  // Of sequences and CP an MLP sees the tokens only.
  if (const std::int64_t tokens = o.seq_len * o.micro_batch; piece == Piece::kMlp && tokens % o.cp == 0) {
    o.seq_len = tokens / o.cp;
    o.cp = o.micro_batch = 1;
  }
  const bool has_experts = (piece == Piece::kMlp || piece == Piece::kLayer) && layer.mlp == MlpKind::kMoe;
  if (!has_experts) {
    o.ep = defaults.ep;
    o.etp = defaults.etp;
    o.dispatcher = defaults.dispatcher;
    o.capacity_factor = defaults.capacity_factor;
    o.pad_to_capacity = defaults.pad_to_capacity;
    o.rank_capacity_factor = defaults.rank_capacity_factor;
    o.paged_stash = defaults.paged_stash;
    o.expert_load = defaults.expert_load;
    o.overlaps.shared_expert = defaults.overlaps.shared_expert;
    o.software.experts = defaults.software.experts;
  }
  return o;
}

std::size_t BlockCache::Hash::operator()(const Key& key) const {
  // What differs between the candidates of a search; equality compares everything.
  const LayerOptions& o = key.options;
  std::size_t seed = 0;
  const auto add = [&seed](auto value) { boost::hash_combine(seed, static_cast<std::int64_t>(value)); };
  add(key.piece);
  add(key.layer.mixer);
  add(key.layer.mlp);
  add(key.layer.window);
  add(key.layer.compress_ratio);
  add(o.tp);
  add(o.sequence_parallel);
  add(o.cp);
  add(o.ep);
  add(o.etp);
  add(o.micro_batch);
  add(o.seq_len);
  add(o.precision);
  add(o.cp_comm);
  add(o.cp_a2a_size);
  add(o.dispatcher);
  add(o.overlaps.tp);
  add(o.overlaps.shared_expert);
  add(o.software.experts);
  add(o.recompute.granularity);
  add(o.recompute.modules.bits);
  add(o.offload_modules.bits);
  add(o.cuda_graph.impl);
  add(o.cuda_graph.modules.bits);
  add(key.one_queue);
  return seed;
}

const BlockCache::Entry& BlockCache::entry(const BuildContext& context, Piece piece, const LayerSpec& layer) {
  const bool one_queue = context.one_queue && context.options.tp > 1;
  Key key{piece, layer, relevant(context.options, piece, layer), one_queue};
  const auto found = costs_.find(key);
  if (found != costs_.end()) return found->second;
  const BuildContext only = context.with(key.options);
  OpList list = piece_ops(only, piece, layer);
  Entry entry;
  entry.tensors = buffer_tensors(only, list);
  entry.cost = block_cost(only, std::move(list));
  return costs_.emplace(key, std::move(entry)).first->second;
}

}  // namespace foldwise::costmodel

#include "costmodel/ops/block_cache.h"

#include <bit>
#include <boost/container_hash/hash.hpp>
#include <optional>
#include <tuple>
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

namespace {

/// Calls `visit` with each index of a tuple.
template <typename... Elements, typename Visitor>
void for_each_index(const std::tuple<Elements...>&, const Visitor& visit) {
  [&]<std::size_t... i>(std::index_sequence<i...>) { (visit(std::integral_constant<std::size_t, i>{}), ...); }
  (std::index_sequence_for<Elements...>{});
}

template <typename Value>
std::int64_t number_of(const Value& value) {
  return static_cast<std::int64_t>(value);
}
std::int64_t number_of(double value) { return std::bit_cast<std::int64_t>(value + 0.0); }  // -0 is 0.
std::int64_t number_of(const std::optional<double>& value) { return value ? number_of(*value) : -1; }
template <typename Enum>
std::int64_t number_of(const BitSet<Enum>& value) {
  return value.bits;
}

}  // namespace

LayerOptions relevant(const LayerOptions& options, Piece piece, const LayerSpec& layer) {
  static const LayerOptions defaults;
  LayerOptions o = options;
  const BitSet<RM> recomputed = recomputed_modules(o), possible = recomputable(piece, layer);
  o.recompute = {};
  if (recomputed.contains(RM::kFull) && possible.contains(RM::kFull)) {
    o.recompute.granularity = RecomputeGranularity::kFull;
  } else if (recomputed.intersects(possible)) {
    o.recompute = {RecomputeGranularity::kSelective, recomputed & possible};
  }
  o.offload_modules = o.offload_modules & offloadable(piece);
  // An MLP sees of sequences and CP only the number of tokens.
  if (const std::int64_t tokens = o.seq_len * o.micro_batch; piece == Piece::kMlp && tokens % o.cp == 0) {
    o.seq_len = tokens / o.cp;
    o.cp = o.micro_batch = 1;
  }
  const bool attention = piece == Piece::kMixer || piece == Piece::kLayer;
  const bool experts = (piece == Piece::kMlp || piece == Piece::kLayer) && layer.mlp == MlpKind::kMoe;
  const auto own = each_option(o);
  const auto plain = each_option(defaults);
  for_each_index(own, [&](auto i) {
    const Readers readers = std::get<i>(own).readers;
    if ((readers == Readers::kAttention && !attention) || (readers == Readers::kExperts && !experts))
      std::get<i>(own).value = std::get<i>(plain).value;
  });
  return o;
}

std::size_t BlockCache::Hash::operator()(const Key& key) const {
  std::size_t seed = 0;
  const auto add = [&seed](const auto& value) { boost::hash_combine(seed, number_of(value)); };
  add(key.piece);
  add(key.layer.mixer);
  add(key.layer.mlp);
  add(key.layer.window);
  add(key.layer.compress_ratio);
  add(key.one_queue);
  const auto options = each_option(key.options);
  for_each_index(options, [&](auto i) { add(std::get<i>(options).value); });
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

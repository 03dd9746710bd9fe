#include "costmodel/step/model_costs.h"

#include <algorithm>

namespace foldwise::costmodel {
namespace {

BlockCost layer_cost(const BuildContext& context, const LayerSpec& layer, BlockCache& cache) {
  BlockCost cost = cache.get(context, Piece::kMixer, layer);
  const BlockCost& mlp = cache.get(context, Piece::kMlp, layer);
  const IssueClock pair = mlp.pair_begin.then(cost.forward.clock).then(mlp.pair).then(cost.backward.clock);
  cost += mlp;
  cost.pair = pair;
  // Full recomputation rebuilds the whole layer before its backward, so both halves exist at once.
  if (context.options.recompute.granularity == RecomputeGranularity::kFull)
    cost.memory = cache.get(context, Piece::kLayer, layer).memory;
  return cost;
}

}  // namespace

ModelCosts model_costs(const StepContext& context, const ModelKinds& kinds, BlockCache* shared_cache) {
  BlockCache own_cache;
  BlockCache& cache = shared_cache != nullptr ? *shared_cache : own_cache;
  ModelCosts costs;
  const ModelSpec& model = context.model;
  const TrainingOptions& o = context.options;
  const BuildContext layer_context = context.layer();
  const bool partial = covered_layers(o, 1 << 30) < (1 << 30);
  const LayerOptions plain = plain_layers(o.layer);
  const BuildContext plain_context = layer_context.with(plain);
  for (const LayerSpec& kind : kinds.kinds) {
    costs.covered.push_back(layer_cost(layer_context, kind, cache));
    if (partial) costs.plain.push_back(layer_cost(plain_context, kind, cache));
    if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe)
      costs.overlapped = std::max(costs.overlapped, costs.covered.back().until_dispatched);
    const auto saving = [&](const BlockCost& cost) {
      const PipelineOptions::Overlaps& overlaps = o.pipeline.overlaps;
      return overlaps.ep_a2a ? ep_overlap_saving(cost.nodes, overlaps.delay_wgrad, context.hardware) : Seconds{};
    };
    costs.saving.push_back(saving(costs.covered.back()));
    if (partial) costs.plain_saving.push_back(saving(costs.plain.back()));
  }
  const bool joined = !low_precision_primaries(o);
  const auto piece_tensors = [&](const BuildContext& of, Piece piece, const LayerSpec& layer) {
    BufferTensors tensors = cache.tensors(of, piece, layer);
    if (joined) tensors.join_quantised();
    return tensors;
  };
  const auto layer_tensors = [&](const LayerSpec& layer) {
    BufferTensors tensors = piece_tensors(layer_context, Piece::kMlp, layer);
    return tensors += piece_tensors(layer_context, Piece::kMixer, layer);
  };
  for (const LayerSpec& kind : kinds.kinds) costs.layer_tensors.push_back(layer_tensors(kind));
  costs.embedding_tensors = piece_tensors(plain_context, Piece::kEmbedding, {});
  costs.head_tensors = piece_tensors(plain_context, Piece::kHead, {});
  costs.embedding = cache.get(plain_context, Piece::kEmbedding, {});
  const auto dummies = [&](const std::vector<LayerSpec>& layers) {
    for (const LayerSpec& layer : layers) {
      if (layer.mixer != kNoMixer)
        costs.dummies.mixer[static_cast<std::size_t>(layer.mixer)] =
            cache.get(layer_context, Piece::kMixer, layer).weight_gradients;
      costs.dummies.mlp[static_cast<std::size_t>(layer.mlp)] =
          cache.get(layer_context, Piece::kMlp, layer).weight_gradients;
    }
  };
  costs.dummies.mixer.resize(model.mixers.size());
  dummies(kinds.kinds);
  dummies(model.mtp_layers);
  if (model.mtp_num_layers > 0) costs.dummies.mtp = cache.get(plain_context, Piece::kMtp, {}).weight_gradients;
  costs.dummies.head = cache.get(plain_context, Piece::kHead, {}).weight_gradients;
  costs.head = cache.get(plain_context, Piece::kHead, {});
  if (model.mtp_num_layers > 0) {
    costs.mtp = cache.get(plain_context, Piece::kMtp, {});
    for (const LayerSpec& layer : model.mtp_layers) {
      const BlockCost cost = layer_cost(covers_mtp(o) ? layer_context : plain_context, layer, cache);
      if (o.pipeline.overlaps.ep_a2a)
        costs.mtp_saving += ep_overlap_saving(cost.nodes, o.pipeline.overlaps.delay_wgrad, context.hardware);
      costs.mtp += cost;
      costs.mtp_tensors += layer_tensors(layer);
    }
    costs.mtp_tensors += piece_tensors(plain_context, Piece::kMtp, {});
  }
  return costs;
}

}  // namespace foldwise::costmodel

#include "costmodel/step/stage_pieces.h"

#include <algorithm>
#include <array>

#include "costmodel/ops/edit.h"

namespace foldwise::costmodel {

ModelKinds model_kinds(const ModelSpec& model) {
  ModelKinds result;
  std::vector<std::size_t> kind_of(model.layers.size());
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const auto found = std::find(result.kinds.begin(), result.kinds.end(), model.layers[i]);
    kind_of[i] = static_cast<std::size_t>(found - result.kinds.begin());
    if (found == result.kinds.end()) result.kinds.push_back(model.layers[i]);
  }
  for (const std::size_t kind : kind_of) result.kind.push_back(static_cast<std::int32_t>(kind));
  result.run_end.assign(kind_of.size(), static_cast<std::int32_t>(kind_of.size()));
  for (std::size_t i = kind_of.size(); i-- > 1;)
    result.run_end[i - 1] = kind_of[i] == kind_of[i - 1] ? result.run_end[i] : static_cast<std::int32_t>(i);
  result.prefix.assign(result.kinds.size(), std::vector<std::int32_t>(model.layers.size() + 1, 0));
  for (std::size_t k = 0; k < result.kinds.size(); ++k)
    for (std::size_t i = 0; i < kind_of.size(); ++i)
      result.prefix[k][i + 1] = result.prefix[k][i] + (kind_of[i] == k ? 1 : 0);
  return result;
}

namespace {
bool recomputes_by_block(const TrainingOptions& o) {
  return o.layer.recompute.granularity == RecomputeGranularity::kFull &&
         o.pipeline.recompute.method == RecomputeMethod::kBlock;
}
}  // namespace

bool covers_mtp(const TrainingOptions& o) {
  return !recomputes_by_block(o) && o.pipeline.cpu_offloading_num_layers == 0;
}

std::int64_t covered_layers(const TrainingOptions& o, std::int64_t layers) {
  if (recomputes_by_block(o)) return std::min(layers, o.pipeline.recompute.num_layers);
  if (o.pipeline.cpu_offloading_num_layers > 0) return std::min(layers, o.pipeline.cpu_offloading_num_layers);
  return layers;
}

LayerOptions plain_layers(const LayerOptions& covered) {
  LayerOptions plain = covered;
  plain.recompute = {};
  plain.offload_modules = {};
  return plain;
}

bool same_pieces(const ModelKinds& kinds, const StageContent& a, const StageContent& b) {
  if (a.num_layers != b.num_layers || a.embedding != b.embedding || a.mtp_layers != b.mtp_layers || a.loss != b.loss)
    return false;
  const auto begin = kinds.kind.begin();
  return std::equal(begin + a.first_layer, begin + a.first_layer + a.num_layers, begin + b.first_layer);
}

std::span<const Piece> parts_of(Piece piece) {
  static constexpr std::array kParts{Piece::kMixer,     Piece::kMlp,  Piece::kLayer,
                                     Piece::kEmbedding, Piece::kHead, Piece::kMtp};
  const std::span<const Piece> all(kParts);
  if (piece == Piece::kLayer) return all.first(2);
  return all.subspan(static_cast<std::size_t>(std::find(all.begin(), all.end(), piece) - all.begin()), 1);
}

OpList part_ops(const BuildContext& context, Piece part, const StagePiece& piece) {
  OpList list = piece_ops(context, part, piece.layer == nullptr ? LayerSpec{} : *piece.layer);
  apply_recompute(list, recomputed_modules(context.options));
  apply_offload(list, context.options.offload_modules, context.layout().world());
  return list;
}

}  // namespace foldwise::costmodel

#include "costmodel/step/rank_pieces.h"

#include <algorithm>
#include <utility>

namespace foldwise::costmodel {
namespace {

// Whether two lists have the same ops and tensors. Offloading skips small tensors, which can make them differ.
bool same_shape(const OpList& a, const OpList& b) {
  const auto same = [](const Op& x, const Op& y) {
    return x.keeps.size() == y.keeps.size() && x.transient.size() == y.transient.size();
  };
  return std::equal(a.forward.begin(), a.forward.end(), b.forward.begin(), b.forward.end(), same) &&
         std::equal(a.backward.begin(), a.backward.end(), b.backward.begin(), b.backward.end(), same);
}

}  // namespace

std::vector<const PieceOps*> Pieces::of(const StageContent& content, std::vector<bool>& joined) {
  std::vector<StagePiece> pieces;
  visit_stage(step_.context, step_.kinds, content, PieceOrder::kForward, [&](StagePiece piece) {
    for (std::int64_t times = std::exchange(piece.times, 1); times > 0; --times) pieces.push_back(piece);
  });
  // Fine-grained offloading leaves the last executed layer's group on the device.
  const auto last = std::find_if(pieces.rbegin(), pieces.rend(), [](const StagePiece& p) { return p.layer; });
  const TrainingOptions& o = step_.context.options;
  const bool full = o.layer.recompute.granularity == RecomputeGranularity::kFull;
  const std::int64_t unit =
      full && o.pipeline.recompute.method == RecomputeMethod::kUniform ? o.pipeline.recompute.num_layers : 1;
  std::int64_t layers = 0;
  std::vector<const PieceOps*> list;
  for (auto piece = pieces.begin(); piece != pieces.end(); ++piece) {
    const bool offloaded = piece->covered && (last == pieces.rend() || piece + 1 != last.base());
    if (full && piece->covered)  // Both halves are rebuilt at once.
      list.push_back(get(Piece::kLayer, *piece, offloaded));
    else
      for (const Piece part : parts_of(piece->piece)) list.push_back(get(part, *piece, offloaded));
    joined.resize(list.size());
    if (full && piece->covered && piece->decoder()) joined.back() = layers++ % unit != 0;
  }
  return list;
}

const PieceOps* Pieces::get(Piece part, const StagePiece& piece, bool offloaded) {
  const auto [entry, inserted] =
      pieces_.try_emplace({part, piece.layer == nullptr ? 0 : kind(*piece.layer), piece.covered, offloaded});
  PieceOps& ops = entry->second;
  if (!inserted) return &ops;
  const TrainingOptions& o = step_.context.options;
  LayerOptions options = piece.covered ? o.layer : plain_layers(o.layer);
  if (!offloaded) options.offload_modules = {};
  const BuildContext context = step_.context.layer().with(options);
  ops.balanced = part_ops(context, part, piece);
  ops.forward_steps = clock_steps(context, ops.balanced.forward);
  ops.backward_steps = clock_steps(context, ops.balanced.backward);
  if (o.pipeline.overlaps.ep_a2a && piece.layer != nullptr) {  // The nodes that stage_cost() counts.
    const double attention = part != Piece::kMlp ? 1.0 : 0.0, each = piece.layer->mlp == MlpKind::kMoe ? 3.0 : 1.0;
    ops.nodes = (attention + (part != Piece::kMixer ? each : 0.0)) * context.hardware.host.node;
  }
  const CudaGraph& graph = o.layer.cuda_graph;
  if (piece.layer != nullptr)
    for (const Op& op : ops.balanced.backward)
      if (const auto shape = dummy_gradient(op);
          shape && !(graph.impl == GraphImpl::kTransformerEngine && captured(graph, op)))
        ops.dummies.insert(*shape);
  options.expert_load = kLoad;
  if (!options.pad_to_capacity && options.capacity_factor.value_or(0.0) >= 1.0)
    options.capacity_factor = {};  // What a rank draws is closer to the mean than a capacity.
  ops.loaded = part_ops(context, part, piece);
  ops.experts = (part == Piece::kMlp || part == Piece::kLayer) && piece.layer->mlp == MlpKind::kMoe &&
                same_shape(ops.balanced, ops.loaded);
  if (!ops.experts) ops.loaded = ops.balanced;
  return &ops;
}

std::size_t Pieces::kind(const LayerSpec& layer) {
  const auto found = std::find(kinds_.begin(), kinds_.end(), layer);
  if (found != kinds_.end()) return static_cast<std::size_t>(found - kinds_.begin());
  kinds_.push_back(layer);
  return kinds_.size() - 1;
}

RankPieces pieces_of(const Step& step, std::int64_t rank, Pieces& pieces) {
  const ScheduleShape& shape = step.shape();
  RankPieces list;
  for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk)
    list.chunks.push_back(
        pieces.of(step.content(static_cast<std::size_t>(chunk * shape.pp + rank)), list.joined.emplace_back()));
  return list;
}

}  // namespace foldwise::costmodel

#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "costmodel/ops/block_cache.h"
#include "costmodel/ops/step_ops.h"
#include "costmodel/pipeline/schedule.h"

// The pieces that a stage runs. Only this file knows which layers recomputation and offloading cover, and where
// embedding, MTP and head are. Times, memory, ledger, traffic, reserved memory and reports all walk over it.
namespace foldwise::costmodel {

/// Decoder layers by kind. The layers of a stage are a difference of prefix sums.
struct ModelKinds {
  std::vector<LayerSpec> kinds;                   ///< Distinct decoder layers.
  std::vector<std::vector<std::int32_t>> prefix;  ///< [kinds][layers + 1] number of layers of the kind before layer i.
  std::vector<std::int32_t> kind;                 ///< [layers]
  std::vector<std::int32_t> run_end;              ///< [layers] the first later layer of another kind.
};
[[nodiscard]] ModelKinds model_kinds(const ModelSpec& model);

/// Number of decoder layers, out of a chunk's `layers`, that the options' recomputation or layer offloading covers.
/// These are the first ones.
[[nodiscard]] std::int64_t covered_layers(const TrainingOptions& options, std::int64_t layers);
/// Whether it covers the layers of MTP. Megatron skips them in recomputation by block (multi_token_prediction.py,
/// 0.16.1), and layer offloading covers only layers of its TransformerBlock.
[[nodiscard]] bool covers_mtp(const TrainingOptions& options);
/// The options of layers that are neither recomputed nor offloaded.
[[nodiscard]] LayerOptions plain_layers(const LayerOptions& covered);

/// Equal pieces of a stage.
struct StagePiece {
  Piece piece = Piece::kLayer;       ///< kLayer, kEmbedding, kMtp (the projections of one depth) or kHead.
  const LayerSpec* layer = nullptr;  ///< For kLayer.
  std::int32_t kind = -1;            ///< For a decoder layer: index into ModelKinds::kinds.
  std::int64_t depth = -1;           ///< For MTP.
  bool covered = false;              ///< Recomputed and offloaded according to the options; otherwise neither.
  std::int64_t times = 1;
  [[nodiscard]] bool decoder() const { return kind >= 0; }
};

enum class PieceOrder : std::uint8_t {
  kForward,
  kReverse,  ///< The order of parameters in gradient buffers.
  kByKind,   ///< All decoder layers of a kind at once, then the rest. For sums, O(kinds).
};

/// Visits the pieces of a stage. Equal pieces in sequence are visited once, with their number in `times`.
template <typename Visit>
void visit_stage(const StepContext& context, const ModelKinds& kinds, const StageContent& content, PieceOrder order,
                 const Visit& visit) {
  const std::int64_t first = content.first_layer, last = first + content.num_layers,
                     cut = first + covered_layers(context.options, content.num_layers);
  const auto decoder = [&](std::int32_t kind, bool covered, std::int64_t times) {
    if (times > 0)
      visit(StagePiece{Piece::kLayer, &kinds.kinds[static_cast<std::size_t>(kind)], kind, -1, covered, times});
  };
  const auto embedding = [&] {
    if (content.embedding) visit(StagePiece{Piece::kEmbedding});
  };
  const auto mtp_layer = [&, covered = covers_mtp(context.options)](std::int64_t depth, const LayerSpec& layer) {
    visit(StagePiece{Piece::kLayer, &layer, -1, depth, covered});
  };
  const auto projections = [&](std::int64_t depth) { visit(StagePiece{.piece = Piece::kMtp, .depth = depth}); };
  const auto head = [&] {
    if (content.loss) visit(StagePiece{Piece::kHead});  // Every MTP depth evaluates it, too.
  };
  const std::vector<LayerSpec>& mtp = context.model.mtp_layers;
  switch (order) {
    case PieceOrder::kForward:
      embedding();
      for (std::int64_t i = first; i < last;) {
        const auto at = static_cast<std::size_t>(i);
        const std::int64_t end = std::min<std::int64_t>(kinds.run_end[at], i < cut ? cut : last);
        decoder(kinds.kind[at], i < cut, end - i);
        i = end;
      }
      break;
    case PieceOrder::kByKind:
      for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
        const auto before = [&](std::int64_t layer) { return kinds.prefix[k][static_cast<std::size_t>(layer)]; };
        decoder(static_cast<std::int32_t>(k), true, before(cut) - before(first));
        decoder(static_cast<std::int32_t>(k), false, before(last) - before(cut));
      }
      embedding();
      break;
    case PieceOrder::kReverse:
      head();
      for (std::int64_t depth = content.mtp_layers; depth-- > 0;) {
        std::for_each(mtp.rbegin(), mtp.rend(), [&](const LayerSpec& layer) { mtp_layer(depth, layer); });
        projections(depth);
      }
      for (std::int64_t i = last; i-- > first;) decoder(kinds.kind[static_cast<std::size_t>(i)], i < cut, 1);
      embedding();
      return;
  }
  for (std::int64_t depth = 0; depth < content.mtp_layers; ++depth) {
    projections(depth);
    for (const LayerSpec& layer : mtp) mtp_layer(depth, layer);
  }
  head();
}

/// Whether the two stages run the same pieces in the same order.
[[nodiscard]] bool same_pieces(const ModelKinds& kinds, const StageContent& a, const StageContent& b);

/// The options that each piece of a run uses.
class PieceOptions {
 public:
  explicit PieceOptions(const StepContext& context) : context_(context), plain_(plain_layers(context.options.layer)) {}
  [[nodiscard]] BuildContext of(const StagePiece& piece) const {
    return context_.layer().with(piece.covered ? context_.options.layer : plain_);
  }

 private:
  StepContext context_;
  LayerOptions plain_;
};

/// The parts that block_cost() sums separately: mixer and MLP of a layer, otherwise the piece itself.
[[nodiscard]] std::span<const Piece> parts_of(Piece piece);
/// The ops of a part after the recomputation and offloading of `context`'s options.
[[nodiscard]] OpList part_ops(const BuildContext& context, Piece part, const StagePiece& piece);

/// Makes a value once for equal pieces, however often they are visited. References stay valid.
template <typename Value>
class PerPiece {
 public:
  template <typename Make>
  Value& get(const StagePiece& piece, const Make& make) {
    const Key key{piece.piece, piece.covered, piece.layer == nullptr ? LayerSpec{} : *piece.layer};
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    if (found != keys_.end()) return values_[static_cast<std::size_t>(found - keys_.begin())];
    keys_.push_back(key);
    return values_.emplace_back(make());
  }
  [[nodiscard]] auto begin() const { return values_.begin(); }
  [[nodiscard]] auto end() const { return values_.end(); }

 private:
  struct Key {
    Piece piece;
    bool covered;
    LayerSpec layer;
    bool operator==(const Key&) const = default;
  };
  std::vector<Key> keys_;
  std::deque<Value> values_;
};

}  // namespace foldwise::costmodel

#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "costmodel/step/piece_replay.h"
#include "costmodel/step/step.h"

// The pieces of the model that a rank runs, as their allocations are replayed.
namespace foldwise::costmodel {

/// Op lists of the pieces of the model's stages.
class Pieces {
 public:
  explicit Pieces(const Step& step) : step_(step) {}

  /// Pieces of a chunk in forward order. They live as long as this object. Sets `joined`: for each piece whether it is
  /// recomputed together with the previous one.
  [[nodiscard]] std::vector<const PieceOps*> of(const StageContent& content, std::vector<bool>& joined);

 private:
  const PieceOps* get(Piece part, const StagePiece& piece, bool offloaded);
  std::size_t kind(const LayerSpec& layer);

  const Step& step_;
  std::vector<LayerSpec> kinds_;
  std::map<std::tuple<Piece, std::size_t, bool, bool>, PieceOps> pieces_;  ///< By part, kind, covered, offloaded.
};

/// The pieces of a rank: [chunk][piece].
struct RankPieces {
  std::vector<std::vector<const PieceOps*>> chunks;
  std::vector<std::vector<bool>> joined;  ///< Recomputed together with the previous piece.
};

/// Pieces of pipeline rank `rank` of the step that `pieces` is of, which must outlive them.
[[nodiscard]] RankPieces pieces_of(const Step& step, std::int64_t rank, Pieces& pieces);

}  // namespace foldwise::costmodel

#pragma once
#include <array>
#include <vector>

#include "costmodel/step/stage_pieces.h"

namespace foldwise::costmodel {

/// Weight gradients that Transformer Engine caches without using them, one of each shape. A rank has those of its
/// layers.
struct DummyGradients {
  std::vector<Bytes> mixer;                         ///< By index in ModelSpec::mixers.
  std::array<Bytes, enumerators<MlpKind>()> mlp{};  ///< By MlpKind.
  Bytes mtp{}, head{};
};

/// Costs of the pieces of a model on one rank for one micro-batch. They depend on what a layer reads (TP, CP, EP, ETP,
/// micro-batch, recomputation, ...), not on the stages.
struct ModelCosts {
  std::vector<BlockCost> covered;  ///< [kinds] with the options' recomputation and offloading.
  std::vector<BlockCost> plain;    ///< [kinds] without: layers that block recomputation or layer offloading leave out.
  std::vector<Seconds> saving;     ///< [kinds] saving of a merged pair of covered layers under EP overlap.
  std::vector<Seconds> plain_saving;  ///< [kinds] the same for plain layers.
  BlockCost embedding, mtp;           ///< mtp: one depth with its layers, without its head evaluation.
  BlockCost head;                     ///< Head and loss of the model and of every MTP depth.
  Seconds mtp_saving{};
  Bytes overlapped{};  ///< EP overlap: most bytes of the other micro-batch that one layer holds beside this one's
                       ///< backward.
  DummyGradients dummies;
  std::vector<BufferTensors> layer_tensors;                    ///< [kinds]
  BufferTensors embedding_tensors, mtp_tensors, head_tensors;  ///< mtp: one depth with its layers.
  [[nodiscard]] const BlockCost& of(const StagePiece& decoder) const {
    return (decoder.covered ? covered : plain)[static_cast<std::size_t>(decoder.kind)];
  }
  [[nodiscard]] Seconds saving_of(const StagePiece& decoder) const {
    return (decoder.covered ? saving : plain_saving)[static_cast<std::size_t>(decoder.kind)];
  }
};
/// Contexts of one model and one system may share `cache`.
[[nodiscard]] ModelCosts model_costs(const StepContext& context, const ModelKinds& kinds, BlockCache* cache = nullptr);

}  // namespace foldwise::costmodel

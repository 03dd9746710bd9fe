#include "costmodel/step/energy.h"

#include <cstddef>
#include <variant>
#include <vector>

namespace foldwise::costmodel {
namespace {

/// Joules of one micro-batch above the base. Attention counts with BF16's energy, as for the clocks.
double product_energy(const std::vector<Op>& ops, const PowerSpec& power) {
  double joules = 0.0;
  for (const Op& op : ops) {
    const auto* gemm = std::get_if<GemmWork>(&op.work);
    if (gemm == nullptr && !std::holds_alternative<AttentionWork>(op.work)) continue;
    const MathFormat format = gemm != nullptr ? gemm->format : MathFormat::kBf16;
    joules += power.joule_per_flop.at(static_cast<std::size_t>(format)) * op_flops(op).to<double>();
  }
  return joules;
}

}  // namespace

std::optional<Watts> mean_power(const Step& step, Seconds step_time) {
  const PowerSpec& power = step.context.hardware.power;
  if (power.limit <= Watts{}) return std::nullopt;
  const PieceOptions options(step.context);
  PerPiece<double> pieces;
  double joules = 0.0;  // One micro-batch through all stages.
  for (std::size_t i = 0; i < step.composition.num_stages(); ++i)
    visit_stage(step.context, step.kinds, step.content(i), PieceOrder::kByKind, [&](const StagePiece& piece) {
      joules += static_cast<double>(piece.times) * pieces.get(piece, [&] {
        double one = 0.0;
        for (const Piece part : parts_of(piece.piece)) {
          const OpList list = part_ops(options.of(piece), part, piece);
          one += product_energy(list.forward, power) + product_energy(list.backward, power);
        }
        return one;
      });
    });
  const auto micro_batches = static_cast<double>(chunk_microbatches(step.shape()));
  const double per_gpu = joules * micro_batches / static_cast<double>(step.context.options.pipeline.pp);
  return power.base + Watts{per_gpu / step_time.to<double>()};
}

}  // namespace foldwise::costmodel

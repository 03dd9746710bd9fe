#pragma once
#include <array>
#include <cstdint>

#include "costmodel/hardware/hardware.h"
#include "costmodel/parallel/options.h"

// What a precision recipe of Transformer Engine means for products, kept bytes, copies and collectives. Everything that
// depends on the precision reads this one table. docs/formulas.md#precision shows it.
namespace foldwise::costmodel {

/// Bytes per element of an operand: the value, and its share of the scales along rows or columns of activations and
/// gradients. Source: TransformerEngine, docs/features/low_precision_training.
struct FormatBytes {
  double value = 2.0, scales = 0.0;
  [[nodiscard]] constexpr double total() const { return value + scales; }
};
[[nodiscard]] FormatBytes format_bytes(MathFormat format);

/// Whether one kernel quantises the rows of all experts. Source: split_quantize in
/// transformer_engine/pytorch/csrc/extensions/cast.cpp (TE 2.12).
enum class SplitQuantize {
  kNever,         ///< One kernel per expert.
  kInTwoLayouts,  ///< Only if the transpose is written too.
  kAlways,
};

struct PrecisionRecipe {
  std::array<MathFormat, kGemmPhases> gemm{};  ///< Operand formats by GemmPhase.
  double weight_scales = 0.0;                  ///< Bytes of scales per element of a weight's copy.
  /// Whether a tensor has one scale. If tensor cores take either layout, one copy then serves rows and columns.
  /// Otherwise row form and column form are two quantised tensors.
  bool one_scale = false;
  bool amax_pass = false;  ///< Quantising first reads the source once more for its largest value.
  SplitQuantize split_quantize = SplitQuantize::kNever;
  /// An expert's rows are padded to a multiple of this. Source: moe_utils.py, fp8_utils.py.
  std::int64_t expert_row_multiple = 1;
  /// Low-precision primaries (--fp8-param-gather) are in DDP's buffers and are gathered as they are. MXFP8 ones are
  /// made from a BF16 gather, because both of their layouts come from high precision.
  bool gathers_primaries = true;
  bool casts_shards = false;  ///< Primaries are cast from each rank's FP32 shards before the gather.
  bool shard_amax = false;    ///< Before this cast, a pass finds their largest values.
  /// TE's precision-aware Adam may keep the FP32 masters itself (use_precision_aware_optimizer_no_fp8_or_ds_fp8 in
  /// megatron/core/optimizer/optimizer_config.py).
  bool adam_owns_fp32_masters = false;
  bool keeps_projection_input = false;  ///< In FP8, beside the BF16 output of self attention.
  /// The column form is transposed. After a gather over tensor-parallel ranks its parts are reordered (swap_first_dims
  /// in transformer_engine/pytorch/distributed.py).
  bool transposed_columns = false;

  [[nodiscard]] bool low_precision() const { return gemm[0] != MathFormat::kBf16; }
  [[nodiscard]] MathFormat format(GemmPhase phase) const { return gemm[static_cast<std::size_t>(phase)]; }
  /// Bytes per element of the copy of a linear's input that backward keeps. Only the weight gradient reads it.
  [[nodiscard]] double saved_input_bytes() const { return format_bytes(format(GemmPhase::kWgrad)).total(); }
  /// Bytes per element of a gathered parameter, a BF16 or a low-precision primary.
  [[nodiscard]] double gathered_bytes(bool low_precision_primaries) const;
  /// Bytes per element of a quantised weight with its copies, beside a BF16 primary or instead of one.
  [[nodiscard]] double weight_bytes(bool low_precision_primary, const Hardware& hardware) const;
  /// The part of it that is the weight's second layout, its transpose, where the hardware needs one.
  [[nodiscard]] double transpose_bytes(const Hardware& hardware) const;
  /// Number of layouts of a quantised tensor that the hardware needs.
  [[nodiscard]] int layouts(const Hardware& hardware) const;
};
[[nodiscard]] const PrecisionRecipe& precision_recipe(Precision precision);

}  // namespace foldwise::costmodel

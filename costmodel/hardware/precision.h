#pragma once
#include <array>
#include <cstdint>

#include "costmodel/hardware/hardware.h"
#include "costmodel/parallel/options.h"

// What a precision recipe of Transformer Engine means for products, kept bytes, copies and collectives: one table, read
// by everything that depends on the precision. docs/formulas.md#precision shows it.
namespace foldwise::costmodel {

/// Bytes of an operand's element: its value, and its share of the scales along the rows or columns of activations and
/// gradients. Source: TransformerEngine, docs/features/low_precision_training.
struct FormatBytes {
  double value = 2.0, scales = 0.0;
  [[nodiscard]] constexpr double total() const { return value + scales; }
};
[[nodiscard]] FormatBytes format_bytes(MathFormat format);

/// When one kernel quantises the rows of all experts. Source: split_quantize in
/// transformer_engine/pytorch/csrc/extensions/cast.cpp (TE 2.12).
enum class SplitQuantize {
  kNever,         ///< A kernel an expert.
  kInTwoLayouts,  ///< Where the transpose is written too.
  kAlways,
};

struct PrecisionRecipe {
  std::array<MathFormat, kGemmPhases> gemm{};  ///< Formats of the operands, by GemmPhase.
  double weight_scales = 0.0;                  ///< Bytes of scales per element of a weight's copy.
  /// A tensor has one scale: where tensor cores take either layout, one copy serves rows and columns. Otherwise row and
  /// column form are two quantised tensors.
  bool one_scale = false;
  bool amax_pass = false;  ///< Quantising reads the source once more before, for its largest value.
  SplitQuantize split_quantize = SplitQuantize::kNever;
  std::int64_t expert_row_multiple = 1;  ///< Rows of an expert are padded to. Source: moe_utils.py, fp8_utils.py.
  /// Low-precision primaries (--fp8-param-gather) lie in the buffers of DDP and are gathered as they are. MXFP8's are
  /// made from a bf16 gather: both of their layouts come from high precision.
  bool gathers_primaries = true;
  bool casts_shards = false;  ///< Such primaries are cast from each rank's fp32 shards, before the gather ...
  bool shard_amax = false;    ///< ... after a pass for their largest values.
  /// TE's precision-aware Adam may keep fp32 masters itself (use_precision_aware_optimizer_no_fp8_or_ds_fp8 in
  /// megatron/core/optimizer/optimizer_config.py).
  bool adam_owns_fp32_masters = false;
  bool keeps_projection_input = false;  ///< In FP8, beside the bf16 output of self attention.
  /// The column form lies transposed: once gathered over tensor-parallel ranks, their parts are put in order
  /// (swap_first_dims in transformer_engine/pytorch/distributed.py).
  bool transposed_columns = false;

  [[nodiscard]] bool low_precision() const { return gemm[0] != MathFormat::kBf16; }
  [[nodiscard]] MathFormat format(GemmPhase phase) const { return gemm[static_cast<std::size_t>(phase)]; }
  /// Per element of the copy of a linear's input that backward keeps, which only the weight gradient reads.
  [[nodiscard]] double saved_input_bytes() const { return format_bytes(format(GemmPhase::kWgrad)).total(); }
  /// Per element of a parameter that is gathered, bf16 or low-precision primary.
  [[nodiscard]] double gathered_bytes(bool low_precision_primaries) const;
  /// Per element of a quantised weight with its copies: beside a bf16 primary, or in place of one.
  [[nodiscard]] double weight_bytes(bool low_precision_primary, const Hardware& hardware) const;
  /// Layouts in which the hardware wants a quantised tensor.
  [[nodiscard]] int layouts(const Hardware& hardware) const;
};
[[nodiscard]] const PrecisionRecipe& precision_recipe(Precision precision);

}  // namespace foldwise::costmodel

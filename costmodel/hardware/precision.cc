#include "costmodel/hardware/precision.h"

namespace foldwise::costmodel {
namespace {

constexpr std::array<MathFormat, kGemmPhases> all(MathFormat format) { return {format, format, format}; }

// By Precision. HYBRID's E5M2 gradients run at E4M3's rate.
constexpr std::array kRecipes = {
    PrecisionRecipe{.gemm = all(MathFormat::kBf16), .adam_owns_fp32_masters = true},
    // Delayed: the scale comes from the history of largest values, which the cast itself records.
    PrecisionRecipe{.gemm = all(MathFormat::kFp8),
                    .one_scale = true,
                    .split_quantize = SplitQuantize::kInTwoLayouts,
                    .expert_row_multiple = 16,
                    .casts_shards = true,
                    .adam_owns_fp32_masters = true,
                    .keeps_projection_input = true},
    PrecisionRecipe{.gemm = all(MathFormat::kFp8),
                    .one_scale = true,
                    .amax_pass = true,
                    .expert_row_multiple = 16,
                    .casts_shards = true,
                    .shard_amax = true},
    // Blockwise: FP32 scales for 1 x 128 elements; for weights 128 x 128.
    PrecisionRecipe{.gemm = all(MathFormat::kFp8Block),
                    .weight_scales = 4.0 / 16384.0,
                    .expert_row_multiple = 16,
                    .casts_shards = true,
                    .shard_amax = true,
                    .transposed_columns = true},
    PrecisionRecipe{.gemm = all(MathFormat::kMxfp8),
                    .weight_scales = 1.0 / 32.0,
                    .expert_row_multiple = 32,
                    .gathers_primaries = false},
    // NVFP4: the 16 x 16 scales of a weight are stored as the 1 x 16 that the GEMM reads.
    PrecisionRecipe{.gemm = all(MathFormat::kNvfp4),
                    .weight_scales = 1.0 / 16.0,
                    .amax_pass = true,
                    .split_quantize = SplitQuantize::kAlways,
                    .expert_row_multiple = 128,
                    .transposed_columns = true},
    // FP16 runs at the rate of BF16 on every GPU that has both (NVIDIA's data sheets).
    PrecisionRecipe{.gemm = all(MathFormat::kBf16), .adam_owns_fp32_masters = true},
};
static_assert(kRecipes.size() == enumerators<Precision>());

// By MathFormat: bf16; FP8 with one scale a tensor; fp32 scales of 128 elements; E8M0 of 32; E4M3 of 16; fp32.
constexpr std::array kFormats = {FormatBytes{2.0},
                                 FormatBytes{1.0},
                                 FormatBytes{1.0, 4.0 / 128.0},
                                 FormatBytes{1.0, 1.0 / 32.0},
                                 FormatBytes{0.5, 1.0 / 16.0},
                                 FormatBytes{4.0}};
static_assert(kFormats.size() == kMathFormats);

constexpr double kBf16Bytes = 2.0;

}  // namespace

FormatBytes format_bytes(MathFormat format) { return kFormats.at(static_cast<std::size_t>(format)); }

const PrecisionRecipe& precision_recipe(Precision precision) {
  return kRecipes.at(static_cast<std::size_t>(precision));
}

double PrecisionRecipe::gathered_bytes(bool low_precision_primaries) const {
  return low_precision_primaries && gathers_primaries ? format_bytes(format(GemmPhase::kForward)).value : kBf16Bytes;
}

double PrecisionRecipe::weight_bytes(bool low_precision_primary, const Hardware& hardware) const {
  if (!low_precision()) return kBf16Bytes;
  const double copy = format_bytes(format(GemmPhase::kForward)).value + weight_scales;
  return (low_precision_primary ? 0.0 : kBf16Bytes) + layouts(hardware) * copy;
}

double PrecisionRecipe::transpose_bytes(const Hardware& hardware) const {
  if (!low_precision()) return 0.0;
  return (layouts(hardware) - 1) * (format_bytes(format(GemmPhase::kForward)).value + weight_scales);
}

int PrecisionRecipe::layouts(const Hardware& hardware) const { return one_scale ? hardware.traits.fp8_layouts : 2; }

}  // namespace foldwise::costmodel

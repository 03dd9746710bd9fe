#pragma once
#include "kernels/cuda/device.h"

// float64 references for sampled elements, as plain sums on the device.
namespace foldwise::kernels {

/// An operand of a product. Element (i, k) is at i * row_stride + k * k_stride.
struct Operand {
  const void* data = nullptr;
  Type type = Type::kBf16;
  std::int64_t row_stride = 0, k_stride = 0;
};

/// ||d - reference|| / ||reference|| over sampled elements of the row-major m x n product d of `left` (m rows) and
/// `right` (n rows), times `scale`, plus `before`.
[[nodiscard]] double gemm_error(Operand left, Operand right, const void* d, Type d_type, std::int64_t m, std::int64_t n,
                                std::int64_t k, double scale, double before, cudaStream_t stream);

/// Shape of causal attention. Tensors are [batch, sequence, head, width].
struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, seq = 1, head_dim = 1, head_dim_v = 1;
};
struct AttentionTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;
  const void *d_o = nullptr, *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;  ///< Null: forward only.
};
/// Largest relative error among o, d_q, d_k and d_v over sampled rows of the last batch entry and key head group.
[[nodiscard]] double attention_error(const AttentionShape& shape, const AttentionTensors& tensors, double scale,
                                     cudaStream_t stream);

}  // namespace foldwise::kernels

#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

// Our kernels for the memory-bound operations of a training step. Tensors are row-major and 16 B aligned; widths are
// multiples of 8 (of 128 for quantisation). Each memory access of a thread moves 16 B.
namespace foldwise::kernels {

using Bf16 = __nv_bfloat16;

void copy(const void* from, void* to, std::int64_t bytes, cudaStream_t stream);
void fill_zero(float* data, std::int64_t elements, cudaStream_t stream);
/// sum = a + b
void add(const Bf16* a, const Bf16* b, Bf16* sum, std::int64_t elements, cudaStream_t stream);
/// gradient += addend
void accumulate(const Bf16* addend, float* gradient, std::int64_t elements, cudaStream_t stream);

inline constexpr float kNormEpsilon = 1e-5F;
inline constexpr int kMostNormWidth = 16384;
/// y = x * scale[row] * gamma with scale = 1 / sqrt(mean(x^2) + epsilon), which is stored for backward.
void norm_forward(const Bf16* x, const Bf16* gamma, Bf16* y, float* scale, std::int64_t rows, std::int64_t width,
                  cudaStream_t stream);
/// Computes dx and dgamma. `partial` holds norm_partials() rows of `width` floats.
void norm_backward(const Bf16* x, const Bf16* gamma, const float* scale, const Bf16* dy, Bf16* dx, float* dgamma,
                   float* partial, std::int64_t rows, std::int64_t width, int sms, cudaStream_t stream);
[[nodiscard]] std::int64_t norm_partials(int sms);

/// y = silu(gate) * up * probability[row]; x = [gate | up] has width 2 * width.
void swiglu_forward(const Bf16* x, const float* probability, Bf16* y, std::int64_t rows, std::int64_t width,
                    cudaStream_t stream);
/// Computes dx and dprobability[row] = sum(dy * silu(gate) * up).
void swiglu_backward(const Bf16* x, const float* probability, const Bf16* dy, Bf16* dx, float* dprobability,
                     std::int64_t rows, std::int64_t width, cudaStream_t stream);

/// Rotates the halves of every head: y = [x1 cos - x2 sin | x2 cos + x1 sin]. The tables are [token, head_dim / 2].
void rope(const Bf16* x, const float* cosine, const float* sine, Bf16* y, std::int64_t tokens, std::int64_t heads,
          std::int64_t head_dim, cudaStream_t stream);

/// y[map[token, i]] = x[token] for i < top_k.
void permute(const Bf16* x, const int* map, Bf16* y, std::int64_t tokens, int top_k, std::int64_t width,
             cudaStream_t stream);
/// y[token] = sum over i of probability[token, i] * x[map[token, i]]
void unpermute(const Bf16* x, const int* map, const float* probability, Bf16* y, std::int64_t tokens, int top_k,
               std::int64_t width, cudaStream_t stream);

/// Softmax over the top_k <= 8 largest logits of a token, zero elsewhere. `chosen` is 1 for these; ties are broken
/// arbitrarily. Supports 64, 128 or 256 experts.
void route(const float* logits, float* probability, std::uint8_t* chosen, std::int64_t tokens, int experts, int top_k,
           cudaStream_t stream);
/// d_logits = probability * (d_probability - sum over experts of probability * d_probability)
void route_backward(const float* probability, const float* d_probability, float* d_logits, std::int64_t tokens,
                    int experts, cudaStream_t stream);

/// largest = max |x|. `largest` must be zero before.
void amax(const Bf16* x, std::int64_t elements, float* largest, cudaStream_t stream);

enum class Recipe {
  kTensor,  ///< E4M3 with the given scale, and its transpose.
  kBlock,   ///< For weights: a scale per 128 x 128, and the transpose.
  kVector,  ///< For activations: a scale per 128 of a row, and the transpose with a scale per 128 of a column.
  kMxfp8    ///< A power of two per 32 of a row, and a copy, not transposed, with one per 32 of a column.
};
/// Stored scales multiply quantised values to restore x. E8M0 for kMxfp8, else FP32. Rows: kVector [width / 128][row],
/// kMxfp8 [row][width / 32], kBlock [row / 128][width / 128]. Columns: [row / block][width].
struct Quantized {
  std::uint8_t *by_row = nullptr, *by_column = nullptr;
  void *row_scale = nullptr, *column_scale = nullptr;
};
/// Only kTensor reads `scale`.
void quantize(Recipe recipe, const Bf16* x, const float* scale, const Quantized& out, std::int64_t rows,
              std::int64_t width, cudaStream_t stream);

struct Adam {
  float rate = 1e-3F, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F, decay = 0.1F;
  float correction1 = 0.1F, correction2 = 0.05F;  ///< 1 - beta^step
};
void adam(const Adam& options, const float* gradient, float* parameter, float* first, float* second,
          std::int64_t elements, cudaStream_t stream);

}  // namespace foldwise::kernels

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/reference.h"

namespace foldwise::kernels {
namespace {

constexpr int kThreads = 128;

__device__ double e2m1(unsigned code) {
  const double magnitudes[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  return (code & 8U) != 0 ? -magnitudes[code & 7U] : magnitudes[code & 7U];
}

__device__ double load(const void* data, Type type, std::int64_t index) {
  switch (type) {
    case Type::kBf16:
      return static_cast<double>(static_cast<const __nv_bfloat16*>(data)[index]);
    case Type::kFp8E4m3:
      return static_cast<double>(static_cast<const __nv_fp8_e4m3*>(data)[index]);
    case Type::kFp8E5m2:
      return static_cast<double>(static_cast<const __nv_fp8_e5m2*>(data)[index]);
    case Type::kFp4E2m1: {
      const unsigned pair = static_cast<const std::uint8_t*>(data)[index / 2];
      return e2m1(index % 2 == 0 ? pair & 15U : pair >> 4U);
    }
    case Type::kFp32:
      return static_cast<double>(static_cast<const float*>(data)[index]);
  }
  return 0.0;
}

// Reduces the values of all threads; each thread gets the result.
template <typename Combine>
__device__ double block_reduce(double value, Combine combine) {
  __shared__ double partial[kThreads];
  __syncthreads();
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + half]);
    __syncthreads();
  }
  return partial[0];
}

struct Sum {
  __device__ double operator()(double a, double b) const { return a + b; }
};
struct Max {
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// errors[0] += (out - reference)^2, errors[1] += reference^2.
__device__ void add_error(double* errors, double out, double reference) {
  const double difference = out - reference;
  atomicAdd(errors, isfinite(difference) ? difference * difference : 1e300);
  atomicAdd(errors + 1, reference * reference);
}

// One block per sampled element: corners, then a lattice with strides coprime to common tile sizes.
__global__ void gemm_samples(Operand left, Operand right, const void* d, Type d_type, std::int64_t m, std::int64_t n,
                             std::int64_t k, double scale, double before, double* errors) {
  const std::int64_t sample = blockIdx.x;
  const std::int64_t i = sample == 0 ? 0 : sample == 1 ? m - 1 : sample * 7919 % m;
  const std::int64_t j = sample == 0 ? 0 : sample == 1 ? n - 1 : sample * 104729 % n;
  double sum = 0.0;
  for (std::int64_t x = threadIdx.x; x < k; x += kThreads)
    sum += load(left.data, left.type, i * left.row_stride + x * left.k_stride) *
           load(right.data, right.type, j * right.row_stride + x * right.k_stride);
  sum = block_reduce(sum, Sum{});
  if (threadIdx.x == 0) add_error(errors, load(d, d_type, i * n + j), before + scale * sum);
}

// Largest error in `errors`: pairs of (sum of squared differences, sum of squares).
double largest_error(const Buffer& errors, int pairs, cudaStream_t stream) {
  std::vector<double> sums(static_cast<std::size_t>(2 * pairs));
  check(cudaMemcpyAsync(sums.data(), errors.data(), sums.size() * sizeof(double), cudaMemcpyDeviceToHost, stream),
        "errors");
  check(cudaStreamSynchronize(stream), "float64 reference");
  double largest = 0.0;
  for (std::size_t i = 0; i < sums.size(); i += 2)
    if (sums[i + 1] > 0.0) largest = std::max(largest, std::sqrt(sums[i] / sums[i + 1]));
  return largest;
}

constexpr int kLastRows = 8;  // rows of the sequence end whose gradients of keys and values are checked

// Contribution of a row of attention to the gradients of keys and values.
struct RowSums {
  double max = 0.0, sum = 0.0, d_o_o = 0.0;
};

struct Rows {
  AttentionShape shape;
  AttentionTensors tensors;
  double scale;
  [[nodiscard]] __device__ double element(const void* data, std::int64_t count, std::int64_t width, std::int64_t row,
                                          std::int64_t head, std::int64_t x) const {
    const std::int64_t batch = shape.batch - 1;
    return load(data, Type::kBf16, ((batch * shape.seq + row) * count + head) * width + x);
  }
  [[nodiscard]] __device__ double score(std::int64_t row, std::int64_t key, std::int64_t head, std::int64_t kv) const {
    double sum = 0.0;
    for (std::int64_t x = 0; x < shape.head_dim; ++x)
      sum += element(tensors.q, shape.heads, shape.head_dim, row, head, x) *
             element(tensors.k, shape.kv_heads, shape.head_dim, key, kv, x);
    return scale * sum;
  }
  [[nodiscard]] __device__ double d_o_v(std::int64_t row, std::int64_t key, std::int64_t head, std::int64_t kv) const {
    double sum = 0.0;
    for (std::int64_t x = 0; x < shape.head_dim_v; ++x)
      sum += element(tensors.d_o, shape.heads, shape.head_dim_v, row, head, x) *
             element(tensors.v, shape.kv_heads, shape.head_dim_v, key, kv, x);
    return sum;
  }
};

// One block per (row, head of the last group). Blocks below kLastRows process the last rows, the others earlier rows.
// `work` holds two doubles per key and block.
__global__ void attention_rows(Rows rows, double* work, RowSums* sums, double* errors) {
  const AttentionShape& s = rows.shape;
  const std::int64_t group = s.heads / s.kv_heads, kv = s.kv_heads - 1, head = s.heads - group + blockIdx.y;
  const std::int64_t row = blockIdx.x < kLastRows ? s.seq - 1 - blockIdx.x : (blockIdx.x - kLastRows) * 211 % s.seq;
  double* scores = work + (blockIdx.y * std::int64_t{gridDim.x} + blockIdx.x) * 2 * s.seq;
  double* d_scores = scores + s.seq;
  double largest = -INFINITY;
  for (std::int64_t key = threadIdx.x; key <= row; key += kThreads) {
    scores[key] = rows.score(row, key, head, kv);
    largest = fmax(largest, scores[key]);
  }
  largest = block_reduce(largest, Max{});
  double sum = 0.0;
  for (std::int64_t key = threadIdx.x; key <= row; key += kThreads) sum += exp(scores[key] - largest);
  sum = block_reduce(sum, Sum{});
  for (std::int64_t key = threadIdx.x; key <= row; key += kThreads) scores[key] = exp(scores[key] - largest) / sum;
  __syncthreads();
  for (std::int64_t x = threadIdx.x; x < s.head_dim_v; x += kThreads) {
    double o = 0.0;
    for (std::int64_t key = 0; key <= row; ++key)
      o += scores[key] * rows.element(rows.tensors.v, s.kv_heads, s.head_dim_v, key, kv, x);
    add_error(errors, rows.element(rows.tensors.o, s.heads, s.head_dim_v, row, head, x), o);
  }
  if (rows.tensors.d_o == nullptr) return;
  double d_o_o = 0.0;
  for (std::int64_t key = threadIdx.x; key <= row; key += kThreads) {
    d_scores[key] = rows.d_o_v(row, key, head, kv);
    d_o_o += scores[key] * d_scores[key];
  }
  d_o_o = block_reduce(d_o_o, Sum{});
  for (std::int64_t key = threadIdx.x; key <= row; key += kThreads)
    d_scores[key] = scores[key] * (d_scores[key] - d_o_o);
  __syncthreads();
  for (std::int64_t x = threadIdx.x; x < s.head_dim; x += kThreads) {
    double d_q = 0.0;
    for (std::int64_t key = 0; key <= row; ++key)
      d_q += d_scores[key] * rows.element(rows.tensors.k, s.kv_heads, s.head_dim, key, kv, x);
    add_error(errors + 2, rows.element(rows.tensors.d_q, s.heads, s.head_dim, row, head, x), rows.scale * d_q);
  }
  if (blockIdx.x < kLastRows && threadIdx.x == 0) sums[blockIdx.y * kLastRows + blockIdx.x] = {largest, sum, d_o_o};
}

// One block per key of the last rows. The rows from the key to the end see it, in every head of its group.
__global__ void attention_keys(Rows rows, const RowSums* sums, double* errors) {
  const AttentionShape& s = rows.shape;
  const std::int64_t group = s.heads / s.kv_heads, kv = s.kv_heads - 1, key = s.seq - 1 - blockIdx.x;
  for (std::int64_t x = threadIdx.x; x < s.head_dim + s.head_dim_v; x += kThreads) {
    double gradient = 0.0;
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t head = s.heads - group + g;
      for (std::int64_t back = 0; back <= blockIdx.x; ++back) {
        const std::int64_t row = s.seq - 1 - back;
        const RowSums& row_sums = sums[g * kLastRows + back];
        const double p = exp(rows.score(row, key, head, kv) - row_sums.max) / row_sums.sum;
        gradient += x < s.head_dim
                        ? rows.scale * p * (rows.d_o_v(row, key, head, kv) - row_sums.d_o_o) *
                              rows.element(rows.tensors.q, s.heads, s.head_dim, row, head, x)
                        : p * rows.element(rows.tensors.d_o, s.heads, s.head_dim_v, row, head, x - s.head_dim);
      }
    }
    if (x < s.head_dim)
      add_error(errors + 4, rows.element(rows.tensors.d_k, s.kv_heads, s.head_dim, key, kv, x), gradient);
    else
      add_error(errors + 6, rows.element(rows.tensors.d_v, s.kv_heads, s.head_dim_v, key, kv, x - s.head_dim),
                gradient);
  }
}

}  // namespace

double gemm_error(Operand left, Operand right, const void* d, Type d_type, std::int64_t m, std::int64_t n,
                  std::int64_t k, double scale, double before, cudaStream_t stream) {
  constexpr int kSamples = 1024;
  const Buffer errors(2 * sizeof(double));
  check(cudaMemsetAsync(errors.data(), 0, errors.size(), stream), "errors");
  gemm_samples<<<kSamples, kThreads, 0, stream>>>(left, right, d, d_type, m, n, k, scale, before, errors.as<double>());
  check(cudaGetLastError(), "float64 GEMM");
  return largest_error(errors, 1, stream);
}

double attention_error(const AttentionShape& shape, const AttentionTensors& tensors, double scale,
                       cudaStream_t stream) {
  constexpr int kRows = kLastRows + 4;
  const auto group = static_cast<unsigned>(shape.heads / shape.kv_heads);
  const Buffer errors(8 * sizeof(double)), sums(group * kLastRows * sizeof(RowSums));
  const Buffer work(group * kRows * 2 * static_cast<std::size_t>(shape.seq) * sizeof(double));
  check(cudaMemsetAsync(errors.data(), 0, errors.size(), stream), "errors");
  const Rows rows{shape, tensors, scale};
  attention_rows<<<dim3(kRows, group), kThreads, 0, stream>>>(rows, work.as<double>(), sums.as<RowSums>(),
                                                              errors.as<double>());
  if (tensors.d_o != nullptr)
    attention_keys<<<kLastRows, kThreads, 0, stream>>>(rows, sums.as<RowSums>(), errors.as<double>());
  check(cudaGetLastError(), "float64 attention");
  return largest_error(errors, 4, stream);
}

}  // namespace foldwise::kernels

#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/memory_kernels.h"

namespace foldwise::kernels {
namespace {

struct alignas(16) Bf16x8 {
  __nv_bfloat162 pair[4];
};
struct alignas(8) Bytes8 {
  std::uint32_t word[2];
};

__device__ void unpack(const Bf16x8& packed, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 both = __bfloat1622float2(packed.pair[i]);
    out[2 * i] = both.x;
    out[2 * i + 1] = both.y;
  }
}

__device__ Bf16x8 pack(const float (&in)[8]) {
  Bf16x8 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) packed.pair[i] = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
  return packed;
}

// Streaming access to data that this kernel uses once, to keep the caches for data that is reused.
template <typename T>
__device__ T load(const T* from) {
  if constexpr (sizeof(T) == 16) {
    const int4 raw = __ldcs(reinterpret_cast<const int4*>(from));
    return *reinterpret_cast<const T*>(&raw);
  } else {
    return __ldcs(from);
  }
}

template <typename T>
__device__ void store(T* to, const T& value) {
  if constexpr (sizeof(T) == 16) {
    __stcs(reinterpret_cast<int4*>(to), *reinterpret_cast<const int4*>(&value));
  } else if constexpr (sizeof(T) == 8) {
    __stcs(reinterpret_cast<int2*>(to), *reinterpret_cast<const int2*>(&value));
  } else {
    __stcs(to, value);
  }
}

unsigned blocks_for(std::int64_t work, std::int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

// Sum or maximum over groups of `Threads` neighbouring threads; all of them get the result. `scratch` holds a float per
// warp. Before another call reuses it there must be a barrier. Each group has its own barrier, so groups may diverge.
template <int Threads, typename Combine>
__device__ float group_reduce(float value, float* scratch, Combine combine) {
#pragma unroll
  for (int offset = (Threads < 32 ? Threads : 32) / 2; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
  if constexpr (Threads > 32) {
    constexpr int kWarps = Threads / 32;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) scratch[warp] = value;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + static_cast<int>(threadIdx.x) / Threads), "n"(Threads) : "memory");
    const float* group = scratch + warp / kWarps * kWarps;
    value = group[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) value = combine(value, group[i]);
  }
  return value;
}

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// ---- Elementwise: each thread processes kUnroll vectors, and loads all of them before the first use.

constexpr int kThreads = 256, kUnroll = 4;

template <int Unroll, typename Body>
__global__ void __launch_bounds__(kThreads) for_vectors(std::int64_t vectors, Body body) {
  const std::int64_t first = blockIdx.x * std::int64_t{kThreads * Unroll} + threadIdx.x;
  if (first + (Unroll - 1) * kThreads < vectors) {
    body.template run<Unroll>(first);
  } else {
    for (std::int64_t i = first; i < vectors; i += kThreads) body.template run<1>(i);
  }
}

template <int Unroll, typename Body>
void launch_vectors(std::int64_t vectors, Body body, cudaStream_t stream) {
  for_vectors<Unroll><<<blocks_for(vectors, kThreads * Unroll), kThreads, 0, stream>>>(vectors, body);
  check(cudaGetLastError(), "elementwise kernel");
}

struct CopyBody {
  const int4* from;
  int4* to;
  template <int N>
  __device__ void run(std::int64_t first) const {
    int4 value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = load(from + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < N; ++i) store(to + first + i * kThreads, value[i]);
  }
};

struct FillBody {
  float4* data;
  template <int N>
  __device__ void run(std::int64_t first) const {
#pragma unroll
    for (int i = 0; i < N; ++i) store(data + first + i * kThreads, make_float4(0.0F, 0.0F, 0.0F, 0.0F));
  }
};

struct AddBody {
  const Bf16x8 *a, *b;
  Bf16x8* sum;
  template <int N>
  __device__ void run(std::int64_t first) const {
    Bf16x8 left[N], right[N];
#pragma unroll
    for (int i = 0; i < N; ++i) left[i] = load(a + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < N; ++i) right[i] = load(b + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float x[8], y[8];
      unpack(left[i], x);
      unpack(right[i], y);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] += y[j];
      store(sum + first + i * kThreads, pack(x));
    }
  }
};

struct AccumulateBody {
  const int2* addend;  // four BF16
  float4* gradient;
  template <int N>
  __device__ void run(std::int64_t first) const {
    int2 more[N];
    float4 sum[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      more[i] = load(addend + first + i * kThreads);
      sum[i] = load(gradient + first + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&more[i].x));
      const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&more[i].y));
      store(gradient + first + i * kThreads,
            make_float4(sum[i].x + low.x, sum[i].y + low.y, sum[i].z + high.x, sum[i].w + high.y));
    }
  }
};

struct AdamBody {
  Adam o;
  const float4* gradient;
  float4 *parameter, *first_moment, *second_moment;
  __device__ void step(float g, float& p, float& m, float& v) const {
    m = o.beta1 * m + (1.0F - o.beta1) * g;
    v = o.beta2 * v + (1.0F - o.beta2) * g * g;
    const float update = m / o.correction1 / (sqrtf(v / o.correction2) + o.epsilon) + o.decay * p;
    p -= o.rate * update;
  }
  template <int N>
  __device__ void run(std::int64_t first) const {
    float4 g[N], p[N], m[N], v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::int64_t at = first + i * kThreads;
      g[i] = load(gradient + at);
      p[i] = load(parameter + at);
      m[i] = load(first_moment + at);
      v[i] = load(second_moment + at);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::int64_t at = first + i * kThreads;
      step(g[i].x, p[i].x, m[i].x, v[i].x);
      step(g[i].y, p[i].y, m[i].y, v[i].y);
      step(g[i].z, p[i].z, m[i].z, v[i].z);
      step(g[i].w, p[i].w, m[i].w, v[i].w);
      store(parameter + at, p[i]);
      store(first_moment + at, m[i]);
      store(second_moment + at, v[i]);
    }
  }
};

__global__ void __launch_bounds__(kThreads) amax_kernel(const Bf16x8* x, std::int64_t vectors, float* largest) {
  __shared__ float scratch[kThreads / 32];
  constexpr int kLoads = 8;
  __nv_bfloat162 most = __float2bfloat162_rn(0.0F);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * kLoads;
  for (std::int64_t at = blockIdx.x * std::int64_t{kThreads * kLoads} + threadIdx.x; at < vectors; at += step) {
    Bf16x8 value[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) value[i] = load(x + min(at + i * kThreads, vectors - 1));
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
#pragma unroll
      for (const __nv_bfloat162& pair : value[i].pair) most = __hmax2(most, __habs2(pair));
  }
  const float2 both = __bfloat1622float2(most);
  const float block = group_reduce<kThreads>(fmaxf(both.x, both.y), scratch, Max{});
  // Nonnegative floats have the same order as their bits.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(block));
}

// ---- Kernels by row: `Group` neighbouring threads share a row and hold Vectors vectors of it each, for Rows rows at a
// time. A thread takes several narrow rows, so that as many bytes are in flight.

template <int Group, int Vectors, int Rows>
struct RowLayout {
  static constexpr int kGroup = Group, kVectors = Vectors, kRows = Rows;
};

// Calls `launch` with the layout of the smallest group that covers `vectors`.
template <typename Launch>
void with_layout(std::int64_t vectors, Launch launch) {
  if (vectors <= 16) {
    launch(RowLayout<16, 1, 4>{});
  } else if (vectors <= 32) {
    launch(RowLayout<16, 2, 2>{});
  } else if (vectors <= 64) {
    launch(RowLayout<16, 4, 1>{});
  } else if (vectors <= 128) {
    launch(RowLayout<32, 4, 1>{});
  } else if (vectors <= 192) {
    launch(RowLayout<64, 3, 1>{});
  } else if (vectors <= 256) {
    launch(RowLayout<64, 4, 1>{});
  } else if (vectors <= 512) {
    launch(RowLayout<128, 4, 1>{});
  } else if (vectors <= 640) {
    launch(RowLayout<320, 2, 1>{});
  } else if (vectors <= 1024) {
    launch(RowLayout<256, 4, 1>{});
  } else {
    launch(RowLayout<512, 4, 1>{});
  }
}

template <typename Layout>
__global__ void __launch_bounds__(512)
    norm_forward_kernel(const Bf16x8* x, const Bf16x8* gamma, Bf16x8* y, float* scale, std::int64_t rows, int vectors,
                        float inverse_width) {
  constexpr int kGroup = Layout::kGroup, kVectors = Layout::kVectors, kRows = Layout::kRows;
  __shared__ float scratch[kRows][32];
  const int groups = blockDim.x / kGroup, lane = threadIdx.x % kGroup;
  const std::int64_t first = blockIdx.x * std::int64_t{groups * kRows} + threadIdx.x / kGroup;
  const auto holds = [&](int r, int i) { return first + r * groups < rows && lane + i * kGroup < vectors; };
  Bf16x8 value[kRows][kVectors];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (holds(r, i)) value[r][i] = load(x + (first + r * groups) * vectors + lane + i * kGroup);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (holds(r, i)) {
        float v[8];
        unpack(value[r][i], v);
#pragma unroll
        for (const float each : v) squares += each * each;
      }
    const float factor = rsqrtf(group_reduce<kGroup>(squares, scratch[r], Sum{}) * inverse_width + kNormEpsilon);
    if (lane == 0 && holds(r, 0)) scale[first + r * groups] = factor;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (holds(r, i)) {
        float v[8], g[8];
        unpack(value[r][i], v);
        unpack(gamma[lane + i * kGroup], g);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] *= factor * g[j];
        store(y + (first + r * groups) * vectors + lane + i * kGroup, pack(v));
      }
  }
}

// Threads of a block that fills an SM.
template <typename Layout>
constexpr int kNormThreads = Layout::kGroup == 320 ? 640 : 512;

// One block per SM. Each group iterates over rows, keeps its part of dgamma in registers, and loads the next rows
// before it reduces the current ones.
template <typename Layout>
__global__ void __launch_bounds__(kNormThreads<Layout>, 1)
    norm_backward_kernel(const Bf16x8* x, const Bf16x8* gamma, const float* scale, const Bf16x8* dy, Bf16x8* dx,
                         float* partial, std::int64_t rows, int vectors, float inverse_width) {
  constexpr int kGroup = Layout::kGroup, kVectors = Layout::kVectors, kRows = Layout::kRows;
  constexpr int kBlock = kNormThreads<Layout>, kGroups = kBlock / kGroup;
  constexpr int kGroupsInWarp = kGroup < 32 ? 32 / kGroup : 1;
  __shared__ float scratch[2][kRows][32];  // used alternately
  __shared__ float sums[kGroups > 1 ? kBlock * 8 : 1];
  const int lane = threadIdx.x % kGroup, group = threadIdx.x / kGroup;
  const std::int64_t step = std::int64_t{gridDim.x} * kGroups * kRows;
  float dgamma[kVectors][8] = {};
  Bf16x8 next_x[kRows][kVectors], next_dy[kRows][kVectors];
  float next_factor[kRows];
  const auto fetch = [&](std::int64_t row) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      next_factor[r] = row + r * kGroups < rows ? scale[row + r * kGroups] : 0.0F;
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        if (row + r * kGroups < rows && lane + i * kGroup < vectors) {
          next_x[r][i] = load(x + (row + r * kGroups) * vectors + lane + i * kGroup);
          next_dy[r][i] = load(dy + (row + r * kGroups) * vectors + lane + i * kGroup);
        }
    }
  };
  std::int64_t row = std::int64_t{blockIdx.x} * kGroups * kRows + group;
  fetch(row);
  // All groups of a warp must take part in each reduction.
  for (int turn = 0; row - group % kGroupsInWarp < rows; row += step, turn ^= 1) {
    Bf16x8 own_x[kRows][kVectors], own_dy[kRows][kVectors];
    float factor[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      factor[r] = next_factor[r];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        own_x[r][i] = next_x[r][i];
        own_dy[r][i] = next_dy[r][i];
      }
    }
    fetch(row + step);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool active = row + r * kGroups < rows;
      float dot = 0.0F;
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        if (active && lane + i * kGroup < vectors) {
          float v[8], d[8], g[8];
          unpack(own_x[r][i], v);
          unpack(own_dy[r][i], d);
          unpack(gamma[lane + i * kGroup], g);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float product = d[j] * v[j];
            dgamma[i][j] += product * factor[r];
            dot += product * g[j];
          }
        }
      const float mean = group_reduce<kGroup>(dot, scratch[turn][r], Sum{}) * inverse_width * factor[r] * factor[r];
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        if (active && lane + i * kGroup < vectors) {
          float v[8], d[8], g[8];
          unpack(own_x[r][i], v);
          unpack(own_dy[r][i], d);
          unpack(gamma[lane + i * kGroup], g);
#pragma unroll
          for (int j = 0; j < 8; ++j) d[j] = factor[r] * (d[j] * g[j] - v[j] * mean);
          store(dx + (row + r * kGroups) * vectors + lane + i * kGroup, pack(d));
        }
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (kGroups > 1) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j * kBlock + threadIdx.x] = dgamma[i][j];
      __syncthreads();
      for (int at = threadIdx.x; at < 8 * kGroup; at += kBlock) {
        const int j = at / kGroup, place = at % kGroup;
        float sum = 0.0F;
#pragma unroll
        for (int other = 0; other < kGroups; ++other) sum += sums[j * kBlock + other * kGroup + place];
        if (place + i * kGroup < vectors)
          partial[(std::int64_t{blockIdx.x} * vectors + place + i * kGroup) * 8 + j] = sum;
      }
    } else if (lane + i * kGroup < vectors) {
      float4* to = reinterpret_cast<float4*>(partial) + (std::int64_t{blockIdx.x} * vectors + lane + i * kGroup) * 2;
      to[0] = make_float4(dgamma[i][0], dgamma[i][1], dgamma[i][2], dgamma[i][3]);
      to[1] = make_float4(dgamma[i][4], dgamma[i][5], dgamma[i][6], dgamma[i][7]);
    }
  }
}

// A block sums 32 columns, with 8 threads per column.
__global__ void __launch_bounds__(256) sum_partials(const float* partial, float* sums, std::int64_t width, int rows) {
  __shared__ float parts[8][32];
  const std::int64_t column = blockIdx.x * 32 + threadIdx.x % 32;
  const int part = threadIdx.x / 32;
  float sum = 0.0F;
  if (column < width)
    for (int row = part; row < rows; row += 8) sum += partial[row * width + column];
  parts[part][threadIdx.x % 32] = sum;
  __syncthreads();
  if (part != 0 || column >= width) return;
  for (int i = 1; i < 8; ++i) sum += parts[i][threadIdx.x % 32];
  sums[column] = sum;
}

__device__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

constexpr int kVectors = 4;  // a thread, of the smallest group that covers a row

template <int kGroup>
__global__ void __launch_bounds__(512)
    swiglu_forward_kernel(const Bf16x8* x, const float* probability, Bf16x8* y, std::int64_t rows, int vectors) {
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / kGroup} + threadIdx.x / kGroup;
  if (row >= rows) return;
  const int lane = threadIdx.x % kGroup;
  const float p = probability[row];
  const Bf16x8 *gates = x + 2 * row * vectors, *ups = gates + vectors;
  Bf16x8 gate[kVectors], up[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (lane + i * kGroup < vectors) {
      gate[i] = load(gates + lane + i * kGroup);
      up[i] = load(ups + lane + i * kGroup);
    }
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (lane + i * kGroup < vectors) {
      float g[8], u[8];
      unpack(gate[i], g);
      unpack(up[i], u);
#pragma unroll
      for (int j = 0; j < 8; ++j) u[j] *= p * g[j] * sigmoid(g[j]);
      store(y + row * vectors + lane + i * kGroup, pack(u));
    }
}

template <int kGroup>
__global__ void __launch_bounds__(512)
    swiglu_backward_kernel(const Bf16x8* x, const float* probability, const Bf16x8* dy, Bf16x8* dx, float* dprobability,
                           std::int64_t rows, int vectors) {
  __shared__ float scratch[32];
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / kGroup} + threadIdx.x / kGroup;
  const bool active = row < rows;
  const int lane = threadIdx.x % kGroup;
  const float p = active ? probability[row] : 0.0F;
  const Bf16x8 *gates = x + 2 * row * vectors, *ups = gates + vectors;
  Bf16x8 *d_gates = dx + 2 * row * vectors, *d_ups = d_gates + vectors;
  Bf16x8 gate[kVectors], up[kVectors], gradient[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (active && lane + i * kGroup < vectors) {
      gate[i] = load(gates + lane + i * kGroup);
      up[i] = load(ups + lane + i * kGroup);
      gradient[i] = load(dy + row * vectors + lane + i * kGroup);
    }
  float dot = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (active && lane + i * kGroup < vectors) {
      float g[8], u[8], d[8];
      unpack(gate[i], g);
      unpack(up[i], u);
      unpack(gradient[i], d);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float s = sigmoid(g[j]), silu = g[j] * s;
        dot += d[j] * silu * u[j];
        d[j] *= p;
        g[j] = d[j] * u[j] * (s + silu * (1.0F - s));
        d[j] *= silu;
      }
      store(d_gates + lane + i * kGroup, pack(g));
      store(d_ups + lane + i * kGroup, pack(d));
    }
  dot = group_reduce<kGroup>(dot, scratch, Sum{});
  if (active && lane == 0) dprobability[row] = dot;
}

// ---- Rotation: a thread keeps the table entries of its position in a head, and rotates it in every kRopeHeads-th
// head.

constexpr int kRopeThreads = 128, kRopeHeads = 4;

__global__ void __launch_bounds__(kRopeThreads)
    rope_kernel(const Bf16x8* x, const float4* cosine, const float4* sine, Bf16x8* y, std::int64_t tokens, int heads,
                int half, int step) {
  const int place = threadIdx.x % half, first_head = threadIdx.x / half % step;
  const std::int64_t token = blockIdx.x * std::int64_t{kRopeThreads / (half * step)} + threadIdx.x / (half * step);
  if (token >= tokens) return;
  float c[8], s[8];
  *reinterpret_cast<float4*>(c) = cosine[(token * half + place) * 2];
  *reinterpret_cast<float4*>(c + 4) = cosine[(token * half + place) * 2 + 1];
  *reinterpret_cast<float4*>(s) = sine[(token * half + place) * 2];
  *reinterpret_cast<float4*>(s + 4) = sine[(token * half + place) * 2 + 1];
  for (int head = first_head; head < heads; head += step * kRopeHeads) {
    Bf16x8 first[kRopeHeads], second[kRopeHeads];
    const auto at = [&](int i) { return (token * heads + head + i * step) * 2 * half + place; };
#pragma unroll
    for (int i = 0; i < kRopeHeads; ++i)
      if (head + i * step < heads) {
        first[i] = load(x + at(i));
        second[i] = load(x + at(i) + half);
      }
#pragma unroll
    for (int i = 0; i < kRopeHeads; ++i)
      if (head + i * step < heads) {
        float a[8], b[8];
        unpack(first[i], a);
        unpack(second[i], b);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float rotated = a[j] * c[j] - b[j] * s[j];
          b[j] = b[j] * c[j] + a[j] * s[j];
          a[j] = rotated;
        }
        store(y + at(i), pack(a));
        store(y + at(i) + half, pack(b));
      }
  }
}

// ---- Token permutation: one block per token, so that its row is read (or written) once.

constexpr int kPermuteThreads = 128;

__global__ void __launch_bounds__(kPermuteThreads)
    permute_kernel(const Bf16x8* x, const int* map, Bf16x8* y, int top_k, int vectors) {
  const std::int64_t token = blockIdx.x;
  constexpr int kLoads = 2;
  for (int at = threadIdx.x; at < vectors; at += kPermuteThreads * kLoads) {
    Bf16x8 value[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (at + i * kPermuteThreads < vectors) value[i] = load(x + token * vectors + at + i * kPermuteThreads);
    for (int k = 0; k < top_k; ++k) {
      const std::int64_t row = map[token * top_k + k];
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        if (at + i * kPermuteThreads < vectors) store(y + row * vectors + at + i * kPermuteThreads, value[i]);
    }
  }
}

__global__ void __launch_bounds__(kPermuteThreads)
    unpermute_kernel(const Bf16x8* x, const int* map, const float* probability, Bf16x8* y, int top_k, int vectors) {
  const std::int64_t token = blockIdx.x;
  constexpr int kRows = 4;
  for (int at = threadIdx.x; at < vectors; at += kPermuteThreads) {
    float sum[8] = {};
    for (int k = 0; k < top_k; k += kRows) {
      Bf16x8 value[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (k + i < top_k) value[i] = load(x + std::int64_t{map[token * top_k + k + i]} * vectors + at);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (k + i < top_k) {
          float v[8];
          unpack(value[i], v);
          const float p = probability[token * top_k + k + i];
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[j] += p * v[j];
        }
    }
    store(y + token * vectors + at, pack(sum));
  }
}

// ---- Router: eight logits per lane, and 8, 16 or 32 lanes per token. Each lane sorts its logits and offers the
// largest that remains. The largest offer of the token is chosen, top_k times.

constexpr int kLaneLogits = 8, kMostTopK = 8;

__device__ void order(float& a, float& b) {
  const float larger = fmaxf(a, b);
  b = fminf(a, b);
  a = larger;
}

// Batcher's odd-even merge sort.
__device__ void sort_descending(float (&x)[kLaneLogits]) {
  constexpr int kPairs[][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 2}, {5, 6},
                               {0, 4}, {1, 5}, {2, 6}, {3, 7}, {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
  for (const auto& pair : kPairs) order(x[pair[0]], x[pair[1]]);
}

// Chooses the top_k logits of a token if some are equal: the lowest lane comes first.
template <int Lanes>
__device__ void choose_one_by_one(const float (&value)[kLaneLogits], int top_k, bool (&mine)[kLaneLogits]) {
  const unsigned lane = threadIdx.x % 32, first = lane / Lanes * Lanes;
  float left[kLaneLogits];
#pragma unroll
  for (int i = 0; i < kLaneLogits; ++i) left[i] = value[i];
  sort_descending(left);
  float least = 0.0F;  // this lane's smallest offer
  int given = 0;
  for (int k = 0; k < top_k; ++k) {
    float most = left[0];
#pragma unroll
    for (int offset = Lanes / 2; offset > 0; offset /= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, offset));
    const unsigned owners = __ballot_sync(0xffffffffU, left[0] == most) >> first;
    if (lane - first != static_cast<unsigned>(__ffs(static_cast<int>(owners)) - 1)) continue;
    least = most;
    ++given;
#pragma unroll
    for (int i = 0; i + 1 < kLaneLogits; ++i) left[i] = left[i + 1];
    left[kLaneLogits - 1] = -INFINITY;
  }
  int equals = given;
#pragma unroll
  for (const float each : value) equals -= given > 0 && each > least ? 1 : 0;
#pragma unroll
  for (int i = 0; i < kLaneLogits; ++i)
    mine[i] = given > 0 && (value[i] > least || (value[i] == least && equals-- > 0));
}

// Sets one byte per logit.
template <typename Chosen>
__device__ void set_flags(std::uint32_t (&flags)[2], Chosen chosen) {
  flags[0] = flags[1] = 0;
#pragma unroll
  for (int i = 0; i < kLaneLogits; ++i) flags[i / 4] |= chosen(i) ? 1U << (8 * (i % 4)) : 0U;
}

template <int Lanes>
__global__ void __launch_bounds__(kThreads, 5)
    route_kernel(const float4* logits, float4* probability, std::uint32_t* chosen, std::int64_t tokens, int top_k) {
  constexpr unsigned kAll = 0xffffffffU, kTokens = 32 / Lanes;  // of a warp
  const int lane = threadIdx.x % Lanes;
  const std::int64_t token = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) / Lanes;
  // Warps past the end repeat the last token.
  const std::int64_t read = min(token, tokens - 1) * 2 * Lanes + lane;
  const float4 low = __ldcs(logits + read), high = __ldcs(logits + read + Lanes);
  float value[kLaneLogits] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, left[kLaneLogits];
#pragma unroll
  for (int i = 0; i < kLaneLogits; ++i) left[i] = value[i];
  sort_descending(left);
  float largest = 0.0F, last = 0.0F;
#pragma unroll
  for (int k = 0; k < kMostTopK; ++k)
    if (k < top_k) {
      last = left[0];
#pragma unroll
      for (int offset = Lanes / 2; offset > 0; offset /= 2) last = fmaxf(last, __shfl_xor_sync(kAll, last, offset));
      if (k == 0) largest = last;
      const bool mine = left[0] == last;
#pragma unroll
      for (int i = 0; i + 1 < kMostTopK - k; ++i) left[i] = mine ? left[i + 1] : left[i];
    }
  std::uint32_t flags[2];
  set_flags(flags, [&](int i) { return value[i] >= last; });
  if (__reduce_add_sync(kAll, __popc(flags[0]) + __popc(flags[1])) != kTokens * static_cast<unsigned>(top_k)) {
    // Rare: equal logits were chosen together, or some equal to the last one remain.
    bool mine[kLaneLogits];
    choose_one_by_one<Lanes>(value, top_k, mine);
    set_flags(flags, [&](int i) { return mine[i]; });
#pragma unroll
    for (int i = 0; i < kLaneLogits; ++i) value[i] = mine[i] ? value[i] : -INFINITY;
  }
  float sum = 0.0F;
#pragma unroll
  for (float& each : value) {
    each = each >= last ? __expf(each - largest) : 0.0F;
    sum += each;
  }
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAll, sum, offset);
  const float inverse = __fdividef(1.0F, sum);
#pragma unroll
  for (float& each : value) each *= inverse;
  if (token >= tokens) return;
  __stcs(probability + read, make_float4(value[0], value[1], value[2], value[3]));
  __stcs(probability + read + Lanes, make_float4(value[4], value[5], value[6], value[7]));
  __stcs(chosen + read, flags[0]);
  __stcs(chosen + read + Lanes, flags[1]);
}

// dlogit = probability * (dprobability - sum of probability * dprobability): zero for experts that were not chosen.
template <int Lanes>
__global__ void __launch_bounds__(kThreads)
    route_backward_kernel(const float4* probability, const float4* d_probability, float4* d_logits,
                          std::int64_t tokens) {
  const int lane = threadIdx.x % Lanes;
  const std::int64_t token = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) / Lanes;
  const std::int64_t read = min(token, tokens - 1) * 2 * Lanes + lane;
  float4 p[2], d[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    p[i] = __ldcs(probability + read + i * Lanes);
    d[i] = __ldcs(d_probability + read + i * Lanes);
  }
  float dot = 0.0F;
#pragma unroll
  for (int i = 0; i < 2; ++i) dot += p[i].x * d[i].x + p[i].y * d[i].y + p[i].z * d[i].z + p[i].w * d[i].w;
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffU, dot, offset);
  if (token >= tokens) return;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    __stcs(d_logits + read + i * Lanes, make_float4(p[i].x * (d[i].x - dot), p[i].y * (d[i].y - dot),
                                                    p[i].z * (d[i].z - dot), p[i].w * (d[i].w - dot)));
}

// Calls `launch` with the lanes per token as a compile-time constant.
template <typename Launch>
void with_lanes(int experts, Launch launch) {
  if (experts == 64) {
    launch(std::integral_constant<int, 8>{});
  } else if (experts == 128) {
    launch(std::integral_constant<int, 16>{});
  } else if (experts == 256) {
    launch(std::integral_constant<int, 32>{});
  } else {
    throw Unsupported("router: 64, 128 or 256 experts");
  }
}

// ---- Quantisation: a block processes 128 x 128 elements, a thread 8 x 8.

constexpr int kTile = 128, kSide = kTile / 8, kBand = 8;

__device__ std::uint32_t to_e4m3(float a, float b, float c, float d) {
  const auto low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const auto high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
}

// Exponent of the power of two that keeps the largest value below 448, the largest E4M3. Quantisation multiplies by
// this power and stores its inverse as the scale.
__device__ int exponent_for(float largest) {
  // The largest value is in [2^e, 2^(e+1)); times 2^(7-e) it is in [128, 256).
  const int e = static_cast<int>(static_cast<std::uint32_t>(__float_as_int(largest)) >> 23) - 127;
  return largest > 0.0F ? min(max(7 - e, -126), 126) : 0;
}
__device__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// Stores eight scales 2^-exponent, as FP32 or as E8M0.
__device__ void store_inverses(float* to, const int (&exponent)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 4)
    *reinterpret_cast<float4*>(to + i) = make_float4(power_of_two(-exponent[i]), power_of_two(-exponent[i + 1]),
                                                     power_of_two(-exponent[i + 2]), power_of_two(-exponent[i + 3]));
}
__device__ void store_inverses(std::uint8_t* to, const int (&exponent)[8]) {
  Bytes8 bytes{};
#pragma unroll
  for (int i = 0; i < 8; ++i) bytes.word[i / 4] |= static_cast<std::uint32_t>(127 - exponent[i]) << (8 * (i % 4));
  *reinterpret_cast<Bytes8*>(to) = bytes;
}

struct TileReader {
  const Bf16x8* x;
  std::int64_t row, vectors, vector;
  __device__ void read(Bf16x8 (&tile)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[i] = load(x + (row + i) * vectors + vector);
  }
};

// Transposes 8 x 8 bytes.
__device__ void transpose(const Bytes8 (&rows)[8], Bytes8 (&columns)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      // 4 x 4 bytes: rows 4 * part .., columns 4 * half ..
      const std::uint32_t a = rows[4 * part].word[half], b = rows[4 * part + 1].word[half];
      const std::uint32_t c = rows[4 * part + 2].word[half], d = rows[4 * part + 3].word[half];
      const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
      const std::uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      columns[4 * half].word[part] = __byte_perm(ab_low, cd_low, 0x5410);
      columns[4 * half + 1].word[part] = __byte_perm(ab_low, cd_low, 0x7632);
      columns[4 * half + 2].word[part] = __byte_perm(ab_high, cd_high, 0x5410);
      columns[4 * half + 3].word[part] = __byte_perm(ab_high, cd_high, 0x7632);
    }
}

template <Recipe recipe>
__global__ void __launch_bounds__(kThreads, 3)
    quantize_kernel(const Bf16x8* x, const float* scale, Quantized out, std::int64_t rows, std::int64_t width) {
  __shared__ float scratch[32];
  __shared__ __nv_bfloat162
      column_largest[recipe == Recipe::kVector || recipe == Recipe::kMxfp8 ? kThreads / 32 : 1][kTile / 2];
  __shared__ alignas(16) Bytes8 transposed[recipe == Recipe::kMxfp8 ? 1 : kTile][kSide];
  const int across = threadIdx.x % kSide, down = threadIdx.x / kSide;
  // Blocks iterate over bands of tiles, along each band's columns. Concurrent blocks thus write long pieces of the rows
  // of both x and its transpose.
  const int tiles_across = static_cast<int>(width / kTile), tiles_down = static_cast<int>(rows / kTile);
  const int band = static_cast<int>(blockIdx.x) / (kBand * tiles_across), within = blockIdx.x % (kBand * tiles_across);
  const int height = min(kBand, tiles_down - band * kBand);
  const int tile_row = band * kBand + within % height, tile_column = within / height;
  const std::int64_t first_row = std::int64_t{tile_row} * kTile, first_column = std::int64_t{tile_column} * kTile;
  const std::int64_t row = first_row + 8 * down, column = first_column + 8 * across;
  Bf16x8 tile[8];
  TileReader{x, row, width / 8, column / 8}.read(tile);

  // Factors that quantise the rows and columns of this thread's 8 x 8 elements.
  float by_row[8], by_column[8];
  if constexpr (recipe == Recipe::kTensor) {
    const float factor = *scale;
#pragma unroll
    for (int i = 0; i < 8; ++i) by_row[i] = factor;
  } else {
    // Pairs in BF16, which is exact: neighbouring rows, and neighbouring columns.
    __nv_bfloat162 of_rows[4], of_columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      __nv_bfloat16 of_row[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        __nv_bfloat162 largest = __float2bfloat162_rn(0.0F);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const __nv_bfloat162 magnitude = __habs2(tile[2 * i + half].pair[j]);
          largest = __hmax2(largest, magnitude);
          of_columns[j] = i + half == 0 ? magnitude : __hmax2(of_columns[j], magnitude);
        }
        of_row[half] = __hmax(largest.x, largest.y);
      }
      of_rows[i] = __halves2bfloat162(of_row[0], of_row[1]);
    }
    if constexpr (recipe == Recipe::kBlock) {
      const __nv_bfloat162 both = __hmax2(__hmax2(of_rows[0], of_rows[1]), __hmax2(of_rows[2], of_rows[3]));
      const float largest = __bfloat162float(__hmax(both.x, both.y));
      const int exponent = exponent_for(group_reduce<kThreads>(largest, scratch, Max{}));
#pragma unroll
      for (int i = 0; i < 8; ++i) by_row[i] = power_of_two(exponent);
      if (threadIdx.x == 0)
        static_cast<float*>(out.row_scale)[std::int64_t{tile_row} * tiles_across + tile_column] =
            power_of_two(-exponent);
    } else {
      // Threads that share a block of a row are neighbours; those of a block of a column are kSide apart, two per warp.
      constexpr int kLanes = recipe == Recipe::kVector ? kSide : 4, kWarps = kLanes / 2;
      const int warp = threadIdx.x / 32;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
          of_rows[i] = __hmax2(of_rows[i], __shfl_xor_sync(0xffffffffU, of_rows[i], offset));
        of_columns[i] = __hmax2(of_columns[i], __shfl_xor_sync(0xffffffffU, of_columns[i], kSide));
        if (down % 2 == 0) column_largest[warp][i * kSide + across] = of_columns[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        of_columns[i] = column_largest[warp / kWarps * kWarps][i * kSide + across];
#pragma unroll
        for (int other = 1; other < kWarps; ++other)
          of_columns[i] = __hmax2(of_columns[i], column_largest[warp / kWarps * kWarps + other][i * kSide + across]);
      }
      int row_exponent[8], column_exponent[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        row_exponent[i] = exponent_for(__bfloat162float(i % 2 == 0 ? of_rows[i / 2].x : of_rows[i / 2].y));
        column_exponent[i] = exponent_for(__bfloat162float(i % 2 == 0 ? of_columns[i / 2].x : of_columns[i / 2].y));
        by_row[i] = power_of_two(row_exponent[i]);
        by_column[i] = power_of_two(column_exponent[i]);
      }
      if constexpr (recipe == Recipe::kVector) {
        if (across == 0) store_inverses(static_cast<float*>(out.row_scale) + tile_column * rows + row, row_exponent);
        if (down == 0)
          store_inverses(static_cast<float*>(out.column_scale) + tile_row * width + column, column_exponent);
      } else {
        if (across % kLanes == 0) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            static_cast<std::uint8_t*>(out.row_scale)[(row + i) * (width / 32) + column / 32] =
                static_cast<std::uint8_t>(127 - row_exponent[i]);
        }
        if (down % kLanes == 0)
          store_inverses(static_cast<std::uint8_t*>(out.column_scale) + row / 32 * width + column, column_exponent);
      }
    }
  }

  Bytes8 bytes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float v[8];
    unpack(tile[i], v);
    const float f = by_row[i];
    bytes[i].word[0] = to_e4m3(v[0] * f, v[1] * f, v[2] * f, v[3] * f);
    bytes[i].word[1] = to_e4m3(v[4] * f, v[5] * f, v[6] * f, v[7] * f);
    store(reinterpret_cast<Bytes8*>(out.by_row + (row + i) * width + column), bytes[i]);
    if constexpr (recipe == Recipe::kVector || recipe == Recipe::kMxfp8) {
      const auto& c = by_column;
      bytes[i].word[0] = to_e4m3(v[0] * c[0], v[1] * c[1], v[2] * c[2], v[3] * c[3]);
      bytes[i].word[1] = to_e4m3(v[4] * c[4], v[5] * c[5], v[6] * c[6], v[7] * c[7]);
    }
    if constexpr (recipe == Recipe::kMxfp8)
      store(reinterpret_cast<Bytes8*>(out.by_column + (row + i) * width + column), bytes[i]);
  }
  if constexpr (recipe != Recipe::kMxfp8) {
    // Swizzles the chunks of a transposed row by exclusive or, which avoids bank conflicts on both sides.
    Bytes8 columns[8];
    transpose(bytes, columns);
#pragma unroll
    for (int j = 0; j < 8; ++j) transposed[8 * across + j][down ^ across] = columns[j];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile * kSide / 2 / kThreads; ++i) {
      const int pair = threadIdx.x % (kSide / 2), line = threadIdx.x / (kSide / 2) + i * kThreads / (kSide / 2);
      const int swap = line / 8;
      const uint4 raw = *reinterpret_cast<const uint4*>(&transposed[line][2 * (pair ^ swap / 2)]);
      const uint4 ordered_pair = swap % 2 == 0 ? raw : make_uint4(raw.z, raw.w, raw.x, raw.y);
      store(reinterpret_cast<uint4*>(out.by_column + (first_column + line) * rows + first_row) + pair, ordered_pair);
    }
  }
}

template <typename T>
const Bf16x8* vectors_of(const T* data) {
  return reinterpret_cast<const Bf16x8*>(data);
}
Bf16x8* vectors_of(Bf16* data) { return reinterpret_cast<Bf16x8*>(data); }

constexpr int block_of(int group) { return group < 256 ? 256 : group; }

}  // namespace

void copy(const void* from, void* to, std::int64_t bytes, cudaStream_t stream) {
  launch_vectors<1>(bytes / 16, CopyBody{static_cast<const int4*>(from), static_cast<int4*>(to)}, stream);
}

void fill_zero(float* data, std::int64_t elements, cudaStream_t stream) {
  launch_vectors<kUnroll>(elements / 4, FillBody{reinterpret_cast<float4*>(data)}, stream);
}

void add(const Bf16* a, const Bf16* b, Bf16* sum, std::int64_t elements, cudaStream_t stream) {
  launch_vectors<2>(elements / 8, AddBody{vectors_of(a), vectors_of(b), vectors_of(sum)}, stream);
}

void accumulate(const Bf16* addend, float* gradient, std::int64_t elements, cudaStream_t stream) {
  launch_vectors<kUnroll>(
      elements / 4, AccumulateBody{reinterpret_cast<const int2*>(addend), reinterpret_cast<float4*>(gradient)}, stream);
}

void norm_forward(const Bf16* x, const Bf16* gamma, Bf16* y, float* scale, std::int64_t rows, std::int64_t width,
                  cudaStream_t stream) {
  with_layout(width / 8, [&](auto layout) {
    using Layout = decltype(layout);
    constexpr int kBlock = block_of(Layout::kGroup);
    norm_forward_kernel<Layout><<<blocks_for(rows, kBlock / Layout::kGroup * Layout::kRows), kBlock, 0, stream>>>(
        vectors_of(x), vectors_of(gamma), vectors_of(y), scale, rows, static_cast<int>(width / 8),
        1.0F / static_cast<float>(width));
  });
  check(cudaGetLastError(), "norm forward");
}

std::int64_t norm_partials(int sms) { return sms; }

void norm_backward(const Bf16* x, const Bf16* gamma, const float* scale, const Bf16* dy, Bf16* dx, float* dgamma,
                   float* partial, std::int64_t rows, std::int64_t width, int sms, cudaStream_t stream) {
  const int blocks = static_cast<int>(norm_partials(sms));
  with_layout(width / 8, [&](auto layout) {
    norm_backward_kernel<decltype(layout)><<<blocks, kNormThreads<decltype(layout)>, 0, stream>>>(
        vectors_of(x), vectors_of(gamma), scale, vectors_of(dy), vectors_of(dx), partial, rows,
        static_cast<int>(width / 8), 1.0F / static_cast<float>(width));
  });
  sum_partials<<<blocks_for(width, 32), 256, 0, stream>>>(partial, dgamma, width, blocks);
  check(cudaGetLastError(), "norm backward");
}

void swiglu_forward(const Bf16* x, const float* probability, Bf16* y, std::int64_t rows, std::int64_t width,
                    cudaStream_t stream) {
  with_layout(width / 8, [&](auto layout) {
    constexpr int kGroup = decltype(layout)::kGroup, kBlock = block_of(kGroup);
    swiglu_forward_kernel<kGroup><<<blocks_for(rows, kBlock / kGroup), kBlock, 0, stream>>>(
        vectors_of(x), probability, vectors_of(y), rows, static_cast<int>(width / 8));
  });
  check(cudaGetLastError(), "SwiGLU forward");
}

void swiglu_backward(const Bf16* x, const float* probability, const Bf16* dy, Bf16* dx, float* dprobability,
                     std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  with_layout(width / 8, [&](auto layout) {
    constexpr int kGroup = decltype(layout)::kGroup, kBlock = block_of(kGroup);
    swiglu_backward_kernel<kGroup><<<blocks_for(rows, kBlock / kGroup), kBlock, 0, stream>>>(
        vectors_of(x), probability, vectors_of(dy), vectors_of(dx), dprobability, rows, static_cast<int>(width / 8));
  });
  check(cudaGetLastError(), "SwiGLU backward");
}

void rope(const Bf16* x, const float* cosine, const float* sine, Bf16* y, std::int64_t tokens, std::int64_t heads,
          std::int64_t head_dim, cudaStream_t stream) {
  // Threads per token: one per position and kRopeHeads heads, a power of two, at most a block.
  const int half = static_cast<int>(head_dim / 16), lanes = kRopeThreads / half;
  int step = 1;
  while (step < lanes && step * kRopeHeads < heads) step *= 2;
  rope_kernel<<<blocks_for(tokens, kRopeThreads / (half * step)), kRopeThreads, 0, stream>>>(
      vectors_of(x), reinterpret_cast<const float4*>(cosine), reinterpret_cast<const float4*>(sine), vectors_of(y),
      tokens, static_cast<int>(heads), half, step);
  check(cudaGetLastError(), "RoPE");
}

void permute(const Bf16* x, const int* map, Bf16* y, std::int64_t tokens, int top_k, std::int64_t width,
             cudaStream_t stream) {
  permute_kernel<<<static_cast<unsigned>(tokens), kPermuteThreads, 0, stream>>>(vectors_of(x), map, vectors_of(y),
                                                                                top_k, static_cast<int>(width / 8));
  check(cudaGetLastError(), "permute");
}

void unpermute(const Bf16* x, const int* map, const float* probability, Bf16* y, std::int64_t tokens, int top_k,
               std::int64_t width, cudaStream_t stream) {
  unpermute_kernel<<<static_cast<unsigned>(tokens), kPermuteThreads, 0, stream>>>(
      vectors_of(x), map, probability, vectors_of(y), top_k, static_cast<int>(width / 8));
  check(cudaGetLastError(), "unpermute");
}

void route(const float* logits, float* probability, std::uint8_t* chosen, std::int64_t tokens, int experts, int top_k,
           cudaStream_t stream) {
  if (top_k > kMostTopK) throw Unsupported("router: at most 8 experts a token");
  with_lanes(experts, [&](auto lanes) {
    route_kernel<lanes()><<<blocks_for(tokens, kThreads / lanes()), kThreads, 0, stream>>>(
        reinterpret_cast<const float4*>(logits), reinterpret_cast<float4*>(probability),
        reinterpret_cast<std::uint32_t*>(chosen), tokens, top_k);
  });
  check(cudaGetLastError(), "router");
}

void route_backward(const float* probability, const float* d_probability, float* d_logits, std::int64_t tokens,
                    int experts, cudaStream_t stream) {
  with_lanes(experts, [&](auto lanes) {
    route_backward_kernel<lanes()><<<blocks_for(tokens, kThreads / lanes()), kThreads, 0, stream>>>(
        reinterpret_cast<const float4*>(probability), reinterpret_cast<const float4*>(d_probability),
        reinterpret_cast<float4*>(d_logits), tokens);
  });
  check(cudaGetLastError(), "router backward");
}

void amax(const Bf16* x, std::int64_t elements, float* largest, cudaStream_t stream) {
  constexpr unsigned kMostBlocks = 1024;  // one atomic per block: enough blocks to fill a device, few enough atomics
  const unsigned blocks = std::min(kMostBlocks, blocks_for(elements / 8, kThreads * 8));
  amax_kernel<<<blocks, kThreads, 0, stream>>>(vectors_of(x), elements / 8, largest);
  check(cudaGetLastError(), "amax");
}

void quantize(Recipe recipe, const Bf16* x, const float* scale, const Quantized& out, std::int64_t rows,
              std::int64_t width, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(width / kTile * (rows / kTile));
  const Bf16x8* from = vectors_of(x);
  switch (recipe) {
    case Recipe::kTensor:
      quantize_kernel<Recipe::kTensor><<<grid, kThreads, 0, stream>>>(from, scale, out, rows, width);
      break;
    case Recipe::kBlock:
      quantize_kernel<Recipe::kBlock><<<grid, kThreads, 0, stream>>>(from, scale, out, rows, width);
      break;
    case Recipe::kVector:
      quantize_kernel<Recipe::kVector><<<grid, kThreads, 0, stream>>>(from, scale, out, rows, width);
      break;
    case Recipe::kMxfp8:
      quantize_kernel<Recipe::kMxfp8><<<grid, kThreads, 0, stream>>>(from, scale, out, rows, width);
      break;
  }
  check(cudaGetLastError(), "quantize");
}

void adam(const Adam& options, const float* gradient, float* parameter, float* first, float* second,
          std::int64_t elements, cudaStream_t stream) {
  launch_vectors<1>(elements / 4,
                    AdamBody{options, reinterpret_cast<const float4*>(gradient), reinterpret_cast<float4*>(parameter),
                             reinterpret_cast<float4*>(first), reinterpret_cast<float4*>(second)},
                    stream);
}

}  // namespace foldwise::kernels

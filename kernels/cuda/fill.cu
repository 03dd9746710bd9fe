#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/device.h"

namespace foldwise::kernels {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): hashes a counter to 64 random bits.
__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Box-Muller transform.
__device__ float2 normals(std::uint64_t seed, std::int64_t index) {
  const std::uint64_t bits = mix(seed * 0x632be59bd9b4e019ULL + static_cast<std::uint64_t>(index));
  const float u = (static_cast<float>(bits & 0xffffff) + 1.0F) * 0x1p-24F;
  const float v = static_cast<float>((bits >> 32) & 0xffffff) * 0x1p-24F;
  const float radius = sqrtf(-2.0F * __logf(u));
  float sine = 0.0F, cosine = 0.0F;
  __sincosf(6.2831853F * v, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

template <typename T>
__global__ void fill_pairs(T* data, std::int64_t pairs, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < pairs;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const float2 pair = normals(seed, i);
    data[2 * i] = T(pair.x);
    data[2 * i + 1] = T(pair.y);
  }
}

// Two E2M1 numbers per byte, each uniform over the sixteen codes.
__global__ void fill_bytes(std::uint8_t* data, std::int64_t bytes, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < bytes;
       i += std::int64_t{gridDim.x} * blockDim.x)
    data[i] = static_cast<std::uint8_t>(mix(seed + static_cast<std::uint64_t>(i)));
}

__global__ void fill_constant(float* data, float value, std::int64_t elements) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < elements;
       i += std::int64_t{gridDim.x} * blockDim.x)
    data[i] = value;
}

constexpr std::int64_t kRamp = 251;

__global__ void ramp(float* data, float factor, std::int64_t first, std::int64_t elements) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < elements;
       i += std::int64_t{gridDim.x} * blockDim.x)
    data[i] = factor * static_cast<float>((first + i) % kRamp);
}

__global__ void count_ramp_errors(const float* data, float factor, std::int64_t first, std::int64_t elements,
                                  unsigned long long* errors) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < elements;
       i += std::int64_t{gridDim.x} * blockDim.x)
    if (data[i] != factor * static_cast<float>((first + i) % kRamp)) atomicAdd(errors, 1ULL);
}

constexpr int kBlocks = 2048, kThreads = 256;

}  // namespace

void fill_normal(void* data, Type type, std::int64_t elements, std::uint64_t seed, cudaStream_t stream) {
  const std::int64_t pairs = elements / 2;
  switch (type) {
    case Type::kBf16:
      fill_pairs<<<kBlocks, kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(data), pairs, seed);
      break;
    case Type::kFp8E4m3:
      fill_pairs<<<kBlocks, kThreads, 0, stream>>>(static_cast<__nv_fp8_e4m3*>(data), pairs, seed);
      break;
    case Type::kFp8E5m2:
      fill_pairs<<<kBlocks, kThreads, 0, stream>>>(static_cast<__nv_fp8_e5m2*>(data), pairs, seed);
      break;
    case Type::kFp4E2m1:
      fill_bytes<<<kBlocks, kThreads, 0, stream>>>(static_cast<std::uint8_t*>(data), pairs, seed);
      break;
    case Type::kFp32:
      fill_pairs<<<kBlocks, kThreads, 0, stream>>>(static_cast<float*>(data), pairs, seed);
      break;
  }
  check(cudaGetLastError(), "fill");
}

void fill(float* data, float value, std::int64_t elements, cudaStream_t stream) {
  fill_constant<<<kBlocks, kThreads, 0, stream>>>(data, value, elements);
  check(cudaGetLastError(), "fill");
}

void fill_ramp(float* data, float factor, std::int64_t first, std::int64_t elements, cudaStream_t stream) {
  ramp<<<kBlocks, kThreads, 0, stream>>>(data, factor, first, elements);
  check(cudaGetLastError(), "ramp");
}

std::int64_t ramp_errors(const float* data, float factor, std::int64_t first, std::int64_t elements,
                         cudaStream_t stream) {
  const Buffer errors(sizeof(unsigned long long));
  check(cudaMemsetAsync(errors.data(), 0, errors.size(), stream), "errors");
  count_ramp_errors<<<kBlocks, kThreads, 0, stream>>>(data, factor, first, elements, errors.as<unsigned long long>());
  unsigned long long count = 0;
  check(cudaMemcpyAsync(&count, errors.data(), sizeof count, cudaMemcpyDeviceToHost, stream), "errors");
  check(cudaStreamSynchronize(stream), "comparison");
  return static_cast<std::int64_t>(count);
}

}  // namespace foldwise::kernels

#pragma once
#include <cublasLt.h>

#include <string>

#include "kernels/cuda/device.h"

// GEMMs as training executes them, with cuBLASLt.
namespace foldwise::kernels {

enum class Phase { kForward, kDgrad, kWgrad };
[[nodiscard]] const char* name(Phase phase);

/// A row-major m x n product over k. m is the number of tokens in forward and dgrad. wgrad reduces over k tokens and
/// adds its m x n result to an FP32 gradient.
struct Product {
  std::string format;  ///< Name in records: "bf16", "fp8", "fp8_block", "mxfp8", "nvfp4".
  Phase phase = Phase::kForward;
  std::int64_t m = 0, n = 0, k = 0;
};

/// `a` is cuBLAS's first operand (n x k: the weight, in wgrad the input), `b` the second (m x k), `d` the result.
struct ProductTypes {
  Type a = Type::kBf16, b = Type::kBf16, d = Type::kBf16;
};
[[nodiscard]] ProductTypes types_of(const Product& product);
[[nodiscard]] double bytes_of(const Product& product);

void check(cublasStatus_t status, const char* what);

class Blas {
 public:
  Blas();
  operator cublasLtHandle_t() const { return handle_.get(); }
  /// 32 MiB, as PyTorch and TransformerEngine use on Hopper.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
  };
  std::unique_ptr<cublasLtContext, Destroy> handle_;
};

/// A product ready to run: its layouts, and the first algorithm that cuBLASLt's heuristic returns.
class ProductPlan {
 public:
  /// Throws Unsupported if cuBLASLt has no algorithm.
  ProductPlan(const Blas& blas, const Product& product, cudaStream_t stream);
  void run(const void* a, const void* b, void* d, void* workspace, cudaStream_t stream) const;

  /// Value of every block scale. The result is scaled by its square.
  static constexpr float kScale = 0.5F;
  /// ||d - reference|| / ||reference|| after a run in which every element of `d` was `before`.
  [[nodiscard]] double error(const void* a, const void* b, const void* d, double before, cudaStream_t stream) const;

 private:
  template <auto Destroy>
  struct Deleter {
    template <typename T>
    void operator()(T* handle) const {
      Destroy(handle);
    }
  };
  template <typename T, auto Destroy>
  using Owned = std::unique_ptr<T, Deleter<Destroy>>;
  using Layout = Owned<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy>;

  void set_scales(cudaStream_t stream);
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value);

  const Blas& blas_;
  Product product_;
  ProductTypes types_;
  bool a_transposed_, b_transposed_;
  Owned<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy> description_;
  Layout a_, b_, d_;
  Buffer a_scale_, b_scale_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace foldwise::kernels

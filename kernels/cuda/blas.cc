#include "kernels/cuda/blas.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/reference.h"

namespace foldwise::kernels {

const char* name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kDgrad:
      return "dgrad";
    case Phase::kWgrad:
      return "wgrad";
  }
  throw std::logic_error("phase");
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) throw Unsupported(std::string(what) + ": not supported by cuBLASLt");
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": " + cublasLtGetStatusString(status));
}

ProductTypes types_of(const Product& product) {
  const Type d = product.phase == Phase::kWgrad ? Type::kFp32 : Type::kBf16;
  if (product.format == "bf16") return {Type::kBf16, Type::kBf16, d};
  if (product.format == "nvfp4") return {Type::kFp4E2m1, Type::kFp4E2m1, d};
  // Gradients are E5M2 with a scale per tensor, and E4M3 with block scales (TransformerEngine, common/recipe).
  const bool wide_gradient = product.format == "fp8" && product.phase != Phase::kForward;
  return {Type::kFp8E4m3, wide_gradient ? Type::kFp8E5m2 : Type::kFp8E4m3, d};
}

double bytes_of(const Product& product) {
  const ProductTypes types = types_of(product);
  const auto output = static_cast<double>(bytes_of(types.d, product.m * product.n));
  return static_cast<double>(bytes_of(types.a, product.n * product.k) + bytes_of(types.b, product.m * product.k)) +
         (product.phase == Phase::kWgrad ? 2.0 : 1.0) * output;
}

Blas::Blas() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cuBLASLt");
  handle_.reset(handle);
}

namespace {

cudaDataType_t data_type(Type type) {
  switch (type) {
    case Type::kBf16:
      return CUDA_R_16BF;
    case Type::kFp8E4m3:
      return CUDA_R_8F_E4M3;
    case Type::kFp8E5m2:
      return CUDA_R_8F_E5M2;
    case Type::kFp4E2m1:
      return CUDA_R_4F_E2M1;
    case Type::kFp32:
      return CUDA_R_32F;
  }
  throw std::logic_error("type");
}

cublasLtMatrixLayout_t layout(Type type, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, data_type(type), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
        "matrix layout");
  return made;
}

}  // namespace

template <typename T>
void ProductPlan::set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(description_.get(), attribute, &value, sizeof value), "product attribute");
}

// A row-major m x n matrix is column-major n x m for cuBLAS. A linear layer stores its weight as [out, in] and its
// tokens as [token, feature], so forward is TN, dgrad NN and wgrad NT. FP8 and FP4 products are always TN, on
// transposed copies.
ProductPlan::ProductPlan(const Blas& blas, const Product& product, cudaStream_t stream)
    : blas_(blas),
      product_(product),
      types_(types_of(product)),
      a_transposed_(product.format != "bf16" || product.phase == Phase::kForward),
      b_transposed_(product.format == "bf16" && product.phase == Phase::kWgrad) {
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  description_.reset(description);
  set(CUBLASLT_MATMUL_DESC_TRANSA, a_transposed_ ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, b_transposed_ ? CUBLAS_OP_T : CUBLAS_OP_N);
  // TransformerEngine accumulates in the tensor core's registers only in forward with a scale per tensor.
  const std::int8_t fast = product.format == "fp8" && product.phase == Phase::kForward ? 1 : 0;
  if (product.format != "bf16") set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
  set_scales(stream);

  const std::int64_t m = product.m, n = product.n, k = product.k;
  a_.reset(a_transposed_ ? layout(types_.a, k, n) : layout(types_.a, n, k));
  b_.reset(b_transposed_ ? layout(types_.b, m, k) : layout(types_.b, k, m));
  d_.reset(layout(types_.d, n, m));

  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "preference");
  const Owned<cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulPreferenceDestroy> preference(made);
  check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &Blas::kWorkspaceBytes,
                                             sizeof Blas::kWorkspaceBytes),
        "workspace");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(blas_, description_.get(), a_.get(), b_.get(), d_.get(), d_.get(), made, 1,
                                       &found, &count),
        "algorithm");
  if (count == 0) throw Unsupported("no algorithm");
  algorithm_ = found.algo;
}

void ProductPlan::set_scales(cudaStream_t stream) {
  const std::string& format = product_.format;
  if (format == "bf16") return;
  const auto blocks = [](std::int64_t size, std::int64_t block) { return (size + block - 1) / block; };
  // Number of scales, padded to cuBLAS's layout (cuBLAS documentation, "Narrow precision data types usage").
  const std::int64_t k = product_.k;
  cublasLtMatmulMatrixScale_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = a_mode;
  std::int64_t a_scales = 1, b_scales = 1;
  if (format == "fp8_block") {
    // Activations and gradients have a scale per 128 elements of a row, weights one per 128 x 128.
    const bool weight = product_.phase != Phase::kWgrad;
    a_mode = weight ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    b_mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    a_scales =
        weight ? blocks(product_.n, 128) * blocks(blocks(k, 128), 4) * 4 : blocks(product_.n, 4) * 4 * blocks(k, 128);
    b_scales = blocks(product_.m, 4) * 4 * blocks(k, 128);
  } else if (format == "mxfp8" || format == "nvfp4") {
    const std::int64_t block = format == "mxfp8" ? 32 : 16;
    a_mode = format == "mxfp8" ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    b_mode = a_mode;
    a_scales = blocks(product_.n, 128) * 128 * blocks(blocks(k, block), 4) * 4;
    b_scales = blocks(product_.m, 128) * 128 * blocks(blocks(k, block), 4) * 4;
  }
  if (format == "mxfp8" || format == "nvfp4") {
    const int half = format == "mxfp8" ? 126 : 0x30;  // 0.5 in UE8M0 and in UE4M3
    a_scale_ = Buffer(static_cast<std::size_t>(a_scales));
    b_scale_ = Buffer(static_cast<std::size_t>(b_scales));
    kernels::check(cudaMemsetAsync(a_scale_.data(), half, a_scale_.size(), stream), "scales");
    kernels::check(cudaMemsetAsync(b_scale_.data(), half, b_scale_.size(), stream), "scales");
  } else {
    a_scale_ = Buffer(4 * static_cast<std::size_t>(a_scales));
    b_scale_ = Buffer(4 * static_cast<std::size_t>(b_scales));
    fill(a_scale_.as<float>(), kScale, a_scales, stream);
    fill(b_scale_.as<float>(), kScale, b_scales, stream);
  }
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a_mode);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b_mode);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a_scale_.data());
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b_scale_.data());
}

void ProductPlan::run(const void* a, const void* b, void* d, void* workspace, cudaStream_t stream) const {
  const float one = 1.0F, beta = product_.phase == Phase::kWgrad ? 1.0F : 0.0F;
  check(cublasLtMatmul(blas_, description_.get(), &one, a, a_.get(), b, b_.get(), &beta, d, d_.get(), d, d_.get(),
                       &algorithm_, workspace, Blas::kWorkspaceBytes, stream),
        "product");
}

double ProductPlan::error(const void* a, const void* b, const void* d, double before, cudaStream_t stream) const {
  const std::int64_t m = product_.m, n = product_.n, k = product_.k;
  const Operand left = b_transposed_ ? Operand{b, types_.b, 1, m} : Operand{b, types_.b, k, 1};
  const Operand right = a_transposed_ ? Operand{a, types_.a, k, 1} : Operand{a, types_.a, 1, n};
  const double scale = product_.format == "bf16" ? 1.0 : double{kScale} * kScale;
  return gemm_error(left, right, d, types_.d, m, n, k, scale, before, stream);
}

}  // namespace foldwise::kernels

#include "costmodel/ops/expert_kernel.h"

#include "costmodel/check.h"
#include "costmodel/hardware/precision.h"

namespace foldwise::costmodel {
namespace {

// SequentialMLP in megatron/core/transformer/moe/experts.py: two linears per expert, each with its own kernel.
constexpr ExpertKernel kSequentialMlp{
    .products = Grouping::kOneByOne, .weight_products = Grouping::kOneByOne, .mlp_each = true};
// GroupedMLP in the same file: one tensor and one kernel for all experts.
constexpr ExpertKernel kGroupedMlp{.launches = 1, .weight_launches = 1, .one_tensor = true};
// TEGroupedMLP: Transformer Engine has a tensor and a kernel per expert.
constexpr ExpertKernel kTeGroupedMlp{};
// With CUTLASS: a copy of the groups' addresses to the GPU, then the kernel. It is used only for BF16, and not for
// products that add to FP32 (nvte_multi_tensor_gemm in transformer_engine/common/gemm/cublaslt_gemm.cu).
constexpr ExpertKernel kTeCutlassMlp{.products = Grouping::kOneKernel, .launches = 2};
// A kernel over all experts quantises tensors from and for the dispatcher. The products write fc2's input and fc1's
// gradient quantised (transformer_engine/pytorch/ops/fused/grouped_mlp.py, TE 2.17).
constexpr ExpertKernel kTeFusedMlp{
    .launches = 2, .weight_launches = 2, .fuses_activation = true, .row_multiple = 256.0};

// The same with one weight tensor, as in GroupedMLP.
constexpr ExpertKernel kFusedMlp{.launches = 2,
                                 .weight_launches = 2,
                                 .one_tensor = true,
                                 .fuses_activation = true,
                                 .row_multiple = kTeFusedMlp.row_multiple};

}  // namespace

const ExpertKernel& expert_kernel(const LayerOptions& o) {
  const bool te = o.software.transformer_engine;
  switch (o.software.experts) {
    case Experts::kSequential:
      return kSequentialMlp;
    case Experts::kGrouped:
      return te ? kTeGroupedMlp : kGroupedMlp;
    case Experts::kCutlass:
      if (!te) return kGroupedMlp;
      return precision_recipe(o.precision).low_precision() ? kTeGroupedMlp : kTeCutlassMlp;
    case Experts::kFused:
      return te ? kTeFusedMlp : kFusedMlp;
  }
  FW_CHECK(false, "an unknown kernel of experts");
  return kTeGroupedMlp;
}

}  // namespace foldwise::costmodel

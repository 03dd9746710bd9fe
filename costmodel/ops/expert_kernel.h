#pragma once
#include <cstdint>

#include "costmodel/ops/op.h"
#include "costmodel/parallel/options.h"

namespace foldwise::costmodel {

/// How the experts of a rank run. expert_kernel.cc has one value for each Experts. Values apply to two or more experts;
/// one expert needs no grouping.
struct ExpertKernel {
  Grouping products = Grouping::kSideBySide;         ///< Forward, and gradients of inputs.
  Grouping weight_products = Grouping::kSideBySide;  ///< Gradients of weights.
  int launches = 0, weight_launches = 0;             ///< Launches of such a grouped product; 0: two per expert.
  bool mlp_each = false;                             ///< Each expert is a separate MLP, and a copy joins their outputs.
  bool one_tensor = false;        ///< The weights of a linear are one tensor instead of one per expert.
  bool fuses_activation = false;  ///< Activation, biases and quantisation between the linears run inside the products.
  double row_multiple = 0.0;      ///< Rows of an expert are padded to a multiple of this; 0: the recipe's.

  [[nodiscard]] Grouping grouping(std::int64_t experts, bool of_weights = false) const {
    return experts <= 1 ? Grouping::kSideBySide : of_weights ? weight_products : products;
  }
  [[nodiscard]] int launches_of(std::int64_t experts, bool of_weights = false) const {
    const int together = of_weights ? weight_launches : launches;
    return together > 0 ? together : static_cast<int>(2 * experts);
  }
};
[[nodiscard]] const ExpertKernel& expert_kernel(const LayerOptions& options);

}  // namespace foldwise::costmodel

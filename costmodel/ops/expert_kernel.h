#pragma once
#include <cstdint>

#include "costmodel/ops/op.h"
#include "costmodel/parallel/options.h"

namespace foldwise::costmodel {

/// What runs the experts of a rank: one value each, by name in expert_kernel.cc. Members hold of more than one expert:
/// of one there is nothing to group.
struct ExpertKernel {
  Grouping products = Grouping::kSideBySide;         ///< Of forward, and of the gradients of inputs.
  Grouping weight_products = Grouping::kSideBySide;  ///< Of the gradients of weights.
  int launches = 0, weight_launches = 0;             ///< Of such a grouped product; 0: two an expert.
  bool mlp_each = false;          ///< An expert is an MLP of its own, and a copy joins their outputs.
  bool one_tensor = false;        ///< A linear's weights are one tensor, not one an expert.
  bool fuses_activation = false;  ///< Activation, biases and the quantisation between the linears run in the products.
  double row_multiple = 0.0;      ///< Rows of an expert are padded to; 0: to the precision recipe's.

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

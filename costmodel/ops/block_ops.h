#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "costmodel/memory/gradient_buffer.h"
#include "costmodel/model/model.h"
#include "costmodel/ops/op.h"
#include "costmodel/parallel/options.h"

// Builders of op lists. Their arguments are all that they depend on: never PP, VPP or the number of micro-batches.
namespace foldwise::costmodel {

/// Arguments of all builders. It refers to its parts, which must outlive it.
struct BuildContext {
  const ModelSpec& model;
  const LayerOptions& options;
  const Hardware& hardware;  ///< Shapes of groups on the network, and traits of the GPU.
  /// GPUs of the job, which decide whether a layer's group spans NVLink domains. 0: as few as TP and CP need.
  std::int64_t num_gpus = 0;
  bool one_queue = false;  ///< See StepContext::one_queue().

  /// The context for layers with other options in the same run.
  [[nodiscard]] BuildContext with(const LayerOptions& others) const {
    return {model, others, hardware, num_gpus, one_queue};
  }
  /// The layout of a layer's groups in the whole job.
  [[nodiscard]] Layout layout() const {
    return {.tp = options.tp,
            .cp = options.cp,
            .dp = std::max<std::int64_t>(1, num_gpus / (options.tp * options.cp)),
            .ep = options.ep,
            .etp = options.etp};
  }
};

/// Sizes on one rank, in the symbols of docs/formulas.md#symbols.
struct RankShape {
  double attention_tokens = 0;  ///< Ta = s b / CP: rows of column-parallel linears.
  double tokens = 0;            ///< T = Ta / TP with sequence parallelism: rows between the linears.
  double expert_rows = 0;       ///< Te: rows of this rank's experts, with padding for the format.
  double routed_rows = 0;       ///< T k min(1, capacity), or T k capacity if padded: (token, expert) pairs sent.
  std::int64_t local_experts = 0;
};
[[nodiscard]] RankShape rank_shape(const ModelSpec& model, const LayerOptions& options);

/// Standard deviation over mean of the rows that a MoE layer sends to one rank for one micro-batch, if every token of
/// its EP group draws its experts at random. Source: docs/memory.md#imbalance.
[[nodiscard]] double row_spread(const ModelSpec& model, const LayerOptions& options);

/// Norm, mixer and residual add of a layer; empty for kNoMixer.
[[nodiscard]] OpList mixer_ops(const BuildContext& context, const LayerSpec& layer);
/// Norm, dense MLP or MoE, and residual add of a layer; empty for MlpKind::kNone.
[[nodiscard]] OpList mlp_ops(const BuildContext& context, const LayerSpec& layer);
[[nodiscard]] OpList embedding_ops(const BuildContext& context);
/// Final norm, output layer and loss. `depths` head evaluations: 1 + MTP depths on the same stage.
[[nodiscard]] OpList head_ops(const BuildContext& context, std::int64_t depths);
/// Ops that one MTP depth adds around its decoder layers: embedding of the shifted ids, two norms, eh_proj, final norm.
[[nodiscard]] OpList mtp_ops(const BuildContext& context);

/// Parameters of a rank, by how they are sharded and stored.
struct ParameterCount {
  double dense = 0, expert = 0;                      ///< All parameters.
  double quantised_dense = 0, quantised_expert = 0;  ///< Part with low-precision copies.
  double tp_replicated = 0;
  double shared_embedding = 0;  ///< Of a table that other pipeline ranks hold too.
  double embedding = 0;         ///< Embedding and output layer, which use Adam even if Muon has the rest.
  double largest_dense = 0, largest_expert = 0;    ///< Elements of the largest tensor.
  double dense_rounding = 0, expert_rounding = 0;  ///< Bytes that the allocator loses to rounding of whole FP32 copies.
  double padding = 0;                              ///< Additional elements of the gradient buffers.
  double low_precision_padding = 0;                ///< Part of the padding in buffers of low-precision primaries.
  double adapters_dense = 0, adapters_expert = 0;  ///< Part that is LoRA's adapters.
  double dense_tensors = 0, expert_tensors = 0;    ///< Number of parameter tensors.
  double dense_adapter_tensors = 0, expert_adapter_tensors = 0;  ///< Those of adapters among them.
  [[nodiscard]] double total() const { return dense + expert; }
  /// The parameters with gradients and optimizer states; with LoRA only the adapters.
  [[nodiscard]] ParameterCount trained(const LayerOptions& options) const;
  ParameterCount& operator+=(const ParameterCount& other);
  /// The parameters of `times` equal pieces.
  ParameterCount& operator*=(double times);
  bool operator==(const ParameterCount&) const = default;
};
[[nodiscard]] ParameterCount parameters(const OpList& list);

/// DistributedDataParallel keeps separate buffers in a chunk for dense and expert parameters, and in each case for
/// quantised and other ones.
inline constexpr std::size_t kGradientBuffers = 4;
[[nodiscard]] constexpr std::size_t gradient_buffer(bool expert, bool quantised) {
  return (expert ? 1 : 0) + (quantised ? 2 : 0);
}

/// Tensors that a piece of the model adds to these buffers, in their order: last parameter first.
struct BufferTensors {
  struct Run {
    std::size_t buffer = 0;
    TensorRun tensors;
  };
  std::vector<Run> runs;
  std::array<std::int64_t, kGradientBuffers> aligned{};  ///< Elements in each buffer.
  std::uint64_t bits = 0;                                ///< Bitwise or of the aligned sizes of all tensors.
  /// Moves quantised tensors into the buffers of the others, for BF16 primaries.
  void join_quantised();
  [[nodiscard]] std::int64_t tensors() const;
  BufferTensors& operator+=(const BufferTensors& other);  ///< `other` follows; it has the earlier parameters.
};
/// Takes parameters in the order in which forward uses them. Megatron's order within a layer differs, which can move
/// the end of a bucket by one tensor.
[[nodiscard]] BufferTensors buffer_tensors(const BuildContext& context, const OpList& list);
/// Numbers of parameters of the whole model, from its unsharded op lists.
struct ParameterTotals {
  std::int64_t main_total = 0, main_active = 0;  ///< Without MTP; active parameters count top-k of the experts.
  std::int64_t total_with_mtp = 0, active_with_mtp = 0;
  std::int64_t embedding_and_output = 0;
};
[[nodiscard]] ParameterTotals parameter_totals(const ModelSpec& model);

}  // namespace foldwise::costmodel

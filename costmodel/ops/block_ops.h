#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "costmodel/memory/gradient_buffer.h"
#include "costmodel/model/model.h"
#include "costmodel/ops/op.h"
#include "costmodel/parallel/options.h"

// Builders of op lists. Everything they depend on is in the arguments: never PP, VPP or the number of micro-batches.
namespace foldwise::costmodel {

/// What every builder needs. Refers to its parts: they must outlive it.
struct BuildContext {
  const ModelSpec& model;
  const LayerOptions& options;
  const Hardware& hardware;  ///< Shapes of groups on the network, traits of the GPU.
  /// GPUs of the job: whether one of a layer's groups straddles NVLink domains. 0: as few as TP and CP span.
  std::int64_t num_gpus = 0;
  bool one_queue = false;  ///< As StepContext::one_queue() says.

  /// The same run's, for layers with other options.
  [[nodiscard]] BuildContext with(const LayerOptions& others) const {
    return {model, others, hardware, num_gpus, one_queue};
  }
  /// The groups that a layer spans, everywhere in the job.
  [[nodiscard]] Layout layout() const {
    return {.tp = options.tp,
            .cp = options.cp,
            .dp = std::max<std::int64_t>(1, num_gpus / (options.tp * options.cp)),
            .ep = options.ep,
            .etp = options.etp};
  }
};

/// Sizes that one rank sees, in the symbols of docs/formulas.md#symbols.
struct RankShape {
  double attention_tokens = 0;  ///< Ta = s b / CP: rows of column-parallel linears.
  double tokens = 0;            ///< T = Ta / TP with sequence parallelism: rows between the linears.
  double expert_rows = 0;       ///< Te: rows of this rank's experts, padding for the format included.
  double routed_rows = 0;       ///< T k min(1, capacity), or T k capacity if padded: (token, expert) pairs sent.
  std::int64_t local_experts = 0;
};
[[nodiscard]] RankShape rank_shape(const ModelSpec& model, const LayerOptions& options);

/// Spread (standard deviation over mean) of the rows that a MoE layer sends to one rank for one micro-batch, when every
/// token of its EP group draws its experts at random. Source: docs/memory.md#imbalance.
[[nodiscard]] double row_spread(const ModelSpec& model, const LayerOptions& options);

/// Norm, mixer and residual add of a layer; empty for kNoMixer.
[[nodiscard]] OpList mixer_ops(const BuildContext& context, const LayerSpec& layer);
/// Norm, dense MLP or MoE, and residual add of a layer; empty for MlpKind::kNone.
[[nodiscard]] OpList mlp_ops(const BuildContext& context, const LayerSpec& layer);
[[nodiscard]] OpList embedding_ops(const BuildContext& context);
/// Final norm, output layer and loss. `depths` head evaluations: 1 + MTP depths on the same stage.
[[nodiscard]] OpList head_ops(const BuildContext& context, std::int64_t depths);
/// What one MTP depth adds around its decoder layers: embedding of the shifted ids, two norms, eh_proj, final norm.
[[nodiscard]] OpList mtp_ops(const BuildContext& context);

/// Parameters of a rank, by how they are sharded and stored.
struct ParameterCount {
  double dense = 0, expert = 0;                      ///< All.
  double quantised_dense = 0, quantised_expert = 0;  ///< Of these, with low-precision copies.
  double tp_replicated = 0;
  double shared_embedding = 0;                     ///< Of a table that other pipeline ranks hold too.
  double embedding = 0;                            ///< Embedding and output layer: Adam's also where Muon has the rest.
  double largest_dense = 0, largest_expert = 0;    ///< Elements of the largest tensor.
  double dense_rounding = 0, expert_rounding = 0;  ///< Bytes lost to the allocator by whole fp32 copies of the tensors.
  double padding = 0;                              ///< Elements of the gradient buffers besides.
  double low_precision_padding = 0;                ///< Of these, in buffers of low-precision primaries.
  double adapters_dense = 0, adapters_expert = 0;  ///< Of all: LoRA's.
  [[nodiscard]] double total() const { return dense + expert; }
  /// Of these, the ones that have gradients and optimizer states: with LoRA the adapters.
  [[nodiscard]] ParameterCount trained(const LayerOptions& options) const;
  ParameterCount& operator+=(const ParameterCount& other);
  bool operator==(const ParameterCount&) const = default;
};
[[nodiscard]] ParameterCount parameters(const OpList& list);

/// What DistributedDataParallel's buffers of a chunk keep apart: dense and expert parameters, quantised ones and
/// others.
inline constexpr std::size_t kGradientBuffers = 4;
[[nodiscard]] constexpr std::size_t gradient_buffer(bool expert, bool quantised) {
  return (expert ? 1 : 0) + (quantised ? 2 : 0);
}

/// What a piece of the model puts into those buffers, in their order: last parameter first.
struct BufferTensors {
  struct Run {
    std::size_t buffer = 0;
    TensorRun tensors;
  };
  std::vector<Run> runs;
  std::array<std::int64_t, kGradientBuffers> aligned{};  ///< Elements in each buffer.
  std::uint64_t bits = 0;                                ///< Of the aligned sizes of all tensors: their disjunction.
  /// Quantised tensors into the buffers of the others: where they have bf16 primaries.
  void join_quantised();
  [[nodiscard]] std::int64_t tensors() const;
  BufferTensors& operator+=(const BufferTensors& other);  ///< `other` follows: earlier parameters.
};
/// Parameters are taken in the order in which forward uses them; Megatron's order within a layer differs, which can
/// move the end of a bucket by a tensor.
[[nodiscard]] BufferTensors buffer_tensors(const BuildContext& context, const OpList& list);
/// Parameter totals of the whole model, read off its unsharded op lists.
struct ParameterTotals {
  std::int64_t main_total = 0, main_active = 0;  ///< Without MTP; active counts top-k of the experts.
  std::int64_t total_with_mtp = 0, active_with_mtp = 0;
  std::int64_t embedding_and_output = 0;
};
[[nodiscard]] ParameterTotals parameter_totals(const ModelSpec& model);

}  // namespace foldwise::costmodel

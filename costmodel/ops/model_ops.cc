#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "costmodel/ops/builder.h"

// Ops around the layers: embedding, MTP projections, output head and loss. Also parameters and gradient buffers of op
// lists.
namespace foldwise::costmodel {

OpList embedding_ops(const BuildContext& context) {
  Builder b(context, Module::kEmbedding, {});
  const double ta = b.shape().attention_tokens, h = static_cast<double>(b.model().hidden_size);
  const std::int64_t vocab = padded_vocab_size(b.model(), b.options().tp) / b.options().tp;
  // The first TP rank broadcasts ids and positions of whole sequences (get_batch_on_this_tp_rank in
  // megatron/training/utils.py).
  const auto ids = static_cast<double>(b.options().seq_len * b.options().micro_batch);
  b.collective("get_batch", Phase::kForward, CollectiveKind::kBroadcast, Group::kTp, (8.0 + 8.0) * ids);
  // The host waits for copies from pageable memory: two per micro-batch in the profile of h200x4te-llama-pp4-vpp2,
  // three without pipeline (benchmarks/accuracy/runs/h200x4_te_runs.json).
  b.forward("get_batch", HostSyncWork{.micro_batch = true}, 2);
  b.forward("word_embeddings", MemoryWork{MemoryOp::kEmbedding, Bytes{4.0 * ta * h}}, 2);
  b.weight("word_embeddings", vocab * b.model().hidden_size, false);
  if (b.model().learned_position_embedding)  // Megatron requires as many positions as a sequence has tokens.
    b.weight("position_embeddings",
             std::max(b.model().max_position_embeddings, b.options().seq_len) * b.model().hidden_size, false);
  b.keep("input_ids", 16.0 * ta);
  if (b.options().hidden_dropout > 0.0) {
    const double elements = b.shape().tokens * h;
    b.memory_op("embedding_dropout", MemoryOp::kElementwise, 5.0 * elements, MemoryOp::kElementwise, 5.0 * elements);
    b.keep("dropout_mask", elements);
  }
  const bool splits_sequence = b.options().splits_sequence();
  b.collective("word_embeddings", Phase::kForward,
               splits_sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, Group::kTp, 2.0 * ta * h);
  if (b.options().lora) return b.take();
  if (splits_sequence)
    b.collective("word_embeddings", Phase::kDgrad, CollectiveKind::kAllGather, Group::kTp, 2.0 * ta * h);
  // A dense BF16 gradient is zeroed, filled from sorted ids, and added to the FP32 main_grad. Embeddings have no fused
  // addition.
  const auto table = static_cast<double>(vocab) * h;
  b.backward("word_embeddings", Phase::kWgrad, MemoryWork{MemoryOp::kFill, Bytes{2.0 * table}}, 4);
  b.backward("word_embeddings", Phase::kWgrad, MemoryWork{MemoryOp::kEmbedding, Bytes{6.0 * ta * h}}, 14);
  Op& add = b.backward("word_embeddings", Phase::kWgrad, MemoryWork{MemoryOp::kReduce, Bytes{10.0 * table}});
  add_transient(add, {2.0 * table});
  return b.take();
}

OpList head_ops(const BuildContext& context, std::int64_t depths) {
  Builder b(context, Module::kHead, {});
  const ModelSpec& model = b.model();
  const double ta = b.shape().attention_tokens, t = b.shape().tokens, h = static_cast<double>(model.hidden_size);
  const std::int64_t tp = b.options().tp, vocab = padded_vocab_size(model, tp) / tp;
  const double logits = ta * static_cast<double>(vocab);
  const CrossEntropy loss_kind = b.options().software.cross_entropy;
  const bool te_loss = loss_kind == CrossEntropy::kTransformerEngine;
  for (std::int64_t depth = 0; depth < depths; ++depth) {
    if (depth == 0) {  // Every MTP depth has its own final norm (mtp_ops).
      // Labels and loss mask are broadcast like the embedding's ids.
      b.collective("get_batch", Phase::kForward, CollectiveKind::kBroadcast, Group::kTp,
                   (8.0 + 4.0) * static_cast<double>(b.options().seq_len * b.options().micro_batch));
      b.norm("final_layernorm", t, model.hidden_size);
      b.keep("head_norm_input", 2.0 * t * h, {}, {}, false);
    }
    b.module(Module::kHead);
    // There is one weight: tied to the embedding, or shared by the evaluations of all depths.
    b.linear({.name = "output_layer",
              .split = Split::kColumn,
              .rows = ta,
              .out = vocab,
              .in = model.hidden_size,
              .quantised = false,
              .output_kept = te_loss,
              .owns_weight = depth == 0 && !model.share_embeddings_and_output_weights,
              .gradient_kept = te_loss});
    b.keep_for_wgrad(0, "head_input", 2.0 * t * h, {}, {}, false);
    // The loss turns the logits into their gradient in place. The head's weight gradient uses it last.
    if (te_loss) b.keep("logits", 2.0 * logits, {}, {}, false);
    b.module(Module::kLoss);
    b.step();
    if (te_loss) {
      // Online softmax reads the logits, and the gradient overwrites them in place. Backward scales it.
      b.forward("cross_entropy", MemoryWork{MemoryOp::kCrossEntropy, Bytes{3.0 * 2.0 * logits}}, 2);
      b.backward("cross_entropy", Phase::kDgrad, MemoryWork{MemoryOp::kCrossEntropy, Bytes{2.0 * 2.0 * logits}});
    } else {
      // torch's loss is assumed to take as long as Megatron's compiled one; it was not measured.
      const bool unfused = loss_kind == CrossEntropy::kUnfused;
      const SoftwareKernel forward = unfused ? SoftwareKernel::kUnfusedCrossEntropyForward
                                             : SoftwareKernel::kNativeCrossEntropyForward,
                           backward = unfused ? SoftwareKernel::kUnfusedCrossEntropyBackward
                                              : SoftwareKernel::kNativeCrossEntropyBackward;
      Op& loss = b.forward("cross_entropy", SoftwareWork{forward, logits}, unfused ? 18 : 6);
      add_transient(loss, {2.0 * logits});                // BF16 logits beside the kept FP32 softmax.
      if (!unfused) add_transient(loss, {4.0 * logits});  // One more FP32 copy.
      b.keep("softmax", 4.0 * logits, {}, {}, false);
      Op& grad = b.backward("cross_entropy", Phase::kDgrad, SoftwareWork{backward, logits}, unfused ? 9 : 4);
      // torch: the gradients of the log-softmax and of its input are FP32 tensors.
      if (loss_kind == CrossEntropy::kTorch)
        add_transient(grad, {4.0 * logits, 4.0 * logits});
      else
        add_transient(grad, {2.0 * logits});
    }
    b.collective("cross_entropy", Phase::kForward, CollectiveKind::kAllReduce, Group::kTp, 12.0 * ta);
  }
  // Source: loss_func in pretrain_gpt.py, validate_result in megatron/core/rerun_state_machine.py (core_v0.16.1).
  if (b.options().checks_for_nan()) b.forward("check_loss", HostSyncWork{.micro_batch = true}, 2);
  return b.take();
}

OpList mtp_ops(const BuildContext& context) {
  Builder b(context, Module::kMtp, {});
  const double ta = b.shape().attention_tokens, t = b.shape().tokens, h = static_cast<double>(b.model().hidden_size);
  const std::int64_t tp = b.options().tp, width = b.model().hidden_size;
  b.forward("mtp_embedding", MemoryWork{MemoryOp::kEmbedding, Bytes{4.0 * ta * h}}, 2);
  b.keep("shifted_embedding", 2.0 * t * h);
  b.norm("enorm", t, width);
  b.norm("hnorm", t, width);
  b.memory_op("concat", MemoryOp::kElementwise, 8.0 * t * h, MemoryOp::kElementwise, 8.0 * t * h);
  b.keep_for_wgrad(0, "concat", b.recipe().saved_input_bytes() * 2.0 * t * h);
  b.linear({.name = "eh_proj", .split = Split::kColumn, .rows = ta, .out = width / tp, .in = 2 * width});
  b.collective("eh_proj", Phase::kForward, CollectiveKind::kAllGather, Group::kTp, 2.0 * ta * h);
  if (b.options().splits_sequence())
    b.collective("eh_proj", Phase::kDgrad, CollectiveKind::kReduceScatter, Group::kTp, 2.0 * ta * h);
  b.norm("final_layernorm", t, width);
  b.keep("final_norm_input", 2.0 * t * h);
  b.keep("concatenated_hidden_states", 2.0 * t * h);
  return b.take();
}

namespace {

// Every member that adds up. Structured bindings name every member, so none can be forgotten.
template <typename Count>
constexpr auto sums(Count& count) {
  auto& [dense, expert, quantised_dense, quantised_expert, tp_replicated, shared_embedding, embedding, largest_dense,
         largest_expert, dense_rounding, expert_rounding, padding, low_precision_padding, adapters_dense,
         adapters_expert, dense_tensors, expert_tensors, dense_adapter_tensors, expert_adapter_tensors] = count;
  (void)largest_dense, (void)largest_expert;
  return std::array{&dense,
                    &expert,
                    &quantised_dense,
                    &quantised_expert,
                    &tp_replicated,
                    &shared_embedding,
                    &embedding,
                    &dense_rounding,
                    &expert_rounding,
                    &padding,
                    &low_precision_padding,
                    &adapters_dense,
                    &adapters_expert,
                    &dense_tensors,
                    &expert_tensors,
                    &dense_adapter_tensors,
                    &expert_adapter_tensors};
}

}  // namespace

ParameterCount& ParameterCount::operator+=(const ParameterCount& other) {
  const auto own = sums(*this);
  const auto more = sums(other);
  for (std::size_t i = 0; i < own.size(); ++i) *own[i] += *more[i];
  largest_dense = std::max(largest_dense, other.largest_dense);
  largest_expert = std::max(largest_expert, other.largest_expert);
  return *this;
}

ParameterCount& ParameterCount::operator*=(double times) {
  for (double* sum : sums(*this)) *sum *= times;
  return *this;
}

namespace {

// Bytes that the caching allocator adds to a new tensor of `bytes`. From 10 MiB on, a segment is a multiple of 2 MiB,
// and a rest of at most 1 MiB is not split off. Source: c10/cuda/CUDACachingAllocator.cpp (kMinLargeAlloc,
// kRoundLarge).
double allocator_rounding(double bytes) {
  constexpr double kMiB = 1048576.0, kMinLargeAlloc = 10.0 * kMiB, kRoundLarge = 2.0 * kMiB, kSmallRest = kMiB;
  const double rest = std::ceil(bytes / kRoundLarge) * kRoundLarge - bytes;
  return bytes >= kMinLargeAlloc && rest <= kSmallRest ? rest : 0.0;
}

}  // namespace

ParameterCount parameters(const OpList& list) {
  ParameterCount count;
  for (const Op& op : list.forward) {
    for (const Weight& weight : op.weights) {
      const auto elements = static_cast<double>(weight.count);
      (weight.expert ? count.expert : count.dense) += elements;
      if (weight.adapter) (weight.expert ? count.adapters_expert : count.adapters_dense) += elements;
      if (weight.quantised) (weight.expert ? count.quantised_expert : count.quantised_dense) += elements;
      if (weight.tp_replicated) count.tp_replicated += elements;
      if (op.module == Module::kEmbedding || op.module == Module::kHead) count.embedding += elements;
      const auto tensors = static_cast<double>(weight.tensors);
      (weight.expert ? count.expert_tensors : count.dense_tensors) += tensors;
      if (weight.adapter) (weight.expert ? count.expert_adapter_tensors : count.dense_adapter_tensors) += tensors;
      double& largest = weight.expert ? count.largest_expert : count.largest_dense;
      largest = std::max(largest, elements / tensors);
      (weight.expert ? count.expert_rounding : count.dense_rounding) +=
          tensors * allocator_rounding(4.0 * elements / tensors);
    }
  }
  return count;
}

ParameterCount ParameterCount::trained(const LayerOptions& options) const {
  if (!options.lora) return *this;
  ParameterCount adapters;
  adapters.dense = adapters_dense;
  adapters.expert = adapters_expert;
  adapters.dense_tensors = dense_adapter_tensors;
  adapters.expert_tensors = expert_adapter_tensors;
  adapters.padding = padding;
  return adapters;
}

BufferTensors& BufferTensors::operator+=(const BufferTensors& other) {
  runs.insert(runs.end(), other.runs.begin(), other.runs.end());
  for (std::size_t i = 0; i < kGradientBuffers; ++i) aligned[i] += other.aligned[i];
  bits |= other.bits;
  return *this;
}

std::int64_t BufferTensors::tensors() const {
  std::int64_t sum = 0;
  for (const Run& run : runs) sum += run.tensors.tensors;
  return sum;
}

void BufferTensors::join_quantised() {
  constexpr std::size_t kKinds = gradient_buffer(false, true);  // Buffers of tensors that are not quantised.
  for (Run& run : runs) run.buffer %= kKinds;
  for (std::size_t i = kKinds; i < kGradientBuffers; ++i) aligned[i - kKinds] += std::exchange(aligned[i], 0);
}

BufferTensors buffer_tensors(const BuildContext& context, const OpList& list) {
  BufferTensors result;
  for (const Op& op : list.forward)
    for (const Weight& weight : op.weights) {
      if (context.options.lora && !weight.adapter) continue;
      const std::size_t buffer = gradient_buffer(weight.expert, weight.quantised);
      const TensorRun run{weight.count / weight.tensors, weight.tensors};
      result.runs.push_back({buffer, run});
      result.aligned[buffer] += aligned(run.elements) * run.tensors;
      result.bits |= static_cast<std::uint64_t>(aligned(run.elements));
    }
  std::reverse(result.runs.begin(), result.runs.end());
  return result;
}

ParameterTotals parameter_totals(const ModelSpec& model) {
  LayerOptions options;
  options.seq_len = 1;  // Learned positions: as many as the model has, however long the sequences of a run are.
  const Hardware hardware;
  const BuildContext context{model, options, hardware};
  const auto exact = [](const OpList& list, double expert_share) {
    double sum = 0.0;
    for (const Op& op : list.forward)
      for (const Weight& weight : op.weights)
        sum += static_cast<double>(weight.count) * (weight.expert ? expert_share : 1.0);
    return sum;
  };
  const double active_share =
      model.has_moe() ? static_cast<double>(model.moe.topk) / static_cast<double>(model.moe.experts) : 1.0;
  const auto layers = [&](const std::vector<LayerSpec>& list, double share) {
    double sum = 0.0;
    for (const LayerSpec& layer : list)
      sum += exact(mixer_ops(context, layer), share) + exact(mlp_ops(context, layer), share);
    return sum;
  };
  const OpList embedding = embedding_ops(context), head = head_ops(context, 1);
  const double outside = exact(embedding, 1.0) + exact(head, 1.0);
  const double norm =
      static_cast<double>(model.hidden_size) * (model.normalization == Normalization::kLayerNorm ? 2.0 : 1.0);
  const double copies = model.mtp_use_repeated_layer ? std::min<double>(1.0, static_cast<double>(model.mtp_num_layers))
                                                     : static_cast<double>(model.mtp_num_layers);
  const double main_total = layers(model.layers, 1.0) + outside,
               main_active = layers(model.layers, active_share) + outside;
  const double around = copies > 0 ? exact(mtp_ops(context), 1.0) : 0.0;
  ParameterTotals totals;
  totals.main_total = std::llround(main_total);
  totals.main_active = std::llround(main_active);
  totals.total_with_mtp = std::llround(main_total + copies * (layers(model.mtp_layers, 1.0) + around));
  totals.active_with_mtp = std::llround(main_active + copies * (layers(model.mtp_layers, active_share) + around));
  totals.embedding_and_output = std::llround(outside - norm);
  return totals;
}

}  // namespace foldwise::costmodel

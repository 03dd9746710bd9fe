#include <algorithm>
#include <cmath>

#include "costmodel/ops/builder.h"

// What stands around the layers: embedding, MTP projections, output head and loss, and the ops of the end of a step.
namespace foldwise::costmodel {

OpList embedding_ops(const BuildContext& context) {
  Builder b(context, Module::kEmbedding, {});
  const double ta = b.shape().attention_tokens, h = static_cast<double>(b.model().hidden_size);
  const std::int64_t vocab = padded_vocab_size(b.model(), b.options().layout.tp) / b.options().layout.tp;
  // Ids and positions of whole sequences, from the first TP rank (get_batch_on_this_tp_rank in
  // megatron/training/utils.py).
  const auto ids = static_cast<double>(b.options().seq_len * b.options().micro_batch);
  b.collective("get_batch", Phase::kForward, CollectiveKind::kBroadcast, Group::kTp, (8.0 + 8.0) * ids);
  // Among its copies are some from pageable memory, for which the host waits: two a micro-batch in the profile of
  // h200x4te-llama-pp4-vpp2, three without pipeline (hwprofiles/data/runs/h200x4_te_runs.json).
  b.forward("get_batch", HostSyncWork{}, 2);
  b.forward("word_embeddings", MemoryWork{MemoryOp::kEmbedding, Bytes{4.0 * ta * h}}, 2);
  b.weight("word_embeddings", vocab * b.model().hidden_size, false);
  if (b.model().learned_position_embedding)
    b.weight("position_embeddings", b.model().max_position_embeddings * b.model().hidden_size, false);
  b.keep("input_ids", 16.0 * ta);
  b.collective("word_embeddings", Phase::kForward, CollectiveKind::kReduceScatter, Group::kTp, 2.0 * ta * h);
  if (b.options().lora) return b.take();
  b.collective("word_embeddings", Phase::kDgrad, CollectiveKind::kAllGather, Group::kTp, 2.0 * ta * h);
  // A dense bf16 gradient is zeroed, filled from sorted ids and added to the fp32 main_grad (not fused for embeddings).
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
  const std::int64_t tp = b.options().layout.tp, vocab = padded_vocab_size(model, tp) / tp;
  const double logits = ta * static_cast<double>(vocab);
  const CrossEntropy loss_kind = b.options().software.cross_entropy;
  const bool te_loss = loss_kind == CrossEntropy::kTransformerEngine;
  for (std::int64_t depth = 0; depth < depths; ++depth) {
    if (depth == 0) {  // Every MTP depth brings its own final norm (mtp_ops).
      // Labels and the loss mask, as the ids of the embedding.
      b.collective("get_batch", Phase::kForward, CollectiveKind::kBroadcast, Group::kTp,
                   (8.0 + 4.0) * static_cast<double>(b.options().seq_len * b.options().micro_batch));
      b.norm("final_layernorm", t, model.hidden_size);
      b.keep("head_norm_input", 2.0 * t * h, {}, {}, false);
    }
    b.module(Module::kHead);
    b.linear({.name = "output_layer",
              .split = Split::kColumn,
              .rows = ta,
              .out = vocab,
              .in = model.hidden_size,
              .quantised = false,
              .output_kept = te_loss,
              .gradient_kept = te_loss});
    b.keep_for_wgrad(0, "head_input", 2.0 * t * h, {}, {}, false);
    // The loss turns the logits into their gradient in place, and the head's weight gradient needs that last.
    if (te_loss) b.keep("logits", 2.0 * logits, {}, {}, false);
    b.module(Module::kLoss);
    b.step();
    if (te_loss) {
      // Online softmax reads the logits; the gradient overwrites them in place; backward scales it.
      b.forward("cross_entropy", MemoryWork{MemoryOp::kCrossEntropy, Bytes{3.0 * 2.0 * logits}}, 2);
      b.backward("cross_entropy", Phase::kDgrad, MemoryWork{MemoryOp::kCrossEntropy, Bytes{2.0 * 2.0 * logits}});
    } else {
      // As many passes over bf16 logits as take the time that was measured (docs/measuring.md#software); torch's loss
      // as Megatron's compiled one.
      const bool unfused = loss_kind == CrossEntropy::kUnfused;
      const double forward = (unfused ? 22.5 : 13.0) * 2.0 * logits, backward = (unfused ? 7.6 : 8.0) * 2.0 * logits;
      Op& loss = b.forward("cross_entropy", MemoryWork{MemoryOp::kCrossEntropy, Bytes{forward}}, unfused ? 18 : 6);
      add_transient(loss, {2.0 * logits});                // bf16 logits, beside the kept fp32 softmax ...
      if (!unfused) add_transient(loss, {4.0 * logits});  // ... and one more fp32 copy.
      b.keep("softmax", 4.0 * logits, {}, {}, false);
      Op& grad = b.backward("cross_entropy", Phase::kDgrad, MemoryWork{MemoryOp::kCrossEntropy, Bytes{backward}},
                            unfused ? 9 : 4);
      // torch: the gradients of the log-softmax and of its input are fp32 tensors.
      if (loss_kind == CrossEntropy::kTorch)
        add_transient(grad, {4.0 * logits, 4.0 * logits});
      else
        add_transient(grad, {2.0 * logits});
    }
    b.collective("cross_entropy", Phase::kForward, CollectiveKind::kAllReduce, Group::kTp, 12.0 * ta);
  }
  OpList list = b.take();
  if (model.share_embeddings_and_output_weights || depths > 1) {
    // The weight exists once: tied to the embedding, or shared by the evaluations of all depths.
    std::int64_t seen = model.share_embeddings_and_output_weights ? 1 : 0;
    for (Op& op : list.forward)
      if (op.name == "output_layer" && !op.weights.empty() && seen++ > 0) op.weights.clear();
  }
  return list;
}

OpList mtp_ops(const BuildContext& context) {
  Builder b(context, Module::kMtp, {});
  const double ta = b.shape().attention_tokens, t = b.shape().tokens, h = static_cast<double>(b.model().hidden_size);
  const std::int64_t tp = b.options().layout.tp, width = b.model().hidden_size;
  b.forward("mtp_embedding", MemoryWork{MemoryOp::kEmbedding, Bytes{4.0 * ta * h}}, 2);
  b.keep("shifted_embedding", 2.0 * t * h);
  b.norm("enorm", t, width);
  b.norm("hnorm", t, width);
  b.memory_op("concat", MemoryOp::kElementwise, 8.0 * t * h, MemoryOp::kElementwise, 8.0 * t * h);
  b.keep_for_wgrad(0, "concat", saved_input_bytes(b.options().precision, true) * 2.0 * t * h);
  b.linear({.name = "eh_proj", .split = Split::kColumn, .rows = ta, .out = width / tp, .in = 2 * width});
  b.collective("eh_proj", Phase::kForward, CollectiveKind::kAllGather, Group::kTp, 2.0 * ta * h);
  b.collective("eh_proj", Phase::kDgrad, CollectiveKind::kReduceScatter, Group::kTp, 2.0 * ta * h);
  b.norm("final_layernorm", t, width);
  b.keep("final_norm_input", 2.0 * t * h);
  b.keep("concatenated_hidden_states", 2.0 * t * h);
  return b.take();
}

ParameterCount& ParameterCount::operator+=(const ParameterCount& other) {
  dense += other.dense;
  expert += other.expert;
  quantised_dense += other.quantised_dense;
  quantised_expert += other.quantised_expert;
  tp_replicated += other.tp_replicated;
  shared_embedding += other.shared_embedding;
  embedding += other.embedding;
  largest_dense = std::max(largest_dense, other.largest_dense);
  largest_expert = std::max(largest_expert, other.largest_expert);
  dense_rounding += other.dense_rounding;
  expert_rounding += other.expert_rounding;
  adapters_dense += other.adapters_dense;
  adapters_expert += other.adapters_expert;
  padding += other.padding;
  low_precision_padding += other.low_precision_padding;
  return *this;
}

namespace {

// What the caching allocator adds to a fresh tensor of `bytes`: from 10 MiB on, a segment is a multiple of 2 MiB, and a
// rest of at most 1 MiB is not split off. Source: c10/cuda/CUDACachingAllocator.cpp (kMinLargeAlloc, kRoundLarge).
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
      double& largest = weight.expert ? count.largest_expert : count.largest_dense;
      largest = std::max(largest, elements / tensors);
      (weight.expert ? count.expert_rounding : count.dense_rounding) +=
          tensors * allocator_rounding(4.0 * elements / tensors);
    }
  }
  return count;
}

ParameterCount ParameterCount::trained(const TrainingOptions& options) const {
  if (!options.lora) return *this;
  ParameterCount adapters;
  adapters.dense = adapters_dense;
  adapters.expert = adapters_expert;
  adapters.padding = padding;
  return adapters;
}

bool low_precision_primaries(const TrainingOptions& o) {
  return o.optimizer.low_precision_param_gather && o.precision != Precision::kBf16;
}

BufferTensors& BufferTensors::operator+=(const BufferTensors& other) {
  runs.insert(runs.end(), other.runs.begin(), other.runs.end());
  for (std::size_t i = 0; i < kGradientBuffers; ++i) aligned[i] += other.aligned[i];
  bits |= other.bits;
  return *this;
}

BufferTensors buffer_tensors(const BuildContext& context, const OpList& list) {
  BufferTensors result;
  const bool low = low_precision_primaries(context.options);
  for (const Op& op : list.forward)
    for (const Weight& weight : op.weights) {
      if (context.options.lora && !weight.adapter) continue;
      const std::size_t buffer = gradient_buffer(weight.expert, low && weight.quantised);
      const TensorRun run{weight.count / weight.tensors, weight.tensors};
      result.runs.push_back({buffer, run});
      result.aligned[buffer] += aligned(run.elements) * run.tensors;
      result.bits |= static_cast<std::uint64_t>(aligned(run.elements));
    }
  std::reverse(result.runs.begin(), result.runs.end());
  return result;
}

std::int64_t bucket_size(const TrainingOptions& o) {
  return std::max<std::int64_t>(40'000'000, 1'000'000 * o.layout.dp_cp());
}

std::array<GradientBuffer, kGradientBuffers> gradient_buffers(const TrainingOptions& o, bool bucketed) {
  const std::int64_t size = bucketed ? bucket_size(o) : 0;
  const auto buffer = [&](std::int64_t ranks) {
    return GradientBuffer(std::max<std::int64_t>(1, ranks / o.optimizer_instances), size,
                          o.pad_buckets_for_high_nccl_busbw);
  };
  const GradientBuffer dense = buffer(o.layout.dp_cp()), expert = buffer(o.layout.edp());
  return {dense, expert, dense, expert};
}

namespace {

double gradient_bytes(const Optimizer& optimizer) {
  return optimizer.grad_reduce_in_fp32 && optimizer.main_grads == DataType::kFp32 ? 4.0 : 2.0;
}

// Ranks that share a parameter's state; with HSDP those of one of the groups.
struct Shards {
  double dense = 1.0, expert = 1.0;
  [[nodiscard]] double own(const ParameterCount& count) const { return count.dense / dense + count.expert / expert; }
};

Shards group_shards(const TrainingOptions& o) {
  if (o.sharding == Sharding::kDdp) return {};
  const auto instances = static_cast<double>(o.optimizer_instances);
  const double all = static_cast<double>(o.layout.dp_cp()) / instances,
               expert = static_cast<double>(o.layout.edp()) / instances;
  if (!is_fsdp(o.sharding) || o.fsdp_group == 0) return {all, expert};
  const double groups = all / static_cast<double>(o.fsdp_group);
  return {static_cast<double>(o.fsdp_group), std::max(1.0, expert / groups)};
}

Shards optimizer_shards(const TrainingOptions& o) {
  if (is_fsdp(o.sharding) && o.fsdp_outer_optim)
    return {static_cast<double>(o.layout.dp_cp()), static_cast<double>(o.layout.edp())};
  return group_shards(o);
}

// Sums gradients over a group of which every `shards` consecutive ranks hold the state once: what a rank is
// responsible for is reduce-scattered among these, then all-reduced with its copies.
void reduce_inside(Builder& b, std::string_view name, Phase phase, Group group, double bytes, double shards) {
  b.collective(name, phase, CollectiveKind::kReduceScatter, group, bytes, std::llround(shards), 1);
}
void reduce_copies(Builder& b, std::string_view name, Group group, double bytes, double shards) {
  if (b.group_size(group) <= 1) return;
  const std::int64_t inside = std::llround(shards);
  b.collective(name, Phase::kWgrad, CollectiveKind::kAllReduce, group, bytes / shards, b.group_size(group) / inside,
               inside);
}
void gather(Builder& b, std::string_view name, Phase phase, Group group, double bytes, double shards) {
  b.collective(name, phase, CollectiveKind::kAllGather, group, bytes, std::llround(shards), 1);
}

// Bytes of a quantised parameter: bf16 primary plus the copies of the recipe, or low-precision primary with its copies.
// Source: docs/formulas.md#precision.
double quantised_weight_bytes(Precision precision, GpuGeneration generation, bool low_precision_primary) {
  const double primary = low_precision_primary ? 0.0 : 2.0;
  switch (precision) {
    case Precision::kBf16:
      return 2.0;
    case Precision::kFp8Delayed:
    case Precision::kFp8Current:
      return primary + (generation == GpuGeneration::kBlackwell ? 1.0 : 2.0);
    case Precision::kFp8Blockwise:
      return primary + 2.0 * (1.0 + 4.0 / 16384.0);
    case Precision::kMxfp8:
      return primary + 2.0 * (1.0 + 1.0 / 32.0);
    case Precision::kNvfp4:
      return primary + 2.0 * (0.5 + 1.0 / 16.0);
  }
  return 2.0;
}

}  // namespace

StaticBytes static_bytes(const BuildContext& context, const ParameterCount& all) {
  const TrainingOptions& o = context.options;
  const Optimizer& opt = o.optimizer;
  StaticBytes bytes;
  const bool low = low_precision_primaries(o);
  const double quantised = quantised_weight_bytes(o.precision, context.hardware.generation, low);
  const Shards whole, group = group_shards(o), optimizer = optimizer_shards(o);
  const Shards& weights = o.sharding == Sharding::kFsdp ? group : whole;
  const Shards& gradients = shards_gradients(o.sharding) ? group : whole;
  const double low_precision = all.quantised_dense / weights.dense + all.quantised_expert / weights.expert;
  bytes.parameters = Bytes{2.0 * (weights.own(all) - low_precision) + quantised * low_precision};
  // The bf16 buffer that MXFP8 parameters are gathered in, unless it is the gradients'.
  if (low && o.precision == Precision::kMxfp8 && !opt.reuse_grad_buffer) bytes.parameters += Bytes{2.0 * low_precision};
  if (!low && o.precision != Precision::kBf16)
    bytes.low_precision_copies = bytes.parameters - Bytes{2.0 * weights.own(all)};
  const ParameterCount count = all.trained(o);
  const double gradient = gradient_bytes(opt), own = optimizer.own(count);
  bytes.gradients = Bytes{gradient * (gradients.own(count) + count.padding)};
  // MXFP8 primaries lie outside the buffers.
  const double primary = o.precision == Precision::kMxfp8 ? 0.0 : o.precision == Precision::kNvfp4 ? 0.5 : 1.0;
  bytes.parameters +=
      Bytes{2.0 * (count.padding - count.low_precision_padding) + primary * count.low_precision_padding};
  // TE's precision-aware Adam owns the masters and reads bf16 gradients; an FP8 recipe other than delayed scaling needs
  // masters below fp32 for that (use_precision_aware_optimizer_no_fp8_or_ds_fp8 in optimizer_config.py). Not in the
  // hybrid optimizer that offloads. Beside a bf16 weight it keeps the other 16 bits of an fp32 master.
  const bool te_masters =
      opt.precision_aware && o.offload.optimizer_fraction == 0.0 &&
      (opt.main_params != DataType::kFp32 || o.precision == Precision::kBf16 || o.precision == Precision::kFp8Delayed);
  const bool remainder = te_masters && opt.main_params == DataType::kFp32;
  const double master = remainder ? 2.0 : bytes_of(opt.main_params);
  const double rounding = master < 4.0 ? 0.0
                                       : (optimizer.dense > 1.0 ? 0.0 : count.dense_rounding) +
                                             (optimizer.expert > 1.0 ? 0.0 : count.expert_rounding);
  const double states =
      opt.kind == OptimizerKind::kAdam ? bytes_of(opt.exp_avg) + bytes_of(opt.exp_avg_sq) : bytes_of(opt.exp_avg);
  const double device = 1.0 - o.offload.optimizer_fraction;
  const double second =
      opt.kind == OptimizerKind::kMuon ? bytes_of(opt.exp_avg_sq) * count.embedding / optimizer.dense : 0.0;
  bytes.optimizer = Bytes{device * (own * (master + states) + second + rounding)};
  bytes.setup_optimizer = te_masters ? Bytes{} : Bytes{device * (own * master + rounding)};
  bytes.host = Bytes{own * o.offload.optimizer_fraction * (4.0 + master + states)};
  // bf16 gradients are widened for the step unless the optimizer reads them directly. Masters and states below fp32 are
  // widened a parameter group at a time (the larger of dense and expert shards), and written back tensor by tensor,
  // through a bf16 copy if they are bf16 (get_unscaled_state and _apply_scale in TE's fused_adam.py).
  double extra = gradient < 4.0 && !te_masters ? 4.0 * own * device : 0.0;
  bytes.gradient_copies = Bytes{extra};
  if (opt.kind == OptimizerKind::kAdam) {
    double widened = 0.0, copy = 0.0;
    for (const DataType type : {opt.exp_avg, opt.exp_avg_sq, opt.main_params}) {
      if (type != DataType::kFp32) widened += 4.0;
      if (type == DataType::kBf16) copy = 2.0;
    }
    const double dense = count.dense / optimizer.dense, expert = count.expert / optimizer.expert;
    const double tensor =
        expert > dense ? count.largest_expert / optimizer.expert : count.largest_dense / optimizer.dense;
    extra += device * (widened * std::max(dense, expert) + copy * tensor);
  }
  bytes.step_extra = Bytes{extra};
  return bytes;
}

OpList fsdp_ops(const BuildContext& context, const ParameterCount& count) {
  Builder b(context, Module::kGradients, {});
  const TrainingOptions& o = b.options();
  const double gradient = gradient_bytes(o.optimizer);
  const Shards shards = group_shards(o);
  if (o.sharding == Sharding::kFsdp) {
    for (const Phase phase : {Phase::kForward, Phase::kDgrad}) {
      gather(b, "fsdp_param_gather", phase, Group::kDpCp, 2.0 * count.dense, shards.dense);
      gather(b, "fsdp_param_gather", phase, Group::kEdp, 2.0 * count.expert, shards.expert);
    }
  }
  const ParameterCount trained = count.trained(o);
  reduce_inside(b, "fsdp_grad_reduce", Phase::kWgrad, Group::kDpCp, gradient * trained.dense, shards.dense);
  reduce_inside(b, "fsdp_grad_reduce", Phase::kWgrad, Group::kEdp, gradient * trained.expert, shards.expert);
  return b.take();
}

OpList data_parallel_ops(const BuildContext& context, const ParameterCount& count) {
  Builder b(context, Module::kGradients, {});
  const TrainingOptions& o = b.options();
  const Optimizer& opt = o.optimizer;
  const double gradient = gradient_bytes(opt);
  const bool sharded = o.sharding == Sharding::kDdpDistributedOptimizer || o.sharding == Sharding::kFsdpOptim;
  // Wire bytes of a gathered parameter: low-precision primaries travel as they are, except MXFP8
  // (docs/formulas.md#data-parallel).
  double parameter = 2.0;
  if (opt.low_precision_param_gather && o.precision != Precision::kMxfp8)
    parameter = o.precision == Precision::kNvfp4 ? 0.5 : o.precision == Precision::kBf16 ? 2.0 : 1.0;

  const Shards shards = group_shards(o);
  if (!shards_gradients(o.sharding)) {
    reduce_inside(b, "grad_reduce_dense", Phase::kWgrad, Group::kDpCp, gradient * count.dense, shards.dense);
    reduce_inside(b, "grad_reduce_expert", Phase::kWgrad, Group::kEdp, gradient * count.expert, shards.expert);
  }
  reduce_copies(b, "grad_reduce_dense", Group::kDpCp, gradient * count.dense, shards.dense);
  reduce_copies(b, "grad_reduce_expert", Group::kEdp, gradient * count.expert, shards.expert);
  if (sharded || o.sharding == Sharding::kFsdpOptimGrads) {
    gather(b, "param_gather_dense", Phase::kForward, Group::kDpCp, parameter * count.dense, shards.dense);
    gather(b, "param_gather_expert", Phase::kForward, Group::kEdp, parameter * count.expert, shards.expert);
  }
  return b.take();
}

OpList step_ops(const BuildContext& context, const ParameterCount& count) {
  Builder b(context, Module::kGradients, {});
  const TrainingOptions& o = b.options();
  const Optimizer& opt = o.optimizer;
  const Shards shards = optimizer_shards(o);
  const double total = count.total(), gradient = gradient_bytes(opt), own = shards.own(count);
  b.collective("replicated_grad_reduce", Phase::kForward, CollectiveKind::kAllReduce, Group::kTp,
               gradient * count.tp_replicated);
  // The embedding group: first and last stage.
  b.collective("embedding_grad_reduce", Phase::kForward, CollectiveKind::kAllReduce, Group::kPp,
               gradient * count.shared_embedding, 2, o.layout.pp - 1);
  b.forward("grad_scaling", MemoryWork{MemoryOp::kElementwise, Bytes{2.0 * gradient * total}}, 4);

  // FP8 parameters are cast from the optimizer's flat fp32 shards, tensor by tensor: amax, cast, and where GEMMs want
  // it the transpose of what was gathered. Hopper's cast transposes too, a shard being one row. MXFP8's are gathered in
  // bf16. Source: cast_master_weights_to_fp8, post_all_gather_processing in transformer_engine/pytorch/tensor/utils.py.
  const double quantised = count.quantised_dense + count.quantised_expert;
  const bool casts_shards = opt.low_precision_param_gather &&
                            (o.precision == Precision::kFp8Current || o.precision == Precision::kFp8Delayed ||
                             o.precision == Precision::kFp8Blockwise);
  const bool transposes = o.precision == Precision::kFp8Blockwise || b.hardware().generation == GpuGeneration::kHopper;
  const double own_quantised =
      casts_shards ? count.quantised_dense / shards.dense + count.quantised_expert / shards.expert : 0.0;

  b.module(Module::kOptimizer);
  const double chunks = std::ceil(own / 25e6);  // Elements per multi-tensor launch. Source: docs/measuring.md#step-end.
  const int launches = static_cast<int>(std::max(1.0, chunks));
  const double gpu = 1.0 - o.offload.optimizer_fraction;
  b.forward("grad_norm", MemoryWork{MemoryOp::kOptimizer, Bytes{gradient * own}}, launches);
  b.collective("grad_norm", Phase::kForward, CollectiveKind::kAllReduce, Group::kDpCp, 8.0);
  b.forward("clip", MemoryWork{MemoryOp::kOptimizer, Bytes{2.0 * gradient * own}}, launches);
  const double states = bytes_of(opt.exp_avg) + bytes_of(opt.exp_avg_sq);
  // Adam reads gradient, master and states and writes master and states. States below fp32 are widened and narrowed by
  // extra passes (docs/measuring.md#step-end).
  const double widen = states < 8.0 ? 2.0 * (states + 8.0) : 0.0;
  if (gpu > 0.0) {
    b.forward("adam", MemoryWork{MemoryOp::kOptimizer, Bytes{gpu * own * (4.0 + 2.0 * 4.0 + 2.0 * 8.0 + widen)}},
              launches);
    b.forward("cast_to_model", MemoryWork{MemoryOp::kElementwise, Bytes{gpu * 6.0 * (own - own_quantised)}}, launches);
  }
  if (o.offload.optimizer_fraction > 0.0) {
    const double moved = o.offload.optimizer_fraction * own;
    // The CPU step is bound by host memory: it touches the same bytes there. Charged at the host link's rate (first
    // order).
    b.forward("optimizer_offload", HostCopyWork{Bytes{4.0 * moved}, true});
    b.forward("optimizer_offload", HostCopyWork{Bytes{2.0 * moved}, false});
  }
  if (casts_shards) {
    if (o.precision != Precision::kFp8Delayed)
      b.forward("param_amax", MemoryWork{MemoryOp::kAmax, Bytes{4.0 * own_quantised}}, launches);
    const bool in_rows = transposes && o.precision != Precision::kFp8Blockwise;
    b.forward("cast_to_fp8",
              in_rows ? MemoryWork{MemoryOp::kFlatCast, Bytes{6.0 * own_quantised}}
                      : MemoryWork{MemoryOp::kQuantize, Bytes{5.0 * own_quantised}},
              launches);
    if (transposes)  // Once they are gathered.
      b.forward("transpose_weights", MemoryWork{MemoryOp::kPermute, Bytes{2.0 * quantised}}, 4);
  } else if (o.precision != Precision::kBf16 && !o.lora) {
    // Weights are quantised once per step, in both layouts where the recipe needs them.
    b.module(Module::kOptimizer);
    b.quantise("quantise_weights", Phase::kForward, quantised);
  }
  b.forward("zero_grad", MemoryWork{MemoryOp::kFill, Bytes{gradient * total}}, 4);
  return b.take();
}

ParameterTotals parameter_totals(const ModelSpec& model) {
  TrainingOptions options;
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

#include "costmodel/ops/step_ops.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "costmodel/memory/caching_allocator.h"
#include "costmodel/ops/builder.h"

namespace foldwise::costmodel {

bool low_precision_primaries(const TrainingOptions& o) {
  return o.step.optimizer.low_precision_param_gather && precision_recipe(o.layer.precision).low_precision();
}

std::int64_t bucket_size(const TrainingOptions& o) {
  return std::max<std::int64_t>(40'000'000, 1'000'000 * o.layout().dp_cp());
}

std::array<GradientBuffer, kGradientBuffers> gradient_buffers(const TrainingOptions& o, bool bucketed) {
  const std::int64_t size = bucketed ? bucket_size(o) : 0;
  const auto buffer = [&](std::int64_t ranks) {
    return GradientBuffer(std::max<std::int64_t>(1, ranks / o.step.optimizer_instances), size,
                          o.step.pad_buckets_for_high_nccl_busbw);
  };
  const GradientBuffer dense = buffer(o.layout().dp_cp()), expert = buffer(o.layout().edp());
  return {dense, expert, dense, expert};
}

double gradient_bytes(const TrainingOptions& o) {
  return o.layer.grad_reduce_in_fp32 && o.step.optimizer.main_grads == DataType::kFp32 ? 4.0 : 2.0;
}

Shards group_shards(const TrainingOptions& o) {
  if (o.step.sharding == Sharding::kDdp) return {};
  const auto instances = static_cast<double>(o.step.optimizer_instances);
  const double all = static_cast<double>(o.layout().dp_cp()) / instances,
               expert = static_cast<double>(o.layout().edp()) / instances;
  if (!is_fsdp(o.step.sharding) || o.step.fsdp_group == 0) return {all, expert};
  const double groups = all / static_cast<double>(o.step.fsdp_group);
  return {static_cast<double>(o.step.fsdp_group), std::max(1.0, expert / groups)};
}

ParameterCount in_shards(const TrainingOptions& o, ParameterCount count) {
  const Shards shards = group_shards(o);
  if (shards.dense <= 1.0) count.dense = count.quantised_dense = 0.0;
  if (shards.expert <= 1.0) count.expert = count.quantised_expert = 0.0;
  return count;
}

double fsdp_gathered_bytes(const TrainingOptions& o, double parameters, double quantised) {
  const PrecisionRecipe& recipe = precision_recipe(o.layer.precision);
  return 2.0 * parameters - (2.0 - recipe.gathered_bytes(o.step.optimizer.low_precision_param_gather)) * quantised;
}

double dropped_transpose_bytes(const TrainingOptions& o, const Hardware& hardware) {
  const PrecisionRecipe& recipe = precision_recipe(o.layer.precision);
  const bool drops =
      o.megatron_fsdp() && o.step.sharding == Sharding::kFsdp && low_precision_primaries(o) && recipe.gathers_primaries;
  return drops ? recipe.transpose_bytes(hardware) : 0.0;
}

Shards optimizer_shards(const TrainingOptions& o) {
  if (is_fsdp(o.step.sharding) && o.step.fsdp_outer_optim)
    return {static_cast<double>(o.layout().dp_cp()), static_cast<double>(o.layout().edp())};
  return group_shards(o);
}

namespace {

// TE's precision-aware Adam owns the masters and reads BF16 gradients. With an FP8 recipe other than delayed scaling it
// needs masters below FP32 for that (use_precision_aware_optimizer_no_fp8_or_ds_fp8 in optimizer_config.py). The hybrid
// optimizer that offloads does not have it.
bool adam_owns_masters(const TrainingOptions& o) {
  const Optimizer& opt = o.step.optimizer;
  return opt.precision_aware && o.step.offload.optimizer_fraction == 0.0 &&
         (opt.main_params != DataType::kFp32 || precision_recipe(o.layer.precision).adam_owns_fp32_masters);
}

// Bytes that the optimizer keeps between steps.
struct OptimizerState {
  bool te_masters = false;            // adam_owns_masters(): they are made in the first step.
  double master = 0.0, states = 0.0;  // Bytes per parameter.
  double second = 0.0;                // Further bytes: Muon leaves the embedding to Adam.
};

OptimizerState optimizer_state(const TrainingOptions& o, const ParameterCount& count) {
  const Optimizer& opt = o.step.optimizer;
  OptimizerState state;
  state.te_masters = adam_owns_masters(o);
  // Beside a BF16 weight such an Adam keeps the other 16 bits of an FP32 master.
  state.master = state.te_masters && opt.main_params == DataType::kFp32 ? 2.0 : bytes_of(opt.main_params);
  // An FP8 state is a Float8Tensor with an unused transpose (_initialize_state in TE 2.12's fused_adam.py).
  const auto held = [](DataType type) { return type == DataType::kFp8 ? 2.0 : bytes_of(type); };
  state.states = held(opt.exp_avg) + (opt.kind == OptimizerKind::kAdam ? held(opt.exp_avg_sq) : 0.0);
  if (opt.kind == OptimizerKind::kMuon)
    state.second = bytes_of(opt.exp_avg_sq) * count.embedding / optimizer_shards(o).dense;
  return state;
}

// Sums gradients over a group in which every `shards` consecutive ranks hold the state once. A rank's part is
// reduce-scattered among these ranks, then all-reduced with its copies.
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

}  // namespace

StaticBytes static_bytes(const StepContext& context, const ParameterCount& all) {
  const TrainingOptions& o = context.options;
  const Optimizer& opt = o.step.optimizer;
  StaticBytes bytes;
  const bool low = low_precision_primaries(o);
  const PrecisionRecipe& recipe = precision_recipe(o.layer.precision);
  const double transposes = dropped_transpose_bytes(o, context.hardware),
               quantised = recipe.weight_bytes(low, context.hardware) - transposes;
  const Shards whole, group = group_shards(o), optimizer = optimizer_shards(o);
  const Shards& weights = o.step.sharding == Sharding::kFsdp ? group : whole;
  const Shards& gradients = shards_gradients(o.step.sharding) ? group : whole;
  // Transformer Engine's copies of BF16 primaries are not parameters, so Megatron-FSDP does not shard them.
  const Shards& copies = !low && o.megatron_fsdp() ? whole : weights;
  const double low_precision = all.quantised_dense / copies.dense + all.quantised_expert / copies.expert;
  bytes.parameters = Bytes{2.0 * weights.own(all) + (quantised - 2.0) * low_precision};
  bytes.setup_transposes = Bytes{transposes * (all.quantised_dense + all.quantised_expert)};
  // DDP's BF16 buffer for gathered parameters, unless the gradients' buffer is reused. FSDP gathers quantised shards.
  if (low && !recipe.gathers_primaries && !opt.reuse_grad_buffer && !is_fsdp(o.step.sharding))
    bytes.parameters += Bytes{2.0 * low_precision};
  if (!low && recipe.low_precision()) bytes.low_precision_copies = bytes.parameters - Bytes{2.0 * weights.own(all)};
  const ParameterCount count = all.trained(o.layer);
  const double gradient = gradient_bytes(o), own = optimizer.own(count);
  bytes.gradients = Bytes{gradient * (gradients.own(count) + count.padding)};
  const double primary =
      recipe.gathers_primaries ? recipe.gathered_bytes(true) : 0.0;  // Zero: they are outside the buffers.
  bytes.parameters +=
      Bytes{2.0 * (count.padding - count.low_precision_padding) + primary * count.low_precision_padding};
  const OptimizerState state = optimizer_state(o, count);
  const double rounding = state.master < 4.0 ? 0.0
                                             : (optimizer.dense > 1.0 ? 0.0 : count.dense_rounding) +
                                                   (optimizer.expert > 1.0 ? 0.0 : count.expert_rounding);
  const double device = 1.0 - o.step.offload.optimizer_fraction;
  bytes.optimizer = Bytes{device * (own * (state.master + state.states) + state.second + rounding)};
  bytes.setup_optimizer = state.te_masters ? Bytes{} : Bytes{device * (own * state.master + rounding)};
  bytes.host = Bytes{own * o.step.offload.optimizer_fraction * (4.0 + state.master + state.states)};
  if (o.step.offload.optimizer_states) {
    bytes.returning = std::exchange(bytes.optimizer, Bytes{});
    bytes.host += bytes.returning - Bytes{rounding};
  }
  // BF16 gradients are widened for the step unless the optimizer reads them directly. Masters and states below FP32 are
  // widened one parameter group at a time (experts_apart()). They are written back tensor by
  // tensor, through a BF16 copy if they are BF16 (get_unscaled_state and _apply_scale in TE's fused_adam.py).
  double extra = gradient < 4.0 && !state.te_masters ? 4.0 * own * device : 0.0;
  bytes.gradient_copies = Bytes{extra};
  const std::vector<DataType> types = widened(opt);
  const double wide = 4.0 * static_cast<double>(types.size()),
               copy = std::ranges::count(types, DataType::kBf16) > 0 ? 2.0 : 0.0;
  const double dense = count.dense / optimizer.dense, expert = count.expert / optimizer.expert;
  const double of_dense = count.largest_dense / optimizer.dense, of_expert = count.largest_expert / optimizer.expert;
  const bool one_group = !experts_apart(o.layer);
  const auto larger_group = [&](double dense_part, double expert_part) {
    return one_group ? dense_part + expert_part : std::max(dense_part, expert_part);
  };
  const double group_size = larger_group(dense, expert), tensor = one_group        ? std::max(of_dense, of_expert)
                                                                  : expert > dense ? of_expert
                                                                                   : of_dense;
  const double masters = quantises_copies(o) ? larger_group(count.quantised_dense / optimizer.dense,
                                                            count.quantised_expert / optimizer.expert)
                                             : 0.0;
  extra += device * std::max(wide * group_size + copy * tensor, 2.0 * masters);
  bytes.step_extra = Bytes{extra} + bytes.returning;
  // A parameter's widened states lie between the states of its neighbours (docs/memory.md#reserved). A hole that they
  // leave holds no tensor of the size of the hidden states if it is smaller, and torch can give back only whole pages
  // of it. This is known only for Megatron's distributed optimizer. States that leave the device leave no holes.
  const Bytes hole{wide * std::min(count.largest_expert, expert)},
      hidden{2.0 * rank_shape(context.model, o.layer).tokens * static_cast<double>(context.model.hidden_size)};
  if (hole > Bytes{} && hole < hidden && device >= 1.0 && bytes.returning <= Bytes{} && !is_fsdp(o.step.sharding))
    bytes.holes = wide * Bytes{expert} * std::min(1.0, (kExpandablePage / hole).to<double>());
  return bytes;
}

bool quantises_copies(const TrainingOptions& options) {
  const Optimizer& optimizer = options.step.optimizer;
  const bool in_buffer = optimizer.reuse_grad_buffer && !precision_recipe(options.layer.precision).gathers_primaries;
  return low_precision_primaries(options) && !adam_owns_masters(options) && !in_buffer;
}

std::vector<DataType> widened(const Optimizer& optimizer) {
  std::vector<DataType> types;
  if (optimizer.kind != OptimizerKind::kAdam) return types;
  if (!optimizer.reads_bf16_moments || optimizer.exp_avg != DataType::kBf16 || optimizer.exp_avg_sq != DataType::kBf16)
    types = {optimizer.exp_avg, optimizer.exp_avg_sq};
  types.push_back(optimizer.main_params);
  std::erase(types, DataType::kFp32);
  return types;
}

OpList fsdp_ops(const StepContext& context, const ParameterCount& count) {
  Builder b(context.layer(), Module::kGradients, {}, context.options.layout());
  const TrainingOptions& o = context.options;
  const double gradient = gradient_bytes(o);
  const Shards shards = group_shards(o);
  if (o.step.sharding == Sharding::kFsdp) {
    const double dense = fsdp_gathered_bytes(o, count.dense, count.quantised_dense),
                 expert = fsdp_gathered_bytes(o, count.expert, count.quantised_expert);
    for (const Phase phase : {Phase::kForward, Phase::kDgrad}) {
      gather(b, "fsdp_param_gather", phase, Group::kDpCp, dense, shards.dense);
      gather(b, "fsdp_param_gather", phase, Group::kEdp, expert, shards.expert);
    }
  }
  const ParameterCount trained = count.trained(o.layer);
  // The collective scales FP32 gradients (gradient_reduce_div_fusion), but not BF16 ones. Its result is added to the
  // shard. Source: gradient_reduce_preprocessing, _bucket_group_gradient_reduce in param_and_grad_buffer.py.
  if (gradient < 4.0)
    b.backward("fsdp_grad_scaling", Phase::kWgrad,
               MemoryWork{MemoryOp::kElementwise, Bytes{2.0 * gradient * trained.total()}});
  b.backward("fsdp_grad_accumulate", Phase::kWgrad,
             MemoryWork{MemoryOp::kReduce, Bytes{3.0 * gradient * shards.own(in_shards(o, trained))}});
  reduce_inside(b, "fsdp_grad_reduce", Phase::kWgrad, Group::kDpCp, gradient * trained.dense, shards.dense);
  reduce_inside(b, "fsdp_grad_reduce", Phase::kWgrad, Group::kEdp, gradient * trained.expert, shards.expert);
  return b.take();
}

OpList data_parallel_ops(const StepContext& context, const ParameterCount& count) {
  Builder b(context.layer(), Module::kGradients, {}, context.options.layout());
  const TrainingOptions& o = context.options;
  const Optimizer& opt = o.step.optimizer;
  const double gradient = gradient_bytes(o);
  const bool sharded = o.step.sharding == Sharding::kDdpDistributedOptimizer || o.step.sharding == Sharding::kFsdpOptim;
  // Low-precision primaries are gathered as they are if the recipe can do so (docs/formulas.md#data-parallel).
  const double parameter = precision_recipe(o.layer.precision).gathered_bytes(opt.low_precision_param_gather);
  const Shards shards = group_shards(o);
  if (!shards_gradients(o.step.sharding)) {
    reduce_inside(b, "grad_reduce", Phase::kWgrad, Group::kDpCp, gradient * count.dense, shards.dense);
    reduce_inside(b, "grad_reduce", Phase::kWgrad, Group::kEdp, gradient * count.expert, shards.expert);
  }
  reduce_copies(b, "grad_reduce", Group::kDpCp, gradient * count.dense, shards.dense);
  reduce_copies(b, "grad_reduce", Group::kEdp, gradient * count.expert, shards.expert);
  if (sharded || o.step.sharding == Sharding::kFsdpOptimGrads) {
    gather(b, "param_gather", Phase::kForward, Group::kDpCp, parameter * count.dense, shards.dense);
    gather(b, "param_gather", Phase::kForward, Group::kEdp, parameter * count.expert, shards.expert);
  }
  return b.take();
}

Seconds optimizer_issue(const StepContext& context, const ParameterCount& count, const BucketCount& buckets) {
  const TrainingOptions& o = context.options;
  if (is_fsdp(o.step.sharding) && !o.megatron_fsdp()) return {};  // Their optimizer is torch's, which was not measured.
  const Shards shards = optimizer_shards(o);
  const auto own = [](double tensors, double ranks, double parts) {
    return ranks > 1.0 ? std::min(tensors, tensors / ranks + parts) : tensors;
  };
  const double tensors =
      own(count.dense_tensors, shards.dense, buckets.dense) + own(count.expert_tensors, shards.expert, buckets.expert);
  // PyTorch ops of a tensor: a gradient widened and a master narrowed, unless Adam does both; of a state below FP32 one
  // widens it, two narrow it. Source: distrib_optimizer.py:2386,2429 of core_v0.16.1, fused_adam.py of Transformer
  // Engine 2.12 (get_unscaled_state, _apply_scale).
  const double copies = adam_owns_masters(o) ? 0.0 : 2.0,
               states = static_cast<double>(widened(o.step.optimizer).size());
  const HostSpec& host = context.hardware.host;
  return tensors * (host.parameter + (copies + 3.0 * states) * host.plain_op);
}

namespace {

// The parameters that a rank's optimizer updates.
struct Update {
  const StepContext& context;
  const ParameterCount& count;
  double gradient, own;  // Bytes per element of a gradient; elements of this rank's shard.
  double main_gradient;  // Bytes per element of the gradients that the optimizer reads.
  double own_quantised;  // Part of these that is cast to FP8 from the shard.
  double device;         // Share of the shard that the device updates.
  int launches;          // Launches of a multi-tensor kernel over the shard.
};

Update update_of(const StepContext& context, const ParameterCount& count) {
  // Elements per multi-tensor launch. Source: benchmarks/accuracy/journal.md#step-end.
  constexpr double kChunk = 25e6;
  const TrainingOptions& o = context.options;
  const Shards shards = optimizer_shards(o);
  const double own = shards.own(count);
  const bool casts_shards =
      o.step.optimizer.low_precision_param_gather && precision_recipe(o.layer.precision).casts_shards;
  return {.context = context,
          .count = count,
          .gradient = gradient_bytes(o),
          .own = own,
          .main_gradient = adam_owns_masters(o) ? gradient_bytes(o) : kFp32,
          .own_quantised =
              casts_shards ? count.quantised_dense / shards.dense + count.quantised_expert / shards.expert : 0.0,
          .device = 1.0 - o.step.offload.optimizer_fraction,
          .launches = static_cast<int>(std::max(1.0, std::ceil(own / kChunk)))};
}

// All-reduces gradients that ranks have in common, and divides by the number of micro-batches.
void finalize_gradients(Builder& b, const Update& u) {
  const TrainingOptions& o = u.context.options;
  b.collective("replicated_grad_reduce", Phase::kForward, CollectiveKind::kAllReduce, Group::kTp,
               u.gradient * u.count.tp_replicated);
  // The embedding group: first and last stage.
  b.collective("embedding_grad_reduce", Phase::kForward, CollectiveKind::kAllReduce, Group::kPp,
               u.gradient * u.count.shared_embedding, 2, o.pipeline.pp - 1);
  // DDP scales buckets by one over the ranks that are summed (gradient_scaling_factor in param_and_grad_buffer.py);
  // fsdp_ops() scales the others when they are reduced.
  if (!shards_gradients(o.step.sharding) && o.layout().dp_cp() > 1)
    b.forward("grad_scaling", MemoryWork{MemoryOp::kElementwise, Bytes{2.0 * u.gradient * u.count.total()}}, 4);
}

// The optimizer's gradients, from DDP's buffers: _copy_model_grads_to_main_grads in distrib_optimizer.py, tensor by
// tensor.
void widen_gradients(Builder& b, const Update& u) {
  if (u.gradient < u.main_gradient)
    b.forward("widen_gradients", SoftwareWork{SoftwareKernel::kWiden, u.device * u.own});
}

void clip_gradients(Builder& b, const Update& u) {
  if (u.context.options.layer.precision == Precision::kFp16) {
    // Loss scaling: gradients are divided by the scale. All ranks check whether one of them is infinite, and the host
    // waits for the result. Source: _unscale_main_grads_and_check_for_nan in megatron/core/optimizer/optimizer.py.
    b.forward("unscale_gradients", MemoryWork{MemoryOp::kElementwise, Bytes{2.0 * u.main_gradient * u.own}},
              u.launches);
    b.collective("found_inf", Phase::kForward, CollectiveKind::kAllReduce, Group::kDpCp, 4.0);
    b.forward("found_inf", HostSyncWork{}, 1);
  }
  b.forward("grad_norm", MemoryWork{MemoryOp::kOptimizer, Bytes{u.main_gradient * u.own}}, u.launches);
  b.collective("grad_norm_reduce", Phase::kForward, CollectiveKind::kAllReduce, Group::kDpCp, 8.0);
  b.forward("clip", MemoryWork{MemoryOp::kOptimizer, Bytes{2.0 * u.main_gradient * u.own}}, u.launches);
}

// Adam reads gradient, master and states, and writes master and states. States below FP32 are widened before and
// narrowed and copied back after, tensor by tensor (get_unscaled_state and _apply_scale in TE's fused_adam.py), unless
// the kernel reads them as they are. An Adam that owns FP32 masters keeps 16 bits of each beside its BF16 parameter,
// and writes that parameter itself.
void adam(Builder& b, const Update& u) {
  const TrainingOptions& o = u.context.options;
  const Optimizer& opt = o.step.optimizer;
  const double own = u.device * u.own;
  const bool direct = opt.reads_bf16_moments && opt.exp_avg == DataType::kBf16 && opt.exp_avg_sq == DataType::kBf16,
             remainder = adam_owns_masters(o) && opt.main_params == DataType::kFp32;
  if (u.device <= 0.0) return;
  const auto pass = [&](std::string_view name, const Work& work) {
    b.forward(name, work, u.launches).updates_parameters = true;
  };
  const std::vector<DataType> types = widened(opt);
  const auto wide = static_cast<double>(types.size());
  double narrow = 0.0;
  for (const DataType type : types) narrow += bytes_of(type);
  if (!types.empty()) pass("widen_states", SoftwareWork{SoftwareKernel::kWiden, wide * own});
  if (remainder && !direct)
    pass("adam", SoftwareWork{SoftwareKernel::kAdamRemainder, own});
  else
    pass("adam",
         MemoryWork{MemoryOp::kOptimizer, Bytes{own * (u.main_gradient + 2.0 * 4.0 + 2.0 * (direct ? 4.0 : 8.0))}});
  if (!types.empty())  // Written narrow, then copied into the state.
    pass("narrow_states", MemoryWork{MemoryOp::kElementwise, Bytes{own * (wide * kFp32 + 3.0 * narrow)}});
  if (!adam_owns_masters(o))
    pass("cast_to_model", MemoryWork{MemoryOp::kElementwise, Bytes{6.0 * (own - u.device * u.own_quantised)}});
}

// States that are on the host, and parameters that it updates.
void offload_optimizer(Builder& b, const Update& u) {
  const TrainingOptions& o = u.context.options;
  const std::int64_t gpus = o.layout().world();
  if (o.step.offload.optimizer_fraction > 0.0) {
    const double moved = o.step.offload.optimizer_fraction * u.own;
    // With --overlap-cpu-optimizer-d2h-h2d one tensor's copies run beside another's update.
    const Overlap beside = o.step.offload.overlap_optimizer_copies ? Overlap::kOffload : Overlap::kNone;
    b.forward("optimizer_offload", HostCopyWork{Bytes{kFp32 * moved}, true, gpus}).overlap = beside;
    b.forward("host_adam", HostUpdateWork{moved});
    b.forward("optimizer_offload", HostCopyWork{Bytes{kBf16 * moved}, false, gpus}).overlap = beside;
  }
  if (o.step.offload.optimizer_states) {
    const OptimizerState state = optimizer_state(o, u.count);
    const Bytes moved{u.own * (state.master + state.states) + state.second};
    b.backward("reload_states", Phase::kWgrad, HostCopyWork{moved, false, gpus});
    b.forward("offload_states", HostCopyWork{moved, true, gpus});
  }
}

// FP8 parameters are cast from the optimizer's flat FP32 shards, tensor by tensor: amax, cast and, if GEMMs need it,
// the transpose of the gathered tensor. With one scale the cast also transposes, because a shard is one row. Source:
// cast_master_weights_to_fp8, post_all_gather_processing in transformer_engine/pytorch/tensor/utils.py. Other weights
// are quantised once per step, in both layouts if the recipe needs them.
void quantise_weights(Builder& b, const Update& u) {
  const TrainingOptions& o = u.context.options;
  const PrecisionRecipe& recipe = b.recipe();
  const double quantised = u.count.quantised_dense + u.count.quantised_expert;
  const bool transposes = recipe.layouts(b.hardware()) == 2;
  if (!o.step.optimizer.low_precision_param_gather || !recipe.casts_shards) {
    if (!o.layer.lora) b.quantise("quantise_weights", Phase::kForward, quantised);
    return;
  }
  if (recipe.shard_amax)
    b.forward("param_amax", MemoryWork{MemoryOp::kAmax, Bytes{kFp32 * u.own_quantised}}, u.launches)
        .updates_parameters = true;
  b.forward("cast_to_fp8",
            transposes && recipe.one_scale ? Work{SoftwareWork{SoftwareKernel::kFlatCast, u.own_quantised}}
                                           : Work{MemoryWork{MemoryOp::kQuantize, Bytes{5.0 * u.own_quantised}}},
            u.launches)
      .updates_parameters = true;
  if (transposes)  // After they are gathered.
    b.forward("transpose_weights", MemoryWork{MemoryOp::kPermute, Bytes{2.0 * quantised}}, 4);
}

}  // namespace

OpList step_ops(const StepContext& context, const ParameterCount& count) {
  const TrainingOptions& o = context.options;
  const Update u = update_of(context, count);
  Builder b(context.layer(), Module::kGradients, {}, o.layout());
  finalize_gradients(b, u);
  b.module(Module::kOptimizer);
  widen_gradients(b, u);
  clip_gradients(b, u);
  adam(b, u);
  offload_optimizer(b, u);
  quantise_weights(b, u);
  const double zeroed = shards_gradients(o.step.sharding) ? group_shards(o).own(count) : count.total();
  b.forward("zero_grad", MemoryWork{MemoryOp::kFill, Bytes{u.gradient * zeroed}}, 4);
  return b.take();
}

double exposed_copies(const std::vector<Op>& step, const Hardware& hardware) {
  Seconds copies{}, update{};
  for (const Op& op : step) {
    if (op.overlap == Overlap::kOffload) copies += op_time(op, hardware);
    if (std::holds_alternative<HostUpdateWork>(op.work)) update += op_time(op, hardware);
  }
  return copies > update ? ((copies - update) / copies).to<double>() : 0.0;
}

}  // namespace foldwise::costmodel

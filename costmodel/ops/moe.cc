#include "costmodel/ops/block_cost.h"
#include "costmodel/ops/expert_kernel.h"
#include "costmodel/ops/mlp.h"

// A mixture of experts, from the norm to the residual add: MoELayer in megatron/core/transformer/moe/moe_layer.py.
namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;
using GM = GraphModule;

constexpr double kInt32 = 4.0, kInt64 = 8.0;  // Bytes of an index.

// Router: FP32 logits of every token and expert (from BF16 operands, or FP32 ones in core_v0.16), top-k, statistics. In
// either case backward casts its input to FP32 and its gradient back.
void router(Builder& b, const MoeSizes& z) {
  const ModelSpec& model = b.model();
  b.module(Module::kRouter);
  b.captured_by({GM::kMoeRouter, GM::kMoe});
  b.recompute({RM::kMoe});
  const Software& software = b.options().software;
  constexpr double kCast = kBf16 + kFp32;  // Read and written.
  if (software.router_fp32_operands)
    b.memory_op("router_cast", MemoryOp::kRouter, kCast * z.t * z.h, MemoryOp::kRouter, 2.0 * kCast * z.t * z.h, 2, 3);
  else if (software.router_fp32)  // moe_utils.py: RouterGatingLinearFunction.backward.
    b.memory_op("router_cast", MemoryOp::kRouter, 0.0, MemoryOp::kRouter, 2.0 * kCast * z.t * z.h, 0, 4);
  b.linear({.name = "router",
            .rows = z.t,
            .out = model.moe.experts + model.moe.zero_experts,
            .in = model.hidden_size,
            .bias = model.router_bias ? model.moe.experts : 0,
            .quantised = false,
            .unquantised_format = software.router_fp32_operands ? MathFormat::kFp32 : MathFormat::kBf16,
            .dummy_gradient = false});
  // Top-k, scores, masks and counts: about 15 passes over the FP32 scores in each direction; 3 with router fusion.
  const double passes = software.fused_router ? 3.0 : 15.0;
  b.memory_op("topk", MemoryOp::kRouter, passes * kFp32 * z.t * z.experts, MemoryOp::kRouter,
              passes * kFp32 * z.t * z.experts, software.fused_router ? 3 : 24, software.fused_router ? 3 : 16);
  b.keep("top_k", (software.transformer_engine ? 0.0 : kFp32) * z.t * z.experts + 20.0 * z.t * z.k, {RM::kMoe});
  // The dispatcher holds probabilities and routing map of its last micro-batch, and with them the leaf of their graph:
  // the detached input of a recomputed region and its gradient.
  b.keep("router_probabilities", (kProbabilityBytes + 1.0) * z.t * z.experts, {RM::kMoe});
  b.rests(kFp32 * z.t * z.h);
  b.recompute({});
}

// Sends tokens to the ranks of their experts (dispatch) or back (combine). Bytes per rank; source:
// docs/formulas.md#moe.
void exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  b.module(Module::kDispatch);
  b.node(dispatch ? Node::kDispatch : Node::kCombine);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  b.step();
  if (b.options().overlaps.shared_expert && b.model().moe.shared_ffn_hidden_size > 0) b.overlap(Overlap::kSharedExpert);
  dispatcher_spec(b.options().dispatcher).exchange(b, z, dispatch);
  b.backward_transient({kBf16 * z.rows * z.hr, kBf16 * z.rows * z.hr});  // Gradients before and after the exchange.
  b.overlap(Overlap::kNone);
  b.recompute({});
}

// Puts rows into expert order before the exchange, and weighted rows back into token order after it.
void permute(Builder& b, const MoeSizes& z, bool before) {
  const LayerOptions& o = b.options();
  b.module(Module::kDispatch);
  b.node(before ? Node::kPreDispatch : Node::kCombine);
  if (before)
    b.captured_by({GM::kMoePreprocess, GM::kMoe});
  else
    b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  const DispatcherSpec& dispatcher = dispatcher_spec(o.dispatcher);
  const bool flex = dispatcher.once_per_rank;
  const double tokens = flex ? z.t * expected_destinations(z.routing, o.ep) : z.t;
  const double rows = flex ? z.rows : z.routed, bytes = kBf16 * z.hr * (tokens + rows);
  const bool fused = o.software.fused_permute || dispatcher.permutes_fused;
  // Unfused, each row reads its token again (index_select, gather), and rows are added to their tokens with atomics:
  // index_select's backward is index_add, unpermute is scatter_add.
  const MemoryWork copy{MemoryOp::kPermute, Bytes{fused ? bytes : 2.0 * kBf16 * z.hr * rows}};
  const SoftwareWork index_add{SoftwareKernel::kIndexAdd, z.hr * rows},
      scatter_add{SoftwareKernel::kScatterAdd, z.hr * rows};
  if (flex) {
    b.captured_by({GM::kMoe});
    b.node(Node::kMlp);
  }
  if (before) {
    const int launches = !fused ? 12 : flex ? 6 : 4;  // The map of the rows, with three kernels and the library's.
    b.op_pair("permute", copy, fused ? Work{copy} : Work{index_add}, launches, fused ? 2 : 6);
    const auto local_experts = static_cast<double>(b.shape().local_experts);
    b.keep("row_map",
           !fused ? kInt64 * rows + tokens * (flex ? local_experts : z.experts)
           : flex ? kInt32 * tokens * (local_experts + 1.0)
                  : kInt32 * tokens * (2.0 * z.experts + 1.0),
           {RM::kMoe});
    if (!flex) b.rests(0.0);
  } else {
    b.op_pair("unpermute", fused ? Work{copy} : Work{scatter_add}, copy, fused ? 2 : 6, fused ? 2 : 6);
  }
  b.recompute({});
}

// Sorts chunks from source-rank order to expert order or back, if there are several local experts.
void sort_chunks(Builder& b, const MoeSizes& z, bool before) {
  if (!dispatcher_spec(b.options().dispatcher).sorts_chunks || b.shape().local_experts <= 1) return;
  b.module(Module::kDispatch);
  b.node(Node::kMlp);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  const double tensor = kBf16 * z.rows * z.hr;
  if (b.options().software.fused_permute) b.forward("sort_map", SoftwareWork{SoftwareKernel::kSortMap, z.rows});
  b.memory_op(before ? "sort_chunks" : "unsort_chunks", MemoryOp::kPermute, 2.0 * tensor, MemoryOp::kPermute,
              2.0 * tensor, 2, 1);
  b.keep("sort_map", kInt32 * z.rows, {RM::kMoe});
  if (!before) b.forward_transient({tensor});  // The copy exists beside the experts' output.
  b.recompute({});
}

// Pads the rows of every expert to the format's multiple, or removes the padding (TEGroupedMLP's quantization_padding),
// unless dispatch has padded them. The padded rows are held until the experts return.
void pad_rows(Builder& b, const MoeSizes& z, bool before) {
  const LayerOptions& o = b.options();
  if (!b.recipe().low_precision() || dispatcher_spec(o.dispatcher).pads_rows || expert_kernel(o).fuses_activation ||
      !o.software.transformer_engine || o.pad_to_capacity)
    return;
  b.module(Module::kExperts);
  b.node(Node::kMlp);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  const double tensor = kBf16 * z.rows * z.hr;
  // Measured on H200: 3.07 TB/s; casts 2.84 (benchmarks/accuracy/journal.md#gemm).
  b.memory_op(before ? "quantization_padding" : "quantization_unpadding", MemoryOp::kQuantize, 2.0 * tensor,
              MemoryOp::kQuantize, 2.0 * tensor, before ? 2 : 1, before ? 2 : 1);
  if (before) {
    b.hold(tensor);
  } else {
    b.forward_transient({tensor});  // The cut rows exist beside the padded ones.
    b.release(tensor);
  }
  b.recompute({});
}

void shared_experts(Builder& b, const MoeSizes& z) {
  const ModelSpec& model = b.model();
  if (model.moe.shared_ffn_hidden_size == 0) return;
  const double tensor = kBf16 * z.t * z.h;
  b.module(Module::kSharedExperts);
  b.node(Node::kPreDispatch);
  b.captured_by({GM::kMoeRouter, GM::kMoe});
  if (b.options().overlaps.shared_expert) b.overlap(Overlap::kSharedExpert);
  dense_mlp(b, model.moe.shared_ffn_hidden_size, false, {RM::kMoe, RM::kSharedExperts});
  if (model.moe.shared_gate) {
    b.recompute({RM::kMoe, RM::kSharedExperts});
    b.memory_op("shared_expert_gate", MemoryOp::kElementwise, 4.0 * tensor, MemoryOp::kElementwise, 6.0 * tensor, 4, 6);
    b.weight("shared_expert_gate", model.hidden_size, false, false, b.options().tp > 1);
    b.keep("shared_expert_output", tensor, {RM::kMoe, RM::kSharedExperts});  // A factor of the gate.
    b.recompute({});
  }
  b.overlap(Overlap::kNone);
  b.memory_op("shared_expert_add", MemoryOp::kElementwise, 3.0 * tensor, MemoryOp::kElementwise, 3.0 * tensor);
}

void latent_projection(Builder& b, const MoeSizes& z, bool down) {
  if (z.latent == 0) return;
  const std::int64_t h = b.model().hidden_size;
  b.module(Module::kExperts);
  b.node(down ? Node::kPreDispatch : Node::kCombine);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  b.linear({.name = down ? "fc1_latent_proj" : "fc2_latent_proj",
            .rows = z.t,
            .out = down ? z.latent : h,
            .in = down ? h : z.latent});
  if (!down) b.keep("latent_output", kBf16 * z.t * static_cast<double>(z.latent), {RM::kMoe});
  b.recompute({});
}

/// --moe-expert-rank-capacity-factor: buffers hold factor x balanced rows, however many arrive
/// (token_dispatcher.py:1095 of core_v0.19.0). Tensors for backward stay in them. With --moe-paged-stash they are in
/// pages of a pool of --moe-paged-stash-buffer-size-factor-cuda times the mean, by default 1.10 (transformer_config.py
/// there). The copies to and from the pages run beside the layers and are not priced.
void size_rank_buffers(Builder& b, const MoeSizes& z) {
  constexpr double kPagedStash = 1.10;
  const LayerOptions& o = b.options();
  if (!o.rank_capacity_factor || z.rows <= 0.0) return;
  const double balanced = z.routed * static_cast<double>(o.etp), capacity = *o.rank_capacity_factor * balanced / z.rows;
  b.sized(o.paged_stash ? kPagedStash : capacity, capacity);
}

MoeSizes moe_sizes(const Builder& b) {
  const ModelSpec& model = b.model();
  const MoeSpec& moe = model.moe;
  return {.routing = {.experts = moe.experts,
                      .topk = moe.topk,
                      .groups = moe.router_groups,
                      .group_topk = moe.router_group_topk},
          .t = b.shape().tokens,
          .h = static_cast<double>(model.hidden_size),
          .hr = static_cast<double>(moe.latent_size > 0 ? moe.latent_size : model.hidden_size),
          .k = static_cast<double>(moe.topk),
          .experts = static_cast<double>(moe.experts),
          .rows = b.shape().expert_rows,
          .routed = b.shape().routed_rows,
          .latent = moe.latent_size};
}

// Bytes that the frames of MoELayer.forward and of the experts hold. Permuted and dispatched tokens live until the
// layer returns. The experts' input lives until their output, and the output until it is combined in source order.
// fc2's input lives while the experts run. In BF16 the linears keep both inputs for backward anyway; in low precision
// they keep copies. Dispatched tokens that need no sorting are the experts' input. Tokens permuted in a CUDA graph are
// the graph's output, which is in its pool until the next replay.
struct Frames {
  double permuted, dispatched, fc1_input, fc2_input, output;
  bool permuted_in_pool;
  [[nodiscard]] double held_permuted() const { return permuted_in_pool ? 0.0 : permuted; }
};
Frames frames(const Builder& b, const MoeSizes& z) {
  const LayerOptions& o = b.options();
  const bool permutes = dispatcher_spec(o.dispatcher).sorts_chunks,
             sorts = permutes && z.rows > 0 && b.shape().local_experts > 1,
             copies = b.recipe().low_precision() && !expert_kernel(o).fuses_activation,
             rebuilds = recomputed_modules(o).contains(RM::kMoeAct);
  const double width = static_cast<double>(b.model().moe.ffn_hidden_size) / static_cast<double>(o.etp),
               output = kBf16 * z.rows * z.hr, exchanged = o.ep * o.etp > 1 ? output : 0.0,
               input = sorts || !permutes ? output : exchanged;
  return {.permuted = permutes ? kBf16 * z.routed * z.hr : 0.0,
          .dispatched = sorts ? exchanged : 0.0,
          .fc1_input = copies ? input : 0.0,
          .fc2_input = copies && !rebuilds ? kBf16 * z.rows * width : 0.0,
          .output = output,
          .permuted_in_pool =
              o.cuda_graph.impl == GraphImpl::kTransformerEngine && o.cuda_graph.modules.contains(GM::kMoePreprocess)};
}

// Takes tokens to the experts of their ranks, through them, and back.
void routed_experts(Builder& b, const MoeSizes& z) {
  const Frames held = frames(b, z);
  size_rank_buffers(b, z);
  permute(b, z, true);
  b.hold(held.held_permuted());
  if (held.permuted_in_pool && held.permuted > 0.0) b.keep("permuted_tokens", held.permuted);
  exchange(b, z, true);
  if (held.dispatched > 0.0) b.hold(held.dispatched);
  sort_chunks(b, z, true);
  b.hold(held.fc1_input);
  pad_rows(b, z, true);
  experts(b, z);
  b.hold(held.output + held.fc2_input);
  pad_rows(b, z, false);
  b.release(held.fc2_input);
  sort_chunks(b, z, false);
  b.release(held.fc1_input);
  exchange(b, z, false);
  permute(b, z, false);
  b.release(held.held_permuted() + held.dispatched + held.output);
  b.sized(1.0, 1.0);
}

}  // namespace

void moe(Builder& b, const LayerSpec& layer) {
  const MoeSizes z = moe_sizes(b);
  const double tokens = kBf16 * z.t * z.h;  // Bytes of a tensor of all tokens.
  b.captured_by({GM::kMoeRouter, GM::kMoe});
  b.recompute({RM::kLayerNorm});
  b.norm("pre_mlp_layernorm", z.t, b.model().hidden_size);
  b.keep_input(tokens, {OM::kMlpNorm}, layer.mixer != kNoMixer);
  b.keep("norm_output", tokens, {RM::kLayerNorm});
  b.recompute({});
  b.memory_op("norm_output_grad_add", MemoryOp::kElementwise, 0.0, MemoryOp::kElementwise, 3.0 * tokens);

  shared_experts(b, z);
  const double shared = b.model().moe.shared_ffn_hidden_size > 0 ? tokens : 0.0;
  b.hold(shared);  // The shared experts' output is held until the routed experts' output exists.
  router(b, z);
  latent_projection(b, z, true);
  routed_experts(b, z);
  latent_projection(b, z, false);
  b.node(Node::kCombine);
  b.module(Module::kMlp);
  b.captured_by({GM::kMoe});
  b.sandwich_norm("post_mlp_layernorm");
  b.residual_add("mlp_bda");
  b.release(shared);
}

}  // namespace foldwise::costmodel

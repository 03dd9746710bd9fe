#include <cmath>

#include "costmodel/ops/block_cost.h"
#include "costmodel/ops/dispatchers/dispatchers.h"

// The feed-forward half of a layer: norm, dense MLP or mixture of experts, residual add.
namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;
using GM = GraphModule;

double gate_factor(const ModelSpec& model) { return model.gated_linear_unit ? 2.0 : 1.0; }

// fc1, activation, fc2 of a dense MLP or of the shared experts, `width` wide over the whole TP group.
void dense_mlp(Builder& b, std::int64_t width, bool bias, BitSet<RM> region) {
  const ModelSpec& model = b.model();
  const std::int64_t tp = b.options().tp, h = model.hidden_size;
  const double ta = b.shape().attention_tokens, f = static_cast<double>(width) / b.tp(), g = gate_factor(model);
  b.recompute(region);
  b.linear({.name = "linear_fc1",
            .lora = LoraModule::kLinearFc1,
            .split = Split::kColumn,
            .rows = ta,
            .out = static_cast<std::int64_t>(g) * width / tp,
            .in = h,
            .bias = bias ? static_cast<std::int64_t>(g) * width / tp : 0,
            .output_kept = true});
  if (b.options().recompute.modules.contains(RM::kAlternateMatmuls)) {  // Gate and up are products of their own.
    b.keep_for(1, "gate", 2.0 * ta * f, region);
    b.keep_for(1, "up", 2.0 * ta * (g - 1.0) * f, region | RM::kAlternateMatmuls);
  } else {
    b.keep_for(1, "fc1_output", 2.0 * ta * g * f, region);
  }
  b.step();
  b.recompute(region | RM::kAlternateMatmuls);
  b.forward("activation", MemoryWork{MemoryOp::kActivationForward, Bytes{2.0 * ta * (g + 1.0) * f}});
  b.backward("activation", Phase::kDgrad,
             MemoryWork{MemoryOp::kActivationBackward, Bytes{2.0 * ta * (2.0 * g + 1.0) * f}});
  b.backward_transient({2.0 * ta * g * f, 2.0 * ta * f});  // Gradients of input and output.
  b.keep_for_wgrad(1, "fc2_input", b.recipe().saved_input_bytes() * ta * f, region | RM::kAlternateMatmuls);
  b.recompute(region);
  b.linear({.name = "linear_fc2",
            .lora = LoraModule::kLinearFc2,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = width / tp,
            .bias = bias ? h : 0});
  b.recompute({});
}

void dense(Builder& b, const LayerSpec& layer) {
  const ModelSpec& model = b.model();
  const double t = b.shape().tokens, th = t * static_cast<double>(model.hidden_size);
  const bool te = b.options().software.transformer_engine;
  b.recompute({RM::kMlp, RM::kAlternateMatmuls});
  b.inside_module(te);  // TE's fc1 begins with the norm.
  b.norm("pre_mlp_layernorm", t, model.hidden_size);
  b.inside_module(false);
  b.keep_input(2.0 * th, te ? BitSet<OM>{} : BitSet<OM>{OM::kMlpNorm}, layer.mixer != kNoMixer);
  b.keep_for_wgrad(1, "norm_output", (te ? b.recipe().saved_input_bytes() : 2.0) * th,
                   {RM::kMlp, RM::kAlternateMatmuls});
  dense_mlp(b, model.ffn_hidden_size, model.add_bias_linear, {RM::kMlp});
  b.sandwich_norm("post_mlp_layernorm");
  b.residual_add("mlp_bda");
}

// Router: logits of every token and expert in fp32 (from bf16 operands, or fp32 ones in core_v0.16), top-k, statistics.
// Backward casts its input to fp32 and its gradient back either way.
void router(Builder& b, const MoeSizes& z) {
  const ModelSpec& model = b.model();
  b.module(Module::kRouter);
  b.captured_by({GM::kMoeRouter, GM::kMoe});
  b.recompute({RM::kMoe});
  const Software& software = b.options().software;
  if (software.router_fp32_operands)
    b.memory_op("router_cast", MemoryOp::kRouter, 6.0 * z.t * z.h, MemoryOp::kRouter, 12.0 * z.t * z.h, 2, 3);
  else if (software.router_fp32)  // moe_utils.py: RouterGatingLinearFunction.backward.
    b.memory_op("router_cast", MemoryOp::kRouter, 0.0, MemoryOp::kRouter, 12.0 * z.t * z.h, 0, 4);
  b.linear({.name = "router",
            .rows = z.t,
            .out = model.moe.experts + model.moe.zero_experts,
            .in = model.hidden_size,
            .bias = model.router_bias ? model.moe.experts : 0,
            .quantised = false,
            .unquantised_format = software.router_fp32_operands ? MathFormat::kFp32 : MathFormat::kBf16,
            .dummy_gradient = false});
  // Top-k, scores, masks and counts: about 15 passes over the fp32 scores each way unfused, 3 with router fusion.
  const double passes = software.fused_router ? 3.0 : 15.0;
  b.memory_op("topk", MemoryOp::kRouter, passes * 4.0 * z.t * z.experts, MemoryOp::kRouter,
              passes * 4.0 * z.t * z.experts, software.fused_router ? 3 : 24, software.fused_router ? 3 : 16);
  b.keep("top_k", (software.transformer_engine ? 0.0 : 4.0) * z.t * z.experts + 20.0 * z.t * z.k, {RM::kMoe});
  // The dispatcher holds probabilities and routing map of its last micro-batch, and with them the leaf of their graph:
  // the detached input of a recomputed region, and its gradient.
  b.keep("router_probabilities", 5.0 * z.t * z.experts, {RM::kMoe});
  b.rests(4.0 * z.t * z.h);
  b.recompute({});
}

// Tokens to the ranks of their experts (forward) or back (combine). Bytes per rank; source: docs/formulas.md#moe.
void exchange(Builder& b, const MoeSizes& z, bool dispatch) {
  b.module(Module::kDispatch);
  b.node(dispatch ? Node::kDispatch : Node::kCombine);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  b.step();
  if (b.options().overlaps.shared_expert && b.model().moe.shared_ffn_hidden_size > 0) b.overlap(Overlap::kSharedExpert);
  dispatcher_spec(b.options().dispatcher).exchange(b, z, dispatch);
  b.backward_transient({2.0 * z.rows * z.hr, 2.0 * z.rows * z.hr});  // Gradients before and after.
  b.overlap(Overlap::kNone);
  b.recompute({});
}

// Rows into expert order before the exchange, and weighted back into token order after it.
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
  const double rows = flex ? z.rows : z.routed, bytes = 2.0 * z.hr * (tokens + rows);
  const bool fused = o.software.fused_permute || dispatcher.permutes_fused;
  // Unfused, each row reads its token anew (index_select, gather), and rows are added to their tokens with atomics:
  // index_select's backward is index_add, unpermute is scatter_add.
  const MemoryWork copy{MemoryOp::kPermute, Bytes{fused ? bytes : 4.0 * z.hr * rows}};
  const SoftwareWork index_add{SoftwareKernel::kIndexAdd, z.hr * rows},
      scatter_add{SoftwareKernel::kScatterAdd, z.hr * rows};
  if (flex) {
    b.captured_by({GM::kMoe});
    b.node(Node::kMlp);
  }
  if (before) {
    const int launches = !fused ? 12 : flex ? 6 : 4;  // A map of the rows, its three kernels and the library's.
    b.op_pair("permute", copy, fused ? Work{copy} : Work{index_add}, launches, fused ? 2 : 6);
    const auto local_experts = static_cast<double>(b.shape().local_experts);
    b.keep("row_map",
           !fused ? 8.0 * rows + tokens * (flex ? local_experts : z.experts)
           : flex ? 4.0 * tokens * (local_experts + 1.0)
                  : 4.0 * tokens * (2.0 * z.experts + 1.0),
           {RM::kMoe});
    if (!flex) b.rests(0.0);
  } else {
    b.op_pair("unpermute", fused ? Work{copy} : Work{scatter_add}, copy, fused ? 2 : 6, fused ? 2 : 6);
  }
  b.recompute({});
}

// Chunks from source-rank order to expert order and back, with more than one local expert.
void sort_chunks(Builder& b, const MoeSizes& z, bool before) {
  if (!dispatcher_spec(b.options().dispatcher).sorts_chunks || b.shape().local_experts <= 1) return;
  b.module(Module::kDispatch);
  b.node(Node::kMlp);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  const double bytes = 4.0 * z.rows * z.hr;
  if (b.options().software.fused_permute) b.forward("sort_map", SoftwareWork{SoftwareKernel::kSortMap, z.rows});
  b.memory_op(before ? "sort_chunks" : "unsort_chunks", MemoryOp::kPermute, bytes, MemoryOp::kPermute, bytes, 2, 1);
  b.keep("sort_map", 4.0 * z.rows, {RM::kMoe});
  if (!before) b.forward_transient({2.0 * z.rows * z.hr});  // The copy, beside the experts' output.
  b.recompute({});
}

// Rows of every expert are padded to the format's multiple and cut again (TEGroupedMLP's quantization_padding), unless
// the dispatch has padded them. The padded ones are held until the experts return.
void pad_rows(Builder& b, const MoeSizes& z, bool before) {
  const LayerOptions& o = b.options();
  if (!b.recipe().low_precision() || dispatcher_spec(o.dispatcher).pads_rows || o.software.experts == Experts::kFused ||
      !o.software.transformer_engine || o.pad_to_capacity)
    return;
  b.module(Module::kExperts);
  b.node(Node::kMlp);
  b.captured_by({GM::kMoe});
  b.recompute({RM::kMoe});
  const double bytes = 4.0 * z.rows * z.hr;
  // Measured on H200: 3.07 TB/s, casts 2.84 (benchmarks/accuracy/journal.md#gemm).
  b.memory_op(before ? "quantization_padding" : "quantization_unpadding", MemoryOp::kQuantize, bytes,
              MemoryOp::kQuantize, bytes, before ? 2 : 1, before ? 2 : 1);
  const double padded = bytes / 2.0;
  if (before) {
    b.hold(padded);
  } else {
    b.forward_transient({padded});  // What is cut, beside what it is cut from.
    b.release(padded);
  }
  b.recompute({});
}

// Megatron clamps both halves of fc1's output, joins them again, and gives that to the fused activation
// (fusions/fused_bias_geglu.py: weighted_bias_quick_geglu_impl). Halves are strided.
void clamp(Builder& b, double elements) {
  b.op_pair("activation_clamp", SoftwareWork{SoftwareKernel::kActivationClampForward, elements},
            SoftwareWork{SoftwareKernel::kActivationClampBackward, elements}, 3, 7);
  b.keep_for(1, "clamped", 2.0 * elements, {RM::kMoe, RM::kMoeAct});
  b.backward_transient({2.0 * elements, 2.0 * elements});
}

// fc2's bias times the probabilities, in their dtype, expert by expert, then joined and cast back
// (transformer/moe/experts.py: TEGroupedMLP._apply_bias). The kernels are timed in fp32; of the bytes that they move
// there (benchmarks/accuracy/journal.md#software), bf16 needs 12 of 28 forward (product 2, sum 6, join 4) and 18 of 38
// backward (join 4, split 4, both factors 8, sums 2).
void expert_bias(Builder& b, double elements, std::int64_t experts) {
  const int each = static_cast<int>(experts);
  const bool fp32 = b.options().software.router_fp32;
  const double forward = fp32 ? 1.0 : 12.0 / 28.0, backward = fp32 ? 1.0 : 18.0 / 38.0;
  b.op_pair("expert_bias", SoftwareWork{SoftwareKernel::kExpertBiasForward, forward * elements, experts},
            SoftwareWork{SoftwareKernel::kExpertBiasBackward, backward * elements, experts}, 2 * each + 2,
            5 * each + 2);
  const double bytes = (fp32 ? 4.0 : 2.0) * elements;
  b.forward_transient({bytes, bytes});
  b.backward_transient({bytes, bytes});
}

constexpr int kCutlassLaunches = 2;  // A copy of the groups' addresses and the kernel.

// Grouped fc1, activation times probability, grouped fc2 over the local experts.
void experts(Builder& b, const MoeSizes& z) {
  const LayerOptions& o = b.options();
  const ModelSpec& model = b.model();
  const std::int64_t local = b.shape().local_experts, etp = o.etp;
  const double g = gate_factor(model), f = static_cast<double>(model.moe.ffn_hidden_size) / static_cast<double>(etp);
  const double rows = z.rows, mean = rows / static_cast<double>(local), q8 = b.recipe().saved_input_bytes();
  const bool bias = model.add_bias_linear, low_precision = b.recipe().low_precision();
  // Activation and its quantisation run in the GEMMs' epilogues; what comes from and goes to the dispatcher is
  // quantised by a kernel over all experts (transformer_engine/pytorch/ops/fused/grouped_mlp.py, TE 2.17).
  const bool fused = o.software.experts == Experts::kFused, sequential = o.software.experts == Experts::kSequential;
  // Megatron's grouped GEMM has one tensor and one kernel of all experts, Transformer Engine one an expert.
  const bool one_tensor = !sequential && !o.software.transformer_engine;
  // Transformer Engine gives CUTLASS neither other formats nor products that add to FP32 (nvte_multi_tensor_gemm in
  // transformer_engine/common/gemm/cublaslt_gemm.cu); their addresses are copied to the GPU before the kernel.
  const bool one_kernel =
      o.software.experts == Experts::kCutlass && o.software.transformer_engine && local > 1 && !low_precision;
  const int launches = static_cast<int>(fused ? 2 : one_tensor ? 1 : 2 * local);
  const int expert_launches = one_kernel ? kCutlassLaunches : launches;  // But for the weights' gradients.
  const auto fc1_out = static_cast<std::int64_t>(g * f), fc2_in = static_cast<std::int64_t>(f);
  const auto hr = static_cast<std::int64_t>(z.hr);

  b.module(Module::kExperts);
  b.node(Node::kMlp);
  b.captured_by({GM::kMoe});
  // Sequential experts are an MLP each: two linears, each with a kernel of its own, an activation, and at the end a
  // copy that joins their outputs (SequentialMLP in megatron/core/transformer/moe/experts.py). The host takes such an
  // MLP, and what joins them, as one module each: no norm, no communication
  // (benchmarks/accuracy/journal.md#a-sheet-of-a-host).
  const bool one_by_one = sequential && local > 1, module = o.software.transformer_engine;
  const Grouping of_weights = one_by_one ? Grouping::kOneByOne : Grouping::kSideBySide,
                 grouping = one_kernel ? Grouping::kOneKernel : of_weights;
  const int modules = module ? static_cast<int>(one_by_one ? local + 1 : 1) : 0,
            each = static_cast<int>(one_by_one ? local : 1);
  const auto grouped = [&](LoraModule linear, std::int64_t out, std::int64_t in, std::int64_t bias_count) {
    const bool fc1 = linear == LoraModule::kLinearFc1;
    const std::string_view name = fc1 ? "linear_fc1" : "linear_fc2";
    b.step();
    b.inside_module(module);
    // The fused kernels write fc2's input and fc1's gradient quantised.
    if (low_precision && (fc1 || !fused))
      b.quantise(name, Phase::kForward, rows * static_cast<double>(in), fused ? 1 : local);
    b.forward(name, GemmWork{b.recipe().format(GemmPhase::kForward), mean, out, in, local, false, grouping},
              expert_launches)
        .modules = fc1 || !one_by_one ? modules : 0;
    b.weight(name, local * out * in, true, true, false, one_tensor ? 1 : local);
    b.weight(name, local * bias_count, false, true, false, one_tensor ? 1 : local);
    if (low_precision && (!fc1 || !fused))
      b.quantise(name, Phase::kDgrad, rows * static_cast<double>(out), fused ? 1 : local);
    Op& dgrad = b.backward(name, Phase::kDgrad,
                           GemmWork{b.recipe().format(GemmPhase::kDgrad), mean, in, out, local, false, grouping},
                           expert_launches);
    // Gradients of output and input, and the output's quantised in both layouts.
    const double input_gradient = 2.0 * rows * static_cast<double>(in),
                 output_gradient = 2.0 * rows * static_cast<double>(out),
                 quantised = low_precision ? q8 * rows * static_cast<double>(out) : 0.0;
    const auto gradients = {input_gradient, output_gradient, quantised, quantised};
    b.transient_of(dgrad, gradients);
    dgrad.modules = fc1 || !one_by_one ? modules : 0;
    if (o.lora) {
      b.inside_module(false);
      const Linear frozen{.name = name,
                          .lora = linear,
                          .split = fc1 ? Split::kColumn : Split::kRow,
                          .rows = rows,
                          .out = out,
                          .in = in};
      return b.adapter(frozen, Group::kEtp, true);
    }
    const bool fp32 = o.software.gradient_accumulation_fusion && o.grad_reduce_in_fp32;
    b.backward(name, Phase::kWgrad,
               GemmWork{b.recipe().format(GemmPhase::kWgrad), static_cast<double>(out), in,
                        static_cast<std::int64_t>(std::ceil(mean)), local, fp32, of_weights},
               launches)
        .dummy_gradient = true;
    b.backward_transient(gradients);
    b.inside_module(false);
    if (fc1 && bias_count > 0 && !fused)  // fc2's bias is added by expert_bias, and its gradient is there.
      b.backward("bias_gradient", Phase::kWgrad,
                 SoftwareWork{SoftwareKernel::kBiasGradient, rows * static_cast<double>(out), local},
                 static_cast<int>(local));
    if (o.software.gradient_accumulation_fusion) return;
    Op& add = b.backward(
        name, Phase::kWgrad,
        MemoryWork{MemoryOp::kReduce, Bytes{10.0 * static_cast<double>(local) * static_cast<double>(out * in)}});
    // bf16 weight gradients. Both weights of grouped experts are views made before both GEMMs, so autograd hands both
    // gradients on only after fc1's backward.
    const double both = 2.0 * static_cast<double>(local * hr) * (g + 1.0) * f;
    if (sequential) {
      add_transient(add, {2.0 * static_cast<double>(out * in)});
    } else if (!fc1) {
      add.holds = Bytes{2.0 * static_cast<double>(local * out * in)};
    } else {
      b.transient_of(add, gradients);
      add.holds = Bytes{2.0 * static_cast<double>(local * out * in)};
      add.releases = Bytes{both};
    }
  };
  b.recompute({RM::kMoe});
  grouped(LoraModule::kLinearFc1, fc1_out, hr, bias ? fc1_out : 0);
  b.keep_for_wgrad(0, "fc1_input", q8 * rows * z.hr, {RM::kMoe}, {OM::kExpertFc1, OM::kFusedGroupMlp});
  b.keep_for(1, "fc1_output", 2.0 * rows * g * f, {RM::kMoe}, {OM::kMoeAct, OM::kFusedGroupMlp});
  b.keep_for(1, "permuted_probabilities", 4.0 * rows, {RM::kMoe});
  b.recompute({RM::kMoe, RM::kMoeAct});
  if (model.clamped_activation && !fused) clamp(b, rows * g * f);
  const double fused_share = fused ? 0.0 : 1.0;
  b.memory_op("activation", MemoryOp::kActivationForward, fused_share * (2.0 * rows * (g + 1.0) * f + 4.0 * rows),
              MemoryOp::kActivationBackward, fused_share * (2.0 * rows * (2.0 * g + 1.0) * f + 8.0 * rows), each, each);
  b.backward_transient({2.0 * rows * g * f, 2.0 * rows * f});  // Gradients of input and output.
  if (!fused)  // The probabilities' gradient: a kernel that reads the activation's input and its output's gradient.
    b.backward("activation_probabilities", Phase::kDgrad,
               SoftwareWork{SoftwareKernel::kProbabilityGradient, rows * (g + 1.0) * f});
  // Recomputed, it is kept as it is and quantised again (set_save_original_input in experts.py), as is what is
  // offloaded.
  const bool original = low_precision && recomputed_modules(o).contains(RM::kMoeAct);
  b.keep_for_wgrad(1, "fc2_input", (original ? 2.0 : q8) * rows * f, {RM::kMoe, RM::kMoeAct}, {OM::kFusedGroupMlp});
  b.recompute({RM::kMoe});
  grouped(LoraModule::kLinearFc2, hr, fc2_in, bias ? hr : 0);
  if (original && !o.lora) b.backward_transient({q8 * rows * f});
  if (bias && !fused) expert_bias(b, rows * z.hr, local);
  if (one_by_one) {
    b.memory_op("join_outputs", MemoryOp::kElementwise, 4.0 * rows * z.hr, MemoryOp::kElementwise, 4.0 * rows * z.hr);
    b.forward_transient({2.0 * rows * z.hr});  // The joined copy, beside the outputs.
  }
  if (bias && fused)  // Gradients of fc2's bias and of the probabilities: one pass over its output's gradient.
    b.memory_op("expert_bias", MemoryOp::kElementwise, 0.0, MemoryOp::kElementwise, 2.0 * rows * z.hr);
  b.recompute({});
}

void shared_experts(Builder& b, const MoeSizes& z) {
  const ModelSpec& model = b.model();
  if (model.moe.shared_ffn_hidden_size == 0) return;
  b.module(Module::kSharedExperts);
  b.node(Node::kPreDispatch);
  b.captured_by({GM::kMoeRouter, GM::kMoe});
  if (b.options().overlaps.shared_expert) b.overlap(Overlap::kSharedExpert);
  dense_mlp(b, model.moe.shared_ffn_hidden_size, false, {RM::kMoe, RM::kSharedExperts});
  if (model.moe.shared_gate) {
    b.recompute({RM::kMoe, RM::kSharedExperts});
    b.memory_op("shared_expert_gate", MemoryOp::kElementwise, 8.0 * z.t * z.h, MemoryOp::kElementwise, 12.0 * z.t * z.h,
                4, 6);
    b.weight("shared_expert_gate", model.hidden_size, false, false, b.options().tp > 1);
    b.keep("shared_expert_output", 2.0 * z.t * z.h, {RM::kMoe, RM::kSharedExperts});  // A factor of the gate.
    b.recompute({});
  }
  b.overlap(Overlap::kNone);
  b.memory_op("shared_expert_add", MemoryOp::kElementwise, 6.0 * z.t * z.h, MemoryOp::kElementwise, 6.0 * z.t * z.h);
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
  if (!down) b.keep("latent_output", 2.0 * z.t * static_cast<double>(z.latent), {RM::kMoe});
  b.recompute({});
}

/// --moe-expert-rank-capacity-factor: buffers hold factor x balanced rows, however many arrive
/// (token_dispatcher.py:1095 of core_v0.19.0). What backward needs stays in them, or with --moe-paged-stash in pages of
/// a pool that holds
/// --moe-paged-stash-buffer-size-factor-cuda times the mean, 1.10 by default (transformer_config.py there). The copies
/// to and from the pages run beside the layers and are not priced.
void size_rank_buffers(Builder& b, const MoeSizes& z) {
  constexpr double kPagedStash = 1.10;
  const LayerOptions& o = b.options();
  if (!o.rank_capacity_factor || z.rows <= 0.0) return;
  const double balanced = z.routed * static_cast<double>(o.etp), capacity = *o.rank_capacity_factor * balanced / z.rows;
  b.sized(o.paged_stash ? kPagedStash : capacity, capacity);
}

void moe(Builder& b, const LayerSpec& layer) {
  const ModelSpec& model = b.model();
  MoeSizes z{};
  z.t = b.shape().tokens;
  z.h = static_cast<double>(model.hidden_size);
  z.latent = model.moe.latent_size;
  z.hr = z.latent > 0 ? static_cast<double>(z.latent) : z.h;
  z.k = static_cast<double>(model.moe.topk);
  z.experts = static_cast<double>(model.moe.experts);
  z.routing = {.experts = model.moe.experts,
               .topk = model.moe.topk,
               .groups = model.moe.router_groups,
               .group_topk = model.moe.router_group_topk};
  z.rows = b.shape().expert_rows;
  z.routed = b.shape().routed_rows;

  b.captured_by({GM::kMoeRouter, GM::kMoe});
  b.recompute({RM::kLayerNorm});
  b.norm("pre_mlp_layernorm", z.t, model.hidden_size);
  b.keep_input(2.0 * z.t * z.h, {OM::kMlpNorm}, layer.mixer != kNoMixer);
  b.keep("norm_output", 2.0 * z.t * z.h, {RM::kLayerNorm});
  b.recompute({});
  b.memory_op("norm_output_grad_add", MemoryOp::kElementwise, 0.0, MemoryOp::kElementwise, 6.0 * z.t * z.h);

  shared_experts(b, z);
  const double shared = model.moe.shared_ffn_hidden_size > 0 ? 2.0 * z.t * z.h : 0.0;
  b.hold(shared);  // Their output, until the experts' is there.
  router(b, z);
  latent_projection(b, z, true);
  // MoELayer's frame holds the permuted and the dispatched tokens until it returns, the experts' input until their
  // output, which it holds until that is combined, is in the order of its source. The experts' frame holds fc2's input.
  // Both inputs are what the linears keep for backward in BF16, but copies of it in low precision. Dispatched tokens
  // that need no sorting are the experts' input. Permuted tokens of a CUDA graph are its output, which lies in its pool
  // until it is replayed again.
  const LayerOptions& o = b.options();
  const bool in_pool =
      o.cuda_graph.impl == GraphImpl::kTransformerEngine && o.cuda_graph.modules.contains(GraphModule::kMoePreprocess);
  const bool permutes_first = dispatcher_spec(o.dispatcher).sorts_chunks;
  const bool sorts = permutes_first && z.rows > 0 && b.shape().local_experts > 1;
  const double permuted = permutes_first ? 2.0 * z.routed * z.hr : 0.0, held = in_pool ? 0.0 : permuted,
               output = 2.0 * z.rows * z.hr, exchanged = o.ep * o.etp > 1 ? output : 0.0,
               dispatched = sorts ? exchanged : 0.0;
  const bool copies = b.recipe().low_precision() && o.software.experts != Experts::kFused;
  const double fc1_input = copies ? (sorts || !permutes_first ? output : exchanged) : 0.0;
  const double fc2_width = static_cast<double>(model.moe.ffn_hidden_size) / static_cast<double>(o.etp);
  const double fc2_input = copies && !recomputed_modules(o).contains(RM::kMoeAct) ? 2.0 * z.rows * fc2_width : 0.0;
  size_rank_buffers(b, z);
  permute(b, z, true);
  b.hold(held);
  if (in_pool && permuted > 0.0) b.keep("permuted_tokens", permuted);
  exchange(b, z, true);
  if (dispatched > 0.0) b.hold(dispatched);
  sort_chunks(b, z, true);
  b.hold(fc1_input);
  pad_rows(b, z, true);
  experts(b, z);
  b.hold(output + fc2_input);
  pad_rows(b, z, false);
  b.release(fc2_input);
  sort_chunks(b, z, false);
  b.release(fc1_input);
  exchange(b, z, false);
  permute(b, z, false);
  b.release(held + dispatched + output);
  b.sized(1.0, 1.0);
  latent_projection(b, z, false);
  b.node(Node::kCombine);
  b.module(Module::kMlp);
  b.captured_by({GM::kMoe});
  b.sandwich_norm("post_mlp_layernorm");
  b.residual_add("mlp_bda");
  b.release(shared);
}

}  // namespace

OpList mlp_ops(const BuildContext& context, const LayerSpec& layer) {
  Builder b(context, Module::kMlp, {GM::kMlp});
  switch (layer.mlp) {
    case MlpKind::kNone:
      return {};
    case MlpKind::kDense:
      dense(b, layer);
      break;
    case MlpKind::kMoe:
      moe(b, layer);
      break;
  }
  b.output_gradient(2.0 * b.shape().tokens * static_cast<double>(b.model().hidden_size));
  return b.take();
}

}  // namespace foldwise::costmodel

#include <algorithm>

#include "costmodel/ops/block_cost.h"
#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;

}  // namespace

// Megatron counts the output gate in GPT models only.
MixerFlops GqaSpec::flops(const FlopsContext& context) const {
  const double h = real(context.model.hidden_size), q = real(heads) * real(head_dim),
               o = real(heads) * real(value_dim()), k = real(query_groups) * real(head_dim),
               v = keys_are_values ? 0 : real(query_groups) * real(value_dim());
  const double gate = output_gate && !context.model.hybrid ? q : headwise_gate ? real(heads) : 0;
  return {.per_token = 6 * h * (q + o + k + v + gate), .per_squared_token = 3 * (q + o)};
}

void build(Builder& b, const GqaSpec& g, const LayerSpec& layer) {
  const LayerOptions& o = b.options();
  const std::int64_t tp = o.tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens, d = static_cast<double>(g.head_dim),
               v = static_cast<double>(g.value_dim());
  const bool te = o.software.transformer_engine;
  const std::int64_t q_width = g.heads * g.head_dim,
                     kv_width = g.query_groups * (g.head_dim + (g.keys_are_values ? 0 : g.value_dim()));
  const auto heads = static_cast<double>(g.heads) / b.tp();
  const double groups = std::max(1.0, static_cast<double>(g.query_groups) / b.tp());
  const bool bias = b.model().add_bias_linear;

  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  const std::int64_t qkv = q_width + kv_width + (g.output_gate ? q_width : 0);
  b.linear({.name = "linear_qkv",
            .lora = LoraModule::kLinearQkv,
            .split = Split::kColumn,
            .rows = ta,
            .out = qkv / tp,
            .in = h,
            .bias = g.qkv_bias || bias ? (q_width + kv_width) / tp : 0});
  b.memory_op("split_qkv", MemoryOp::kStridedCopy, 4.0 * ta * (heads + groups) * d, MemoryOp::kElementwise,
              4.0 * ta * ((heads + groups) * d + groups * v), 2, 1);
  if (g.qk_layernorm) {
    b.step();
    b.norm("q_layernorm", ta * heads, g.head_dim);
    b.keep("query_before_norm", 2.0 * ta * heads * d, {}, {OffloadModule::kQkvLinear});
    b.norm("k_layernorm", ta * groups, g.head_dim);
    if (te) b.keep("key_before_norm", 2.0 * ta * groups * d, {}, {OffloadModule::kQkvLinear});
  }
  rope(b, ta * (heads + groups) * d);
  if (!te) b.keep("rope_cos_sin", 8.0 * static_cast<double>(o.seq_len) / static_cast<double>(o.cp) * d);
  const CoreAttention core{.heads = heads,
                           .groups = groups,
                           .qk_dim = g.head_dim,
                           .v_dim = g.value_dim(),
                           .window = static_cast<double>(layer.window)};
  core_attention(b, core);
  if (g.learnable_softmax) {
    b.weight("softmax_offset", g.heads / tp, false);
    // cuDNN sums its gradient with atomics in the kernel before the main backward one.
    b.backward("softmax_offset", Phase::kDgrad, SoftwareWork{SoftwareKernel::kSinkGradient, ta * heads}, 0);
  }
  // v is a view that keeps the whole QKV output alive. Transformer Engine's attention saves a copy of v, but the
  // checkpoint around a recomputed attention saves the view.
  if (o.software.fused_attention && (!te || recomputed_modules(o).contains(RM::kCoreAttn)))
    b.keep("qkv_view", 2.0 * ta * (heads + groups) * d);
  if (g.output_gate)
    b.memory_op("output_gate", MemoryOp::kActivationForward, 6.0 * ta * heads * d, MemoryOp::kActivationBackward,
                10.0 * ta * heads * d);
  if (g.output_gate) b.keep("gate", 2.0 * ta * heads * d);
  if (g.headwise_gate) {
    b.linear({.name = "g_proj", .split = Split::kColumn, .rows = ta, .out = g.heads / tp, .in = h});
    b.memory_op("headwise_gate", MemoryOp::kElementwise, 4.0 * ta * heads * v, MemoryOp::kElementwise,
                6.0 * ta * heads * v);
    b.keep("gated_output", 2.0 * ta * heads * v);
  }
  // The projection's input is not the attention's output but a separate tensor (_apply_output_gate in
  // megatron/core/transformer/attention.py).
  if (g.output_gate && !b.recipe().keeps_projection_input) b.keep("gated_output", 2.0 * ta * heads * d);
  b.recompute({RM::kAlternateMatmuls});
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = g.heads * g.value_dim() / tp,
            .bias = bias ? h : 0});
  b.recompute({});
  if (b.recipe().keeps_projection_input) b.keep("fp8_attention_output", ta * heads * v);
}

}  // namespace foldwise::costmodel

#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {

// Multiply-adds per token: input projection (q, k, v, z, b, a), short convolution, delta rule, output.
MixerFlops GatedDeltaNetSpec::flops(const FlopsContext& context) const {
  const double h = real(context.model.hidden_size);
  const double keys = real(key_heads) * real(key_head_dim);
  const double values = real(value_heads) * real(value_head_dim);
  const double input = 2 * keys + 2 * values + 2 * real(value_heads);
  const double delta_rule = 4 * real(value_heads) * real(value_head_dim) * real(value_head_dim);
  return {.per_token = 6 * (h * input + real(conv_kernel) * (2 * keys + values) + delta_rule + h * values),
          .per_squared_token = 0};
}

// Gated delta net: in_proj, convolution over q, k, v, chunked delta rule, gated norm, out_proj.
void build(Builder& b, const GatedDeltaNetSpec& g, const LayerSpec&) {
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens;
  const std::int64_t qk = g.key_heads * g.key_head_dim, v = g.value_heads * g.value_head_dim;
  const std::int64_t in = 2 * qk + 2 * v + 2 * g.value_heads;
  const auto conv = static_cast<double>(2 * qk + v) / b.tp(), x = static_cast<double>(v) / b.tp();
  const bool te = b.options().software.transformer_engine;
  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "in_proj", .split = Split::kColumn, .rows = ta, .out = in / tp, .in = h});
  b.keep("in_proj_output", 2.0 * ta * static_cast<double>(in) / b.tp());
  b.memory_op("conv1d", MemoryOp::kElementwise, 4.0 * ta * conv, MemoryOp::kElementwise, 8.0 * ta * conv);
  b.weight("conv1d", g.conv_kernel * (2 * qk + v) / tp, false);
  b.keep("conv_output", 2.0 * ta * conv);
  b.step();
  const double rule = 2.0 * ta * static_cast<double>(g.value_heads) / b.tp() *
                      (4.0 * static_cast<double>(g.value_head_dim * g.key_head_dim));
  b.forward("chunk_delta_rule", AttentionWork{g.key_head_dim, Flops{rule}, 0.0, false, false}, 8);
  b.weight("dt_bias_a_log", 2 * g.value_heads / tp, false, false, false, 2);
  b.backward("chunk_delta_rule", Phase::kDgrad, AttentionWork{g.key_head_dim, Flops{2.0 * rule}, 0.0, true, false}, 14);
  b.memory_op("chunk_delta_rule", MemoryOp::kElementwise, 2.0 * ta * (3.0 * conv + x), MemoryOp::kElementwise,
              5.0 * ta * (3.0 * conv + x));
  b.memory_op("gated_norm", MemoryOp::kNormForward, 6.0 * ta * x, MemoryOp::kNormBackward, 10.0 * ta * x, 1, 3);
  b.weight("gated_norm", static_cast<std::int64_t>(b.norm_vectors()) * g.value_head_dim, false, false, tp > 1,
           static_cast<std::int64_t>(b.norm_vectors()));
  b.keep("rule_output", 2.0 * ta * x);
  b.linear({.name = "out_proj", .split = Split::kRow, .rows = ta, .out = h, .in = v / tp});
  b.keep_for_wgrad(0, "gated_norm_output", b.recipe().saved_input_bytes() * ta * x);
}

}  // namespace foldwise::costmodel

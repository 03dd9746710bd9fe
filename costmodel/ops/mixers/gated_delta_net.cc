#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {

// Multiply-adds per token: input projection (q, k, v, z, b, a), short convolution, delta rule, output.
MixerFlops GatedDeltaNetSpec::flops(const FlopsContext& context) const {
  const double h = real(context.model.hidden_size);
  const double keys = real(key_heads) * real(key_head_dim);
  const double values = real(value_heads) * real(value_head_dim);
  const double gates = gate_rank > 0 ? real(gate_rank) * (2 + (keys + values) / h) : values + real(value_heads);
  const double input = 2 * keys + values + real(value_heads) + gates;
  const double delta_rule = 4 * real(value_heads) * real(value_head_dim) * real(value_head_dim);
  return {.per_token = 6 * (h * input + real(conv_kernel) * (2 * keys + values) + delta_rule + h * values),
          .per_squared_token = 0};
}

// Gated delta net: in_proj, convolution over q, k, v, chunked delta rule, gated norm, out_proj. Source:
// GatedDeltaNet.forward in megatron/core/ssm/gated_delta_net.py (Core 0.16.1) with causal_conv1d and
// flash-linear-attention.
void build(Builder& b, const GatedDeltaNetSpec& g, const LayerSpec&) {
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens;
  const std::int64_t qk = g.key_heads * g.key_head_dim, v = g.value_heads * g.value_head_dim;
  const bool low_rank = g.gate_rank > 0;
  const std::int64_t in = 2 * qk + v + g.value_heads + (low_rank ? 0 : v + g.value_heads);
  // Values of a token on this rank: queries and keys, the same repeated per value head, values, and all that is
  // convolved.
  const double n = real(g.value_heads) / b.tp(), keys = 2.0 * real(qk) / b.tp(), x = real(v) / b.tp(),
               repeated = g.value_heads > g.key_heads ? 2.0 * n * real(g.key_head_dim) : 0.0, conv = keys + x;
  const bool te = b.options().software.transformer_engine;
  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "in_proj", .split = Split::kColumn, .rows = ta, .out = in / tp, .in = h});
  if (low_rank) {  // The kernels of the gated delta rule stand in for those with a decay per channel.
    const double t = b.shape().tokens;
    b.linear({.name = "gates_down_proj", .rows = t, .out = 2 * g.gate_rank, .in = h});
    b.linear({.name = "gates_up_proj", .split = Split::kColumn, .rows = ta, .out = (qk + v) / tp, .in = g.gate_rank});
  }
  // Copies: the convolution needs a channel's tokens in sequence, the rule needs a token's channels, and a query and
  // key per value head. Gradients are copied back in the same way and end in slices of in_proj's output.
  b.op_pair("layout", SoftwareWork{SoftwareKernel::kDeltaNetLayoutForward, ta * conv},
            SoftwareWork{SoftwareKernel::kDeltaNetLayoutBackward, ta * conv}, 9, 15);
  b.keep("convolution_input", 2.0 * ta * conv);
  b.op_pair("conv1d", SoftwareWork{SoftwareKernel::kMambaConvolutionForward, ta * conv},
            SoftwareWork{SoftwareKernel::kMambaConvolutionBackward, ta * conv});
  b.weight("conv1d", g.conv_kernel * (2 * qk + v) / tp, false);
  b.memory_op("l2_norm", MemoryOp::kNormForward, 4.0 * ta * keys, MemoryOp::kNormBackward, 6.0 * ta * keys, 2, 4);
  b.keep("normed_query_key", 2.0 * ta * keys);
  b.step();
  // A head's decay and beta are small, but eight kernels make them.
  b.op_pair("gated_delta_rule", SoftwareWork{SoftwareKernel::kGatedDeltaRuleForward, ta * x},
            SoftwareWork{SoftwareKernel::kGatedDeltaRuleBackward, ta * x}, 6 + 8, 17 + 12);
  constexpr double kChunk = 64.0;  // Tokens per chunk. The inverse of each chunk is kept in BF16.
  b.weight("dt_bias_a_log", (g.value_heads + (low_rank ? qk : g.value_heads)) / tp, false, false, false, 2);
  b.keep("repeated_query_key", 2.0 * ta * repeated);
  b.keep("value", 2.0 * ta * x);
  b.keep("chunk_inverse", 2.0 * ta * n * kChunk);
  b.keep("decay_beta", 6.0 * ta * n);
  b.memory_op("gated_norm", MemoryOp::kNormForward, 4.0 * ta * x, MemoryOp::kNormBackward, 6.0 * ta * x, 1, 2);
  b.memory_op("gate", MemoryOp::kElementwise, 6.0 * ta * x, MemoryOp::kElementwise, 10.0 * ta * x);
  b.weight("gated_norm", static_cast<std::int64_t>(b.norm_vectors()) * g.value_head_dim, false, false, tp > 1,
           static_cast<std::int64_t>(b.norm_vectors()));
  b.keep("rule_output", 2.0 * ta * x);
  b.keep("normed_output", 2.0 * ta * x);
  b.keep("gate", 2.0 * ta * x);
  const double copied = b.options().micro_batch > 1 ? 4.0 * ta * x : 0.0;
  b.memory_op("sequence_major", MemoryOp::kStridedCopy, copied, MemoryOp::kStridedCopy, copied);
  b.linear({.name = "out_proj", .split = Split::kRow, .rows = ta, .out = h, .in = v / tp});
  b.keep_for_wgrad(0, "gated_norm_output", b.recipe().saved_input_bytes() * ta * x);
}

}  // namespace foldwise::costmodel

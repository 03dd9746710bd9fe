#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {

// Not in Megatron's function. Counts q, k, v, gate and output projections, and per head the update and the read of a
// head_dim x head_dim state.
MixerFlops LightningSpec::flops(const FlopsContext& context) const {
  const double h = real(context.model.hidden_size), q = real(heads) * real(head_dim);
  return {.per_token = 6 * (5 * h * q + 2 * q * real(head_dim)), .per_squared_token = 0};
}

// Lightning attention (MiniMax-01): per-head linear attention with an output gate and norm.
void build(Builder& b, const LightningSpec& g, const LayerSpec&) {
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size, width = g.heads * g.head_dim;
  const double ta = b.shape().attention_tokens, x = static_cast<double>(width) / b.tp();
  const bool te = b.options().software.transformer_engine;
  constexpr double kBlock = 256;  // Tokens per block of the kernel. Source: the public MiniMax-01 implementation.
  input_norm(b, "input_layernorm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "linear_qkv",
            .lora = LoraModule::kLinearQkv,
            .split = Split::kColumn,
            .rows = ta,
            .out = 3 * width / tp,
            .in = h});
  b.keep("qkv", 6.0 * ta * x);
  b.linear({.name = "output_gate",
            .split = Split::kColumn,
            .rows = ta,
            .out = width / tp,
            .in = h,
            .quantise_input = false});
  b.keep("gate", 2.0 * ta * x);
  b.step();
  const double work = 2.0 * ta * x * (kBlock + 2.0 * static_cast<double>(g.head_dim));
  b.forward("lightning_attention", AttentionWork{g.head_dim, Flops{work}, 0.0, false, false}, 4);
  b.backward("lightning_attention", Phase::kDgrad, AttentionWork{g.head_dim, Flops{2.5 * work}, 0.0, true, false}, 6);
  b.memory_op("gated_norm", MemoryOp::kNormForward, 6.0 * ta * x, MemoryOp::kNormBackward, 10.0 * ta * x, 2, 4);
  b.weight("gated_norm", width / tp, false);
  b.keep("attention_output", 4.0 * ta * x);
  b.linear({.name = "linear_proj",
            .lora = LoraModule::kLinearProj,
            .split = Split::kRow,
            .rows = ta,
            .out = h,
            .in = width / tp});
}

}  // namespace foldwise::costmodel

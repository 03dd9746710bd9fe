#include "costmodel/check.h"
#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {

// Megatron uses 2h as the inner width, whatever the heads are, and counts Mamba only in hybrid models.
MixerFlops MambaSpec::flops(const FlopsContext& context) const {
  FW_CHECK(context.model.hybrid, "a Mamba layer outside a hybrid model");
  const double h = real(context.model.hidden_size), inner = 2 * h;
  const double input = dt_rank > 0 ? 2 * inner + inner / h * (2 * real(dt_rank) + 2 * real(state))
                                   : 2 * inner + 2 * real(groups) * real(state) + real(heads);
  return {.per_token = 3 * (2 * h * input + 7 * inner * real(state) + 2 * inner * h), .per_squared_token = 0};
}

// Mamba-2: in_proj, causal convolution, chunked scan, gated norm, out_proj. Mamba-1 has no norm; x_proj and dt_proj
// make B, C and dt from the convolution's output, and Mamba-2's scan stands in for its own.
void build(Builder& b, const MambaSpec& m, const LayerSpec&) {
  b.captured_by({GraphModule::kMamba});
  const std::int64_t tp = b.options().tp, h = b.model().hidden_size;
  const double ta = b.shape().attention_tokens;
  const bool first = m.dt_rank > 0;
  const std::int64_t inner = m.heads * m.head_dim, bc = first ? 0 : 2 * m.groups * m.state;
  const auto conv = static_cast<double>(inner + bc) / b.tp(), x = static_cast<double>(inner) / b.tp();
  const bool te = b.options().software.transformer_engine;
  input_norm(b, "mamba_norm", te, te ? b.recipe().saved_input_bytes() : 2.0);
  b.linear({.name = "in_proj", .split = Split::kColumn, .rows = ta, .out = m.projection() / tp, .in = h});
  const double projected = static_cast<double>(m.projection()) / b.tp();
  b.keep("in_proj_output", 2.0 * ta * projected);
  // The scan needs sequences one after another, but Megatron's rows alternate between the sequences of a micro-batch
  // (ssm/mamba_mixer.py: _ssm_training).
  const double copied = b.options().micro_batch > 1 ? 4.0 * ta : 0.0;
  b.memory_op("sequence_major", MemoryOp::kStridedCopy, copied * projected, MemoryOp::kStridedCopy, copied * projected);
  // Backward runs the convolution again, so only its input is kept.
  b.op_pair("conv1d", SoftwareWork{SoftwareKernel::kMambaConvolutionForward, ta * conv},
            SoftwareWork{SoftwareKernel::kMambaConvolutionBackward, ta * conv});
  b.weight("conv1d", m.conv_kernel * (inner + bc) / tp, false);
  b.weight("conv1d", (inner + bc) / tp, false);
  if (first) {
    b.linear({.name = "x_proj", .split = Split::kRow, .rows = ta, .out = m.dt_rank + 2 * m.state, .in = inner / tp});
    b.linear({.name = "dt_proj",
              .split = Split::kColumn,
              .rows = ta,
              .out = inner / tp,
              .in = m.dt_rank,
              .bias = inner / tp});
    b.weight("dt_b_c_norm", m.dt_rank + 2 * m.state, false, false, tp > 1, 3);
  }
  // Kernels of mamba_ssm, which FP32 arithmetic limits. The time per element was measured with as many tokens in a
  // chunk as there are states. For other sizes it is scaled by bytes: BF16 tokens, and the FP32 states of every chunk,
  // which are made, passed on and read. Backward makes them again, and their gradients.
  const double states = static_cast<double>(m.state) / static_cast<double>(m.chunk);
  b.op_pair("chunk_scan", SoftwareWork{SoftwareKernel::kMambaScanForward, ta * x * (7.0 + 16.0 * states) / 23.0},
            SoftwareWork{SoftwareKernel::kMambaScanBackward, ta * x * (37.0 + 40.0 * states) / 77.0}, 5, 36);
  b.weight("dt_bias_a_d", (first ? inner * (m.state + 1) : 3 * m.heads) / tp, false, false, false, first ? 2 : 3);
  // The scan's matrix products are hidden behind that.
  b.memory_op("batch_major", MemoryOp::kStridedCopy, copied * x, MemoryOp::kStridedCopy, copied * x);
  if (first)
    b.memory_op("gate", MemoryOp::kElementwise, 6.0 * ta * x, MemoryOp::kElementwise, 10.0 * ta * x);
  else
    b.op_pair("gated_norm", SoftwareWork{SoftwareKernel::kMambaNormForward, ta * x},
              SoftwareWork{SoftwareKernel::kMambaNormBackward, ta * x}, 1, 3);
  if (!first) b.weight("gated_norm", inner / tp, false);
  b.keep("scan_output", 2.0 * ta * x);
  b.linear({.name = "out_proj", .split = Split::kRow, .rows = ta, .out = h, .in = inner / tp});
  b.keep_for_wgrad(0, "gated_norm_output", b.recipe().saved_input_bytes() * ta * x);
}

}  // namespace foldwise::costmodel

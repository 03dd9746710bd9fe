#include "costmodel/ops/mlp.h"

// The MLP half of a layer: norm, dense MLP or mixture of experts (moe.cc), residual add.
namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;

void dense(Builder& b, const LayerSpec& layer) {
  const ModelSpec& model = b.model();
  const double t = b.shape().tokens, th = t * static_cast<double>(model.hidden_size);
  const bool te = b.options().software.transformer_engine;
  b.recompute({RM::kMlp, RM::kAlternateMatmuls});
  b.inside_module(te);  // TE's fc1 contains the norm.
  b.norm("pre_mlp_layernorm", t, model.hidden_size);
  b.inside_module(false);
  b.keep_input(kBf16 * th, te ? BitSet<OM>{} : BitSet<OM>{OM::kMlpNorm}, layer.mixer != kNoMixer);
  b.keep_for_wgrad(1, "norm_output", (te ? b.recipe().saved_input_bytes() : kBf16) * th,
                   {RM::kMlp, RM::kAlternateMatmuls});
  dense_mlp(b, model.ffn_hidden_size, model.add_bias_linear, {RM::kMlp});
  b.sandwich_norm("post_mlp_layernorm");
  b.residual_add("mlp_bda");
}

}  // namespace

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
  if (b.options().recompute.modules.contains(RM::kAlternateMatmuls)) {  // Gate and up are separate products.
    b.keep_for(1, "gate", kBf16 * ta * f, region);
    b.keep_for(1, "up", kBf16 * ta * (g - 1.0) * f, region | RM::kAlternateMatmuls);
  } else {
    b.keep_for(1, "fc1_output", kBf16 * ta * g * f, region);
  }
  b.step();
  b.recompute(region | RM::kAlternateMatmuls);
  b.forward("activation", MemoryWork{MemoryOp::kActivationForward, Bytes{kBf16 * ta * (g + 1.0) * f}});
  b.backward("activation", Phase::kDgrad,
             MemoryWork{MemoryOp::kActivationBackward, Bytes{kBf16 * ta * (2.0 * g + 1.0) * f}});
  b.backward_transient({kBf16 * ta * g * f, kBf16 * ta * f});  // Gradients of input and output.
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

OpList mlp_ops(const BuildContext& context, const LayerSpec& layer) {
  Builder b(context, Module::kMlp, {GraphModule::kMlp});
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
  b.output_gradient(kBf16 * b.shape().tokens * static_cast<double>(b.model().hidden_size));
  return b.take();
}

}  // namespace foldwise::costmodel

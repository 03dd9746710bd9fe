#include <variant>

#include "costmodel/ops/mixers/mixers.h"

namespace foldwise::costmodel {

OpList mixer_ops(const BuildContext& context, const LayerSpec& layer) {
  const Mixer* mixer = context.model.mixer(layer);
  if (mixer == nullptr) return {};
  Builder b(context, Module::kAttention, {GraphModule::kAttn});
  std::visit([&](const auto& spec) { build(b, spec, layer); }, *mixer);
  b.sandwich_norm("post_self_attn_layernorm");
  b.residual_add("self_attn_bda");
  b.output_gradient(2.0 * b.shape().tokens * static_cast<double>(b.model().hidden_size));
  return b.take();
}

}  // namespace foldwise::costmodel

#include "costmodel/model/model.h"

#include <algorithm>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

double mlp_flops_per_token(const ModelSpec& model, MlpKind kind) {
  const double h = real(model.hidden_size);
  const double matrices = model.swiglu ? 3 : 2;
  switch (kind) {
    case MlpKind::kNone:
      return 0;
    case MlpKind::kDense:
      return 6 * h * matrices * real(model.ffn_hidden_size);
    case MlpKind::kMoe: {
      const double latent = real(model.moe.latent_size);
      double routed = matrices * real(model.moe.ffn_hidden_size) * real(model.moe.topk);
      if (latent > 0) routed = routed * latent / h + 2 * latent;  // The two projections h <-> latent.
      return 6 * h * (routed + matrices * real(model.moe.shared_ffn_hidden_size));
    }
  }
  return 0;
}

}  // namespace

std::int64_t padded_vocab_size(const ModelSpec& model, std::int64_t tp) {
  FW_CHECK(tp >= 1 && model.make_vocab_size_divisible_by >= 1);
  const std::int64_t multiple = model.make_vocab_size_divisible_by * tp;
  return (model.vocab_size + multiple - 1) / multiple * multiple;
}

const Mixer* ModelSpec::mixer(const LayerSpec& layer) const {
  return layer.mixer == kNoMixer ? nullptr : &mixers.at(static_cast<std::size_t>(layer.mixer));
}

std::int64_t ModelSpec::query_heads() const {
  std::int64_t most = 0;
  for (const Mixer& mixer : mixers)
    most = std::max(most, std::visit([](const auto& spec) { return spec.query_heads(); }, mixer));
  return most;
}

double megatron_flops(const ModelSpec& model, double tokens, double squared_tokens, std::int64_t tp) {
  const double h = real(model.hidden_size);
  const double depths = real(model.mtp_num_layers);
  // Once for the main head and once for each depth of multi-token prediction.
  const double logits = 6 * h * real(padded_vocab_size(model, tp)) * (depths + 1);

  const auto layer_flops = [&](const LayerSpec& layer) {
    const FlopsContext context{model, layer, tokens, squared_tokens};
    const Mixer* spec = model.mixer(layer);
    const MixerFlops mixer =
        spec == nullptr ? MixerFlops{} : std::visit([&](const auto& kind) { return kind.flops(context); }, *spec);
    return tokens * (mixer.per_token + mlp_flops_per_token(model, layer.mlp)) +
           squared_tokens * mixer.per_squared_token;
  };

  double total = tokens * logits;
  for (const LayerSpec& layer : model.layers) total += layer_flops(layer);
  for (const LayerSpec& layer : model.mtp_layers) total += depths * layer_flops(layer);
  // Three norms and the projection of [hidden, embedding] per depth; the hybrid branch leaves them out.
  if (!model.hybrid) total += tokens * 6 * depths * (3 * h + 2 * h * h);
  return total;
}

}  // namespace foldwise::costmodel

#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/model/model.h"

// Maps Hugging Face keys to Megatron's fields. `read_trunk` and `read_gqa` read the keys that all families share; each
// family adds its own keys and what Megatron-Bridge sets for it (docs/formulas.md#model). A family first reads single
// values, which report their own mistakes, and then, if there were none, checks them against each other.
namespace foldwise::planner {

// Upper bounds of plausible sizes. Products of two widths and the number of layers fit in 63 bits. `check_total` bounds
// the whole.
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxLayers = std::int64_t{1} << 14;
inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
inline constexpr std::int64_t kMaxExperts = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

/// Input and output of the family readers. `in` reports mistakes at the key that the user would change.
struct ConfigReader {
  ConfigReader(config::ObjectReader reader, costmodel::ModelSpec& model, config::Diagnostics& errors)
      : in(std::move(reader)), spec(model), diagnostics(errors), errors_before(errors.list().size()) {}

  // --- Parts of a config.
  void read_gqa(bool qkv_bias, bool qk_layernorm);
  void read_activation(std::string_view key, bool gated_by_default);
  void read_normalization(costmodel::Normalization otherwise);
  void read_position_embedding(bool learned);  ///< Without a statement: learned, or rotary or none.
  void read_experts(std::string_view key, std::string_view ffn_key);
  [[nodiscard]] costmodel::MlaSpec read_latent();
  void read_indexer(costmodel::MlaSpec& mla);  ///< Of DeepSeek sparse attention.
  void read_all_experts();                     ///< Including shared and latent experts.
  void read_common();                          ///< Norms, activation, biases.
  [[nodiscard]] costmodel::GatedDeltaNetSpec read_gated_delta_net();
  [[nodiscard]] std::int64_t width(std::string_view key) { return in.required_integer(key, 1, kMaxWidth); }
  [[nodiscard]] std::int64_t optional_width(std::string_view key) { return in.integer_or(key, 0, 0, kMaxWidth); }

  // --- Values against each other.
  void check_divides(std::string_view whole_key, std::int64_t whole, std::string_view part_key, std::int64_t part);
  void check_gqa();
  void check_experts();
  [[nodiscard]] bool check_length(std::string_view key, std::size_t length);

  // --- Layers, after all keys are read.
  /// Index of the mixer in the model's list. Adds it if it is new.
  [[nodiscard]] std::int32_t mixer(const costmodel::Mixer& sizes);
  void all_layers(std::int32_t mixer, costmodel::MlpKind mlp) {
    spec.layers.assign(layers, {.mixer = mixer, .mlp = mlp});
  }

  [[nodiscard]] bool clean() const { return diagnostics.list().size() == errors_before; }
  [[nodiscard]] std::int64_t num_layers() const { return static_cast<std::int64_t>(layers); }

  config::ObjectReader in;
  costmodel::ModelSpec& spec;
  config::Diagnostics& diagnostics;
  std::size_t errors_before;
  std::size_t layers = 0;
  costmodel::GqaSpec gqa;  ///< Set by read_gqa.
  std::string experts_key;
};

// Readers of families with our keys (families.h):
void read_transformer(ConfigReader& c, bool latent, bool experts);
void read_mamba_hybrid(ConfigReader& c);
void read_shortcut(ConfigReader& c);
// Readers of families with their own keys:
void read_megatron(ConfigReader& c);
void read_megatron_gpt(ConfigReader& c);
void read_nemotron_h(ConfigReader& c);
void read_minimax(ConfigReader& c);
void read_deepseek_v4(ConfigReader& c);

/// Reads the config of a language model, as the family that model_type names or, if unknown, that its keys suggest.
void read_config(config::ObjectReader in, costmodel::ModelSpec& spec, config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

#pragma once
#include <string>
#include <vector>

#include "planner/launch/arguments.h"

// Completes the settings of a start where its arguments refer to something else: a tokenizer, a model's name, a pattern
// of layers. Also lists options that are not modelled.
namespace foldwise::planner {

/// The built-in model that a name as people write it stands for: with an organisation, in any case, with "-Instruct", a
/// date or the like at the end, or as a folder. Empty if there is none.
[[nodiscard]] std::string published_model(const std::string& name);

/// Sets the vocabulary size if the arguments name a tokenizer of known size (from vocabularies.json or a built-in
/// model). Adds the origin of the size to `notes`.
void add_vocabulary(Settings& settings, std::vector<std::string>& notes);

/// Sets the geometry of a model, built-in or from a config.json, where the arguments do not state it. Returns the
/// arguments that differ from the model: "--num-layers 12, not 32". Adds what no argument of Megatron can express to
/// `diagnostics`.
[[nodiscard]] std::vector<std::string> add_geometry(const std::string& model, const Release& release,
                                                    Settings& settings, config::Diagnostics& diagnostics);

/// Parses a hybrid's layer pattern as Megatron does: bars separate virtual stages, slashes separate layers of
/// multi-token prediction. Builds a pattern from --hybrid-attention-ratio and --hybrid-mlp-ratio. Reports invalid
/// patterns.
void complete_pattern(Settings& settings, const std::string& file, config::Diagnostics& diagnostics);

/// Sets the options of another program's layers (--spec; layer_specs.json). Adds the interpretation to `notes`.
void complete_layers(Settings& settings, std::vector<std::string>& notes);

/// Sets the decoder's sequence length if an image encoder has one too, and the batch at the end of a schedule. Adds the
/// interpretation to `notes`.
void complete_batch(Settings& settings, std::vector<std::string>& notes);

/// Options that change the cost of a step but are not modelled (not_modelled.json).
struct NotModelled {
  std::vector<std::string> notes;  ///< "line 4: --fp32-residual-connection: the residual stream is priced in 16 bits"
  std::vector<std::string> flags;  ///< The flags that `notes` are about.
};
[[nodiscard]] bool is_not_modelled(const std::string& flag);
/// `program`: the script that Python runs; empty: not known. Adds options with which nothing can be planned to
/// `diagnostics`.
[[nodiscard]] NotModelled not_modelled(const std::vector<Argument>& arguments, const std::string& program,
                                       const std::string& file, config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

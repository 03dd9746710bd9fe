#pragma once
#include <string>
#include <vector>

#include "planner/launch/arguments.h"

// What the arguments of a start leave to a tokenizer, to a model's name or to a pattern of layers, put into settings of
// their own; and what they ask for that is not modelled.
namespace foldwise::planner {

/// Sets the size of the vocabulary where the arguments name a tokenizer whose size is known (vocabularies.json, or that
/// of a built-in model). Adds where it comes from to `notes`.
void add_vocabulary(Settings& settings, std::vector<std::string>& notes);

/// Sets what builds a built-in model or one of a config.json, where the arguments do not say it. Returns what they say
/// otherwise than that model: "--num-layers 12, not 32". Adds what no argument of Megatron's says of it to
/// `diagnostics`.
[[nodiscard]] std::vector<std::string> add_geometry(const std::string& model, const Release& release,
                                                    Settings& settings, config::Diagnostics& diagnostics);

/// Takes a hybrid's pattern apart as Megatron does: bars part its virtual stages, slashes the layers of multi-token
/// prediction; makes one of --hybrid-attention-ratio and --hybrid-mlp-ratio. Adds what is none to `diagnostics`.
void complete_pattern(Settings& settings, const std::string& file, config::Diagnostics& diagnostics);

/// Sets what layers of another program's are (--spec; layer_specs.json). Adds what it makes of them to `notes`.
void complete_layers(Settings& settings, std::vector<std::string>& notes);

/// Which length the decoder has where an encoder of images has one too, and the batch that a schedule ends with. Adds
/// what it makes of them to `notes`.
void complete_batch(Settings& settings, std::vector<std::string>& notes);

/// What is asked for and changes the cost of a step, but is not modelled (not_modelled.json).
struct NotModelled {
  std::vector<std::string> notes;  ///< "line 4: --fp32-residual-connection: the residual stream is priced in 16 bits"
  std::vector<std::string> flags;  ///< That these are of.
};
[[nodiscard]] bool is_not_modelled(const std::string& flag);
/// `program`: the script that Python runs; empty: not known. Adds what nothing can be planned for to `diagnostics`.
[[nodiscard]] NotModelled not_modelled(const std::vector<Argument>& arguments, const std::string& program,
                                       const std::string& file, config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

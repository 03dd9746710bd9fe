#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/model/model.h"

namespace foldwise::planner {

/// Names of the built-in models, sorted: the stems of planner/models/data/*.json.
[[nodiscard]] std::vector<std::string> built_in_models();

/// Text of a built-in model's config.json; throws std::out_of_range for an unknown name.
[[nodiscard]] const std::string& built_in_model_text(const std::string& name);

/// The model that `name` means in a file `beside` ("": at the prompt): a built-in one's name, the path of a file, a
/// relative one from the folder of `beside` where there is such a file, or the name as it is. Case, punctuation, an
/// organisation before the last '/', dates and suffixes of releases ("Qwen/Qwen3-30B-A3B-Instruct-2507") do not matter;
/// a start will do if only one goes on so.
[[nodiscard]] std::string find_model(const std::string& name, const std::string& beside);

/// `name` is a built-in name or the path of a Hugging Face config.json. `overrides` replaces keys of that file before
/// it is read (nullptr or an object; an unknown key is an error). Bridge's constants per family (qk_layernorm, shared
/// expert sizes, windows, MTP depth) are added by the reader; the vocabulary divisor stays Megatron's 128 unless the
/// file has "make_vocab_size_divisible_by". Throws config::ConfigError.
[[nodiscard]] costmodel::ModelSpec load_model(const std::string& name, const nlohmann::json* overrides = nullptr);

/// Where its messages say that a mistake of read_inline_model() is.
inline constexpr std::string_view kInlineModel = "the run's model";
/// Reads a model that stands in a run file: an object with the keys of a config.json. As load_model otherwise.
[[nodiscard]] costmodel::ModelSpec read_inline_model(const nlohmann::json& config,
                                                     const nlohmann::json* overrides = nullptr);

/// Reads a Hugging Face config already parsed. Adds diagnostics; the result is usable only if none were added.
[[nodiscard]] costmodel::ModelSpec read_huggingface(const config::Document& document, const std::string& name,
                                                    config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

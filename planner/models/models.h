#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/model/model.h"

namespace foldwise::planner {

/// In ModelSpec::approximated, because no run of it sets a number. It is priced as Megatron runs it, which exports it.
inline constexpr std::string_view kSparseAttention = "DeepSeek sparse attention";

/// In ModelSpec::approximated, if the file has keys that no family of its shape reads. An exported script names them.
inline constexpr std::string_view kUnreadKeys = "keys that are not read";

/// Names of the built-in models, sorted: the stems of planner/models/data/*.json.
[[nodiscard]] std::vector<std::string> built_in_models();

/// config.json of a built-in model. Throws std::out_of_range for an unknown name.
[[nodiscard]] const std::string& built_in_model_text(const std::string& name);

/// The model that `name` refers to in a file `beside` ("": on the command line): a built-in name, or the path of a
/// file, relative to the folder of `beside` if it exists there, or the path of a folder that holds config.json (with a
/// '/'); otherwise `name` unchanged. Ignores case, punctuation,
/// an organisation before the last '/', dates and release suffixes ("Qwen/Qwen3-30B-A3B-Instruct-2507"). A unique
/// prefix of a built-in name is enough.
[[nodiscard]] std::string find_model(const std::string& name, const std::string& beside);

/// `name` is a built-in name or the path of a Hugging Face config.json. `overrides` replaces keys of that file before
/// it is read (nullptr or an object; an unknown key is an error). The reader adds Bridge's constants per family
/// (qk_layernorm, shared expert sizes, windows, MTP depth). The vocabulary divisor is Megatron's 128 unless the file
/// has "make_vocab_size_divisible_by". Throws config::ConfigError.
[[nodiscard]] costmodel::ModelSpec load_model(const std::string& name, const nlohmann::json* overrides = nullptr);

/// File name in messages of read_inline_model().
inline constexpr std::string_view kInlineModel = "the run's model";
/// Reads a model given inside a run file: an object with the keys of a config.json. Otherwise as load_model.
[[nodiscard]] costmodel::ModelSpec read_inline_model(const nlohmann::json& config,
                                                     const nlohmann::json* overrides = nullptr);

/// Reads a parsed Hugging Face config. Adds diagnostics; the result is usable only if it added none.
[[nodiscard]] costmodel::ModelSpec read_huggingface(const config::Document& document, const std::string& name,
                                                    config::Diagnostics& diagnostics);

}  // namespace foldwise::planner

#pragma once
#include <string>
#include <vector>

namespace foldwise::config {

/// The member of `known` that equals `word` except for case, punctuation and the part before the last '/':
/// "Qwen/Qwen3-235B-A22B" is "qwen3-235b-a22b". Empty if none or several match.
[[nodiscard]] std::string same_name(const std::string& word, const std::vector<std::string>& known);

/// The members of `known` that continue after `word` with a '-', compared in the same way: "h100" matches
/// "h100-sxm-80gb", but "h20" does not match "h200".
[[nodiscard]] std::vector<std::string> completions(const std::string& word, const std::vector<std::string>& known);

/// The member of `known` that contains the words of `word` in order: "H100 80GB" is "h100-sxm-80gb". Empty if none or
/// several match.
[[nodiscard]] std::string name_with_words(const std::string& word, const std::vector<std::string>& known);

/// Resolves a `name` in the file `beside`. It is the equal member of `known` (same_name()), or a path relative to the
/// folder of `beside` if that file exists. Otherwise the name stays as it is.
[[nodiscard]] std::string named_or_beside(const std::string& name, const std::vector<std::string>& known,
                                          const std::string& beside);

}  // namespace foldwise::config

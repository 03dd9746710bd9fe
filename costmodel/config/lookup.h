#pragma once
#include <string>
#include <vector>

namespace foldwise::config {

/// The one of `known` that is `word` but for case, punctuation and what stands before the last '/':
/// "Qwen/Qwen3-235B-A22B" is "qwen3-235b-a22b". Empty: none, or several.
[[nodiscard]] std::string same_name(const std::string& word, const std::vector<std::string>& known);

/// Those of `known` that go on with a '-' where `word` ends, likewise: "h100" of "h100-sxm-80gb", but not "h20" of
/// "h200".
[[nodiscard]] std::vector<std::string> completions(const std::string& word, const std::vector<std::string>& known);

/// The one of `known` that has `word`'s words among its own, in order: "H100 80GB" is "h100-sxm-80gb". Empty: none, or
/// several.
[[nodiscard]] std::string name_with_words(const std::string& word, const std::vector<std::string>& known);

/// What a `name` in the file `beside` means: the one of `known` that is the same, else the path of a file, a relative
/// one from the folder of `beside` where there is such a file, else the name as it is.
[[nodiscard]] std::string named_or_beside(const std::string& name, const std::vector<std::string>& known,
                                          const std::string& beside);

}  // namespace foldwise::config

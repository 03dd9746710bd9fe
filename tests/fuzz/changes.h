#pragma once
#include <random>
#include <string>
#include <vector>

namespace foldwise {

/// The text with one to four changes: of its bytes, or, where it is JSON or has lines that are, of a tree, which stays
/// JSON. `words` and what is usually not thought of come in, and parts of the text in other places.
std::string changed(const std::string& text, const std::vector<std::string>& words, std::mt19937& random);

}  // namespace foldwise

#pragma once
#include <random>
#include <string>
#include <vector>

namespace foldwise {

/// The text with one to four changes: of its bytes or, if it is JSON or has JSON lines, of a tree, which stays JSON.
/// Inserts `words`, unusual values, and parts of the text from elsewhere.
std::string changed(const std::string& text, const std::vector<std::string>& words, std::mt19937& random);

}  // namespace foldwise

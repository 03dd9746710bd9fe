#include "costmodel/config/lookup.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace foldwise::config {
namespace {

/// Dots are kept, because 3.1 is not 31.
std::string letters(const std::string& name) {
  std::string result;
  for (const char c : name.substr(name.find_last_of('/') + 1))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.')
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

std::string same_name(const std::string& word, const std::vector<std::string>& known) {
  const std::string wanted = letters(word);
  std::string found;
  for (const std::string& name : known) {
    if (letters(name) != wanted) continue;
    if (!found.empty()) return "";
    found = name;
  }
  return found;
}

std::vector<std::string> completions(const std::string& word, const std::vector<std::string>& known) {
  const std::string wanted = letters(word);
  std::vector<std::string> found;
  const auto goes_on = [&](const std::string& name) {
    for (std::size_t at = name.find('-'); at != std::string::npos; at = name.find('-', at + 1))
      if (letters(name.substr(0, at)) == wanted) return true;
    return false;
  };
  std::copy_if(known.begin(), known.end(), std::back_inserter(found), goes_on);
  return found;
}

std::string name_with_words(const std::string& word, const std::vector<std::string>& known) {
  const auto words = [](const std::string& name) {
    std::vector<std::string> result(1);
    for (const char c : name.substr(name.find_last_of('/') + 1))
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.')
        result.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      else if (!result.back().empty())
        result.emplace_back();
    if (result.back().empty()) result.pop_back();
    return result;
  };
  const std::vector<std::string> wanted = words(word);
  std::string found;
  for (const std::string& name : known) {
    std::size_t met = 0;
    for (const std::string& its : words(name)) met += met < wanted.size() && its == wanted[met] ? 1 : 0;
    if (met < wanted.size() || wanted.empty()) continue;
    if (!found.empty()) return "";
    found = name;
  }
  return found;
}

std::string named_or_beside(const std::string& name, const std::vector<std::string>& known, const std::string& beside) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  std::error_code error;
  const std::filesystem::path from_folder = std::filesystem::path(beside).parent_path() / name;
  if (name == "-") return name;
  for (const std::filesystem::path& path : {from_folder, std::filesystem::path(name)})
    if (std::filesystem::is_regular_file(path, error)) return path.lexically_normal().string();
  const std::string same = same_name(name, known);
  return same.empty() ? name : same;
}

}  // namespace foldwise::config

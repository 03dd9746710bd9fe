#include "planner/run/near_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/input_file.h"
#include "costmodel/config/lookup.h"
#include "hwprofiles/load/systems.h"
#include "planner/models/models.h"
#include "planner/run/fields.h"

namespace foldwise::planner {
namespace {

/// The only candidate; `word` if there is none.
std::string only(const std::string& word, const std::vector<std::string>& candidates) {
  if (candidates.size() > 1)
    throw config::ConfigError(
        {{{config::kArguments, 0, ""}, fmt::format("\"{}\" can mean several: {}", word, fmt::join(candidates, ", "))}});
  return candidates.empty() ? word : candidates.front();
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// The words of a flag or key that distinguish it: "tensor", "parallel" of "--tensor-model-parallel-size".
std::vector<std::string> telling_words(const std::string& text) {
  static const std::set<std::string, std::less<>> silent = {"", "model", "size", "num", "degree"};
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == '-' || c == '_')
      words.emplace_back();
    else
      words.back() += c;
  }
  std::erase_if(words, [](const std::string& word) { return silent.contains(word); });
  return words;
}

/// Words of a name in lower case: "a100", "80gb", "sxm" of "A100 80GB SXM".
std::set<std::string> words_of_name(const std::string& name) {
  std::set<std::string> words;
  std::string word;
  for (const char c : name + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!word.empty())
      words.insert(std::exchange(word, {}));
  }
  words.erase("nvidia");
  if (words.erase("vera") + words.erase("rubin") == 2) words.insert("vr");
  return words;
}

}  // namespace

std::string model_meant(const std::string& name) {
  const std::vector<std::string> known = built_in_models();
  std::string found = find_model(name, "");
  return contains(known, found) || config::is_input_file(found) ? found : only(name, config::completions(name, known));
}

std::string system_meant(const std::string& name) {
  const std::vector<std::string> known = hwprofiles::built_in_systems();
  if (std::string found = hwprofiles::find_system(name, ""); contains(known, found) || config::is_input_file(found))
    return found;
  std::vector<std::string> candidates = config::completions(name, known);
  if (const std::set<std::string> words = words_of_name(name); candidates.empty() && !words.empty())
    std::ranges::copy_if(known, std::back_inserter(candidates), [&](const std::string& system) {
      return std::ranges::includes(words_of_name(system), words);  // In any order.
    });
  const std::vector<std::string> all = candidates;
  std::erase_if(candidates, [&](const std::string& system) { return contains(all, hwprofiles::base_of(system)); });
  return only(name, candidates);
}

std::string field_meant(const std::string& key) {
  if (find_field(key) != nullptr) return key;
  std::vector<std::string> by_flag, by_start;
  const std::vector<std::string> words = telling_words(key);
  for (const Field& f : fields()) {
    const auto named = [&](const std::string& flag) { return telling_words(flag) == words; };
    if (!words.empty() && std::any_of(f.flags.begin(), f.flags.end(), named)) by_flag.push_back(f.key);
    const std::string last = f.key.substr(f.key.find('.') + 1);
    if (f.key.starts_with(key) || last.starts_with(key)) by_start.push_back(f.key);
  }
  return only(key, by_flag.empty() && !key.empty() ? by_start : by_flag);
}

}  // namespace foldwise::planner

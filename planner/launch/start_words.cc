#include "planner/launch/start_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "planner/launch/files.h"

namespace foldwise::planner {

using nlohmann::json;
using Words = std::vector<std::string>;

std::vector<Given> given_in(const Words& words, bool overrides, const std::map<std::string, std::string>& shorts) {
  std::vector<Given> given;
  bool takes_values = false;  // The last entry is an option.
  for (const std::string& word : words) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const auto short_one = word.starts_with('-') ? shorts.find(word.substr(1, equals - 1)) : shorts.end();
    if ((word.starts_with("--") && word.size() > 2) || short_one != shorts.end()) {
      std::string name = short_one != shorts.end() ? short_one->second : word.substr(2, equals - 2);
      std::ranges::replace(name, '-', '_');
      given.push_back({.name = name, .word = word.substr(0, equals), .values = {}});
      if (equals < word.size()) given.back().values.push_back(word.substr(equals + 1));
      takes_values = true;
    } else if (const std::size_t begin = word.find_first_not_of('+');
               overrides && equals < word.size() && begin < equals) {
      std::string value = word.substr(equals + 1);
      if (value.size() > 1 && (value.front() == '\'' || value.front() == '"') && value.back() == value.front())
        value = value.substr(1, value.size() - 2);
      const std::string name = word.substr(begin, equals - begin);
      given.push_back({.name = name, .word = name, .values = {value}});
      takes_values = false;
    } else if (takes_values) {
      given.back().values.push_back(word);
    }
  }
  return given;
}

Words own_words(const Started& started) {
  auto begin = started.words.begin() + static_cast<std::ptrdiff_t>(started.around);
  const auto end = started.words.end();
  if (begin == end) return {};
  const std::string program = base_of(*begin);
  if (!program.starts_with("python") && program != "torchrun") return {begin, end};
  for (auto word = begin + 1; word != end; ++word) {
    if (*word == "-m" && end - word > 1) return {word + 2, end};
    if (word->ends_with(".py")) return {word + 1, end};
  }
  return {begin, end};
}

std::string own_text(const Started& started) {
  return fmt::format("{}", fmt::join(started.words.begin() + static_cast<std::ptrdiff_t>(started.around),
                                     started.words.end(), " "))
      .substr(0, std::size_t{64} << 10);
}

bool says(const Words& values, std::string_view what) {
  return values.size() == 1 && std::ranges::equal(values.front(), what, [](unsigned char a, unsigned char b) {
           return std::tolower(a) == std::tolower(b);
         });
}

Words items_of(std::string text) {
  std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"' || c == '\'' || c == ' '; });
  Words items(1);
  for (const char c : text)
    if (c == ',')
      items.emplace_back();
    else
      items.back() += c;
  return items;
}

std::string other_trainer(const Started& started) {
  static const json rows = json::parse(launch_file("other_trainers")).at("rows");
  const std::string words = own_text(started);
  for (const json& row : rows)
    if (std::regex_search(words, std::regex(row.at("start").get<std::string>())) &&
        (!row.contains("unless") || words.find(row.at("unless").get<std::string>()) == std::string::npos))
      return row.at("name");
  return "";
}

}  // namespace foldwise::planner

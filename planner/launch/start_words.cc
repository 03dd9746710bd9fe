#include "planner/launch/start_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "costmodel/config/number.h"
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

const Words* values_of(const std::vector<Given>& given, const std::string& name) {
  const Words* values = nullptr;
  for (const Given& option : given)
    if (option.name == name) values = &option.values;
  return values;
}

std::string joined(const std::vector<Given>& given, const Words& names) {
  std::string text;
  for (const std::string& name : names) {
    const Words* values = values_of(given, name);
    if (values == nullptr || values->empty()) return "";
    text += (text.empty() ? "" : "-") + values->front();
  }
  return text;
}

std::optional<std::int64_t> number_of(const std::vector<Given>& given,
                                      const std::map<std::string, std::string>& environment, const std::string& name) {
  constexpr std::int64_t kMost = 1'000'000'000;
  std::string text;
  if (name.starts_with('$')) {
    const auto found = environment.find(name.substr(1));
    if (found != environment.end()) text = found->second;
  } else if (const Words* values = values_of(given, name); values != nullptr && !values->empty()) {
    text = values->front();
  }
  if (!text.starts_with('_') && !text.ends_with('_')) std::erase(text, '_');  // Python's 1_024
  const auto value = config::number_in<std::int64_t>(text);
  return value && *value >= 1 && *value <= kMost ? value : std::nullopt;
}

std::optional<std::int64_t> product_of(const std::vector<Given>& given,
                                       const std::map<std::string, std::string>& environment, const Words& names) {
  std::int64_t product = 1;
  for (const std::string& name : names) {
    const auto value = number_of(given, environment, name);
    if (!value || __builtin_mul_overflow(product, *value, &product)) return std::nullopt;
  }
  return product;
}

std::optional<Argument> argument_for(const std::string& dest, const Words& given, int line) {
  const std::vector<const ArgumentSpec*> flags = flags_of(dest);
  const bool many = !flags.empty() && flags.front()->many;
  const bool listed = given.size() == 1 && given.front().starts_with('[') && given.front().ends_with(']');
  const Words values = many && listed ? items_of(given.front()) : given;
  const bool truth = values.empty() || says(values, "true"), falsehood = says(values, "false");
  for (const ArgumentSpec* spec : flags) {
    if (!spec->takes_nothing()) {
      if (says(values, "null") || says(values, "none")) return std::nullopt;
      if (spec->many || values.size() < 2) return Argument{.flag = spec->flag, .values = values, .line = line};
      // A list for a flag that takes it as one word: a Python list if it has a value for every layer.
      const std::string list = fmt::format("{}", fmt::join(values, ","));
      return Argument{.flag = spec->flag, .values = {dest.ends_with("_freq") ? "[" + list + "]" : list}, .line = line};
    }
    if (spec->type == ArgumentType::kEither && falsehood)
      return Argument{.flag = "--no-" + spec->flag.substr(2), .values = {}, .line = line};
    if ((spec->type == ArgumentType::kFalse && falsehood) || (spec->type != ArgumentType::kFalse && truth))
      return Argument{.flag = spec->flag, .values = {}, .line = line};
  }
  return std::nullopt;
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

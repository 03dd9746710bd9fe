#include "tests/fuzz/changes.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tests/fuzz/fuzz.h"

namespace foldwise {
namespace {

using nlohmann::ordered_json;

std::size_t below(std::size_t n, std::mt19937& random) { return n == 0 ? 0 : random() % n; }

template <typename List>
auto& any_of(List& list, std::mt19937& random) {
  return list[below(list.size(), random)];
}

std::string any_word(const std::vector<std::string>& words, std::mt19937& random) {
  static const std::vector<std::string> usual{
      "-1",   "0",  "1e300", "1e-30", "9223372036854775807", "null", "[]", "{}", "\"", "true", ",", "\\u0000",
      "\xff", "\n", "nan",   "*"};
  return words.empty() || random() % 2 == 0 ? any_of(usual, random) : any_of(words, random);
}

std::string changed_bytes(std::string out, const std::vector<std::string>& words, std::mt19937& random) {
  for (std::size_t times = 1 + below(4, random); times > 0; --times) {
    const std::size_t at = below(out.size() + 1, random);
    const std::size_t length = below(std::min<std::size_t>(16, out.size() - at + 1), random);
    switch (random() % 5) {
      case 0:
        out.resize(at);
        break;
      case 1:
        out.erase(at, length);
        break;
      case 2:
        out.insert(at, out.substr(below(out.size() + 1, random), below(64, random)));
        break;
      case 3:
        out.replace(at, length, any_word(words, random));
        break;
      default:
        if (at < out.size()) out[at] = static_cast<char>(random());
    }
  }
  return out;
}

/// A value of the tree, with its parent.
struct Place {
  ordered_json* parent;  ///< Null: the value is the root.
  ordered_json* value;
  std::string key;  ///< Empty in a list.
};
void add_places(ordered_json* parent, ordered_json& value, const std::string& key, std::vector<Place>& places) {
  places.push_back({parent, &value, key});
  if (value.is_object())
    for (auto& [below_key, child] : value.items()) add_places(&value, child, below_key, places);
  if (value.is_array())
    for (ordered_json& child : value) add_places(&value, child, "", places);
}

ordered_json any_value(const std::vector<Place>& places, const std::vector<std::string>& words, std::mt19937& random) {
  static const std::vector<ordered_json> usual{0,
                                               1,
                                               2,
                                               3,
                                               8,
                                               64,
                                               -1,
                                               0.5,
                                               1e-30,
                                               1e30,
                                               1e300,
                                               9223372036854775807,
                                               1000000,
                                               true,
                                               false,
                                               nullptr,
                                               "",
                                               ordered_json::array(),
                                               ordered_json::object()};
  switch (random() % 3) {
    case 0:
      return any_of(usual, random);
    case 1:
      return words.empty() ? ordered_json("0") : ordered_json(any_of(words, random));
    default:
      return *any_of(places, random).value;
  }
}

/// A new key: one of the words, or a key from elsewhere in the tree.
std::string any_key(const std::vector<Place>& places, const std::vector<std::string>& words, std::mt19937& random) {
  const std::string key = any_of(places, random).key;
  return !key.empty() && random() % 2 == 0 ? key : any_word(words, random);
}

void change(ordered_json& tree, const std::vector<std::string>& words, std::mt19937& random) {
  std::vector<Place> places;
  add_places(nullptr, tree, "", places);
  const Place place = any_of(places, random);
  ordered_json value = any_value(places, words, random);
  std::string key = any_key(places, words, random);
  switch (random() % 4) {
    case 0:
      if (place.value->is_number() && random() % 2 == 0)
        value = random() % 2 == 0 ? ordered_json(place.value->get<double>() * 1.5)
                                  : ordered_json(-place.value->get<double>());
      *place.value = std::move(value);
      return;
    case 1:
      if (place.value->is_object())
        (*place.value)[key] = std::move(value);
      else if (place.value->is_array())
        place.value->push_back(std::move(value));
      else
        *place.value = std::move(value);
      return;
    default:
      if (place.parent == nullptr) return;
      if (place.parent->is_array()) {
        place.parent->erase(place.parent->begin() + (place.value - &place.parent->front()));
      } else {
        value = *place.value;
        place.parent->erase(place.key);
        if (random() % 2 == 0) (*place.parent)[key] = std::move(value);  // Under another key.
      }
  }
}

bool is_deep(const std::string& text) {
  constexpr int kMostLevels = 100;  // Limited by the stack with sanitizers.
  int depth = 0;
  for (const char c : text)
    if (((c == '[' || c == '{') && ++depth > kMostLevels) || ((c == ']' || c == '}') && --depth < 0)) return true;
  return false;
}

/// Changes the text's JSON tree, or that of one of its lines. Empty for a text without JSON.
std::string changed_tree(const std::string& text, const std::vector<std::string>& words, std::mt19937& random) {
  if (is_deep(text)) return {};
  std::size_t begin = text.find('{'), end = text.size();
  if (begin == std::string::npos) return {};
  ordered_json tree = ordered_json::parse(text, nullptr, false);
  if (tree.is_discarded()) {
    const std::size_t newline = text.rfind('\n', below(text.size(), random));
    begin = newline == std::string::npos ? 0 : newline + 1;
    end = std::min(text.find('\n', begin), text.size());
    tree = ordered_json::parse(text.substr(begin, end - begin), nullptr, false);
    if (tree.is_discarded()) return {};
  } else {
    begin = 0;
  }
  for (std::size_t times = 1 + below(3, random); times > 0; --times) change(tree, words, random);
  const bool lines = begin != 0 || end != text.size();
  return text.substr(0, begin) + tree.dump(lines ? -1 : 1, ' ', false, ordered_json::error_handler_t::replace) +
         text.substr(end);
}

}  // namespace

void add_parts(std::vector<std::string>& words, const std::string& text, char separator) {
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) words.push_back(part);
}

void add_words(std::vector<std::string>& words, const nlohmann::json& tree) {
  if (tree.is_string()) words.push_back(tree);
  if (tree.is_object())
    for (const auto& [key, value] : tree.items()) words.push_back(key);
  if (tree.is_structured())
    for (const nlohmann::json& value : tree) add_words(words, value);
}

std::string changed(const std::string& text, const std::vector<std::string>& words, std::mt19937& random) {
  if (random() % 2 == 0) {
    std::string out = changed_tree(text, words, random);
    if (!out.empty()) return out;
  }
  return changed_bytes(text, words, random);
}

}  // namespace foldwise

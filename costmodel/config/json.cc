#include "costmodel/config/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <unordered_map>

#include "costmodel/check.h"
#include "costmodel/config/input_file.h"
#include "costmodel/config/line_mapper.h"

// The library's DOM knows neither lines nor duplicate keys (it keeps the last). So the text is parsed twice: a first
// pass finds lines and mistakes (line_mapper.h), a second one builds the DOM and cannot fail.
namespace foldwise::config {
namespace {

using Json = nlohmann::json;

/// A value as messages print it: short, on one line, in valid UTF-8.
std::string found(const Json& value) {
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  if (value.is_object()) return "an object";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return fmt::format("{}", value.get<double>());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kLongest = 60;
  if (text.size() > kLongest) {
    std::size_t cut = kLongest;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;  // Not inside a UTF-8 sequence.
    text.resize(cut);
    text += "...";
  }
  return text;
}

std::string expected(std::string_view what, const Json* value) {
  return fmt::format("expected {}, found {}", what, value == nullptr ? "nothing" : found(*value));
}

const Json& empty_object() {
  static const Json empty = Json::object();
  return empty;
}

/// The value as a whole number in [low, high], or a message. `8.0` counts as whole.
std::optional<std::int64_t> whole_number(const Json& value, std::int64_t low, std::int64_t high, std::string& message) {
  const auto too_small = [&] { message = expected(fmt::format("a whole number of at least {}", low), &value); };
  const auto too_large = [&] { message = expected(fmt::format("a whole number of at most {}", high), &value); };
  std::int64_t result = 0;
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      too_large();
      return std::nullopt;
    }
    result = static_cast<std::int64_t>(number);
  } else if (value.is_number_integer()) {
    result = value.get<std::int64_t>();
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (!std::isfinite(number) || std::trunc(number) != number) {
      message = expected("a whole number", &value);
      return std::nullopt;
    }
    constexpr double kTwoTo63 = 9223372036854775808.0;
    if (number >= kTwoTo63) {
      too_large();
      return std::nullopt;
    }
    if (number < -kTwoTo63) {
      too_small();
      return std::nullopt;
    }
    result = static_cast<std::int64_t>(number);
  } else {
    message = expected("a whole number", &value);
    return std::nullopt;
  }
  if (result < low) {
    too_small();
    return std::nullopt;
  }
  if (result > high) {
    too_large();
    return std::nullopt;
  }
  return result;
}

/// The value as a finite number in [low, high], or a message.
std::optional<double> finite_number(const Json& value, double low, double high, std::string& message) {
  const double result = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!std::isfinite(result))
    message = expected(value.is_number() ? "a finite number" : "a number", &value);
  else if (result < low)
    message = expected(fmt::format("a number of at least {}", low), &value);
  else if (result > high)
    message = expected(fmt::format("a number of at most {}", high), &value);
  else
    return result;
  return std::nullopt;
}

}  // namespace

struct Document::State {
  std::string file;
  Json root;
  std::unordered_map<std::string, int> lines;
};

Document Document::load(const std::string& path) { return parse(read_input_file(path), path); }

Document Document::parse(std::string_view text, std::string name, int first_line) {
  auto state = std::make_shared<State>();
  state->file = std::move(name);
  Diagnostics diagnostics;
  state->lines = lines_of_values(text, state->file, first_line, diagnostics);
  diagnostics.throw_if_any();
  state->root = Json::parse(text.begin(), text.end());
  Document document;
  document.state_ = std::move(state);
  return document;
}

const Json& Document::root() const {
  FW_CHECK(state_ != nullptr, "an empty Document was read");
  return state_->root;
}

const std::string& Document::file() const {
  FW_CHECK(state_ != nullptr, "an empty Document was read");
  return state_->file;
}

int Document::line(const std::string& pointer) const {
  FW_CHECK(state_ != nullptr, "an empty Document was read");
  for (std::string at = pointer;; at.erase(at.rfind('/'))) {
    if (const auto it = state_->lines.find(at); it != state_->lines.end()) return it->second;
    if (at.find('/') == std::string::npos) return 0;
  }
}

ObjectReader::ObjectReader(const Document& document, const Json& object, std::string pointer, Diagnostics& diagnostics)
    : document_(document), object_(&object), pointer_(std::move(pointer)), diagnostics_(&diagnostics) {
  if (object.is_object()) return;
  diagnostics.error(location(), expected("an object", &object));
  object_ = &empty_object();
}

ObjectReader::ObjectReader(const Document& document, Diagnostics& diagnostics)
    : ObjectReader(document, document.root(), "", diagnostics) {}

bool ObjectReader::has(std::string_view key) const {
  const auto it = object_->find(std::string(key));
  return it != object_->end() && !it->is_null();
}

bool ObjectReader::present(std::string_view key) {
  known_.emplace_back(key);
  return object_->contains(std::string(key));
}

const Json* ObjectReader::raw(std::string_view key) {
  known_.emplace_back(key);
  const auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  std::string message;
  const auto result = whole_number(*value, low, high, message);
  if (!result) error(key, std::move(message));
  return result;
}

std::int64_t ObjectReader::integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                      std::int64_t high) {
  return integer(key, low, high).value_or(fallback);
}

std::int64_t ObjectReader::required_integer(std::string_view key, std::int64_t low, std::int64_t high) {
  if (!has(key)) error(key, expected("a whole number", nullptr));
  return integer(key, low, high).value_or(low);
}

std::optional<double> ObjectReader::number(std::string_view key, double low, double high) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  std::string message;
  const auto result = finite_number(*value, low, high, message);
  if (!result) error(key, std::move(message));
  return result;
}

double ObjectReader::number_or(std::string_view key, double fallback, double low, double high) {
  return number(key, low, high).value_or(fallback);
}

double ObjectReader::required_number(std::string_view key, double low, double high) {
  if (!has(key)) error(key, expected("a number", nullptr));
  return number(key, low, high).value_or(std::isfinite(low) ? low : 0.0);
}

std::optional<bool> ObjectReader::boolean(std::string_view key) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  error(key, expected("true or false", value));
  return std::nullopt;
}

bool ObjectReader::boolean_or(std::string_view key, bool fallback) { return boolean(key).value_or(fallback); }

std::optional<std::string> ObjectReader::string(std::string_view key) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  error(key, expected("a text in quotes", value));
  return std::nullopt;
}

std::string ObjectReader::required_string(std::string_view key) {
  if (!has(key)) error(key, expected("a text in quotes", nullptr));
  return string(key).value_or("");
}

std::optional<ObjectReader> ObjectReader::object(std::string_view key) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return ObjectReader(document_, *value, location(key).field, *diagnostics_);
  error(key, expected("an object", value));
  return std::nullopt;
}

std::optional<std::vector<std::string>> ObjectReader::strings(std::string_view key) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    error(key, expected("a list of texts", value));
    return std::nullopt;
  }
  std::vector<std::string> result;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& element = (*value)[i];
    if (element.is_string()) {
      result.push_back(element.get<std::string>());
    } else {
      const std::string field = fmt::format("{}/{}", location(key).field, i);
      diagnostics_->error({document_.file(), document_.line(field), field}, expected("a text in quotes", &element));
    }
  }
  if (result.size() != value->size()) return std::nullopt;
  return result;
}

template <typename Element, typename Read>
std::optional<std::vector<Element>> ObjectReader::elements(std::string_view key, std::string_view what,
                                                           const Read& read) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    error(key, expected(what, value));
    return std::nullopt;
  }
  std::vector<Element> result;
  for (std::size_t i = 0; i < value->size(); ++i) {
    std::string message;
    if (const std::optional<Element> element = read((*value)[i], message)) {
      result.push_back(*element);
    } else {
      const std::string field = fmt::format("{}/{}", location(key).field, i);
      diagnostics_->error({document_.file(), document_.line(field), field}, std::move(message));
    }
  }
  if (result.size() != value->size()) return std::nullopt;
  return result;
}

std::optional<std::vector<std::int64_t>> ObjectReader::integers(std::string_view key, std::int64_t low,
                                                                std::int64_t high) {
  return elements<std::int64_t>(key, "a list of whole numbers", [&](const Json& value, std::string& message) {
    return whole_number(value, low, high, message);
  });
}

std::optional<std::vector<double>> ObjectReader::numbers(std::string_view key, double low, double high) {
  return elements<double>(key, "a list of numbers", [&](const Json& value, std::string& message) {
    return finite_number(value, low, high, message);
  });
}

std::vector<ObjectReader> ObjectReader::objects(std::string_view key) {
  std::vector<ObjectReader> result;
  const Json* value = raw(key);
  if (value == nullptr) return result;
  if (!value->is_array()) {
    error(key, expected("a list of objects", value));
    return result;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    const std::string field = fmt::format("{}/{}", location(key).field, i);
    if ((*value)[i].is_object())
      result.emplace_back(document_, (*value)[i], field, *diagnostics_);
    else
      diagnostics_->error({document_.file(), document_.line(field), field}, expected("an object", &(*value)[i]));
  }
  return result;
}

void ObjectReader::ignore(std::initializer_list<std::string_view> keys) {
  known_.insert(known_.end(), keys.begin(), keys.end());
}

void ObjectReader::ignore_prefix(char first) { ignored_prefix_ = first; }

void ObjectReader::error(std::string_view key, std::string message) {
  if (object_ == &empty_object())
    return;  // It is not an object, which was reported; missing keys are not reported again.
  diagnostics_->error(location(key), std::move(message));
}

Location ObjectReader::location(std::string_view key) const {
  std::string field = pointer_;
  if (!key.empty()) field += '/' + (spellings_.contains(std::string(key)) ? spelling(key) : pointer_step(key));
  const int line = document_.line(field);
  return {document_.file(), line, std::move(field)};
}

std::string ObjectReader::spelling(std::string_view key) const {
  const auto it = spellings_.find(std::string(key));
  return it == spellings_.end() ? std::string(key) : it->second;
}

std::vector<std::string> ObjectReader::keys() const {
  std::vector<std::string> result;
  for (const auto& item : object_->items()) result.push_back(item.key());
  return result;
}

void ObjectReader::finish(const std::function<std::string(const std::string&)>& meant) {
  for (const auto& item : object_->items()) {
    if (diagnostics_->full()) return;
    const std::string& key = item.key();
    if (ignored_prefix_ != '\0' && !key.empty() && key.front() == ignored_prefix_) continue;
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    std::string hint = nearest_hint(spelling(key), known_, "known key");
    if (const std::string known = hint.empty() && meant ? meant(key) : ""; !known.empty())
      hint = "; the known key is \"" + known + '"';
    error(key, "unknown key" + hint);
  }
}

void ObjectReader::finish_open(const std::vector<std::string>& known) {
  for (const std::string& key : keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string suggestion = nearest(key, known);
    if (!suggestion.empty() && !has(suggestion)) error(key, "unknown key" + nearest_hint(key, known, "known key"));
  }
}

void ObjectReader::unknown_choice(std::string_view key, const std::string& text,
                                  const std::vector<std::string>& known) {
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "\"" : ", \"") + name + "\"";
  const Json value = text;
  error(key, expected("one of " + names, &value) + nearest_hint(text, known));
}

}  // namespace foldwise::config

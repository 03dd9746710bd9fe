#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"

namespace foldwise::config {

/// A JSON text with the line of each value. No object has a key twice.
class Document {
 public:
  /// Reads `path`. Throws ConfigError: as read_input_file(), not JSON (with line and column), nested more than 100
  /// levels deep, duplicate keys.
  [[nodiscard]] static Document load(const std::string& path);
  /// Parses `text`, whose first line is `first_line` of the file that messages call `name`. Throws ConfigError.
  [[nodiscard]] static Document parse(std::string_view text, std::string name, int first_line = 1);

  [[nodiscard]] const nlohmann::json& root() const;
  [[nodiscard]] const std::string& file() const;
  /// Line of the value at JSON pointer `pointer`, or of its nearest existing parent.
  [[nodiscard]] int line(const std::string& pointer) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Reads one JSON object strictly. Every accessor marks its key as known. `finish()` reports every key that no accessor
/// asked for, with the nearest known one. Accessors never throw on bad input. They add a Diagnostic and return the
/// fallback, so one pass reports every mistake. null counts as missing.
class ObjectReader {
 public:
  ObjectReader(const Document& document, const nlohmann::json& object, std::string pointer, Diagnostics& diagnostics);
  /// Reader of the document's root; adds a Diagnostic if that is not an object.
  ObjectReader(const Document& document, Diagnostics& diagnostics);

  /// A reader of another object at the same place in the file.
  [[nodiscard]] ObjectReader of(const nlohmann::json& object) const {
    return {document_, object, pointer_, *diagnostics_};
  }
  [[nodiscard]] ObjectReader reporting_to(Diagnostics& diagnostics) const {
    return {document_, *object_, pointer_, diagnostics};
  }
  /// Sets the user's spelling of renamed keys, by our names; '/' separates keys of nested objects. Messages use the
  /// user's spelling.
  void spell(std::map<std::string, std::string> spellings) { spellings_ = std::move(spellings); }
  [[nodiscard]] std::string spelling(std::string_view key) const;

  [[nodiscard]] bool has(std::string_view key) const;  ///< Present and not null. Does not mark the key as known.
  [[nodiscard]] bool present(std::string_view key);    ///< Present, perhaps null. Marks the key as known.

  /// Whole numbers only: 1.5, 1e30, "8" and true are errors. `low` and `high` are inclusive.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  [[nodiscard]] std::int64_t integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                        std::int64_t high);
  [[nodiscard]] std::int64_t required_integer(std::string_view key, std::int64_t low, std::int64_t high);

  /// Finite numbers in [low, high].
  [[nodiscard]] std::optional<double> number(std::string_view key, double low, double high);
  [[nodiscard]] double number_or(std::string_view key, double fallback, double low, double high);
  [[nodiscard]] double required_number(std::string_view key, double low, double high);

  [[nodiscard]] std::optional<bool> boolean(std::string_view key);
  [[nodiscard]] bool boolean_or(std::string_view key, bool fallback);

  [[nodiscard]] std::optional<std::string> string(std::string_view key);
  [[nodiscard]] std::string required_string(std::string_view key);

  /// One of a closed set of names. The message for another value lists them and the nearest.
  template <typename Enum>
  [[nodiscard]] std::optional<Enum> choice(std::string_view key,
                                           const std::vector<std::pair<std::string, Enum>>& names) {
    const auto text = string(key);
    if (!text) return std::nullopt;
    for (const auto& [name, value] : names)
      if (name == *text) return value;
    std::vector<std::string> known;
    known.reserve(names.size());
    for (const auto& entry : names) known.push_back(entry.first);
    unknown_choice(key, *text, known);
    return std::nullopt;
  }

  [[nodiscard]] std::optional<ObjectReader> object(std::string_view key);
  /// Elements of an array of strings / whole numbers.
  [[nodiscard]] std::optional<std::vector<std::string>> strings(std::string_view key);
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t low,
                                                                  std::int64_t high);
  /// Elements of an array of finite numbers.
  [[nodiscard]] std::optional<std::vector<double>> numbers(std::string_view key, double low, double high);
  /// A reader per element of an array of objects.
  [[nodiscard]] std::vector<ObjectReader> objects(std::string_view key);

  /// The raw value, for a key whose shape the caller checks; nullptr if missing. Marks the key as known.
  [[nodiscard]] const nlohmann::json* raw(std::string_view key);
  /// Marks keys as known without reading them (documentation keys such as "_source").
  void ignore(std::initializer_list<std::string_view> keys);
  void ignore_prefix(char first);  ///< Every key that starts with `first` ('_' for comments).

  /// Reports "expected ..., found ..." at `key`.
  void error(std::string_view key, std::string message);
  [[nodiscard]] Location location(std::string_view key = {}) const;
  [[nodiscard]] const nlohmann::json& json() const { return *object_; }
  [[nodiscard]] const std::string& pointer() const { return pointer_; }
  [[nodiscard]] std::vector<std::string> keys() const;

  /// Reports every key that no accessor asked for. Call it once, after the last accessor. `meant` returns the known key
  /// for an unknown key that resembles none, or "".
  void finish(const std::function<std::string(const std::string&)>& meant = {});

  /// The same for an object that may have other keys. Reports only a key that is almost one of `known`: a typing
  /// mistake.
  void finish_open(const std::vector<std::string>& known);

 private:
  /// Elements of an array of `what`, each converted by `read(value, message)`. An element that it cannot convert is
  /// reported.
  template <typename Element, typename Read>
  [[nodiscard]] std::optional<std::vector<Element>> elements(std::string_view key, std::string_view what,
                                                             const Read& read);
  void unknown_choice(std::string_view key, const std::string& found, const std::vector<std::string>& known);

  Document document_;
  const nlohmann::json* object_;
  std::string pointer_;
  Diagnostics* diagnostics_;
  std::vector<std::string> known_;
  std::map<std::string, std::string> spellings_;
  char ignored_prefix_ = '\0';
};

}  // namespace foldwise::config

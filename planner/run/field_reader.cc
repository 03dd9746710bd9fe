#include "planner/run/field_reader.h"

#include <cstdint>

namespace foldwise::planner {

using config::Diagnostics;
using config::ObjectReader;
using nlohmann::json;

namespace {

/// An unknown name is a mistake of content, because it may be another program's choice.
std::optional<json> read_names(const Field& field, ObjectReader& in, const std::string& key, Diagnostics& content) {
  const bool list = field.value.type == FieldType::kNames;
  const json* raw = in.raw(key);
  std::optional<json> value;
  if (list && raw != nullptr && raw->is_string())  // One name of another program's policy.
    value = json{*raw};
  else if (list)
    value = in.strings(key);
  else
    value = in.string(key);
  if (!value || value->is_null()) return std::nullopt;
  const std::string mistake = mistake_in(field, *value);
  if (mistake.empty()) return value;
  content.error(in.location(key), mistake);
  return std::nullopt;
}

std::optional<json> read_text(const Field& field, ObjectReader& in, const std::string& key) {
  const std::optional<json> text = in.string(key);
  const std::string mistake = text ? mistake_in(field, *text) : "";
  if (mistake.empty()) return text;
  in.error(key, mistake);
  return std::nullopt;
}

}  // namespace

std::optional<json> read_field(const Field& field, ObjectReader& in, const std::string& key, Diagnostics& content) {
  const FieldValue& v = field.value;
  const auto low = static_cast<std::int64_t>(v.low), high = static_cast<std::int64_t>(v.high);
  switch (v.type) {
    case FieldType::kInteger:
      return in.integer(key, low, high);
    case FieldType::kNumber:
      return in.number(key, v.low, v.high);
    case FieldType::kBoolean:
      return in.boolean(key);
    case FieldType::kText:
      return read_text(field, in, key);
    case FieldType::kIntegers:
      return in.integers(key, low, high);
    case FieldType::kName:
    case FieldType::kNames:
      return read_names(field, in, key, content);
    case FieldType::kObject:
      break;
  }
  return std::nullopt;
}

}  // namespace foldwise::planner

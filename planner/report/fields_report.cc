#include "planner/report/fields_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/report/screen.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

/// Bounds that are powers of two, from this one on, are printed as 2^n.
constexpr double kPowers = 65'536;

std::string bound(double value) {
  for (int exponent = 16; exponent < 63; ++exponent)
    if (value >= kPowers && value == static_cast<double>(std::int64_t{1} << exponent))
      return fmt::format("2^{}", exponent);
  return fmt::format("{}", value);
}

std::string type_name(FieldType type) {
  switch (type) {
    case FieldType::kInteger:
      return "integer";
    case FieldType::kNumber:
      return "number";
    case FieldType::kBoolean:
      return "boolean";
    case FieldType::kName:
      return "name";
    case FieldType::kNames:
      return "list of names";
    case FieldType::kText:
      return "text";
    case FieldType::kIntegers:
      return "list of integers";
    case FieldType::kObject:
      return "object";
  }
  return "?";
}

bool has_range(const FieldValue& value) { return value.low < value.high; }

std::string code(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(fmt::format("`{}`", name));
  return fmt::format("{}", fmt::join(quoted, ", "));
}

std::string values_text(const Field& f) {
  std::string text = type_name(f.value.type);
  if (!f.value.names.empty()) text = (f.value.type == FieldType::kNames ? "of " : "") + code(f.value.names);
  if (has_range(f.value)) text += fmt::format(" {} to {}", bound(f.value.low), bound(f.value.high));
  return text + (f.unit.empty() ? "" : ", " + f.unit);
}

std::string megatron_text(const Field& f) {
  if (!f.value.set || (f.megatron.is_null() && !mistake_in(f, f.megatron).empty())) return "";
  return value_text(f.megatron);
}

/// Escapes bars, which would end a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

/// Releases for values that not every release has: "te until 0.17.1", "fused since 0.18.2, with Transformer Engine
/// 2.14".
std::vector<std::string> limits_of(const Field& f, const char* quote) {
  std::vector<std::string> list;
  for (const LimitedValue& limited : f.limited) {
    std::string text = quote + value_text(limited.value) + quote;
    if (!limited.releases.text().empty()) text += ' ' + limited.releases.text();
    if (!limited.needs.empty()) text += (limited.releases.text().empty() ? " with " : ", with ") + limited.needs;
    list.push_back(std::move(text));
  }
  return list;
}

std::string doc_text(const Field& f, const char* quote = "") {
  std::string text = f.doc + (f.when.empty() ? "" : fmt::format(". Only where {}", f.when));
  if (!f.limited.empty()) text += fmt::format(". {}", fmt::join(limits_of(f, quote), "; "));
  return text;
}

json limited_json(const Field& f) {
  json list = json::array();
  const auto or_null = [](const std::string& text) { return text.empty() ? json(nullptr) : json(text); };
  for (const LimitedValue& limited : f.limited)
    list.push_back({{"value", limited.value},
                    {"releases", limited.releases.text()},
                    {"instead", limited.releases.named ? f.instead_of(limited.value) : json(nullptr)},
                    {"needs", or_null(limited.needs)},
                    {"source", limited.source}});
  return list;
}

/// Groups of keys in table order; the keys without a group come first.
std::vector<std::string> groups() {
  std::vector<std::string> list = {""};
  for (const Field& f : fields()) {
    const std::size_t dot = f.key.find('.');
    const std::string group = dot == std::string::npos ? "" : f.key.substr(0, dot);
    if (std::find(list.begin(), list.end(), group) == list.end()) list.push_back(group);
  }
  return list;
}

std::string fields_markdown() {
  std::string out;
  for (const std::string& group : groups()) {
    out += group.empty() ? "" : fmt::format("\n`{}`\n\n", group);
    out += "| field | values | default | flag, releases | |\n| --- | --- | --- | --- | --- |\n";
    for (const Field& f : fields()) {
      const std::size_t dot = f.key.find('.');
      if ((dot == std::string::npos ? "" : f.key.substr(0, dot)) != group) continue;
      const std::string fallback = megatron_text(f);
      out += fmt::format("| `{}` | {} | {} | {} | {} |\n", dot == std::string::npos ? f.key : f.key.substr(dot + 1),
                         values_text(f), fallback.empty() ? "" : fmt::format("`{}`", fallback),
                         f.flags.empty()
                             ? ""
                             : fmt::format("`{}`{}", f.flags.front(), f.releases.named ? ", " + f.releases.text() : ""),
                         cell(doc_text(f, "`")));
    }
  }
  return out;
}

json when_json(const DefaultValue& value) {
  json result = json::object();
  for (const auto& [key, values] : value.when) result[key] = values.size() == 1 ? values.front() : json(values);
  return result;
}

std::string when_text(const DefaultValue& value) {
  std::string text;
  for (const auto& [key, values] : value.when) {
    std::vector<std::string> names;
    for (const json& item : values) names.push_back(value_text(item));
    text += fmt::format("{}{} is {}", text.empty() ? " where " : " and ", key, fmt::join(names, " or "));
  }
  return text;
}

std::string defaults_markdown() {
  std::string out;
  for (const std::string& name : built_in_defaults()) {
    const Defaults& set = load_defaults(name);
    out += fmt::format("{}`{}`{}: {}\n\n", out.empty() ? "" : "\n", name,
                       set.extends.empty() ? "" : fmt::format(", on top of `{}`", set.extends), set.title);
    out += "| field | value | source |\n| --- | --- | --- |\n";
    for (const auto& [key, cases] : set.values)
      for (const DefaultValue& value : cases)
        out +=
            fmt::format("| `{}` | `{}`{} | {} |\n", key, value_text(value.value), when_text(value), cell(value.source));
  }
  return out;
}

/// Replaces the lines between `begin` and the "<!-- end -->" after it.
void replace_part(std::string& document, const std::string& name, std::string_view begin, const std::string& part) {
  const std::size_t from = document.find(begin);
  const std::size_t to = from == std::string::npos ? from : document.find("<!-- end -->", from);
  if (to == std::string::npos)
    throw config::ConfigError({{{name, 0, ""}, fmt::format("expected the lines {} and <!-- end -->", begin)}});
  document.replace(from, to - from, fmt::format("{}\n{}", begin, part));
}

}  // namespace

std::string fields_text() {
  Table table({"<field", "<values", "<default", "<flag", "<releases", "<"});
  for (const Field& f : fields()) {
    std::string values = values_text(f);
    values.erase(std::remove(values.begin(), values.end(), '`'), values.end());
    table.add({f.key, shortened(values, 40), shortened(megatron_text(f), 20),
               f.flags.empty() ? "" : shortened(f.flags.front(), 36), f.releases.text(), doc_text(f)});
  }
  std::string out = table.text(0);
  out +=
      "\nThe default is Megatron's. A silent field takes it where the run file's set of defaults has no other value; "
      "sets: ";
  return out + fmt::format("{}\n", fmt::join(built_in_defaults(), ", "));
}

json fields_json() {
  json list = json::array(), sets = json::array();
  for (const Field& f : fields())
    list.push_back({{"key", f.key},
                    {"type", type_name(f.value.type)},
                    {"low", has_range(f.value) ? json(f.value.low) : json(nullptr)},
                    {"high", has_range(f.value) ? json(f.value.high) : json(nullptr)},
                    {"names", f.value.names},
                    {"also", f.value.also},
                    {"unit", f.unit},
                    {"default", f.megatron},
                    {"flags", f.flags},
                    {"name_flags", f.name_flags},
                    {"since", f.releases.text()},
                    {"limited", limited_json(f)},
                    {"numerics", f.numerics},
                    {"is_option", f.is_option()},
                    {"applies", f.when},
                    {"doc", f.doc}});
  for (const std::string& name : built_in_defaults()) {
    const Defaults& set = load_defaults(name);
    json values = json::object();
    for (const auto& [key, cases] : set.values)
      for (const DefaultValue& value : cases)
        values[key].push_back({{"value", value.value}, {"when", when_json(value)}, {"source", value.source}});
    sets.push_back({{"name", name}, {"title", set.title}, {"extends", set.extends}, {"values", values}});
  }
  return {{"fields", list}, {"defaults", sets}};
}

std::string with_field_tables(const std::string& document, const std::string& name) {
  std::string result = document;
  replace_part(result, name, "<!-- fields -->", fields_markdown());
  replace_part(result, name, "<!-- defaults -->", defaults_markdown());
  return result;
}

}  // namespace foldwise::planner

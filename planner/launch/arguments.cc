#include "planner/launch/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "costmodel/config/number.h"
#include "planner/launch/files.h"
#include "planner/launch/mapping.h"
#include "planner/run/fields.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

namespace {

ArgumentType type_named(const std::string& name) {
  static const std::map<std::string, ArgumentType> types = {
      {"true", ArgumentType::kTrue},   {"false", ArgumentType::kFalse},  {"either", ArgumentType::kEither},
      {"int", ArgumentType::kInteger}, {"float", ArgumentType::kNumber}, {"bool", ArgumentType::kBoolean},
      {"str", ArgumentType::kText}};
  return types.at(name);
}

/// The value of `key` for newer releases. A member that they keep only for its old name does not count.
std::string newest(const nlohmann::ordered_json& row, const std::string& key) {
  std::string value = row.at(key);
  if (const auto later = row.find(key + "_since"); later != row.end())
    for (const auto& [release, text] : later->items())
      if (!text.get<std::string>().ends_with("_deprecated")) value = text;
  return value;
}

std::vector<ArgumentSpec> load_specs() {
  std::vector<ArgumentSpec> specs;
  const auto file = nlohmann::ordered_json::parse(launch_file("megatron_arguments"));
  for (const auto& [flag, row] : file.at("arguments").items()) {
    ArgumentSpec spec{.flag = flag,
                      .dest = newest(row, "dest"),
                      .type = type_named(newest(row, "type")),
                      .many = row.contains("nargs"),
                      .may_be_empty = row.contains("nargs") && row.at("nargs") == "*",
                      .choices = row.value("choices", std::vector<std::string>{}),
                      .releases = in_releases(row.value("since", ""), row.value("until", "")),
                      .choices_in = {}};
    if (row.contains("choices_since"))
      for (const auto& [choice, since] : row.at("choices_since").items())
        spec.choices_in[choice].first = in_releases(since.get<std::string>()).first;
    if (row.contains("choices_until"))
      for (const auto& [choice, until] : row.at("choices_until").items())
        spec.choices_in[choice].last = in_releases({}, until.get<std::string>()).last;
    specs.push_back(std::move(spec));
  }
  return specs;
}

/// Parses one word; nothing if it is not of the flag's type.
std::optional<json> value_of(const ArgumentSpec& spec, const std::string& word) {
  if (spec.type == ArgumentType::kInteger) {
    const auto whole = config::number_in<std::int64_t>(word);
    return whole ? std::optional<json>(*whole) : std::nullopt;
  }
  if (spec.type == ArgumentType::kNumber) {
    const auto number = config::number_in<double>(word);
    return number && std::isfinite(*number) ? std::optional<json>(*number) : std::nullopt;
  }
  if (spec.type == ArgumentType::kBoolean) return json(!word.empty() && word != "False" && word != "0");
  return json(word);
}

std::string_view type_text(const ArgumentSpec& spec) {
  switch (spec.type) {
    case ArgumentType::kInteger:
      return "a whole number";
    case ArgumentType::kNumber:
      return "a number";
    case ArgumentType::kText:
      return "a word";
    case ArgumentType::kTrue:
    case ArgumentType::kFalse:
    case ArgumentType::kEither:
    case ArgumentType::kBoolean:
      break;
  }
  return "true or false";
}

bool is_of_type(const ArgumentSpec& spec, const json& value) {
  if (spec.many && value.is_array())
    return std::ranges::all_of(value, [&](const json& item) { return !item.is_array() && is_of_type(spec, item); });
  if (spec.type == ArgumentType::kInteger) return value.is_number_integer();
  if (spec.type == ArgumentType::kNumber) return value.is_number();
  return spec.type == ArgumentType::kText || value.is_boolean();
}

class Parser {
 public:
  Parser(const std::string& file, const Release& release, Diagnostics& diagnostics)
      : file_(file), release_(release), diagnostics_(diagnostics) {}

  void take(const ArgumentSpec& spec, const Argument& argument, Settings& settings) {
    const auto mistake = [&](std::string message) {
      diagnostics_.error({file_, argument.line, argument.flag}, std::move(message));
    };
    if (!spec.releases.has(release_))
      return mistake(fmt::format("expected a flag of Megatron-Core {}; this one is there {}", release_.name,
                                 spec.releases.text()));
    if (spec.takes_nothing()) {
      if (!argument.values.empty())
        return mistake(fmt::format("expected no value, found \"{}\"", fmt::join(argument.values, " ")));
      const bool value = spec.type == ArgumentType::kTrue ||
                         (spec.type == ArgumentType::kEither && !argument.flag.starts_with("--no-"));
      return settings.set(spec.dest, value, argument.line);
    }
    // A value that is not read may be known only to its user: an empty variable, "<some dir>/checkpoints".
    const auto marked = [](const std::string& word) { return word.find_first_of("<>") != std::string::npos; };
    if (!is_read(spec.dest) && (argument.values.empty() || std::ranges::any_of(argument.values, marked))) return;
    if (argument.values.empty() && !spec.may_be_empty) return mistake("expected a value, found nothing");
    if (!spec.many && argument.values.size() > 1)
      return mistake(fmt::format("expected one value, found \"{}\"", fmt::join(argument.values, " ")));
    json list = json::array();
    for (const std::string& word : argument.values) {
      // Skip values that only a shell could evaluate. A path that is not read is kept, because its name may be useful.
      if (word.find('$') != std::string::npos && (spec.type != ArgumentType::kText || is_read(spec.dest))) return;
      const std::optional<json> value = value_of(spec, word);
      if (!value) return mistake(fmt::format("expected {}, found \"{}\"", type_text(spec), word));
      if (std::string wrong = no_choice(spec, word); !wrong.empty()) return mistake(std::move(wrong));
      list.push_back(*value);
    }
    settings.set(spec.dest, spec.many ? list : list.front(), argument.line);
  }

 private:
  [[nodiscard]] std::string no_choice(const ArgumentSpec& spec, const std::string& word) const {
    if (spec.choices.empty()) return "";
    std::vector<std::string> choices;
    for (const std::string& choice : spec.choices) {
      const auto span = spec.choices_in.find(choice);
      if (span == spec.choices_in.end() || span->second.has(release_)) choices.push_back(choice);
    }
    if (choices.empty() || std::ranges::count(choices, word) > 0) return "";
    return fmt::format("expected one of {}, found \"{}\"{}", fmt::join(choices, ", "), word,
                       config::nearest_hint(word, choices));
  }

  const std::string& file_;
  const Release& release_;
  Diagnostics& diagnostics_;
};

}  // namespace

const std::vector<ArgumentSpec>& argument_specs() {
  static const std::vector<ArgumentSpec> specs = load_specs();
  return specs;
}

const ArgumentSpec* find_flag(std::string_view flag) {
  static const auto index = [] {
    std::map<std::string, const ArgumentSpec*, std::less<>> by_flag;
    for (const ArgumentSpec& spec : argument_specs()) {
      by_flag[spec.flag] = &spec;
      if (spec.type == ArgumentType::kEither) by_flag["--no-" + spec.flag.substr(2)] = &spec;
    }
    return by_flag;
  }();
  const auto found = index.find(flag);
  return found == index.end() ? nullptr : found->second;
}

bool has_choice(std::string_view flag, const std::string& choice, const Release& release) {
  const ArgumentSpec& spec = *find_flag(flag);
  const auto span = spec.choices_in.find(choice);
  return spec.releases.has(release) && std::ranges::count(spec.choices, choice) > 0 &&
         (span == spec.choices_in.end() || span->second.has(release));
}

const std::vector<const ArgumentSpec*>& flags_of(std::string_view dest) {
  static const auto index = [] {
    std::map<std::string, std::vector<const ArgumentSpec*>, std::less<>> by_dest;
    for (const ArgumentSpec& spec : argument_specs()) by_dest[spec.dest].push_back(&spec);
    return by_dest;
  }();
  static const std::vector<const ArgumentSpec*> none;
  const auto found = index.find(dest);
  return found == index.end() ? none : found->second;
}

std::string mistake_in_member(std::string_view dest, const json& value) {
  const std::vector<const ArgumentSpec*>& specs = flags_of(dest);
  if (specs.empty() || std::ranges::any_of(specs, [&](const auto* spec) { return is_of_type(*spec, value); }))
    return "";
  return fmt::format("expected {}, found {}", type_text(*specs.front()), value.dump());
}

const json* Settings::find(std::string_view dest) const {
  const auto found = settings_.find(dest);
  return found == settings_.end() || found->second.value.is_null() ? nullptr : &found->second.value;
}

bool Settings::on(std::string_view dest) const {
  const json* value = find(dest);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

bool Settings::off(std::string_view dest) const {
  const json* value = find(dest);
  return value != nullptr && value->is_boolean() && !value->get<bool>();
}

std::int64_t Settings::integer(std::string_view dest, std::int64_t fallback) const {
  const json* value = find(dest);
  return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : fallback;
}

double Settings::number(std::string_view dest, double fallback) const {
  const json* value = find(dest);
  return value != nullptr && value->is_number() ? value->get<double>() : fallback;
}

std::string Settings::text(std::string_view dest, std::string fallback) const {
  const json* value = find(dest);
  if (value == nullptr) return fallback;
  if (value->is_array() && value->size() == 1 && value->front().is_string()) return value->front().get<std::string>();
  return value->is_string() ? value->get<std::string>() : fallback;
}

std::vector<std::string> Settings::names(std::string_view dest) const {
  const json* value = find(dest);
  if (value == nullptr) return {};
  std::vector<std::string> list;
  for (const json& item : value->is_array() ? *value : json{*value}) list.push_back(word_of(item));
  return list;
}

bool Settings::lists(std::string_view dest, std::string_view name) const {
  const std::vector<std::string> list = names(dest);
  return std::ranges::find(list, name) != list.end();
}

bool router_decides_loads(const Settings& settings) {
  return settings.integer("expert_model_parallel_size", 1) > 1 && !settings.on("moe_router_force_load_balancing");
}

int Settings::line(std::string_view dest) const {
  const auto found = settings_.find(dest);
  return found == settings_.end() ? 0 : found->second.line;
}

Settings parse_arguments(const std::vector<Argument>& arguments, const std::string& file, const Release& release,
                         Diagnostics& diagnostics, std::vector<Argument>& unknown) {
  Settings settings;
  Parser parser(file, release, diagnostics);
  for (const Argument& argument : arguments) {
    const ArgumentSpec* spec = find_flag(argument.flag);
    if (spec == nullptr)
      unknown.push_back(argument);
    else
      parser.take(*spec, argument, settings);
  }
  return settings;
}

std::vector<Argument> to_arguments(const Settings& settings, const Release& release) {
  std::vector<Argument> result;
  for (const ArgumentSpec& spec : argument_specs()) {
    const json* value = settings.find(spec.dest);
    if (value == nullptr || !spec.releases.has(release)) continue;
    const bool repeated = std::ranges::any_of(
        result, [&](const Argument& earlier) { return find_flag(earlier.flag)->dest == spec.dest; });
    if (repeated) continue;
    if (spec.takes_nothing()) {
      if (value->is_boolean() && value->get<bool>() == (spec.type != ArgumentType::kFalse))
        result.push_back({.flag = spec.flag, .values = {}});
      continue;
    }
    result.push_back({.flag = spec.flag, .values = settings.names(spec.dest)});
  }
  for (const auto& [dest, setting] : settings.all()) {
    const bool given = std::ranges::any_of(
        result, [&, &name = dest](const Argument& argument) { return find_flag(argument.flag)->dest == name; });
    const bool plain = setting.value.is_boolean() &&  // The value if the flag is not given.
                       std::ranges::any_of(flags_of(dest), [&, &value = setting.value](const ArgumentSpec* spec) {
                         return spec->type == (value.get<bool>() ? ArgumentType::kFalse : ArgumentType::kTrue);
                       });
    if (!given && !plain && !setting.value.is_null())
      throw std::logic_error(
          fmt::format("no flag of Megatron-Core {} sets {} = {}", release.name, dest, setting.value.dump()));
  }
  return result;
}

std::string word_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float() && value.get<double>() == std::round(value.get<double>()))
    return fmt::format("{:.1f}", value.get<double>());
  if (value.is_array()) {
    std::vector<std::string> words;
    for (const json& item : value) words.push_back(word_of(item));
    return fmt::format("[{}]", fmt::join(words, ", "));
  }
  return value.dump();
}

}  // namespace foldwise::planner

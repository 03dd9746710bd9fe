#include "planner/models/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/config/input_file.h"
#include "costmodel/config/lookup.h"
#include "planner/models/config_reader.h"
#include "planner/models/families.h"

namespace foldwise::planner {

[[nodiscard]] std::span<const std::pair<std::string, std::string>> embedded_files();  // Made by hwprofiles/embed.cmake.
[[nodiscard]] const std::string* embedded_file(std::string_view name);
namespace family_data {
[[nodiscard]] const std::string* embedded_file(std::string_view name);
}

namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::ModelSpec;
using nlohmann::json;

/// Aliases, each with the name of its built-in model.
const std::vector<std::pair<std::string, std::string>>& other_names() {
  static const std::vector<std::pair<std::string, std::string>> names = [] {
    const std::string* text = family_data::embedded_file("names");
    FW_CHECK(text != nullptr, "the names of models are not built in");
    const json table = json::parse(*text);
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& item : table.items())
      if (item.value().is_array())
        for (const auto& name : item.value()) result.emplace_back(name.get<std::string>(), item.key());
    return result;
  }();
  return names;
}

/// Whether a part of a name states the release or format of the weights, not the size of the model.
bool is_of_release(const std::string& part) {
  static const std::vector<std::string> words = {
      "instruct",  "chat", "base",  "it",      "pt",        "sft",    "dpo",   "rl",    "thinking",
      "reasoning", "hf",   "exp",   "preview", "fp8",       "fp4",    "bf16",  "fp16",  "int8",
      "int4",      "awq",  "gptq",  "gguf",    "dynamic",   "latest", "nvfp4", "mxfp4", "w4a16",
      "w8a8",      "4bit", "8bit",  "mlx",     "bnb",       "think",  "text",  "final", "speculator",
      "config",    "verl", "mcore", "ckpt",    "checkpoint"};
  if (std::find(words.begin(), words.end(), part) != words.end()) return true;
  const auto digits = [&](std::size_t from) {
    return part.size() > from && part.find_first_not_of("0123456789.", from) == std::string::npos;
  };
  const bool date =
      digits(0) && part.find('.') == std::string::npos && (part.size() == 4 || part.size() == 6 || part.size() == 8);
  const bool context = part.back() == 'k' && part.size() > 1 &&
                       part.find_first_not_of("0123456789") == part.size() - 1;  // "8k": tokens of its context.
  return date || context || (part.front() == 'v' && digits(1));
}

/// `name` without its organisation, then also without each trailing part for which is_of_release() holds. If the name
/// uses no points, 3_5 is read as 3.5.
std::vector<std::string> bare_forms(const std::string& name) {
  const std::string base = name.substr(name.find_last_of('/') + 1);
  const auto digit = [&](std::size_t i) {
    return i < base.size() && std::isdigit(static_cast<unsigned char>(base[i]));
  };
  std::string form, pointed;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const char c = base[i];
    form += c == '_' || c == ' ' || c == ':' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    pointed += c == '_' && i > 0 && digit(i - 1) && digit(i + 1) && !digit(i + 2) ? '.' : form.back();
  }
  std::vector<std::string> forms = {form};
  if (pointed != form) forms.insert(forms.begin(), pointed);
  for (std::size_t dash = form.rfind('-'); dash != std::string::npos && dash > 0; dash = form.rfind('-')) {
    const std::string last = form.substr(dash + 1);
    if (!last.empty() && !is_of_release(last)) break;
    form.erase(dash);
    forms.push_back(form);
  }
  return forms;
}

/// The built-in model with this name or alias; "" if none, or if several match.
std::string named(const std::string& name, const std::vector<std::string>& known) {
  if (std::string same = config::same_name(name, known); !same.empty()) return same;
  std::vector<std::string> others;
  for (const auto& [other, model] : other_names()) others.push_back(other);
  const std::string other = config::same_name(name, others);
  for (const auto& [its, model] : other_names())
    if (its == other) return model;
  const std::vector<std::string> longer = config::completions(name, known);
  return longer.size() == 1 ? longer.front() : "";
}

/// Path of the language model in the config of a multimodal model; "": the whole file.
std::string language_model(const json& root) {
  for (const char* place : {"/text_config", "/llm_config", "/language_config", "/thinker_config/text_config"}) {
    const json::json_pointer pointer(place);
    if (root.contains(pointer) && root.at(pointer).is_object()) return place;
  }
  return "";
}

/// Says nothing, or switches something off.
bool is_inactive(const json& value) {
  return value.is_null() || value == false || value == 0 || (value.is_string() && value.get<std::string>().empty()) ||
         (value.is_structured() && value.empty());
}

/// Whether a key was meant to be a known one: the message names that, and the two differ in their last letter alone.
bool is_almost(const std::string& key, const std::string& message) {
  constexpr std::string_view kHint = "; the nearest known key is \"";
  const std::size_t hint = message.find(kHint);
  if (hint == std::string::npos) return false;
  const std::string known = message.substr(hint + kHint.size(), message.size() - hint - kHint.size() - 1);
  const auto common = static_cast<std::size_t>(std::ranges::mismatch(key, known).in1 - key.begin());
  return common + 1 >= std::max(key.size(), known.size());
}

/// A published file (transformers writes "architectures" into each) of a family that is known may have keys that the
/// family's row does not list. One that is switched off is none; others are named, and widen the interval. Keys of
/// `overrides`, what is almost a known key, and keys of a part that the family does not have (experts of a dense one)
/// are mistakes.
void judge_unknown_keys(const json& root, const json& overrides, const Diagnostics& found, ModelSpec& spec,
                        Diagnostics& diagnostics) {
  std::vector<std::string> active;
  bool tolerable = root.contains("architectures");
  for (const config::Diagnostic& mistake : found.list()) {
    const json::json_pointer at(mistake.where.field);
    const std::string key = at.empty() ? "" : at.back();
    tolerable &= mistake.message.starts_with("unknown key") && !is_almost(key, mistake.message) &&
                 !overrides.contains(key) && root.contains(at);
    if (!tolerable || is_inactive(root.at(at))) continue;
    active.push_back(key);
    if (!states_a_part(key)) continue;
    diagnostics.error(mistake.where,
                      fmt::format("{} states a part that this family is not known to have; expected a model_type of a "
                                  "family with it, or the file without this key",
                                  key));
  }
  if (!tolerable)
    for (const config::Diagnostic& mistake : found.list()) diagnostics.error(mistake.where, mistake.message);
  if (!tolerable || active.empty()) return;
  spec.notes.lines.push_back(fmt::format("not read: {}", fmt::join(active, ", ")));
  spec.approximated.emplace_back(kUnreadKeys);
}

/// Names what add_class_defaults() added.
void note_defaults(const std::vector<std::string>& added, ModelSpec& spec) {
  if (!added.empty())
    spec.notes.lines.push_back(
        fmt::format("not in the file, and taken from its class in Transformers: {}", fmt::join(added, ", ")));
}

/// Reads `root`, which is `document`'s root or a copy of it with the keys of `overrides` replaced.
ModelSpec read_root(const Document& document, const nlohmann::json& root, const json& overrides,
                    const std::string& name, Diagnostics& diagnostics) {
  ModelSpec spec;
  spec.name = name;
  Diagnostics found;
  ObjectReader outer(document, root, "", diagnostics);
  if (!root.is_object()) return spec;
  const std::string place = language_model(root);
  if (place.empty()) {
    json whole = root;
    const std::vector<std::string> added = add_class_defaults(whole, false);
    read_config(outer.of(whole).reporting_to(found), spec, found);
    judge_unknown_keys(root, overrides, found, spec, diagnostics);
    note_defaults(added, spec);
    return spec;
  }
  const json::json_pointer pointer(place);
  json text = root.at(pointer);
  // Keys that Hugging Face states only for the whole model.
  for (const char* key : {"tie_word_embeddings", "model_type"})
    if (!text.contains(key) && root.contains(key)) text[key] = root.at(key);
  const std::vector<std::string> added = add_class_defaults(text, true);
  read_config({document, text, place, found}, spec, found);
  judge_unknown_keys(root, overrides, found, spec, diagnostics);
  note_defaults(added, spec);
  std::vector<std::string> others;
  for (const auto& item : root.items())
    if (item.value().is_object() && item.key().ends_with("_config") && item.key() != "text_config" &&
        item.key() != "quantization_config" && place != '/' + item.key())
      others.push_back(item.key());
  if (!others.empty())
    spec.notes.lines.push_back(fmt::format("the language model alone: left out is {}", fmt::join(others, ", ")));
  return spec;
}

/// "; the nearest built-in is ...": models with a similar name, else of the same family.
std::string nearest_models(const std::string& name, const std::vector<std::string>& known) {
  if (name.ends_with(".json")) return "";
  const std::vector<std::string> forms = bare_forms(name);
  const std::string& wanted = forms.back();
  for (const std::string& form : forms)
    if (std::string hint = config::nearest_hint(form, known, "built-in"); !hint.empty()) return hint;
  std::vector<std::string> family;
  for (std::size_t end = wanted.rfind('-'); end != std::string::npos && end > 0 && family.empty();
       end = wanted.rfind('-', end - 1))
    for (const std::string& model : known)
      if (model.starts_with(wanted.substr(0, end)) && family.size() < 6) family.push_back(model);
  if (family.empty()) return "; `foldwise models` lists the built-in ones, and a path of a config.json will do";
  return fmt::format("; of its family are built in: {}", fmt::join(family, ", "));
}

}  // namespace

std::vector<std::string> built_in_models() {
  std::vector<std::string> names;
  for (const auto& [name, text] : embedded_files()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const std::string& built_in_model_text(const std::string& name) {
  const std::string* text = embedded_file(name);
  if (text == nullptr) throw std::out_of_range("no built-in model \"" + name + "\"");
  return *text;
}

std::string find_model(const std::string& name, const std::string& beside) {
  // A folder as Transformers saves it, before a built-in model of its name.
  std::error_code missing;
  if (const auto config = std::filesystem::path(name) / "config.json";
      name.find('/') != std::string::npos && std::filesystem::is_regular_file(config, missing))
    return config.lexically_normal().string();
  const std::vector<std::string> known = built_in_models();
  std::string found = config::named_or_beside(name, known, beside);
  if (found != name || std::binary_search(known.begin(), known.end(), found)) return found;
  std::error_code error;
  if (name == "-" || std::filesystem::exists(name, error) || name.ends_with(".json")) return name;
  for (const std::string& form : bare_forms(name))
    if (std::string meant = named(form, known); !meant.empty()) return meant;
  return name;
}

ModelSpec read_huggingface(const Document& document, const std::string& name, Diagnostics& diagnostics) {
  return read_root(document, document.root(), json::object(), name, diagnostics);
}

namespace {

/// Reads the file at `path`. Non-finite numbers as Python writes them (Infinity in time_step_limit) become null.
Document load_config(const std::string& path) {
  std::string text = config::read_input_file(path);
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') quoted = !quoted;
    if (quoted && text[at] == '\\') ++at;
    if (quoted) continue;
    constexpr std::string_view kInfinity = "Infinity";
    if (text.compare(at, kInfinity.size(), kInfinity) == 0) text.replace(at, kInfinity.size(), "null");
  }
  return Document::parse(text, path);
}

ModelSpec load_document(const Document& document, const std::string& name, const nlohmann::json* overrides) {
  Diagnostics diagnostics;
  if (overrides == nullptr || overrides->is_null()) {
    ModelSpec spec = read_huggingface(document, name, diagnostics);
    diagnostics.throw_if_any();
    return spec;
  }

  const std::string overrides_name = "model overrides";  // Name in messages: overrides have no file or lines.
  if (!overrides->is_object()) {
    diagnostics.error({overrides_name, 0, ""}, "expected an object that replaces keys of the model's config.json");
    diagnostics.throw_if_any();
  }
  nlohmann::json root = document.root();
  const std::string place = root.is_object() ? language_model(root) : "";
  nlohmann::json& target = root.at(json::json_pointer(place));
  if (target.is_object())
    for (const auto& [key, value] : overrides->items()) {
      for (const std::string& same : names_of_key(key)) target.erase(same);  // The file may have another, or several.
      target[key] = value;
    }
  ModelSpec spec = read_root(document, root, *overrides, name, diagnostics);
  Diagnostics placed;
  for (const config::Diagnostic& diagnostic : diagnostics.list()) {
    std::string field = diagnostic.where.field;
    if (field.starts_with(place)) field.erase(0, place.size());
    const std::string key = field.empty() ? field : field.substr(1, field.find('/', 1) - 1);
    if (overrides->contains(key))
      placed.error({overrides_name, 0, field}, diagnostic.message);
    else
      placed.error(diagnostic.where, diagnostic.message);
  }
  placed.throw_if_any();
  return spec;
}

}  // namespace

ModelSpec load_model(const std::string& name, const nlohmann::json* overrides) {
  Diagnostics diagnostics;
  const std::vector<std::string> names = built_in_models();
  const bool built_in = std::binary_search(names.begin(), names.end(), name);
  std::error_code error;
  if (!built_in && name != "-" && !std::filesystem::exists(name, error)) {
    diagnostics.error({name, 0, ""}, "neither a built-in model nor a file" + nearest_models(name, names));
    diagnostics.throw_if_any();
  }
  return load_document(
      built_in ? Document::parse(built_in_model_text(name), "built-in model " + name) : load_config(name), name,
      overrides);
}

ModelSpec read_inline_model(const nlohmann::json& config, const nlohmann::json* overrides) {
  return load_document(Document::parse(config.dump(), std::string(kInlineModel)), "inline", overrides);
}

}  // namespace foldwise::planner

#include "planner/models/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "costmodel/config/lookup.h"
#include "planner/models/config_reader.h"

namespace foldwise::planner {

[[nodiscard]] std::span<const std::pair<std::string, std::string>> embedded_files();  // Made by hwprofiles/embed.cmake.
[[nodiscard]] const std::string* embedded_file(std::string_view name);

namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::ModelSpec;

/// Reads `root`, which is `document`'s root or a copy of it with some keys replaced.
ModelSpec read_root(const Document& document, const nlohmann::json& root, const std::string& name,
                    Diagnostics& diagnostics) {
  ModelSpec spec;
  spec.name = name;
  ObjectReader outer(document, root, "", diagnostics);
  if (!root.is_object()) return spec;
  // Multimodal models keep the language model in text_config; the rest of such a file is not our business.
  auto text = outer.has("text_config") ? outer.object("text_config") : std::optional<ObjectReader>(outer);
  if (text) read_config(*std::move(text), spec, diagnostics);
  return spec;
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
  return config::named_or_beside(name, built_in_models(), beside);
}

ModelSpec read_huggingface(const Document& document, const std::string& name, Diagnostics& diagnostics) {
  return read_root(document, document.root(), name, diagnostics);
}

namespace {

ModelSpec load_document(const Document& document, const std::string& name, const nlohmann::json* overrides) {
  Diagnostics diagnostics;
  if (overrides == nullptr || overrides->is_null()) {
    ModelSpec spec = read_huggingface(document, name, diagnostics);
    diagnostics.throw_if_any();
    return spec;
  }

  const std::string overrides_name =
      "model overrides";  // What messages call them: they have no file and no lines here.
  if (!overrides->is_object()) {
    diagnostics.error({overrides_name, 0, ""}, "expected an object that replaces keys of the model's config.json");
    diagnostics.throw_if_any();
  }
  nlohmann::json root = document.root();
  const bool nested = root.is_object() && root.contains("text_config") && root["text_config"].is_object();
  nlohmann::json& target = nested ? root["text_config"] : root;
  if (target.is_object())
    for (const auto& [key, value] : overrides->items()) target[key] = value;
  ModelSpec spec = read_root(document, root, name, diagnostics);
  Diagnostics placed;
  for (const config::Diagnostic& diagnostic : diagnostics.list()) {
    std::string field = diagnostic.where.field;
    if (nested && field.rfind("/text_config", 0) == 0) field.erase(0, std::string_view("/text_config").size());
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
  if (!built_in && !std::filesystem::exists(name, error)) {
    diagnostics.error({name, 0, ""},
                      "neither a built-in model nor a file" + config::nearest_hint(name, names, "built-in"));
    diagnostics.throw_if_any();
  }
  return load_document(
      built_in ? Document::parse(built_in_model_text(name), "built-in model " + name) : Document::load(name), name,
      overrides);
}

ModelSpec read_inline_model(const nlohmann::json& config, const nlohmann::json* overrides) {
  return load_document(Document::parse(config.dump(), std::string(kInlineModel)), "inline", overrides);
}

}  // namespace foldwise::planner

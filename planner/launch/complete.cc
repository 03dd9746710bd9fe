#include "planner/launch/complete.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "costmodel/config/number.h"
#include "planner/launch/files.h"
#include "planner/launch/geometry.h"
#include "planner/launch/model_arguments.h"
#include "planner/models/models.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

std::string published_model(const std::string& name) {
  const std::string base = base_of(name.substr(0, name.find_last_not_of('/') + 1));
  const std::vector<std::string> known = built_in_models();
  const std::string found = find_model(base, "");
  return std::ranges::find(known, found) != known.end() ? found : "";
}

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

struct Vocabulary {
  std::int64_t size = 0;
  std::string of;
};

/// Vocabulary of the tokenizer that the path or a folder above it names.
std::optional<Vocabulary> vocabulary_of_path(std::string path, const json& files) {
  while (!path.empty()) {
    if (const std::string model = published_model(path); !model.empty())
      return Vocabulary{.size = load_model(model).vocab_size,
                        .of = fmt::format("that of {}, whose tokenizer it names", model)};
    std::string base = base_of(path);
    std::ranges::transform(base, base.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    std::string longest;
    for (const auto& item : files.items())
      if (base.starts_with(item.key()) && item.key().size() > longest.size()) longest = item.key();
    if (!longest.empty())
      return Vocabulary{.size = files.at(longest).at("size"), .of = files.at(longest).at("source").get<std::string>()};
    // A model trained further keeps the tokenizer: "OpenMath2-Llama3.1-8B".
    for (std::size_t at = base.find('-'); at != std::string::npos; at = base.find('-', at + 1))
      if (const std::string model = published_model(base.substr(at + 1)); !model.empty())
        return Vocabulary{.size = load_model(model).vocab_size,
                          .of = fmt::format("that of {}, of which {} is made by its name", model, base)};
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
  return std::nullopt;
}

/// The type of the tokenizer, which the arguments may imply without --tokenizer-type.
std::string type_of_tokenizer(const Settings& s) {
  if (s.has("tokenizer_type")) return s.text("tokenizer_type");
  if (s.has("tiktoken_pattern")) return "TikTokenizer";  // Only this tokenizer has the option.
  if (!s.has("vocab_file")) return "";
  // args_defaults of pretrain_bert.py and pretrain_gpt.py.
  return s.text("vocab_file").ends_with(".txt") ? "BertWordPieceLowerCase" : "GPT2BPETokenizer";
}

}  // namespace

void add_vocabulary(Settings& s, std::vector<std::string>& notes) {
  if (s.has("vocab_size") || s.has("padded_vocab_size")) return;
  static const json table = json::parse(launch_file("vocabularies"));
  const auto take = [&](std::int64_t size, const std::string& why) {
    s.set("vocab_size", size);
    notes.push_back(fmt::format("--vocab-size: {}, {}", size, why));
  };
  const std::string type = type_of_tokenizer(s), path = s.text("tokenizer_model", s.text("tokenizer_name_or_path", "")),
                    file = base_of(path);
  if (const json& types = table.at("types"); types.contains(type)) {
    const json& row = types.at(type);
    if (path.empty() || file.find('$') != std::string::npos || row.value("file", file) == file)
      return take(row.at("size"), fmt::format("a {}'s: {}", type, row.at("source").get<std::string>()));
  }
  if (const auto found = vocabulary_of_path(path, table.at("files"))) return take(found->size, found->of);
  if (const std::string model = model_but_for_vocabulary(s); !model.empty())
    take(load_model(model).vocab_size, fmt::format("that of {}, whose other sizes these are", model));
}

namespace {

/// Members of the geometry in which the arguments differ from the model. Members with several spellings are left out.
std::vector<std::string> other_sizes(const Settings& given, const Settings& geometry) {
  static const std::set<std::string, std::less<>> spelled = {
      "tokenizer_type",          "max_position_embeddings", "make_vocab_size_divisible_by",   "padded_vocab_size",
      "position_embedding_type", "moe_layer_freq",          "use_rotary_position_embeddings", "window_size"};
  std::vector<std::string> others;
  for (const std::string& dest : geometry_members()) {
    const json* value = given.find(dest);
    if (value == nullptr || spelled.contains(dest) || flags_of(dest).empty()) continue;
    const json* own = geometry.find(dest);
    if (own == nullptr ? *value == false : *value == *own) continue;
    others.push_back(fmt::format("{} {}{}", flags_of(dest).front()->flag, word_of(*value),
                                 own == nullptr ? "" : fmt::format(", not {}", word_of(*own))));
  }
  return others;
}

}  // namespace

std::vector<std::string> add_geometry(const std::string& model, const Release& release, Settings& settings,
                                      Diagnostics& diagnostics) {
  const Settings geometry = settings_of_model(load_model(model), release, diagnostics);
  std::vector<std::string> others = other_sizes(settings, geometry);
  // The run decides about layers of multi-token prediction. It has them if its layout places them.
  const bool mtp = settings.text("pipeline_model_parallel_layout", "").find('m') != std::string::npos;
  const auto changed = [&](const char* dest) {
    return settings.has(dest) && settings.integer(dest, 0) != geometry.integer(dest, 0);
  };
  const std::int64_t heads = std::max<std::int64_t>(1, geometry.integer("num_attention_heads", 1));
  // If the model's head width follows from these sizes, it changes with them.
  const bool own_width = (changed("hidden_size") || changed("num_attention_heads")) &&
                         geometry.integer("hidden_size", 0) == heads * geometry.integer("kv_channels", 0);
  for (const auto& [dest, setting] : geometry.all())
    if (!settings.has(dest) && (dest != "mtp_num_layers" || mtp) && (dest != "kv_channels" || !own_width))
      settings.set(dest, setting.value);
  if (settings.integer("moe_router_topk", 2) == 1 && !settings.has("moe_router_score_function"))
    settings.set("moe_router_pre_softmax",
                 true);  // Otherwise the weight of a single expert has no gradient in Megatron.
  settings.set("max_position_embeddings", std::max(settings.integer("max_position_embeddings", 0),
                                                   geometry.integer("max_position_embeddings", 0)));
  return others;
}

namespace {

/// pattern_from_ratios of megatron/core/models/hybrid/hybrid_layer_allocation.py: spreads attention and MLPs evenly.
std::string pattern_of_ratios(std::int64_t layers, double attention_ratio, double mlp_ratio) {
  std::string pattern(static_cast<std::size_t>(layers), 'M');
  const auto real = [](auto value) { return static_cast<double>(value); };
  const std::int64_t attention = std::llrint(real(layers) * attention_ratio);  // Python rounds half to even.
  const double section = real(layers - attention) / real(attention + 1);
  double left = section;
  for (char& symbol : pattern) {
    const bool here = left < 0.5;
    if (here) symbol = '*';
    left += here ? section : -1.0;
  }
  const std::int64_t mlps = std::llrint(real(layers) * mlp_ratio);
  if (mlps <= 0) return pattern;
  const double ratio = real(layers - attention - mlps) / real(mlps);
  left = ratio;
  for (char& symbol : pattern) {
    if (symbol != 'M') continue;
    const bool here = left < 0.5;
    if (here) symbol = '-';
    left += here ? ratio : -1.0;
  }
  return pattern;
}

bool is_hybrid(const Settings& s) {
  return s.on("is_hybrid_model") || s.number("hybrid_attention_ratio", 0.0) > 0.0 ||
         s.number("hybrid_mlp_ratio", 0.0) > 0.0 || s.lists("spec", "mamba_stack_spec") ||
         s.lists("spec", "hybrid_stack_spec");
}

}  // namespace

void complete_pattern(Settings& s, const std::string& file, Diagnostics& diagnostics) {
  const std::string dest = s.has("hybrid_layer_pattern") ? "hybrid_layer_pattern" : "hybrid_override_pattern";
  const int line = s.line(dest);
  const auto mistake = [&](const std::string& message) {
    diagnostics.error({file, line, "--hybrid-layer-pattern"}, message);
  };
  const std::string text = s.text(dest);
  if (!text.empty() || is_hybrid(s)) {
    const std::vector<std::string> spec = s.names("spec");
    if (spec.size() == 2 && spec.back() != "mamba_stack_spec" && spec.back() != "hybrid_stack_spec")
      return diagnostics.error(
          {file, s.line("spec"), "--spec"},
          fmt::format("expected the layers of mamba_stack_spec or hybrid_stack_spec, found {}", spec.back()));
    if (s.on("multi_latent_attention"))
      return diagnostics.error({file, s.line("multi_latent_attention"), "--multi-latent-attention"},
                               "a hybrid with latent attention is not modelled");
  }
  if (text.empty()) {
    const double attention = s.number("hybrid_attention_ratio", 0.0), mlp = s.number("hybrid_mlp_ratio", 0.0);
    if (!is_hybrid(s) || layers_of(s) < 1 || attention < 0.0 || mlp < 0.0 || attention + mlp > 1.0) return;
    s.set(dest, pattern_of_ratios(layers_of(s), attention, mlp));
    return;
  }
  std::vector<std::string> depths = split(text, '/');
  const std::vector<std::string> stages = split(depths.front(), '|');
  depths.erase(depths.begin());
  if (depths.empty() && stages.size() == 1) return;
  std::string layers;
  for (const std::string& stage : stages) layers += stage;
  s.set(dest, layers, line);
  if (!depths.empty()) {
    if (std::ranges::any_of(depths, [&](const std::string& depth) { return depth != depths.front(); }))
      return mistake("expected the same layers behind every /");
    s.set("mtp_hybrid_override_pattern", depths.front(), line);
    s.set("mtp_num_layers", depths.size(), line);
  }
  const auto ranks = static_cast<std::size_t>(std::max<std::int64_t>(1, s.integer("pipeline_model_parallel_size", 1)));
  if (stages.size() == 1) return;
  if (stages.size() % ranks != 0)
    return mistake(
        fmt::format("has {} stages, no multiple of --pipeline-model-parallel-size {}", stages.size(), ranks));
  if (std::ranges::any_of(stages, [&](const std::string& stage) { return stage.size() != stages.front().size(); }))
    return mistake("stages of a hybrid with different numbers of layers are not modelled");
  if (stages.size() > ranks) s.set("num_virtual_stages_per_pipeline_rank", stages.size() / ranks, line);
}

void complete_layers(Settings& s, std::vector<std::string>& notes) {
  const std::vector<std::string> spec = s.names("spec");
  if (spec.size() != 2 || is_hybrid(s) || spec.front().starts_with("megatron.")) return;
  static const json rows = json::parse(launch_file("layer_specs")).at("rows");
  const auto row = std::ranges::find_if(rows, [&](const json& known) { return known.at("spec") == spec.back(); });
  const auto set = [&](const json& members) {
    for (const auto& [dest, value] : members.items())
      if (!s.has(dest)) s.set(dest, value, s.line("spec"));
  };
  if (row != rows.end()) {
    const json by_size = row->value("by_size", json::object());
    const auto sizes = by_size.find(fmt::format("{} x {}", layers_of(s), s.integer("hidden_size", 0)));
    if (by_size.empty() || sizes != by_size.end()) {
      set(row->value("set", json::object()));
      if (sizes != by_size.end()) set(*sizes);
      return notes.push_back(
          fmt::format("--spec {} {}: {}", spec.front(), spec.back(), row->at("note").get<std::string>()));
    }
  }
  notes.push_back(fmt::format("--spec {} {}: its layers are not read; priced as Megatron's own of these sizes",
                              spec.front(), spec.back()));
}

void complete_batch(Settings& s, std::vector<std::string>& notes) {
  if (const std::string schedule = s.text("step_batch_size_schedule");
      !schedule.empty() && !s.has("global_batch_size")) {
    const std::string last = schedule.substr(schedule.find_last_of(':') + 1);  // "0:16 2.4B:320"
    if (const auto batch = config::number_in<std::int64_t>(last.substr(0, last.find_last_not_of(' ') + 1)))
      s.set("global_batch_size", *batch, s.line("step_batch_size_schedule"));
  }
  if (s.has("decoder_num_layers")) return;
  if (s.has("encoder_seq_length") && !s.has("seq_length")) s.set("seq_length", *s.find("encoder_seq_length"));
  const std::int64_t decoder = s.integer("decoder_seq_length", 0);
  if (decoder < 1) return;
  if (decoder != s.integer("seq_length", decoder))
    notes.push_back(
        fmt::format("--decoder-seq-length {} is the language model's length; --seq-length is the encoder's", decoder));
  s.set("seq_length", decoder, s.line("decoder_seq_length"));
  s.set("max_position_embeddings", std::max(decoder, s.integer("max_position_embeddings", 0)));
}

namespace {

const json& rows_not_modelled() {
  static const json rows = json::parse(launch_file("not_modelled")).at("rows");
  return rows;
}

bool finds(const std::string& expression, const std::string& text) {
  constexpr std::size_t kMost = 256;  // Enough for names and paths; std::regex uses stack in proportion.
  return std::regex_search(text.size() > kMost ? text.substr(text.size() - kMost) : text, std::regex(expression));
}

}  // namespace

bool is_not_modelled(const std::string& flag) {
  return std::ranges::any_of(rows_not_modelled(), [&](const json& row) {
    const std::vector<std::string> flags = row.value("flags", std::vector<std::string>());
    return std::ranges::find(flags, flag) != flags.end();
  });
}

NotModelled not_modelled(const std::vector<Argument>& arguments, const std::string& program, const std::string& file,
                         Diagnostics& diagnostics) {
  NotModelled result;
  for (const json& row : rows_not_modelled()) {
    std::vector<std::string> given;
    int line = 0;
    const std::vector<std::string> flags = row.value("flags", std::vector<std::string>());
    const json values = row.value("values", json::object());
    for (const Argument& argument : arguments) {
      const bool of_value = values.contains(argument.flag) && argument.values.size() == 1 &&
                            finds(values.at(argument.flag), argument.values.front());
      if (!of_value && std::ranges::find(flags, argument.flag) == flags.end()) continue;
      if (std::ranges::find(given, argument.flag) == given.end()) given.push_back(argument.flag);
      if (line == 0) line = argument.line;
    }
    const bool started = !program.empty() && row.contains("programs") && finds(row.at("programs"), program);
    if (given.empty() && !started) continue;
    const std::string what = given.empty() ? program : fmt::format("{}", fmt::join(given, ", "));
    if (row.contains("refused")) {
      const bool told = std::ranges::any_of(diagnostics.list(), [&](const config::Diagnostic& mistake) {
        return mistake.where.line == line && mistake.where.field == what;
      });
      if (!told) diagnostics.error({file, line, what}, row.at("refused").get<std::string>());
      continue;
    }
    result.notes.push_back(fmt::format("{}{}: {}", line > 0 ? fmt::format("line {}: ", line) : "", what,
                                       row.at("note").get<std::string>()));
    result.flags.insert(result.flags.end(), given.begin(), given.end());
  }
  return result;
}

}  // namespace foldwise::planner

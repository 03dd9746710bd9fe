#include "planner/run/run_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "planner/models/models.h"
#include "planner/run/defaults.h"
#include "planner/run/derive.h"
#include "planner/run/field_reader.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/run/near_names.h"

// There are two kinds of mistakes. A mistake of form (an unknown key, text instead of a number) is a typing mistake and
// always an error. A mistake of content (an unknown model, contradicting sizes) makes one run unusable. It is an error
// in a file of one run; in a file of many, the row is listed with its reason.
namespace foldwise::planner {
namespace {

using config::Diagnostic;
using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::TrainingOptions;
using nlohmann::json;

/// Models and systems that were read. A file of runs names the same few again and again.
struct Catalog {
  std::map<std::string, costmodel::ModelSpec> models;
  std::map<std::string, costmodel::Hardware> systems;
};

/// load(), once for each name: reading takes longer than a prediction. Threads copy it concurrently.
template <typename Load>
auto remembered(const std::string& name, const Load& load) {
  static std::mutex mutex;
  static std::map<std::string, decltype(load())> known;
  const auto& value = [&]() -> const decltype(load())& {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(name);
    return found != known.end() ? found->second : known.emplace(name, load()).first->second;
  }();
  return value;
}

/// Built-in systems and models without overrides are remembered.
costmodel::Hardware hardware_of(const std::string& name, const json& overrides) {
  static const std::vector<std::string> built_in = hwprofiles::built_in_systems();
  if (!overrides.empty() || !std::binary_search(built_in.begin(), built_in.end(), name))
    return hwprofiles::load_profile(name, overrides).hardware;
  return remembered(name, [&] { return hwprofiles::load_profile(name).hardware; });
}

costmodel::ModelSpec model_of(const std::string& name, const json* overrides) {
  static const std::vector<std::string> built_in = built_in_models();
  if (overrides != nullptr || !std::binary_search(built_in.begin(), built_in.end(), name))
    return load_model(name, overrides);
  return remembered(name, [&] { return load_model(name); });
}

/// Splits "optimizer.name" into "optimizer" and "name". "tp" has no group.
std::pair<std::string, std::string> split_key(std::string_view key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {"", std::string(key)};
  return {std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
}

class RunReader {
 public:
  /// Mistakes of form go to `in`'s diagnostics, mistakes of content to `content`. Both may be the same.
  RunReader(ObjectReader& in, Diagnostics& content, Catalog& catalog, const Release* release = nullptr)
      : in_(in), content_(content), catalog_(catalog), release_(release), reading_{.run = run_} {
    reading_.refuse = [this](std::string_view key, std::string message) { refuse(key, std::move(message)); };
  }

  Run read();

 private:
  void read_identity();
  void read_model();
  void read_system();
  void read_options();
  void read_keys();
  void read_precision(const std::string& text);
  void read_mtp();
  void fill();
  void read_measured();
  void finish();

  /// The reader of the object that holds `key`, and the key within it. The reader is null if the object is missing.
  std::pair<ObjectReader*, std::string> place(std::string_view key);
  /// Name of a model or a system. Reports a mistake and returns an empty text if it is missing.
  std::string name(std::string_view key) {
    std::string text = in_.required_string(key);
    if (const json* value = in_.raw(key); value != nullptr && value->is_string() && text.empty())
      in_.error(key, "expected a name or a path, found an empty text");
    return text;
  }
  void refuse(std::string_view key, std::string message) {
    auto [in, last] = place(key);
    content_.error(in == nullptr ? in_.location(split_key(key).first) : in->location(last), std::move(message));
  }

  ObjectReader& in_;
  Diagnostics& content_;
  Catalog& catalog_;
  const Release* release_;  ///< Replaces the file's release; null: use the file's.
  std::map<std::string, std::optional<ObjectReader>> groups_;

  Run run_;
  Reading reading_;
};

Run RunReader::read() {
  run_.json = in_.json();
  read_identity();
  read_model();
  read_system();
  read_options();
  read_keys();
  derive_sizes(reading_);
  fill();
  derive_rest(reading_);
  read_measured();
  finish();
  return std::move(run_);
}

void RunReader::read_identity() {
  run_.file = in_.location().file;
  run_.line = in_.location().line;
  run_.id = in_.string("id").value_or("");
  run_.date_or_release = in_.string("date_or_release").value_or("");
  const std::optional<std::string> release = in_.string("release");
  run_.release = release_ != nullptr ? release_ : find_release(release.value_or(""));
  if (release && find_release(*release) == nullptr)
    content_.error(in_.location("release"), mistake_in_release(*release));
  run_.out_of_memory = in_.boolean_or("oom", false);
  if (auto inferred = in_.object("inferred"))
    for (const std::string& key : inferred->keys()) run_.inferred.emplace_back(key, inferred->required_string(key));
}

void RunReader::read_model() {
  const json* config = in_.raw("model");
  const bool is_inline = config != nullptr && config->is_object();
  run_.model_name = is_inline ? "inline" : name("model");
  const json* overrides = in_.raw("model_overrides");
  if (overrides != nullptr && !overrides->is_object()) {
    in_.error("model_overrides", "expected an object that replaces keys of the model's config.json");
    return;
  }
  if (run_.model_name.empty()) return;
  if (!is_inline) run_.model_name = find_model(run_.model_name, run_.file);
  const std::string key =
      (is_inline ? config->dump() : run_.model_name) + '\n' + (overrides == nullptr ? "" : overrides->dump());
  if (!catalog_.models.contains(key)) {
    try {
      catalog_.models.emplace(key,
                              is_inline ? read_inline_model(*config, overrides) : model_of(run_.model_name, overrides));
    } catch (const config::ConfigError& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        if (diagnostic.where.file == run_.model_name && diagnostic.where.line == 0)
          refuse("model", fmt::format("\"{}\": {}", run_.model_name, diagnostic.message));
        else if (diagnostic.where.file == kInlineModel)
          refuse("model", fmt::format("{}: {}", diagnostic.where.field, diagnostic.message));
        else if (diagnostic.where.file == "model overrides")
          refuse("model_overrides", fmt::format("{}: {}", diagnostic.where.field, diagnostic.message));
        else
          content_.error(diagnostic.where, diagnostic.message);
      }
      return;
    }
  }
  run_.model = catalog_.models.at(key);
  for (const std::string& line : run_.model.notes.lines) run_.assumed.push_back("model: " + line);
  for (const std::string& part : run_.model.approximated)
    run_.assumed.push_back(fmt::format("model: {}: no kernels of it were measured", part));
  reading_.have_model = true;
}

void RunReader::read_system() {
  run_.system_name = name("system");
  if (run_.system_name.empty()) return;
  run_.system_name = hwprofiles::find_system(run_.system_name, run_.file);
  const json* overrides = in_.raw("system_overrides");
  if (overrides != nullptr && !overrides->is_object()) {
    in_.error("system_overrides", "expected an object of numbers of the system's profile");
    return;
  }
  const std::string key = run_.system_name + '\n' + (overrides == nullptr ? "" : overrides->dump());
  if (!catalog_.systems.contains(key)) {
    try {
      catalog_.systems.emplace(key, hardware_of(run_.system_name, overrides == nullptr ? json() : *overrides));
    } catch (const config::ConfigError& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        if (diagnostic.where.file == hwprofiles::kChanges) {
          refuse("system_overrides", fmt::format("{}: {}", diagnostic.where.field, diagnostic.message));
          continue;
        }
        if (diagnostic.where.file == "system")  // The loader's file name for an unknown system.
          refuse("system", diagnostic.message);
        else if (diagnostic.where.file == run_.system_name && diagnostic.where.line == 0)
          refuse("system", fmt::format("\"{}\": {}", run_.system_name, diagnostic.message));
        else
          content_.error(diagnostic.where, diagnostic.message);
      }
      return;
    }
  }
  run_.hardware = catalog_.systems.at(key);
  reading_.have_system = true;
}

std::pair<ObjectReader*, std::string> RunReader::place(std::string_view key) {
  const auto [group, last] = split_key(key);
  if (group.empty()) return {&in_, last};
  auto it = groups_.find(group);
  if (it == groups_.end()) it = groups_.emplace(group, in_.object(group)).first;
  return {it->second ? &*it->second : nullptr, last};
}

/// Reads every field that fills a member of the options, in the order of the table.
void RunReader::read_options() {
  for (const Field& f : fields()) {
    auto [in, key] = place(f.key);
    if (!f.older_key.empty() && in_.present(f.older_key) && (in == nullptr || !in->has(key))) {
      in = &in_;
      key = f.older_key;
    }
    if (in == nullptr || !in->has(key)) {
      if (in != nullptr) static_cast<void>(in->present(key));
      continue;
    }
    reading_.stated.insert(f.key);
    if (!f.value.set && f.value.pattern.empty()) continue;
    if (f.key == "precision" && in->json().at(key).is_string()) {
      read_precision(in->string(key).value_or(""));
      continue;
    }
    const std::optional<json> value = read_field(f, *in, key, content_);
    if (!f.value.set) continue;
    if (value)
      f.value.set(run_.options, *value);
    else
      reading_.misread.insert(f.key);
    if (value && (value->is_boolean() || value->is_number())) reading_.read.emplace(f.key, *value);
    if (value && f.key == "task") run_.task = value->get<std::string>();
  }
  for (const char* group : {"recompute", "offload", "overlaps", "cuda_graph", "optimizer", "software"})
    if (in_.has(group) && !place(fmt::format("{}.", group)).first)  // Not an object; already reported.
      for (const Field& f : fields())
        if (f.key.starts_with(group)) reading_.stated.insert(f.key), reading_.misread.insert(f.key);
  run_.chosen = in_.boolean_or("chosen", false);
  if (in_.has("measured")) reading_.stated.insert("measured");
  if (in_.has("lora") && !run_.options.layer.lora) refuse("lora", fmt::format("contradicts task = {}", run_.task));
}

/// Two spellings are no precision. The recipe of "fp8-unspecified" depends on the system; "fp8-rowwise" is not
/// modelled.
void RunReader::read_precision(const std::string& text) {
  using costmodel::Precision;
  const Field& f = field("precision");
  std::string name = text;
  if (text == "fp8-unspecified") {
    name = name_of(run_.hardware.recipe.fp8);
    reading_.assume("precision", name, "the file says only FP8; the usual recipe of the GPU");
  } else if (text == "fp8-rowwise") {
    name = name_of(Precision::kFp8Current);
    reading_.assume("precision", name, "fp8-rowwise is not modelled; the nearest recipe");
  }
  if (const std::string mistake = mistake_in(f, name); mistake.empty()) {
    f.value.set(run_.options, name);
  } else {
    refuse("precision", mistake);
    reading_.misread.insert("precision");
  }
}

/// Reads keys that fill no member of the options.
void RunReader::read_keys() {
  Reading& r = reading_;
  const auto integer = [&](std::string_view key) -> std::optional<std::int64_t> {
    const Field& f = field(key);
    const auto value =
        in_.integer(key, static_cast<std::int64_t>(f.value.low), static_cast<std::int64_t>(f.value.high));
    if (!value && in_.has(key)) r.misread.insert(f.key);
    return value;
  };
  if (!in_.has("num_gpus")) in_.error("num_gpus", "expected a whole number, found nothing");
  run_.num_gpus = integer("num_gpus").value_or(1);
  r.token_drop = in_.boolean("token_drop");
  r.first_layers = integer("decoder_first_pipeline_num_layers");
  r.last_layers = integer("decoder_last_pipeline_num_layers");
  r.account_for_embedding = in_.boolean_or("account_for_embedding_in_pipeline_split", false);
  r.account_for_loss = in_.boolean_or("account_for_loss_in_pipeline_split", false);
  if (!r.misread.contains("hierarchical_context_parallel_sizes"))
    r.hierarchical_sizes = in_.integers("hierarchical_context_parallel_sizes", 1, run_.num_gpus);
  r.mtp_use_repeated_layer = in_.boolean("mtp_use_repeated_layer");
  if (const json* mtp = in_.raw("mtp"); mtp != nullptr && mtp->is_boolean())
    r.mtp_is_on = mtp->get<bool>();
  else
    r.mtp = integer("mtp");
  if (auto [offload, key] = place("offload.weights"); offload != nullptr) r.offload_weights = offload->boolean(key);
  if (auto [overlaps, key] = place("overlaps.pp_p2p"); overlaps != nullptr) static_cast<void>(overlaps->boolean(key));
  run_.defaults = in_.string("defaults").value_or(std::string(kDefaults));
}

void RunReader::fill() {
  try {
    const std::vector<Assumed> assumed = fill_silent(load_defaults(run_.defaults), run_.model, run_.hardware,
                                                     reading_.stated, run_.options, run_.release);
    for (const Assumed& a : assumed)
      reading_.assume(a.key, value_text(a.value), fmt::format("not in the file; {}", a.from));
  } catch (const config::ConfigError& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) {
      if (diagnostic.where.file == "defaults")
        refuse("defaults", diagnostic.message);
      else
        content_.error(diagnostic.where, diagnostic.message);
    }
  }
}

void RunReader::read_measured() {
  if (auto measured = in_.object("measured"))
    run_.measured = planner::read_measured(*measured, run_.options.pipeline.pp);
}

/// Reports unknown keys. Known keys that inform people but not the cost model are skipped.
void RunReader::finish() {
  for (auto& [name, group] : groups_) {
    if (!group) continue;
    if (name != "software") {
      group->finish();
      continue;
    }
    std::vector<std::string> known = {"framework",
                                      "transformer_engine",
                                      "torch",
                                      "nccl",
                                      "cudnn",
                                      "norm",
                                      "rope",
                                      "swiglu",
                                      "bias_dropout_add",
                                      "optimizer_kernel",
                                      "nan_check",
                                      "cuda_device_max_connections"};
    for (const Field& f : fields())
      if (f.key.starts_with("software.")) known.push_back(split_key(f.key).second);
    group->finish_open(known);  // Its facts come from many sources.
  }
  in_.ignore({"source", "method", "notes", "quality", "recipe", "derived", "flops_convention", "host",
              "num_layers_truncated", "force_balanced_routing", "router_padding_for_fp8"});
  in_.ignore_prefix('_');
  in_.finish([](const std::string& key) -> std::string {
    try {
      const std::string meant = field_meant(key);
      return meant == key ? "" : meant;
    } catch (const config::ConfigError&) {  // The key can mean several fields.
      return "";
    }
  });
}

}  // namespace

Run read_run(ObjectReader& reader, Diagnostics& diagnostics) {
  Catalog catalog;
  return RunReader(reader, diagnostics, catalog).read();
}

std::string run_name(const Run& run) { return run.id.empty() ? fmt::format("{}:{}", run.file, run.line) : run.id; }

std::optional<std::string> alloc_conf_of(const Run& run) {
  const json stated =
      run.json.is_object() ? run.json.value("/software/pytorch_cuda_alloc_conf"_json_pointer, json()) : json();
  return stated.is_string() ? std::optional(stated.get<std::string>()) : std::nullopt;
}

hwprofiles::Profile profile_of(const Run& run) {
  return hwprofiles::load_profile(run.system_name, run.json.value(hwprofiles::kChanges, json()));
}

Run load_run(const std::string& path, const Release* release) {
  const Document document = Document::load(path);
  Diagnostics diagnostics;
  if (document.root().is_array()) {
    diagnostics.error({path, 1, ""}, fmt::format("expected one run object, found a list of {}; validate reads lists",
                                                 document.root().size()));
    diagnostics.throw_if_any();
  }
  ObjectReader reader(document, diagnostics);
  Run run;
  if (diagnostics.ok()) {
    Catalog catalog;
    run = RunReader(reader, diagnostics, catalog, release).read();
  }
  diagnostics.throw_if_any();
  return run;
}

Run in_release(const Run& run, const Release& release) {
  const Document document = Document::parse(run.json.dump(), run.file);
  Diagnostics found, diagnostics;
  ObjectReader reader(document, found);
  Catalog catalog;
  Run result = RunReader(reader, found, catalog, &release).read();
  for (const config::Diagnostic& mistake : found.list()) {  // Lines are not those of the text above.
    const bool here = mistake.where.file == run.file;
    diagnostics.error(here ? config::Location{run.file, run.line, mistake.where.field} : mistake.where,
                      mistake.message);
  }
  diagnostics.throw_if_any();
  result.line = run.line;
  return result;
}

Run parse_run(std::string_view text, const std::string& name) {
  const Document document = Document::parse(text, name);
  Diagnostics diagnostics;
  ObjectReader reader(document, diagnostics);
  Run run = read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

RunList load_runs(const std::string& path, const Release* release) {
  const Document document = Document::load(path);
  Diagnostics form;
  Catalog catalog;
  RunList list;
  const auto add = [&](const json& row, const std::string& pointer) {
    ObjectReader reader(document, row, pointer, form);
    if (!row.is_object()) return;
    Diagnostics content;
    Run run = RunReader(reader, content, catalog, release).read();
    if (content.ok()) {
      list.runs.push_back(std::move(run));
      return;
    }
    std::string reason;
    for (const Diagnostic& diagnostic : content.list()) {
      if (!reason.empty()) reason += "; ";
      Diagnostic here = diagnostic;  // The user named this file, so the line suffices.
      if (here.where.file == path) here.where.file.clear();
      reason += here.text();
    }
    list.unreadable.push_back({run_name(run), reason, content.list()});
  };
  const json& root = document.root();
  if (!root.is_array()) add(root, "");
  for (std::size_t i = 0; root.is_array() && i < root.size() && !form.full(); ++i) add(root[i], fmt::format("/{}", i));
  form.throw_if_any();
  return list;
}

json write_run(const std::string& model, const std::string& system, std::int64_t num_gpus,
               const TrainingOptions& options) {
  json run = {{"model", model}, {"system", system}, {"num_gpus", num_gpus}};
  for (const Field& f : fields()) {
    if (!f.is_option()) continue;
    const auto [group, key] = split_key(f.key);
    if (f.applies_to(options)) (group.empty() ? run : run[group])[key] = f.value.get(options);
  }
  return run;
}

json write_run(const Run& run) {
  json result = write_run(run.model_name, run.system_name, run.num_gpus, run.options);
  if (!run.id.empty()) result["id"] = run.id;
  if (!run.defaults.empty()) result["defaults"] = run.defaults;
  if (run.release != nullptr) result["release"] = run.release->name;
  result["task"] = run.options.layer.lora ? "lora" : run.task;
  if (run.chosen) result["chosen"] = true;
  result["mtp"] = run.model.mtp_num_layers;
  if (run.model.mtp_num_layers > 1) result["mtp_use_repeated_layer"] = run.model.mtp_use_repeated_layer;
  if (const auto model = run.json.find("model"); model != run.json.end() && model->is_object())
    result["model"] = *model;
  if (const auto conf = alloc_conf_of(run)) result["software"]["pytorch_cuda_alloc_conf"] = *conf;
  for (const char* key : {"model_overrides", "system_overrides"})
    if (const auto overrides = run.json.find(key);
        overrides != run.json.end() && overrides->is_object() && !overrides->empty())
      result[key] = *overrides;
  return result;
}

}  // namespace foldwise::planner

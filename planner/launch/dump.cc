#include "planner/launch/dump.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "costmodel/config/number.h"
#include "planner/launch/mapping.h"
#include "planner/launch/printed.h"
#include "planner/launch/training_log.h"

namespace foldwise::planner {

using config::Diagnostics;
using nlohmann::json;

namespace {

/// Parses a scalar as Python prints it; quotes around a text are removed.
json python_scalar(std::string_view text) {
  text = trimmed(text);
  if (text == "None" || text == "null" || text == "~") return nullptr;
  if (text == "True" || text == "true") return true;
  if (text == "False" || text == "false") return false;
  if (const auto whole = config::number_in<std::int64_t>(text)) return *whole;
  if (const auto number = finite_number_in(text)) return *number;
  if (text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  if (text.starts_with('<') && text.find('.') != std::string_view::npos)  // <CudaGraphScope.attn: 2>
    text = text.substr(text.find('.') + 1, text.find_first_of(":>") - text.find('.') - 1);
  for (const std::string_view prefix :
       {"AttnBackend.", "CudaGraphScope.", "CudaGraphModule.", "Fp8Recipe.", "Fp4Recipe."})
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  for (const auto& [torch, name] : {std::pair{"torch.float32", "fp32"}, std::pair{"torch.bfloat16", "bf16"},
                                    std::pair{"torch.float16", "fp16"}, std::pair{"torch.uint8", "fp8"}})
    if (text == torch) text = name;
  return std::string(text);
}

json python_value(std::string_view text) {
  text = trimmed(text);
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return python_scalar(text);
  json list = json::array();
  text = text.substr(1, text.size() - 2);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    list.push_back(python_scalar(text.substr(at, end - at)));
    at = end + 1;
  }
  return list;
}

/// Wraps a single value in a list if the flag takes a list, as Megatron's parser does.
json as_flag_takes(const std::string& dest, json value) {
  const auto& flags = flags_of(dest);
  if (!flags.empty() && flags.front()->many && !value.is_null() && !value.is_array()) return json::array({value});
  return value;
}

/// Sets a member of the Namespace. A value whose type does not match the flag is reported.
void give(Settings& settings, const std::string& dest, json value, const config::Location& where,
          Diagnostics& diagnostics) {
  value = as_flag_takes(dest, std::move(value));
  if (std::string mistake = is_read(dest) && !value.is_null() ? mistake_in_member(dest, value) : ""; !mistake.empty())
    diagnostics.error({where.file, where.line, dest}, std::move(mistake));
  settings.set(dest, std::move(value), where.line);
}

}  // namespace

Settings read_argument_block(const LogStart& start, const std::string& file, Diagnostics& diagnostics) {
  Settings settings;
  int number = start.lines_before;
  std::istringstream lines{std::string(start.text)};
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find(kEndOfArguments) != std::string::npos) return settings;
    // "  micro_batch_size ........ 1": the name is the last word before the dots.
    const std::size_t dots = line.find(" ..");
    if (dots == std::string::npos) continue;
    std::string_view before = trimmed(std::string_view(line).substr(0, dots));
    before = before.substr(before.find_last_of(" \t:") + 1);
    const std::size_t value = line.find_first_not_of('.', dots + 1);
    if (before.empty() || value == std::string::npos) continue;
    const std::string dest(before);
    give(settings, dest, python_value(std::string_view(line).substr(value)), {file, number, ""}, diagnostics);
  }
  diagnostics.error({file, start.line(), ""},
                    "expected \"end of arguments\" after the arguments, found the end of the file");
  return settings;
}

const std::vector<BridgeMember>& bridge_members() {
  static const std::vector<BridgeMember> members = {
      {"num_experts", "model", "num_moe_experts"},
      {"swiglu", "model", "gated_linear_unit"},
      {"seq_length", "model", "seq_length"},
      {"decoder_first_pipeline_num_layers", "model", "num_layers_in_first_pipeline_stage"},
      {"decoder_last_pipeline_num_layers", "model", "num_layers_in_last_pipeline_stage"},
      {"num_virtual_stages_per_pipeline_rank", "model", "virtual_pipeline_model_parallel_size"},
      {"rotary_percent", "model", "rotary_percent"},
      {"micro_batch_size", "train", "micro_batch_size"},
      {"global_batch_size", "train", "global_batch_size"},
      {"train_iters", "train", "train_iters"},
      {"use_distributed_optimizer", "ddp", "use_distributed_optimizer"},
      {"overlap_grad_reduce", "ddp", "overlap_grad_reduce"},
      {"overlap_param_gather", "ddp", "overlap_param_gather"},
      {"use_megatron_fsdp", "dist", "use_megatron_fsdp"},
      {"tp_comm_overlap", "comm_overlap", "tp_comm_overlap"},
      {"overlap_moe_expert_parallel_comm", "comm_overlap", "overlap_moe_expert_parallel_comm"},
      {"delay_wgrad_compute", "comm_overlap", "delay_wgrad_compute"},
      {"data_parallel_sharding_strategy", "ddp", "data_parallel_sharding_strategy"},
      {"outer_dp_sharding_strategy", "ddp", "outer_dp_sharding_strategy"},
      {"num_distributed_optimizer_instances", "ddp", "num_distributed_optimizer_instances"},
      {"ddp_pad_buckets_for_high_nccl_busbw", "ddp", "pad_buckets_for_high_nccl_busbw"},
      {"accumulate_allreduce_grads_in_fp32", "ddp", "grad_reduce_in_fp32"},
      {"fp8_param_gather", "ddp", "fp8_param_gather"},
      {"reuse_grad_buf_for_mxfp8_param_ag", "ddp", "reuse_grad_buf_for_mxfp8_param_ag"},
      {"check_for_nan_in_loss_and_grad", "ddp", "check_for_nan_in_grad"},
      {"optimizer", "optimizer", "optimizer"},
      {"use_precision_aware_optimizer", "optimizer", "use_precision_aware_optimizer"},
      {"exp_avg_dtype", "optimizer", "exp_avg_dtype"},
      {"exp_avg_sq_dtype", "optimizer", "exp_avg_sq_dtype"},
      {"main_params_dtype", "optimizer", "main_params_dtype"},
      {"main_grads_dtype", "optimizer", "main_grads_dtype"},
      {"overlap_param_gather_with_optimizer_step", "comm_overlap", "overlap_param_gather_with_optimizer_step"},
      {"optimizer_cpu_offload", "optimizer", "optimizer_cpu_offload"},
      {"optimizer_offload_fraction", "optimizer", "optimizer_offload_fraction"},
      {"overlap_cpu_optimizer_d2h_h2d", "optimizer", "overlap_cpu_optimizer_d2h_h2d"},
      {"ckpt_format", "checkpoint", "ckpt_format"},
      {"use_tp_pp_dp_mapping", "dist", "use_tp_pp_dp_mapping"}};
  return members;
}

const std::vector<BridgeRecipe>& bridge_recipes() {
  static const std::vector<BridgeRecipe> recipes = {
      {"bf16_mixed", "", "", "", false},
      {"bf16_with_nvfp4_mixed", "", "", "e2m1", false},
      {"bf16_with_fp8_delayed_scaling_mixed", "hybrid", "delayed", "", true},
      {"bf16_with_fp8_current_scaling_mixed", "hybrid", "tensorwise", "", true},
      {"bf16_with_fp8_subchannel_scaling_mixed", "hybrid", "blockwise", "", false},
      {"bf16_with_mxfp8_mixed", "e4m3", "mxfp8", "", true},
      {"fp16_mixed", "", "", "", false, true}};
  return recipes;
}

namespace {

/// Returns null beyond `room` values or `depth` nested lists, because aliases of aliases can be exponentially many or
/// endless.
json yaml_value(const YAML::Node& node, int& room, int depth) {
  if (node.IsNull() || !node.IsDefined() || --room < 0 || depth < 0) return nullptr;
  if (node.IsScalar()) return node.Tag() == "!" ? json(node.Scalar()) : python_scalar(node.Scalar());
  if (node.IsMap()) {  // A PyTorch type: {_call_: false, _target_: torch.bfloat16}.
    static const std::map<std::string, std::string> types = {
        {"torch.float32", "fp32"}, {"torch.bfloat16", "bf16"}, {"torch.float16", "fp16"}, {"torch.uint8", "fp8"}};
    const auto type =
        node["_target_"] && node["_target_"].IsScalar() ? types.find(node["_target_"].Scalar()) : types.end();
    return type == types.end() ? json(nullptr) : json(type->second);
  }
  if (!node.IsSequence()) return nullptr;
  json list = json::array();
  for (const YAML::Node& item : node) {
    if (room <= 0) return nullptr;
    list.push_back(yaml_value(item, room, depth - 1));
  }
  return list;
}

/// Members of the model's section that differ from Megatron's arguments in more than the name.
void translate_model(Settings& settings) {
  if (settings.off("share_embeddings_and_output_weights")) settings.set("untie_embeddings_and_output_weights", true);
  if (settings.has("num_query_groups") && !settings.on("multi_latent_attention"))
    settings.set("group_query_attention", true, settings.line("num_query_groups"));
  if (settings.integer("kv_lora_rank", 0) > 0 && settings.on("multi_latent_attention"))
    settings.erase("num_query_groups");
  // Bridge does not pad in this case. We pad as Megatron-LM does, but not to the recipe's multiple, which is not used.
  if (settings.off("should_pad_vocab")) settings.erase("make_vocab_size_divisible_by");
}

/// Converts [["embedding", "decoder"], ["decoder", "loss"]] to Megatron's text "Et|tL".
void translate_layout(Settings& settings, const std::string& file, Diagnostics& diagnostics) {
  static const std::map<std::string, char> symbols = {
      {"embedding", 'E'}, {"decoder", 't'}, {"mtp", 'm'}, {"loss", 'L'}};
  const json* list = settings.find("pipeline_model_parallel_layout");
  if (list == nullptr || !list->is_array()) return;
  const int line = settings.line("pipeline_model_parallel_layout");
  std::string text;
  for (const json& stage : *list) {
    if (&stage != &list->front()) text += '|';
    for (const json& part : stage.is_array() ? stage : json::array({stage})) {
      const auto symbol = part.is_string() ? symbols.find(part.get<std::string>()) : symbols.end();
      if (symbol == symbols.end())
        return diagnostics.error({file, line, "pipeline_model_parallel_layout"},
                                 fmt::format("expected embedding, decoder, mtp or loss, found {}", part.dump()));
      text += symbol->second;
    }
  }
  settings.set("pipeline_model_parallel_layout", text, line);
}

/// Before a start, the precision of a recipe is only a name.
void set_recipe(Settings& settings, const std::string& name, int line, const std::string& file,
                Diagnostics& diagnostics) {
  const std::vector<BridgeRecipe>& recipes = bridge_recipes();
  const auto recipe = std::ranges::find(recipes, name, &BridgeRecipe::name);
  if (recipe == recipes.end())
    return diagnostics.error({file, line, "mixed_precision"}, fmt::format("\"{}\" is not modelled", name));
  settings.set(recipe->fp16 ? "fp16" : "bf16", true, line);
  settings.set("accumulate_allreduce_grads_in_fp32", !recipe->fp16, line);
  settings.set("fp8_param_gather", recipe->param_gather, line);
  settings.set("reuse_grad_buf_for_mxfp8_param_ag", recipe->fp8_recipe == "mxfp8", line);
  for (const auto& [dest, value] :
       {std::pair{"fp8", recipe->fp8}, {"fp8_recipe", recipe->fp8_recipe}, {"fp4", recipe->fp4}})
    value.empty() ? settings.erase(dest) : settings.set(dest, value, line);
}

}  // namespace

std::optional<Settings> read_bridge_yaml(const std::string& text, const std::string& file,
                                         Diagnostics& diagnostics) try {
  constexpr int kMostValues = 10'000;  // In one member. The longest list has one value for each layer.
  constexpr int kDeepest = 8;          // Layouts are lists of lists.
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap() || !root["model"] || !root["model"].IsMap()) return std::nullopt;
  Settings settings;
  // A section that sets members of others comes before them, so that the others win. Precision comes last, as at the
  // start of a run.
  for (const char* section :
       {"comm_overlap", "dataset", "dist", "checkpoint", "train", "optimizer", "ddp", "model", "mixed_precision"}) {
    const YAML::Node members = root[section];
    if (!members || !members.IsMap()) continue;
    for (const auto& member : members) {
      const auto name = member.first.as<std::string>();
      const int line = member.second.Mark().line + 1;
      if (name == "pipeline_model_parallel_layout" && member.second.IsMap())
        diagnostics.error({file, line, name},
                          "expected a text or lists of stages, found an object, as Megatron-Bridge writes it of a run "
                          "that has started: without its stages");
      int room = kMostValues;
      const json value = yaml_value(member.second, room, kDeepest);
      if (value.is_null() || name.starts_with('_')) continue;
      std::string dest = name;
      for (const BridgeMember& known : bridge_members())
        if (known.name == name && (known.section == section || known.section == "ddp")) dest = known.dest;
      give(settings, dest, value, {file, line, ""}, diagnostics);
    }
  }
  for (const char* dropout :
       {"hidden_dropout", "attention_dropout"})  // The default of Megatron-Bridge's model providers.
    if (!settings.has(dropout)) settings.set(dropout, 0.0);
  if (const YAML::Node precision = root["mixed_precision"]; precision && precision.IsScalar())
    set_recipe(settings, precision.Scalar(), precision.Mark().line + 1, file, diagnostics);
  translate_model(settings);
  translate_layout(settings, file, diagnostics);
  return settings;
} catch (const YAML::Exception& error) {
  diagnostics.error({file, error.mark.line + 1, ""}, "is no YAML: " + error.msg);
  return Settings{};
}

std::optional<CommandLine> read_bridge_overrides(const std::string& text, const std::string& file, std::string model,
                                                 Diagnostics& diagnostics) {
  const YAML::Node root = YAML::Load(text), sizes = root.IsMap() ? root["model"] : YAML::Node();
  if (!sizes || !sizes.IsMap() || (sizes["num_layers"] && sizes["hidden_size"])) return std::nullopt;
  if (model.empty())
    diagnostics.error({file, sizes.Mark().line, "model"},
                      "expected num_layers and hidden_size, found overrides of a recipe: give --model NAME");
  std::erase(model, '.');
  std::ranges::replace(model, '-', '_');
  CommandLine command{.words = {"run_recipe.py", "--model", model}, .lines = {}};
  for (const auto& section : root) {
    if (section.second.IsScalar()) command.words.push_back(section.first.Scalar() + "=" + section.second.Scalar());
    for (const auto& member : section.second) {
      if (!section.second.IsMap() || member.first.Scalar().starts_with('_')) break;
      int room = 10'000;
      const std::string name = section.first.Scalar() + "." + member.first.Scalar();
      command.words.push_back(name + "=" + word_of(yaml_value(member.second, room, 8)));
      command.lines[name] = member.second.Mark().line + 1;
    }
  }
  return command;
}

namespace {

/// Replaces `${NAME}` and Primus' `${NAME:default}` by their values. A name without a value stays.
std::string with_variables(std::string text, const std::map<std::string, std::string>& variables) {
  static const std::regex variable(R"(\$\{([A-Za-z_]\w*)(:([^{}$]*))?\})");
  std::string result;
  for (std::smatch match; text.size() < 4096 && std::regex_search(text, match, variable); text = match.suffix()) {
    const auto given = variables.find(match[1]);
    result += match.prefix().str();
    result += given != variables.end() ? given->second : match[2].matched ? match[3].str() : match[0].str();
  }
  return result + text;
}

}  // namespace

std::optional<TestCase> read_test_case(const std::string& text, const std::string& file,
                                       const std::map<std::string, std::string>& variables,
                                       Diagnostics& diagnostics) try {
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap() || !root["MODEL_ARGS"] || !root["MODEL_ARGS"].IsMap()) return std::nullopt;
  TestCase test;
  if (const YAML::Node own = root["ENV_VARS"]; own && own.IsMap())
    for (const auto& variable : own)
      if (variable.second.IsScalar()) test.environment[variable.first.Scalar()] = variable.second.Scalar();
  for (const auto& [name, value] : variables) test.environment[name] = value;
  test.inference = root["MODE"] && root["MODE"].IsScalar() && root["MODE"].Scalar() == "inference";
  std::vector<std::pair<YAML::Node, YAML::Node>> given;
  for (const auto& argument : root["MODEL_ARGS"]) {
    if (argument.first.Scalar() == "<<" && argument.second.IsMap())  // Merged from another map.
      for (const auto& inherited : argument.second) given.emplace_back(inherited.first, inherited.second);
    else
      given.emplace_back(argument.first, argument.second);
  }
  for (const auto& [name, value] : given) {
    Argument words{.flag = name.Scalar(), .values = {}, .line = name.Mark().line + 1};
    std::string scalar = value.IsScalar() ? with_variables(value.Scalar(), test.environment) : "";
    const ArgumentSpec* spec = find_flag(words.flag);
    if (spec != nullptr && spec->takes_nothing() && scalar == "false") continue;  // As Megatron-MoE-ModelZoo starts it.
    const auto take_words = [&](const std::string& list) {
      std::istringstream several(list);
      for (std::string word; several >> word;) words.values.push_back(word);
    };
    if (value.IsSequence()) {
      for (const auto& item : value) take_words(item.IsScalar() ? item.Scalar() : "");
    } else if (scalar.starts_with('[') && scalar.find(']') + 1 == scalar.size()) {  // "[a b]" are two words.
      take_words(scalar.substr(1, scalar.size() - 2));
    } else if (spec != nullptr && spec->many && spec->type == ArgumentType::kInteger) {
      take_words(scalar);
    } else if (scalar != "true" && !scalar.empty()) {
      words.values.push_back(std::move(scalar));
    }
    test.arguments.push_back(std::move(words));
  }
  return test;
} catch (const YAML::Exception& error) {
  diagnostics.error({file, error.mark.line + 1, ""}, "is no YAML: " + error.msg);
  return TestCase{};
}

namespace {

/// Adds the arguments of a section. `depth`: levels that may follow.
void add_section(const YAML::Node& section, int depth, std::vector<Argument>& arguments) {
  for (const auto& member : section) {
    if (member.second.IsMap()) {
      if (depth > 0) add_section(member.second, depth - 1, arguments);
      continue;
    }
    const std::string name = member.first.Scalar();
    if (name == "tokenizer_type" || name == "distributed_backend") continue;  // With values of FlagScale's own.
    std::string flag = "--" + name;
    std::ranges::replace(flag, '_', '-');
    Argument argument{.flag = std::move(flag), .values = {}, .line = member.first.Mark().line + 1};
    const auto take = [&](const YAML::Node& value) {
      if (value.IsScalar()) argument.values.push_back(value.Scalar());
    };
    if (member.second.IsSequence())
      std::ranges::for_each(member.second, take);
    else
      take(member.second);
    const std::string first = argument.values.empty() ? "" : argument.values.front();
    const bool is_switch = first == "true" || first == "True";
    if (is_switch) argument.values.clear();
    const bool left_out = !is_switch && (first.empty() || first == "false" || first == "False" || first == "null" ||
                                         first.find("${") != std::string::npos);
    if (!left_out) arguments.push_back(std::move(argument));
  }
}

}  // namespace

std::optional<TestCase> read_flagscale(const std::string& text, const std::string& file,
                                       const std::map<std::string, std::string>& variables,
                                       Diagnostics& diagnostics) try {
  constexpr int kDeepestSection = 8;
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap() || !root["system"] || !root["system"].IsMap() || !root["model"] || !root["model"].IsMap())
    return std::nullopt;
  TestCase test{.arguments = {}, .environment = variables};
  test.environment.emplace("CUDA_DEVICE_MAX_CONNECTIONS", "1");  // In the experiment files of FlagScale's examples.
  for (const char* section : {"system", "model", "data"})
    if (root[section] && root[section].IsMap()) add_section(root[section], kDeepestSection, test.arguments);
  return test;
} catch (const YAML::Exception& error) {
  diagnostics.error({file, error.mark.line + 1, ""}, "is no YAML: " + error.msg);
  return TestCase{};
}

std::optional<CommandLine> command_of_nemo(const TestCase& test, const std::string& file) {
  if (std::ranges::any_of(test.arguments, [](const Argument& a) { return a.flag.starts_with("--"); }))
    return std::nullopt;
  static const std::regex name(R"(([a-z]+[0-9.]*)-nemo_([0-9x]+[bm])_[^/]*/[^/]*$)");
  CommandLine command{.words = {"nemo", "llm", "pretrain"}, .lines = {}};
  if (std::smatch recipe; file.size() < 4096 && std::regex_search(file, recipe, name))
    command.words.insert(command.words.end(), {"--factory", recipe[1].str() + "_" + recipe[2].str()});
  for (const Argument& argument : test.arguments) {
    command.words.push_back(argument.flag + "=" + (argument.values.empty() ? "true" : argument.values.front()));
    command.lines[argument.flag] = argument.line;
  }
  return command;
}

namespace {

/// Adds the members of a Primus model file. Files that it extends come first; later values win, and null unsets a
/// member.
void add_primus_model(const std::filesystem::path& models, const std::string& name, int depth,
                      std::map<std::string, YAML::Node>& members) {
  constexpr int kDeepest = 8;
  std::error_code error;
  if (depth > kDeepest || name.find("..") != std::string::npos ||
      !std::filesystem::is_regular_file(models / name, error))
    return;
  const YAML::Node root = YAML::LoadFile((models / name).string());
  if (!root.IsMap()) return;
  for (const char* key : {"bases", "extends"})
    if (const YAML::Node bases = root[key]; bases && bases.IsSequence())
      for (const YAML::Node& base : bases)
        if (base.IsScalar()) add_primus_model(models, base.Scalar(), depth + 1, members);
  for (const auto& member : root)
    if (member.first.IsScalar() && (member.second.IsScalar() || member.second.IsSequence() || member.second.IsNull()))
      members[member.first.Scalar()] = member.second;
}

/// The folder primus/configs/models/megatron of the checkout that contains `folder`; empty if there is none.
std::filesystem::path primus_models(const std::string& folder) {
  std::error_code error;
  if (folder.empty()) return {};
  for (std::filesystem::path up = std::filesystem::canonical(folder, error); up.has_relative_path();
       up = up.parent_path()) {
    std::filesystem::path models = up / "primus/configs/models/megatron";
    if (std::filesystem::is_directory(models, error)) return models;
  }
  return {};
}

}  // namespace

std::optional<CommandLine> read_primus_yaml(const std::string& text, const std::string& file, const std::string& folder,
                                            const std::map<std::string, std::string>& variables,
                                            Diagnostics& diagnostics) try {
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap() || !root["modules"] || !root["modules"].IsMap()) return std::nullopt;
  const auto scalar = [&](const YAML::Node& node) {
    return node && node.IsScalar() ? with_variables(node.Scalar(), variables) : "";
  };
  for (const auto& module : root["modules"]) {
    const YAML::Node& trainer = module.second;
    if (!trainer.IsMap() || !trainer["overrides"] || !trainer["overrides"].IsMap()) continue;
    if (const std::string framework = scalar(trainer["framework"]); framework != "megatron")
      diagnostics.error({file, module.first.Mark().line + 1, "framework"},
                        fmt::format("expected megatron, found {}", framework.empty() ? "none" : framework));
    CommandLine command{.words = {"primus", "train", "pretrain"}, .lines = {}};
    const auto add = [&](const std::string& name, const YAML::Node& value) {
      if (!value || value.IsNull() || scalar(value) == "null") return;
      command.words.push_back("--" + name);
      if (value.IsScalar()) command.words.push_back(scalar(value));
      if (value.IsSequence())
        for (const YAML::Node& item : value) command.words.push_back(scalar(item));
    };
    std::map<std::string, YAML::Node> members;
    add_primus_model(primus_models(folder), scalar(trainer["model"]), 0, members);
    // No argument of Megatron gives these parts, so the model must be a built-in one of that name.
    static const std::set<std::string> own = {"compress_ratios", "kda_chunk_size", "attn_res_block_size",
                                              "lfm_layer_types"};
    if (std::ranges::any_of(members, [](const auto& member) { return own.contains(member.first); })) members.clear();
    if (members.empty()) add("model", trainer["model"]);
    for (const auto& member : trainer["overrides"]) {
      if (!member.first.IsScalar()) continue;
      members[member.first.Scalar()] = member.second;
      command.lines["--" + member.first.Scalar()] = member.second.Mark().line + 1;
    }
    for (const auto& [name, value] : members) add(name, value);
    return command;
  }
  return std::nullopt;
} catch (const YAML::Exception& error) {
  diagnostics.error({file, error.mark.line + 1, ""}, "is no YAML: " + error.msg);
  return CommandLine{};
}

}  // namespace foldwise::planner

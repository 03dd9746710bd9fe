// Does `import` read every launch, do our checks and rules say of it what Megatron core_v0.16.1 says, and does `export`
// write what starts the run that it was given?
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "costmodel/pipeline/schedule.h"
#include "hwprofiles/load/systems.h"
#include "planner/foldwise.h"
#include "planner/launch/dump.h"
#include "planner/launch/export.h"
#include "planner/launch/import.h"
#include "planner/launch/mapping.h"
#include "planner/launch/model_arguments.h"
#include "planner/launch/quote.h"
#include "planner/models/models.h"
#include "planner/run/defaults.h"
#include "planner/run/derive.h"
#include "planner/run/fields.h"
#include "planner/run/release.h"
#include "planner/search/changes.h"
#include "tests/mini_mixtral.h"
#include "tests/random_run.h"
#include "tests/sandbox.h"

namespace foldwise::planner::launch_test {
namespace {

using nlohmann::json;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

json golden(const std::string& name) { return json::parse(text_of(std::string(FW_GOLDEN_DIR) + "/" + name)); }

const json& launch_cases() {
  static const json file = golden("launch_cases.json");
  return file;
}

// ---- Megatron's verdicts --------------------------------------------------------------------------------------------

/// Our verdict on a case; empty: it starts. Excludes our own rules (foldwise.*), which Megatron does not have.
struct Verdict {
  std::string refused;
  std::optional<Imported> imported;
};

Verdict verdict_of(const json& row) {
  ImportRequest request;
  request.system = row.at("arch") == "hopper" ? "h100-sxm-80gb" : "b200";
  request.num_gpus = row.at("world_size").get<std::int64_t>();
  request.release = find_release("0.16.1");
  for (const auto& [name, value] : row.at("env").items()) request.variables[name] = value.get<std::string>();
  Verdict verdict;
  try {
    verdict.imported = import_launch(row.at("args"), "case", request);
  } catch (const config::ConfigError& error) {
    verdict.refused = error.what();
    return verdict;
  }
  for (const Argument& argument : verdict.imported->unknown) verdict.refused += "unknown " + argument.flag + '\n';
  for (const Rejection& rejection : verdict.imported->refused)
    if (!rejection.rule.starts_with("foldwise."))
      verdict.refused += fmt::format("{}: {}\n", rejection.rule, rejection.reason);
  return verdict;
}

/// Verdicts on all cases in order, read once.
const std::vector<Verdict>& verdicts() {
  static const std::vector<Verdict> all = [] {
    std::vector<Verdict> list;
    for (const json& row : launch_cases().at("cases")) list.push_back(verdict_of(row));
    return list;
  }();
  return all;
}

bool starts(const json& row) { return row.at("accepted").get<bool>() && row.at("starts").get<bool>(); }

std::string megatron_says(const json& row) {
  if (starts(row)) return "starts";
  return row.at("error").is_null() ? row.at("start_error").dump() : row.at("error").get<std::string>();
}

// Is our verdict Megatron's, of every case? Where it is not, the list of disagreements says why. Do the pages say how
// many?
TEST(LaunchCases, VerdictIsMegatrons) {
  const json known = golden("launch_disagreements.json");
  std::map<std::string, int> counts;
  int agree = 0;
  for (std::size_t i = 0; i < verdicts().size(); ++i) {
    const json& row = launch_cases().at("cases")[i];
    const std::string& refused = verdicts()[i].refused;
    const auto listed = [&](const char* kind) -> const json* {
      for (const json& entry : known.at(kind))
        if (refused.find(entry.at("says").get<std::string>()) != std::string::npos) return &entry;
      return nullptr;
    };
    if (const json* entry = listed("not_modelled"); entry != nullptr && starts(row)) {
      ++counts["not modelled: " + entry->at("reason").get<std::string>()];
    } else if (starts(row) == refused.empty()) {
      ++agree;
    } else if (const json* reason = listed("disagree"); reason != nullptr && starts(row)) {
      ++counts["disagree: " + reason->at("reason").get<std::string>()];
    } else {
      ADD_FAILURE() << row.at("id") << ": Megatron says " << megatron_says(row) << ", we say "
                    << (refused.empty() ? "it starts" : refused) << "\n  " << row.at("args");
    }
  }
  fmt::print("{} of 1500 agree\n", agree);
  for (const char* page : {FW_DOCS_DIR "/launch.md", FW_DOCS_DIR "/../README.md"}) {
    std::ifstream file(page);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(text.find(fmt::format("{},{:03}", agree / 1000, agree % 1000)), std::string::npos) << page;
  }
  for (const auto& [what, count] : counts) fmt::print("{:4} {}\n", count, what);
  for (const char* kind : {"not_modelled", "disagree"})
    for (const json& entry : known.at(kind)) {
      const std::string prefix = std::string(kind) == "disagree" ? "disagree: " : "not modelled: ";
      EXPECT_EQ(counts[prefix + entry.at("reason").get<std::string>()], entry.at("count").get<int>()) << entry;
    }
}

/// Decoder layers of each [pipeline rank][chunk].
json layers_of_run(const planner::Run& run) {
  const costmodel::PipelineOptions& pipeline = run.options.pipeline;
  const auto pp = static_cast<std::size_t>(pipeline.pp), vpp = static_cast<std::size_t>(pipeline.vpp);
  std::vector<std::vector<std::int64_t>> layers(pp, std::vector<std::int64_t>(vpp, 0));
  if (pipeline.layout.empty()) {
    for (auto& rank : layers)
      for (std::int64_t& chunk : rank) chunk = run.model.num_layers() / pipeline.pp / pipeline.vpp;
    return layers;
  }
  const auto parsed = costmodel::parse_layout(pipeline.layout, run.model.num_layers(), run.model.mtp_num_layers);
  for (std::size_t i = 0; i < parsed.stages->stages.size(); ++i)
    layers[i % pp][i / pp] = parsed.stages->stages[i].num_layers;
  return layers;
}

// Are the layers of each stage those that Megatron builds?
TEST(LaunchCases, LayersOfStagesAreMegatrons) {
  int compared = 0;
  for (std::size_t i = 0; i < verdicts().size(); ++i) {
    const json& row = launch_cases().at("cases")[i];
    if (!starts(row)) continue;
    const Verdict& verdict = verdicts()[i];
    if (!verdict.imported) continue;
    ++compared;
    EXPECT_EQ(layers_of_run(verdict.imported->run), row.at("layers")) << row.at("id") << " " << row.at("args");
  }
  fmt::print("{} cases compared\n", compared);
  EXPECT_GE(compared, 500);
}

/// A setting in the form that TransformerConfig has after validation.
std::pair<std::string, json> validated(const std::string& dest, json value) {
  static const std::map<std::string, std::string> names = {
      {"num_experts", "num_moe_experts"},
      {"num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"}};
  if (dest == "grad_reduce_in_bf16") return {"accumulate_allreduce_grads_in_fp32", false};
  if (value.is_array() && value.size() == 1 && dest == "cp_comm_type") value = value.front();
  if (value.is_array()) std::sort(value.begin(), value.end());
  // Two names for the same value.
  if (value == "allgather" && dest == "cp_comm_type") value = "all_gather";
  if (value == "dist_muon") value = "muon";
  const auto found = names.find(dest);
  return {found == names.end() ? dest : found->second, value};
}

// Are the values of the imported run those that Megatron has after its validation? What export writes of it is
// compared.
TEST(LaunchCases, ValuesAreMegatrons) {
  // Differences in form. FP8 format, attention kernel and rotary positions are not modelled. We write lists of layers
  // in our own way, and splits as the resulting layout. Recomputation of 0 layers is that of 1. Megatron-FSDP is
  // exported with the distributed optimizer, as Megatron-Bridge starts it.
  const std::set<std::string> other = {"fp8",
                                       "fp8_recipe",
                                       "attention_backend",
                                       "max_position_embeddings",
                                       "moe_layer_freq",
                                       "pipeline_model_parallel_layout",
                                       "recompute_num_layers",
                                       "use_distributed_optimizer"};
  const json& file = launch_cases();
  std::map<std::string, int> wrong;
  int compared = 0;
  for (std::size_t i = 0; i < verdicts().size(); ++i) {
    const json& row = file.at("cases")[i];
    if (!starts(row)) continue;
    const Verdict& verdict = verdicts()[i];
    if (!verdict.imported) continue;
    if (row.at("args").get<std::string>().find("--use-torch-fsdp2") != std::string::npos)
      continue;  // Same as Megatron-FSDP.
    json parsed = file.at("parsed_defaults");
    parsed.update(row.at("parsed"));
    config::Diagnostics ignored;
    const planner::Run& run = verdict.imported->run;
    const std::vector<Settings> written = {settings_of_options(run, *run.release, ignored),
                                           settings_of_model(run.model, *run.release, ignored)};
    for (const Settings& settings : written)
      for (const auto& [dest, setting] : settings.all()) {
        const auto [name, ours] = validated(dest, setting.value);
        if (other.contains(dest) || !parsed.contains(name)) continue;
        ++compared;
        const json theirs = validated(name, parsed.at(name)).second;
        EXPECT_EQ(ours, theirs) << row.at("id") << " " << dest << "\n  " << row.at("args");
      }
  }
  fmt::print("{} values compared\n", compared);
  EXPECT_GE(compared, 15'000);
}

// ---- Exports --------------------------------------------------------------------------------------------------------

/// Fields that no argument of Megatron expresses.
const std::set<std::string> unsayable = {"expert_load", "software.router_operands", "task", "defaults"};

/// Whether the field's value may affect the run, and Megatron's arguments can express it.
bool is_told(const Field& f, const planner::Run& run) {
  static const std::set<std::string> of_experts = {"software.router_fusion", "capacity_factor", "pad_to_capacity"};
  const costmodel::TrainingOptions& o = run.options;
  if (!f.is_option() || unsayable.contains(f.key) || !f.applies_to(o)) return false;
  if (f.matters != nullptr && !f.matters(run.model, o) && f.key != "overlaps.dp_grad" && f.key != "overlaps.dp_param")
    return false;
  if (f.differs != nullptr && !f.differs(o)) return false;
  if (of_experts.contains(f.key) && !run.model.has_moe()) return false;
  const bool mxfp8_gather =
      o.step.optimizer.low_precision_param_gather && o.layer.precision == costmodel::Precision::kMxfp8;
  // One group of all ranks is no group; PP micro-batches are the default; local graphs capture a router together with
  // its preprocessing.
  if (f.key == "microbatch_group_size" && o.pipeline.microbatch_group_size == o.pipeline.pp) return false;
  if (f.key == "fsdp_group" && o.step.fsdp_group == o.layout().dp_cp()) return false;
  if (f.key == "cuda_graph.scope" && o.layer.cuda_graph.impl == costmodel::GraphImpl::kLocal) return false;
  // Never with a graph of the whole iteration.
  if (f.key == "check_for_nan_in_loss_and_grad") return o.layer.check_for_nan == o.layer.checks_for_nan();
  if (f.key == "optimizer.reuse_grad_buffer") return mxfp8_gather && !is_fsdp(o.step.sharding);
  return true;
}

std::string allowed(const json& row, const std::vector<std::string>& values) {
  const std::string type = row.at("type").is_null() ? "" : row.at("type").get<std::string>();
  const std::string choices =
      row.contains("choices") && !row.at("choices").is_null() ? row.at("choices").get<std::string>() : type;
  for (const std::string& value : values)
    if ((choices.find("Literal[") != std::string::npos || choices.starts_with("[")) &&
        choices.find("'" + value + "'") == std::string::npos)
      return std::string(value).append(" is none of ").append(choices);
  const json& action = row.at("action");
  const bool takes_nothing = action.is_string() && action.get<std::string>().find("store_") != std::string::npos;
  return takes_nothing == values.empty() ? "" : "takes " + std::string(takes_nothing ? "nothing" : "a value");
}

// Does import read from each exported text the run that was exported, with the same prediction, and does Megatron's
// parser know every flag with its value?
TEST(Export, IsReadBackAndKnownToMegatron) {
  if (!has_sandbox()) GTEST_SKIP() << "no sandbox here";
  const json flags = golden("megatron_flags.json");
  Random random(16);
  int written = 0, tried = 0;
  std::map<std::string, int> not_written, written_for;
  for (const std::string& model : built_in_models())
    for (const std::string& system : hwprofiles::built_in_systems()) {
      if (tried++ % FW_EVERY != 0) continue;
      auto run = random_run(model, system, random);
      if (!run) {
        ++not_written["no valid run found"];
        continue;
      }
      std::optional<Launch> launch;
      for (std::size_t tries = 0; tries < releases().size() && !launch; ++tries) {
        run->release = &releases()[(static_cast<std::size_t>(tried) + tries) % releases().size()];
        try {
          launch = launch_of(*run);
        } catch (const config::ConfigError& error) {
          if (tries + 1 == releases().size()) ++not_written[error.diagnostics().front().text()];
        }
      }
      if (!launch) continue;
      ++written_for[launch->release->name];
      ++written;
      for (const Settings& settings : std::vector<Settings>{launch->model, launch->plan})
        for (const Argument& argument : to_arguments(settings, *launch->release)) {
          const ArgumentSpec* spec = find_flag(argument.flag);
          ASSERT_TRUE(spec != nullptr && spec->releases.has(*launch->release)) << argument.flag;
          if (flags.contains(argument.flag)) {  // From 0.16 and main, by hand: more choices than one release has.
            EXPECT_EQ(allowed(flags.at(argument.flag), argument.values), "") << argument.flag;
          }
        }
      // Only some scripts, because evaluating them in a shell takes long.
      const std::vector<LaunchTarget> scripts = {LaunchTarget::kSlurm, LaunchTarget::kTorchrun};
      const LaunchTarget target =
          random.below(10) == 0 ? scripts[random.below(scripts.size())] : LaunchTarget::kMegatronLm;
      const std::string text = launch_text(*launch, target);
      ImportRequest request;
      request.system = system;
      request.release = launch->release;
      std::optional<Imported> imported;
      try {
        imported = import_launch(text, "exported", request);
      } catch (const config::ConfigError& error) {
        FAIL() << error.what() << "\n" << text;
      }
      EXPECT_TRUE(imported->unknown.empty()) << text;
      // YaRN with grouped queries is a position embedding in 0.19 (core_v0.19.0, argument_utils.py:384). For older
      // releases we write rotary positions of the same cost, which no built-in model has.
      const bool without_yarn = run->model.scaled_rope && in_releases("", "0.18.2").has(*launch->release);
      EXPECT_EQ(imported->run.model_name, without_yarn ? "inline" : model) << text;
      // No argument says what a release, or its Transformer Engine, does.
      run->options.step.shared_expert_streams = imported->run.options.step.shared_expert_streams;
      run->options.step.fsdp_head_gathers_ahead = imported->run.options.step.fsdp_head_gathers_ahead;
      run->options.step.optimizer.reads_bf16_moments = imported->run.options.step.optimizer.reads_bf16_moments;
      EXPECT_EQ(imported->run.num_gpus, run->num_gpus);
      EXPECT_EQ(imported->run.model.mtp_num_layers, run->model.mtp_num_layers);
      for (const Field& f : fields()) {
        if (!is_told(f, *run)) continue;
        EXPECT_EQ(f.value.get(imported->run.options), f.value.get(run->options)) << model << " " << f.key << "\n"
                                                                                 << text;
      }
      for (const Field& f : fields())
        if (f.is_option() && unsayable.contains(f.key)) f.value.set(imported->run.options, f.value.get(run->options));
      if (run->options.layer.cuda_graph.impl == costmodel::GraphImpl::kLocal) continue;  // See is_told.
      if (without_yarn) continue;
      const costmodel::Prediction was = foldwise::predict(*run), is = foldwise::predict(imported->run);
      EXPECT_EQ(is.step_time.to<double>(), was.step_time.to<double>()) << text;
      EXPECT_EQ(is.peak_memory.to<double>(), was.peak_memory.to<double>()) << text;
    }
  fmt::print("{} runs written and read back\n", written);
  for (const auto& [release, count] : written_for) fmt::print("{:4} for {}\n", count, release);
  for (const auto& [why, count] : not_written) fmt::print("{:4} {}\n", count, why);
  EXPECT_GE(written, 500 / FW_EVERY);
}

// Is a model that is no built-in one read back as what it was: the same step, the same memory? Every built-in model
// with fewer layers.
TEST(Export, AChangedModelIsReadBack) {
  if (!has_sandbox()) GTEST_SKIP() << "no sandbox here";
  int read = 0;
  for (const std::string& model : built_in_models()) {
    const std::int64_t layers = load_model(model).num_layers() / 2;
    planner::Run run;
    try {
      run = foldwise::parse_run(json{
          {"model", model},
          {"model_overrides", {{"num_hidden_layers", layers}}},
          {"system", "b300"},
          {"num_gpus", 8},
          {"seq_len", 4096},
          {"global_batch", 8}}.dump());
      const std::string text = launch_text(launch_of(run), LaunchTarget::kTorchrun);
      ImportRequest request;
      request.system = "b300";
      const Imported imported = import_launch(text, "exported", request);
      if (run.model.scaled_rope) continue;  // See IsReadBackAndKnownToMegatron.
      ++read;
      planner::Run again = run;
      again.model = imported.run.model;
      const costmodel::Prediction was = foldwise::predict(run), is = foldwise::predict(again);
      EXPECT_EQ(is.step_time.to<double>(), was.step_time.to<double>()) << model;
      EXPECT_EQ(is.peak_memory.to<double>(), was.peak_memory.to<double>()) << model;
    } catch (const config::ConfigError&) {  // No such number of layers, or not exported: covered by other tests.
    }
  }
  fmt::print("{} models read back\n", read);
  EXPECT_GE(read, 10);
}

/// "section.member" of configurations written by Megatron-Bridge.
std::set<std::string> members_of_bridge() {
  std::set<std::string> members;
  for (const char* model : {"llama3-70b", "moonlight-16b-a3b"}) {
    std::ifstream lines(fmt::format("{}/bridge/{}.yaml", FW_LAUNCHES_DIR, model));
    EXPECT_TRUE(lines) << model;
    std::string section;
    for (std::string line; std::getline(lines, line);) {
      const std::string name = line.substr(0, line.find(':'));
      if (name.find_first_not_of(' ') == 0) section = name;
      if (name.find_first_not_of(' ') == 2) members.insert(section + "." + name.substr(2));
    }
  }
  return members;
}

// Does Megatron-Bridge have every member that the export to it sets? (A configuration of Python takes any other too.)
// Whether it comes to the same run there, tests/launches/bridge/in_bridge.py says.
TEST(Export, SetsMembersOfMegatronBridge) {
  std::set<std::string> known = members_of_bridge();
  known.insert("dataset.seq_length");  // A property, from sequence_length.
  // In Megatron-Core since 0.18 (core_v0.18.2, transformer_config.py:1515,1683,868). The files are from 0.16.
  for (const char* member : {"moe_expert_rank_capacity_factor", "moe_paged_stash", "moe_mlp_glu_interleave_size"})
    known.insert(std::string("model.") + member);
  Random random(18);
  int written = 0;
  for (const std::string& model : built_in_models())
    for (const std::string& system : hwprofiles::built_in_systems()) {
      auto run = random_run(model, system, random);
      if (!run) continue;
      run->release = find_release("0.16.1");  // Release of the Megatron-Bridge in the golden file.
      std::string text;
      try {
        text = launch_text(launch_of(*run, LaunchTarget::kMegatronBridge), LaunchTarget::kMegatronBridge);
      } catch (const config::ConfigError&) {
        continue;
      }
      ++written;
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);)
        if (const std::string member = line.substr(0, line.find(" = ")); member.starts_with("    cfg.")) {
          const std::string place = member.substr(8);
          EXPECT_TRUE(known.contains(place) || place.find('.') == std::string::npos) << line;
        }
    }
  fmt::print("{} runs written\n", written);
  EXPECT_GE(written, 200);
}

// Does each row say of Megatron-Bridge what Megatron's own parser has where its flag is not given? (The export sets
// that where a plan says nothing, so that no choice of a recipe's stays.)
TEST(Export, WhatAPlanDoesNotSayIsMegatronsDefault) {
  std::ifstream file(FW_DATA_DIR "/../../planner/launch/megatron_arguments.json");
  std::map<std::string, json> defaults;
  const json parser = json::parse(file);
  for (const auto& [flag, argument] : parser["arguments"].items())
    defaults.emplace(argument.at("dest"), argument.value("default", json()));
  // Bridge's own: None is p2p, None is no module, and a switch for what Megatron tells by the number of layers.
  const std::map<std::string, std::string> others = {
      {"cp_comm_type", "None"}, {"offload_modules", "None"}, {"cpu_offloading", "False"}};
  int members = 0;
  for (const Field& f : fields())
    for (const BridgeDefault& unsaid : f.bridge) {
      ++members;
      const auto other = others.find(unsaid.member);
      const auto known = defaults.find(unsaid.member);
      ASSERT_TRUE(other != others.end() || known != defaults.end()) << f.key << ": " << unsaid.member;
      std::string expected = other != others.end() ? other->second : python_literal(known->second);
      if (expected == "\"fp32\"") expected = "torch.float32";
      EXPECT_EQ(unsaid.value, expected) << f.key << ": " << unsaid.member;
    }
  EXPECT_GE(members, 50);
}

// Does the export to Megatron-Bridge set something for each field that plan searches, even where the plan has the
// default? Of a recipe for another plan nothing may stay.
TEST(Export, SaysEveryFieldThatIsSearched) {
  const planner::Run run = run_with({{"release", "0.19.0"}, {"defaults", "megatron-lm-0.16-arguments"}});
  const std::string text = launch_text(launch_of(run, LaunchTarget::kMegatronBridge), LaunchTarget::kMegatronBridge);
  for (const Field& f : fields()) {
    if (f.tried == nullptr || f.flags.empty()) continue;
    // These act only beside a switch (cpu_offloading, optimizer_cpu_offload), which the export sets.
    if (f.key == "offload.num_layers" || f.key == "offload.fraction") continue;
    const auto set = [&](std::string_view flag) {
      const ArgumentSpec* spec = find_flag(flag);
      if (spec == nullptr) return false;
      for (const BridgeMember& member : bridge_members())
        if (member.dest == spec->dest && text.find(fmt::format(".{} = ", member.name)) != std::string::npos)
          return true;
      return text.find(fmt::format(".{} = ", spec->dest)) != std::string::npos;
    };
    EXPECT_TRUE(!f.bridge.empty() || std::ranges::any_of(f.flags, set)) << f.key;
  }
}

// Do the changes between two starts, made in the first one's arguments, give the second one's? Of a run and all that it
// is with one field changed.
TEST(Export, ChangesMakeTheOtherStart) {
  planner::Run run = load_runs(std::string(FW_DOCS_DIR) + "/examples/deepseek-v3-gb200.json").runs.at(0);
  run.release = find_release("0.17.1");  // The last release with Transformer Engine's loss, which the example uses.
  using Given = std::map<std::string, std::vector<std::string>>;
  const auto given = [](const Launch& launch) {
    Given all;
    for (const Settings& settings : {launch.model, launch.plan})
      for (const Argument& argument : to_arguments(settings, *launch.release)) all[argument.flag] = argument.values;
    for (const EnvironmentVariable& variable : launch.environment) all[variable.name] = {variable.value};
    return all;
  };
  const Given before = given(launch_of(run));
  int compared = 0;
  for (const Change& change : neighbours({run.model, run.hardware, run.num_gpus}, run.options).changes) {
    planner::Run other = run;
    other.options = change.options;
    const auto changes = argument_changes(run, change.options);
    if (!changes) continue;
    ++compared;
    EXPECT_FALSE(changes->empty()) << change.text();
    Given changed = before;
    const auto words = [](const std::string& text) {
      std::istringstream in(text);
      std::vector<std::string> list;
      for (std::string word; in >> word;) {
        std::erase(word, '\'');
        list.push_back(word);
      }
      return list;
    };
    for (const ArgumentChange& one : *changes) {
      EXPECT_EQ(one.from.has_value(), changed.contains(one.name)) << one.text();
      EXPECT_EQ(one.from ? words(*one.from) : words(""), one.from ? before.at(one.name) : words("")) << one.text();
      if (one.to)
        changed[one.name] = words(*one.to);
      else
        changed.erase(one.name);
    }
    EXPECT_EQ(changed, given(launch_of(other))) << change.text();
  }
  EXPECT_GT(compared, 20);
  EXPECT_EQ((ArgumentChange{"--micro-batch-size", "2", "4"}.text()), "--micro-batch-size 4 instead of 2");
  EXPECT_EQ((ArgumentChange{"--overlap-grad-reduce", std::nullopt, ""}.text()), "--overlap-grad-reduce");
  EXPECT_EQ((ArgumentChange{"--recompute-modules", "moe mlp", std::nullopt}.text()),
            "without --recompute-modules moe mlp");
  EXPECT_EQ((ArgumentChange{"NVTE_CPU_OFFLOAD_V1", std::nullopt, "1"}.text()), "NVTE_CPU_OFFLOAD_V1=1");
}

// Has Megatron a number to multiply the loss of sparse attention's indexer by? Its default, none, is a TypeError in the
// first forward (core_v0.16.1, transformer/experimental_attention_variant/dsa.py:250).
TEST(Export, OfSparseAttentionSaysTheLossOfItsIndexer) {
  Random random(18);
  for (const char* model : {"deepseek-v3.2", "glm-5"}) {
    int written = 0;
    for (int i = 0; i < 100 && written == 0; ++i) {
      const auto run = random_run(model, "gb200-nvl72", random);
      if (!run) continue;
      try {
        const std::string text = launch_text(launch_of(*run), LaunchTarget::kMegatronLm);
        EXPECT_NE(text.find("--dsa-indexer-loss-coeff 0.001"), std::string::npos) << text;
        ++written;
      } catch (const config::ConfigError&) {  // Another release or layout is needed.
      }
    }
    EXPECT_EQ(written, 1) << model;
  }
}

// Does GLM-4.7-Flash start? On an H200 its plan stopped twice: 20 heads do not divide the hidden size, and the fused
// rotation takes widths that are powers of two (attn.mla_rope_width). Is a start without the flag refused?
TEST(Export, OfLatentAttentionSaysWhatItsWidthsNeed) {
  nlohmann::json run = nlohmann::json::parse(R"({"model": {"model_type": "glm4_moe_lite", "hidden_size": 2048,
      "num_hidden_layers": 6, "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
      "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
      "intermediate_size": 10240, "moe_intermediate_size": 1536, "n_routed_experts": 64, "n_shared_experts": 1,
      "num_experts_per_tok": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "vocab_size": 154880,
      "tie_word_embeddings": false, "max_position_embeddings": 202752},
      "system": "h200", "num_gpus": 1, "global_batch": 8, "micro_batch": 1, "seq_len": 4096})");
  const auto exported = [&] {
    const std::string file = testing::TempDir() + "glm-4.7-flash.json";
    std::ofstream(file) << run;
    return launch_text(launch_of(load_runs(file).runs.at(0)), LaunchTarget::kMegatronLm);
  };
  const std::string text = exported();
  EXPECT_THAT(text, testing::HasSubstr("--kv-channels 256 "));
  EXPECT_THAT(text, testing::HasSubstr("--no-rope-fusion "));
  std::string fused = text;
  fused.erase(fused.find("--no-rope-fusion"), std::string_view("--no-rope-fusion").size());
  ImportRequest request;
  request.system = "h200";
  EXPECT_NO_THROW((void)import_launch(text, "glm.txt", request));
  try {
    (void)import_launch(fused, "glm.txt", request);
    ADD_FAILURE() << "no mistake";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("attn.mla_rope_width"));
  }
  run["model"]["qk_nope_head_dim"] = 128;
  EXPECT_THAT(exported(), testing::Not(testing::HasSubstr("--no-rope-fusion")));
}

// Does a script say which keys of config.json were not read, instead of not being written?
TEST(Export, NamesUnreadKeysOfTheModel) {
  const std::string file = testing::TempDir() + "unread-key.json";
  std::ofstream(file)
      << R"({"model": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
      "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 32000,
      "some_new_key": "</s>"}, "system": "h200", "num_gpus": 1, "global_batch": 8, "seq_len": 4096})";
  const std::string text = launch_text(launch_of(load_runs(file).runs.at(0)), LaunchTarget::kTorchrun);
  EXPECT_THAT(text, testing::HasSubstr("# Model: not read: some_new_key.\n"));
}

// Is a job asked for in whole NVLink domains where Slurm can give it so? It refuses segments that do not divide the
// nodes.
TEST(Export, SegmentsDivideTheNodes) {
  planner::Run run = load_runs(std::string(FW_DOCS_DIR) + "/examples/deepseek-v3-gb200.json").runs.at(0);
  run.release = find_release("0.17.1");  // The last release with Transformer Engine's loss, which the example uses.
  Launch launch = launch_of(run);
  const auto segment = [&](std::int64_t gpus) {
    launch.num_gpus = gpus;
    const std::string text = launch_text(launch, LaunchTarget::kSlurm), option = "#SBATCH --segment=";
    const std::size_t at = text.find(option);
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + option.size()));
  };
  EXPECT_EQ(segment(256), 16);  // 64 nodes of 4 GPUs, 16 per domain
  EXPECT_EQ(segment(32), 8);
  EXPECT_EQ(segment(144), 0);
}

// Does the exported text of a published run name the same options as its row, for the oldest release that has them?
TEST(Export, NamesWhatPublishedRowsName) {
  int written = 0;
  std::map<std::string, int> kept_back;
  for (planner::Run run : load_runs(std::string(FW_ACCURACY_DIR) + "/runs/published_runs.json").runs) {
    std::optional<Launch> launch;
    for (const Release& release : releases()) {
      if (launch) break;
      run.release = &release;
      try {
        launch = launch_of(run);
      } catch (const config::ConfigError& error) {
        const std::string why = error.diagnostics().front().message;
        if (&release == &releases().back()) ++kept_back[why.substr(0, why.find(' '))];
      }
    }
    if (!launch) continue;
    ++written;
    ImportRequest request;
    request.system = run.system_name;
    request.release = launch->release;
    const std::string text = launch_text(*launch, LaunchTarget::kMegatronLm);
    const Imported imported = import_launch(text, run.id, request);
    for (const Field& f : fields()) {
      const std::size_t dot = f.key.find('.');
      const bool stated = dot == std::string::npos
                              ? run.json.contains(f.key)
                              : run.json.contains(f.key.substr(0, dot)) &&
                                    run.json.at(f.key.substr(0, dot)).is_object() &&
                                    run.json.at(f.key.substr(0, dot)).contains(f.key.substr(dot + 1));
      if (!stated || !is_told(f, run)) continue;
      EXPECT_EQ(f.value.get(imported.run.options), f.value.get(run.options)) << run.id << " " << f.key;
    }
  }
  fmt::print("{} rows written and read back\n", written);
  for (const auto& [why, count] : kept_back) fmt::print("{:4} {}\n", count, why);
  EXPECT_GE(written, 150);
}

// ---- Files from users ----------------------------------------------------------------------------------------------

// Does import read scripts, lists, logs and configurations in the shapes that people have, and name file and line of
// what it cannot read?
TEST(Import, ReadsWhatPeopleHave) {
  if (!has_sandbox()) GTEST_SKIP() << "no sandbox here";
  const std::string folder = std::string(FW_LAUNCHES_DIR) + "/";
  for (const json& row : json::parse(text_of(folder + "expected.json"))) {
    const std::string file = row.at("file");
    ImportRequest request;
    request.system = row.value("system", "");
    if (row.contains("gpus")) request.num_gpus = row.at("gpus").get<std::int64_t>();
    const json environment = row.value("env", json::object());
    for (const auto& [name, value] : environment.items()) request.variables[name] = value;
    try {
      const Imported imported = import_launch(text_of(folder + file), file, request);
      ASSERT_TRUE(row.contains("run")) << file << " should not be read: " << imported.json.dump(2);
      EXPECT_EQ(imported.json, row.at("run")) << file;
      std::vector<std::string> unknown;
      for (const Argument& argument : imported.unknown)
        unknown.push_back(fmt::format("{}:{}", argument.line, argument.flag));
      EXPECT_EQ(json(unknown), row.value("unknown", json::array())) << file;
      EXPECT_EQ(json(imported.left_out), row.value("left_out", json::array())) << file;
    } catch (const config::ConfigError& error) {
      std::vector<std::string> messages;
      for (const config::Diagnostic& diagnostic : error.diagnostics()) messages.push_back(diagnostic.text());
      EXPECT_EQ(json(messages), row.value("errors", json::array())) << file << ": " << error.what();
    }
  }
}

/// The run of a command without a shell, on 8 H100.
Run run_of_arguments(const std::string& arguments, const char* release = "0.19.0") {
  ImportRequest request;
  request.system = "h100";
  request.num_gpus = 8;
  request.release = find_release(release);
  const json run = import_launch("torchrun --nproc-per-node 8 " + arguments, "args.txt", request).json;
  return parse_run(run.dump(), "run.json");
}

constexpr const char* kTrunk =
    " --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--seq-length 4096 --max-position-embeddings 4096 --attention-dropout 0 --hidden-dropout 0 --bf16 "
    "--train-iters 10 --lr 1e-4 --global-batch-size 64 --micro-batch-size 1 ";

// Have the MLPs of a hybrid the gate of --swiglu, and is Mamba twice as wide as the rest whatever the width of its
// heads? Numbers of parameters by hand from Megatron's modules.
TEST(Import, HybridsAreAsTheirArgumentsSay) {
  const auto parameters = [](const std::string& arguments) {
    const std::string command =
        std::string("pretrain_mamba.py --is-hybrid-model --position-embedding-type none --vocab-size 256000") + kTrunk;
    return costmodel::parameter_totals(run_of_arguments(command + arguments, "0.16.1").model).main_total;
  };
  const std::string pattern = "--num-layers 12 --hybrid-override-pattern M-M*-M-M*-M- ";
  EXPECT_EQ(parameters(pattern + "--squared-relu"), 3'316'473'728);
  EXPECT_EQ(parameters(pattern + "--swiglu"), 3'610'075'008);
  EXPECT_EQ(parameters("--num-layers 7 --hybrid-override-pattern M-M*-M- --mamba-head-dim 128 --squared-relu"),
            2'819'570'240);
}

// Is a stated padded vocabulary the model's, as Megatron pads only what is not given?
TEST(Import, APaddedVocabularyThatIsStatedIsTheModels) {
  const std::string gpt = std::string("pretrain_gpt.py --num-layers 4 --position-embedding-type rope") + kTrunk;
  EXPECT_EQ(run_of_arguments(gpt + "--vocab-size 32000 --padded-vocab-size 128256").model.vocab_size, 128256);
  EXPECT_EQ(run_of_arguments(gpt + "--vocab-size 32000").model.vocab_size, 32000);
}

// Is Muon with states sharded by layers the same run by either name, and exported by the one that the release has?
TEST(Import, LayerWiseMuonHasTwoNames) {
  const std::string gpt =
      std::string("pretrain_gpt.py --num-layers 4 --vocab-size 32000 --position-embedding-type rope --swiglu") + kTrunk;
  const planner::Run older = run_of_arguments(gpt + "--optimizer dist_muon", "0.16.1"),
                     newer = run_of_arguments(gpt + "--optimizer muon --use-distributed-optimizer", "0.19.0");
  EXPECT_EQ(older.options.step.optimizer, newer.options.step.optimizer);
  EXPECT_EQ(older.options.step.sharding, newer.options.step.sharding);
  EXPECT_EQ(older.options.step.sharding, costmodel::Sharding::kDdpDistributedOptimizer);
  const auto exported = [](const planner::Run& run) { return launch_text(launch_of(run), LaunchTarget::kMegatronLm); };
  EXPECT_THAT(exported(older), testing::HasSubstr("--optimizer dist_muon"));
  EXPECT_THAT(exported(older), testing::Not(testing::HasSubstr("--use-distributed-optimizer")));
  EXPECT_THAT(exported(newer), testing::HasSubstr("--optimizer muon"));
  EXPECT_THAT(exported(newer), testing::HasSubstr("--use-distributed-optimizer"));
}

// Does a job ask for the nodes that the system has?
TEST(Export, NodesHaveTheGpusOfTheSystem) {
  EXPECT_EQ(gpus_of_node(72), 4);
  EXPECT_EQ(gpus_of_node(8), 8);
  EXPECT_EQ(gpus_of_node(4), 4);
  EXPECT_EQ(gpus_of_node(2), 8);
  const planner::Run twelve =
      parse_run(R"({"model": "llama3-8b", "system": "h100", "num_gpus": 12, "seq_len": 4096, "global_batch": 48,
                                   "micro_batch": 1, "tp": 2})");
  const std::string script = launch_text(launch_of(twelve), LaunchTarget::kSlurm);
  EXPECT_THAT(script, testing::HasSubstr("--nodes=2\n"));
  EXPECT_THAT(script, testing::HasSubstr("--ntasks-per-node=6\n"));
}

// Can what a plan answers be started? Every plan of some questions is written as a run file, read, and given to
// Megatron's arguments, which our checks of them accept.
TEST(Export, StartsWhatAPlanAnswers) {
  int started = 0;
  for (const auto& [model, system, num_gpus] : {std::tuple{"deepseek-v3", "gb200-nvl72", 256},
                                                {"qwen3-235b-a22b", "gb300-nvl72", 128},
                                                {"qwen3-30b-a3b", "h100-sxm-80gb", 16},
                                                {"mixtral-8x22b", "h200", 64},
                                                {"llama3-70b", "gb200-nvl72", 64},
                                                {"llama3-8b", "h100-sxm-80gb", 8}}) {
    PlanProblem problem = foldwise::plan_problem({.model = model,
                                                  .system = system,
                                                  .release = {},
                                                  .num_gpus = num_gpus,
                                                  .seq_len = 4096,
                                                  .global_batch = 256,
                                                  .precisions = {},
                                                  .set = {}});
    problem.effort = 50'000;
    for (const Plan& plan : foldwise::plan(problem).plans) {
      try {
        static_cast<void>(launch_of(parse_run(foldwise::run_file(problem, plan), "plan.json")));
        ++started;
      } catch (const config::ConfigError& error) {
        ADD_FAILURE() << model << " on " << num_gpus << " " << system << ": " << error.what();
      }
    }
  }
  EXPECT_GE(started, 30);
}

}  // namespace
}  // namespace foldwise::planner::launch_test

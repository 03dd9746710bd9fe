// Does every run that somebody published become options, does every mistake get its message, and does a written run
// file read back to the same options?
#include "planner/run/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/report/fields_report.h"
#include "planner/report/validation.h"
#include "planner/rules/rules.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"

namespace foldwise::planner::run_file_test {
namespace {

using costmodel::TrainingOptions;
using nlohmann::json;
using TrainingRun = Run;  // Inside a test, Run is a member of the test class.

std::string invalid_file(const std::string& name) {
  return std::string(FW_INVALID_INPUTS_DIR) + "/run_" + name + ".json";
}

Run read_text(const std::string& text) {
  const config::Document document = config::Document::parse(text, "run.json");
  config::Diagnostics diagnostics;
  config::ObjectReader reader(document, diagnostics);
  Run run = read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

/// Messages about an invalid file, without its folder.
std::string messages(const std::string& path) {
  try {
    static_cast<void>(load_run(path));
  } catch (const config::ConfigError& error) {
    std::string text = error.what();
    const std::string folder = std::string(FW_INVALID_INPUTS_DIR) + "/";
    for (std::size_t at = text.find(folder); at != std::string::npos; at = text.find(folder))
      text.erase(at, folder.size());
    return text;
  }
  return "no error";
}

json smallest() { return {{"model", "mixtral-8x7b"}, {"system", "h200"}, {"num_gpus", 8}, {"seq_len", 4096}}; }

json published_row() {
  json row = smallest();
  row["source"] = {{"title", "Megatron-Bridge performance summary"}, {"where", "docs"}, {"table", nullptr}};
  row["global_batch"] = 256;
  row["ep"] = 8;
  row["measured"] = {{"tokens_per_s_per_gpu", 1000}, {"tflops_per_gpu", nullptr}};
  return row;
}

bool assumes(const TrainingRun& run, const std::string& field, const std::string& value) {
  return std::any_of(run.assumed.begin(), run.assumed.end(),
                     [&](const std::string& line) { return line.rfind(field + " = " + value + " (", 0) == 0; });
}

/// A value of the field, one of the first nine of its range.
json any_value(const Field& f) {
  const FieldValue& v = f.value;
  switch (v.type) {
    case FieldType::kInteger: {
      const auto low = static_cast<std::int64_t>(v.low);
      return *rc::gen::inRange<std::int64_t>(low, std::min(low + 9, static_cast<std::int64_t>(v.high) + 1));
    }
    case FieldType::kNumber:
      return *rc::gen::elementOf(std::vector<double>{0.25, 0.5, 1.0});
    case FieldType::kBoolean:
      return *rc::gen::arbitrary<bool>();
    case FieldType::kName:
      return *rc::gen::elementOf(v.names);
    case FieldType::kNames: {
      json list = json::array();
      for (const std::string& name : v.names)
        if (*rc::gen::arbitrary<bool>()) list.push_back(name);
      return list;
    }
    case FieldType::kIntegers:
      return json{*rc::gen::inRange(1, 9), *rc::gen::inRange(1, 9)};
    case FieldType::kText:
    case FieldType::kObject:
      break;
  }
  return nullptr;
}

/// Options in the form that the reader returns: fields that are switched off have their defaults, and none contradict.
TrainingOptions any_options() {
  TrainingOptions o;
  for (const Field& f : fields())
    if (f.value.set && f.value.type != FieldType::kText && f.value.type != FieldType::kIntegers)
      f.value.set(o, any_value(f));
  costmodel::LayerOptions& layer = o.layer;
  if (layer.cp_comm == costmodel::CpComm::kA2aP2p && *rc::gen::arbitrary<bool>()) layer.cp_a2a_size = layer.cp;
  if (layer.recompute.modules.empty()) layer.recompute.modules = {costmodel::RecomputeModule::kMlp};
  if (layer.lora_modules.empty()) layer.lora_modules = {costmodel::LoraModule::kLinearQkv};
  if (!layer.capacity_factor) layer.pad_to_capacity = false;
  if (!costmodel::is_fsdp(o.step.sharding)) o.step.fsdp_group = 0;
  o.pipeline.recompute.num_layers = std::max<std::int64_t>(1, o.pipeline.recompute.num_layers);
  const bool by_layer = layer.offload_modules.contains(costmodel::OffloadModule::kLayer);
  o.pipeline.cpu_offloading_num_layers = by_layer ? std::max<std::int64_t>(1, o.pipeline.cpu_offloading_num_layers) : 0;
  settle(o);
  return o;
}

// Are any options, written as a run file, read back as they were, with nothing assumed?
RC_GTEST_PROP(RunFile, WritingAndReadingGivesTheSameOptions, ()) {
  const TrainingOptions options = any_options();
  const TrainingRun run = read_text(write_run("mixtral-8x7b", "h200", options.layout().world(), options).dump(1));
  RC_ASSERT(run.options == options);
  RC_ASSERT(run.assumed.empty());
  RC_ASSERT(run.num_gpus == options.layout().world());
}

TEST(RunFile, AWrittenLayoutStringReadsBack) {
  TrainingOptions options;
  options.layer.ep = 2;
  options.step.dp = 2;
  options.pipeline.pp = options.pipeline.vpp = 2;
  options.pipeline.layout = "Et*9|t*8|t*8|t*7L";
  EXPECT_EQ(read_text(write_run("mixtral-8x7b", "h200", 4, options).dump()).options, options);
}

// Do the numbers that a run replaces in its system's profile reach the hardware, alone, and come back from its run
// file? A row of attention has a number for a key.
TEST(RunFile, NumbersOfTheSystemMayBeReplaced) {
  json run = smallest();
  run["system_overrides"] = {
      {"hbm.capacity", "192 GB"}, {"nic_bandwidth", "800Gb/s"}, {"attention.128.forward_rate", "500 TFLOPS"}};
  const TrainingRun changed = read_text(run.dump()), plain = read_text(smallest().dump());
  costmodel::Hardware expected = plain.hardware;
  expected.hbm_capacity = Bytes{192e9};
  expected.network.nic_bandwidth = gb_per_s(100.0);
  expected.attention.at(1).forward_rate = FlopRate{500e12};
  expected.unmeasured = "numbers of the system overridden";
  EXPECT_EQ(changed.hardware, expected);
  EXPECT_EQ(write_run(changed)["system_overrides"], run["system_overrides"]);
  EXPECT_EQ(read_text(write_run(changed).dump()).hardware, expected);
}

// Is each number that is none of the profile, has no unit, is out of range or changes nothing a mistake of its line?
TEST(RunFile, NumbersOfTheSystemAreChecked) {
  const std::string text = messages(invalid_file("system_overrides"));
  for (const char* message :
       {"/hbm.capacity: expected a size in one of B, MiB, GiB, GB, TB, found 192",
        "/hbm.ceiling: no time or size of h200 follows from it",
        R"(/nic_bandwith: no number of the system; the nearest is "nic_bandwidth")",
        R"(/peak.bf16: expected a rate above 0, found "-1 TFLOPS")", "/launch: expected one number, found"})
    EXPECT_THAT(text, testing::HasSubstr(std::string("run_system_overrides.json:7: /system_overrides: ") + message));
}

TEST(RunFile, EveryPublishedRowLoadsOrSaysWhyNot) {
  // 347 rows: 4 lack the sequence length, 3 the global batch, 2 have a model whose sizes are not public.
  const RunList published = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/published_runs.json");
  EXPECT_EQ(published.runs.size(), 338U);
  ASSERT_EQ(published.unreadable.size(), 9U);
  std::map<std::string, int> reasons;
  for (const Unreadable& row : published.unreadable) {
    for (const char* reason : {"seq_len: expected", "global_batch: expected", "\"nemotron-3.5-lightning-30b-a3b\""})
      if (row.reason.find(reason) != std::string::npos) ++reasons[reason];
    EXPECT_EQ(row.reason.rfind("line ", 0), 0U) << row.reason;
  }
  EXPECT_THAT(reasons,
              testing::ElementsAre(testing::Pair("\"nemotron-3.5-lightning-30b-a3b\"", 2),
                                   testing::Pair("global_batch: expected", 3), testing::Pair("seq_len: expected", 4)));
}

TEST(RunFile, EveryRowOfOurOwnMeasurementsLoads) {
  for (const auto& [name, count] : {std::pair{"h200x4_runs", 14U}, std::pair{"h200x4_te_runs", 20U}}) {
    const RunList list = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/" + name + ".json");
    EXPECT_EQ(list.runs.size(), count);
    EXPECT_TRUE(list.unreadable.empty());
    for (const TrainingRun& run : list.runs) {
      EXPECT_TRUE(run.measured.step_time_s && run.measured.peak_memory_gib && run.measured.peak_reserved_gib) << run.id;
      EXPECT_TRUE(violations(run).empty()) << run.id;
    }
  }
}

TEST(RunFile, EveryLoadedRowIsWrittenAndReadBack) {
  for (const TrainingRun& run : load_runs(std::string(FW_ACCURACY_DIR) + "/runs/published_runs.json").runs) {
    const TrainingRun again = read_text(write_run(run).dump());
    EXPECT_EQ(again.options, run.options) << run.id;
    EXPECT_EQ(again.model.mtp_num_layers, run.model.mtp_num_layers) << run.id;
    EXPECT_EQ(again.model.num_layers(), run.model.num_layers()) << run.id;
  }
}

TEST(RunFile, OurStockRunHasTheKernelsThatItsSoftwareNames) {
  const RunList list = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/h200x4_runs.json");
  const auto stock = std::find_if(list.runs.begin(), list.runs.end(),
                                  [](const TrainingRun& run) { return run.id == "h200x4-mix-ep4-stock"; });
  ASSERT_NE(stock, list.runs.end());
  const costmodel::Software& software = stock->options.layer.software;
  EXPECT_FALSE(software.transformer_engine || software.fused_attention || software.fused_permute ||
               software.cross_entropy == costmodel::CrossEntropy::kTransformerEngine ||
               software.gradient_accumulation_fusion);
  EXPECT_EQ(software.experts, costmodel::Experts::kSequential);
  EXPECT_TRUE(software.router_fp32);
}

// Recipes of dense models overlap TP communication, those of MoE models do not: what does a silent file mean?
TEST(RunFile, SilenceOnTpOverlapMeansWhatRecipesDo) {
  auto run = smallest();
  run["tp"] = 2;
  run["model"] = "llama3-8b";
  EXPECT_TRUE(read_text(run.dump()).options.layer.overlaps.tp);
  run["overlaps"] = {{"tp", false}};
  EXPECT_FALSE(read_text(run.dump()).options.layer.overlaps.tp);
  run.erase("overlaps");
  run["model"] = "qwen3-30b-a3b";
  EXPECT_FALSE(read_text(run.dump()).options.layer.overlaps.tp);
}

// Megatron's command line fuses neither loss nor permutation unless told to, recipes do both: what does silence mean?
TEST(RunFile, SilenceOnFusionsMeansWhatTheDefaultsSay) {
  using costmodel::CrossEntropy;
  json row = smallest();
  row["model"] = "qwen3-30b-a3b";
  const TrainingRun silent = read_text(row.dump());
  EXPECT_EQ(silent.defaults, "megatron-lm-0.16");
  EXPECT_EQ(silent.options.layer.software.cross_entropy, CrossEntropy::kUnfused);
  EXPECT_FALSE(silent.options.layer.software.fused_permute);
  EXPECT_TRUE(assumes(silent, "software.cross_entropy", "unfused"));
  EXPECT_TRUE(assumes(silent, "software.permute", "unfused"));
  for (const char* set : {"megatron-bridge-25.09", "megatron-bridge-26.04", "nemo-25.04"}) {
    row["defaults"] = set;
    const TrainingRun recipe = read_text(row.dump());
    EXPECT_EQ(recipe.options.layer.software.cross_entropy, CrossEntropy::kTransformerEngine) << set;
    EXPECT_TRUE(recipe.options.layer.software.fused_permute) << set;
  }
  row["software"] = {{"cross_entropy", "native"}, {"permute", "unfused"}};
  const TrainingRun stated = read_text(row.dump());
  EXPECT_EQ(stated.options.layer.software.cross_entropy, CrossEntropy::kNative);
  EXPECT_FALSE(stated.options.layer.software.fused_permute);
}

// A launch script that does not give an argument gets Megatron's own default: does its set have nothing else?
TEST(RunFile, MegatronsArgumentsAreASetOfTheirOwn) {
  json row = smallest();
  row["tp"] = 2;
  row["defaults"] = "megatron-lm-0.16-arguments";
  const TrainingOptions o = read_text(row.dump()).options;
  EXPECT_EQ(o.step.sharding, costmodel::Sharding::kDdp);
  EXPECT_EQ(o.layer.etp, 2);
  EXPECT_EQ(o.layer.software.experts, costmodel::Experts::kSequential);
  EXPECT_FALSE(o.layer.software.router_fp32 || o.step.overlaps.dp_grad);
}

TEST(RunFile, AMissingFieldTakesADefaultAndIsReported) {
  const TrainingRun run = read_text(smallest().dump());
  EXPECT_EQ(run.options.step.dp, 8);
  EXPECT_EQ(run.options.pipeline.global_batch, 8);  // micro_batch x dp
  EXPECT_EQ(run.options.layer.dispatcher, costmodel::Dispatcher::kAllGather);
  EXPECT_TRUE(run.options.layer.grad_reduce_in_fp32);
  for (const auto& [field, value] : std::map<std::string, std::string>{{"tp", "1"},
                                                                       {"micro_batch", "1"},
                                                                       {"global_batch", "8"},
                                                                       {"etp", "1"},
                                                                       {"dispatcher", "allgather"},
                                                                       {"precision", "bf16"},
                                                                       {"recompute.granularity", "none"},
                                                                       {"cuda_graph.impl", "none"},
                                                                       {"overlaps.dp_grad", "true"}})
    EXPECT_TRUE(assumes(run, field, value)) << field;
}

// Is a stated value that has no effect beside the others listed with the one that counts?
TEST(RunFile, AStatedValueWithoutEffectIsReported) {
  json row = smallest();
  row["offload"] = {{"optimizer_cpu_offload", false}, {"fraction", 0.5}};
  TrainingRun run = read_text(row.dump());
  EXPECT_EQ(run.options.step.offload.optimizer_fraction, 0.0);
  EXPECT_TRUE(assumes(run, "offload.fraction", "0.0"));
  row["offload"] = {{"fraction", 0.5}};
  EXPECT_TRUE(assumes(read_text(row.dump()), "offload.fraction", "0.0"));
  row.erase("offload");
  row["fp8_attention"] = true;
  EXPECT_TRUE(assumes(read_text(row.dump()), "fp8_attention", "false"));
  row.erase("fp8_attention");
  row["optimizer"]["fp4_param_gather"] = true;
  run = read_text(row.dump());
  EXPECT_TRUE(assumes(run, "optimizer.fp4_param_gather", "false"));
  EXPECT_FALSE(run.options.step.optimizer.low_precision_param_gather);
  row.erase("optimizer");
  row["recompute"] = {{"granularity", "full"}, {"method", "block"}, {"num_layers", 0}};
  EXPECT_TRUE(assumes(read_text(row.dump()), "recompute.granularity", "none"));
}

TEST(RunFile, ABridgeRowTakesTheDefaultsOfItsRecipes) {
  json row = published_row();
  row["defaults"] = "megatron-bridge-25.09";
  row["precision"] = "fp8-unspecified";
  const TrainingRun run = read_text(row.dump());
  EXPECT_EQ(run.options.layer.dispatcher, costmodel::Dispatcher::kAllToAll);
  EXPECT_EQ(run.options.layer.precision, costmodel::Precision::kFp8Current);  // Hopper
  EXPECT_FALSE(run.options.layer.grad_reduce_in_fp32);
  EXPECT_TRUE(run.options.step.optimizer.low_precision_param_gather);
  row["system"] = "gb200-nvl72";
  EXPECT_EQ(read_text(row.dump()).options.layer.precision, costmodel::Precision::kMxfp8);
}

// null is silence, never off: does a row that says that its parameters are not FP8 say nothing of FP4?
TEST(RunFile, SilenceOnFp4ParametersIsNotOff) {
  json row = published_row();
  row["model"] = "llama3-70b";
  row.erase("ep");
  row["system"] = "gb300-nvl72";
  row["precision"] = "nvfp4";
  row["defaults"] = "megatron-bridge-26.04";
  row["optimizer"] = {{"fp8_param_gather", false}, {"fp4_param_gather", nullptr}};
  EXPECT_TRUE(read_text(row.dump()).options.step.optimizer.low_precision_param_gather);
  row["optimizer"]["fp4_param_gather"] = false;
  EXPECT_FALSE(read_text(row.dump()).options.step.optimizer.low_precision_param_gather);
}

TEST(RunFile, MultiTokenPredictionFollowsTheRun) {
  json row = smallest();
  row["model"] = "deepseek-v3";
  EXPECT_EQ(read_text(row.dump()).model.mtp_num_layers, 1);
  row["mtp"] = false;
  EXPECT_EQ(read_text(row.dump()).model.mtp_num_layers, 0);
  row.erase("mtp");
  row["num_gpus"] = 32;
  row["pp"] = 8;
  row["pipeline_layout"] = "Et|(tt|)*30L";
  EXPECT_EQ(read_text(row.dump()).model.mtp_num_layers, 0);
  EXPECT_EQ(read_text(row.dump()).options.pipeline.vpp, 4);
}

// Every form of a split in Megatron becomes a layout: 126 layers in 128 places, or counts of the first and last rank.
TEST(RunFile, SplitsByCountsAndByPlacesAreLayouts) {
  json row = smallest();
  row["model"] = "llama3.1-405b";
  row["num_gpus"] = 64;
  row["pp"] = 8;
  row["vpp"] = 4;
  row["account_for_embedding_in_pipeline_split"] = row["account_for_loss_in_pipeline_split"] = true;
  EXPECT_EQ(read_text(row.dump()).options.pipeline.layout, "Ettt|(t*4|)*30tttL");
  row.erase("account_for_embedding_in_pipeline_split");
  row.erase("account_for_loss_in_pipeline_split");
  row["vpp"] = 1;
  row["decoder_first_pipeline_num_layers"] = 14;
  EXPECT_EQ(read_text(row.dump()).options.pipeline.layout, "Et*14|(t*16|)*6t*16L");
  row["decoder_first_pipeline_num_layers"] = 15;
  row["decoder_last_pipeline_num_layers"] = 15;
  EXPECT_EQ(read_text(row.dump()).options.pipeline.layout, "Et*15|(t*16|)*6t*15L");
}

TEST(RunFile, OlderSpellingsOfGraphsAreUnderstood) {
  json row = smallest();
  row["cuda_graph"] = {{"impl", "local"}, {"scope", {"full_iteration"}}};
  EXPECT_EQ(read_text(row.dump()).options.layer.cuda_graph.impl, costmodel::GraphImpl::kFullIteration);
  row["cuda_graph"] = {{"impl", "local (enable_cuda_graph)"}, {"scope", {"full"}}};
  const costmodel::CudaGraph graph = read_text(row.dump()).options.layer.cuda_graph;
  EXPECT_EQ(graph.impl, costmodel::GraphImpl::kLocal);
  EXPECT_TRUE(graph.modules.empty());
}

// Do other programs' spellings of software mean what ours do, and is a text that is none of them an error?
TEST(RunFile, SpellingsOfSoftwareAreRead) {
  json row = smallest();
  row["software"] = {{"attention", "torch SDPA, cuDNN kernel"},
                     {"experts", "sequential MLP per expert"},
                     {"cross_entropy", "torch.compile (native fusion)"}};
  const costmodel::Software software = read_text(row.dump()).options.layer.software;
  EXPECT_TRUE(software.fused_attention);
  EXPECT_EQ(software.experts, costmodel::Experts::kSequential);
  EXPECT_EQ(software.cross_entropy, costmodel::CrossEntropy::kNative);
  row["software"] = {{"attention", "unfusd"}};
  try {
    static_cast<void>(read_text(row.dump()));
    FAIL() << "a text that is no value";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/software/attention: expected one of \"fused\", \"unfused\", found "
                                                 "\"unfusd\"; the nearest is \"unfused\""));
  }
}

// Prose is prose: does a run that is stripped of all of it become the same run, with the same prediction to the last
// bit?
TEST(RunFile, ProseChangesNoNumber) {
  for (const char* name :
       {"published_runs", "h200x4_runs", "h200x4_te_runs", "h200x2_runs", "model_zoo_runs", "headline_runs"}) {
    const std::string path = std::string(FW_ACCURACY_DIR) + "/runs/" + name + ".json";
    json bare = config::Document::load(path).root();
    for (json& row : bare)
      for (const char* key :
           {"source", "notes", "method", "id", "date_or_release", "quality", "recipe", "inferred", "derived", "host"})
        row.erase(key);
    for (json& row : bare)
      if (row.contains("software")) row["software"].erase("framework");
    const std::string copy = testing::TempDir() + name + ".json";
    std::ofstream(copy) << bare;
    const RunList with = load_runs(path), without = load_runs(copy);
    ASSERT_EQ(with.runs.size(), without.runs.size());
    EXPECT_EQ(with.unreadable.size(), without.unreadable.size());
    for (std::size_t i = 0; i < with.runs.size(); ++i) {
      const TrainingRun &a = with.runs[i], &b = without.runs[i];
      EXPECT_EQ(a.options, b.options) << a.id;
      EXPECT_EQ(a.model, b.model) << a.id;
      if (!violations(a).empty()) continue;
      const costmodel::Prediction p = costmodel::predict(a.model, a.options, a.hardware),
                                  q = costmodel::predict(b.model, b.options, b.hardware);
      EXPECT_EQ(p.step_time.to<double>(), q.step_time.to<double>()) << a.id;
      EXPECT_EQ(p.peak_memory.to<double>(), q.peak_memory.to<double>()) << a.id;
      const auto measured_a = measured_step(a), measured_b = measured_step(b);
      EXPECT_EQ(measured_a ? measured_a->seconds : 0.0, measured_b ? measured_b->seconds : 0.0) << a.id;
    }
  }
}

TEST(RunFile, AFileOfRunsKeepsGoodRowsAndNamesBadOnes) {
  const RunList one = load_runs(invalid_file("unknown_model"));
  EXPECT_TRUE(one.runs.empty());
  ASSERT_EQ(one.unreadable.size(), 1U);
  EXPECT_EQ(
      one.unreadable[0].reason,
      "line 2: /model: \"mixtral-8x7\": neither a built-in model nor a file; the nearest built-in is \"mixtral-8x7b\"");
  EXPECT_THROW(static_cast<void>(load_runs(invalid_file("unknown_key"))), config::ConfigError);
}

TEST(RunFile, ADirectoryAndAMissingFileAreErrors) {
  EXPECT_EQ(messages(FW_INVALID_INPUTS_DIR),
            std::string(FW_INVALID_INPUTS_DIR) + ": expected a file, found a directory");
  EXPECT_EQ(messages(invalid_file("none_such")), "run_none_such.json: no such file");
}

// Is a run refused that is larger than the cluster of its system's profile?
TEST(Placement, ARunLargerThanTheClusterIsAnErrorOfItsSize) {
  const std::string path = testing::TempDir() + "two_nodes.json";
  std::ofstream(path) << R"({"base": "h200", "sources": {"mine": "ours"}, "network": {
    "domains": {"value": 2, "unit": "domain", "kind": "datasheet", "source": "mine"}}})";
  json run = smallest();
  run["system"] = path;
  run["num_gpus"] = 16;
  EXPECT_EQ(read_text(run.dump()).hardware.network.domains, 2);
  run["num_gpus"] = 24;
  try {
    static_cast<void>(read_text(run.dump()));
    FAIL() << "24 GPUs on two nodes of 8";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/num_gpus: 24 GPUs cannot be placed on"));
    EXPECT_THAT(error.what(), testing::HasSubstr("/network/domains = 2"));
  }
}

// Is every row of the table whole, and does every value that it allows survive being written and read?
TEST(Fields, EveryRowIsWhole) {
  std::set<std::string> keys;
  for (const Field& f : fields()) {
    EXPECT_TRUE(keys.insert(f.key).second) << f.key;
    EXPECT_FALSE(f.doc.empty()) << f.key;
    EXPECT_EQ(f.when.empty(), f.applies == nullptr) << f.key;
    EXPECT_TRUE(f.name_flags.empty() || f.name_flags.size() == f.value.names.size()) << f.key;
    for (const std::string& text : f.flags) EXPECT_EQ(text.rfind("--", 0), 0U) << f.key;
    if (!f.value.set) continue;
    const bool as_another = f.key == "etp";
    EXPECT_TRUE(as_another || f.megatron.is_null() || mistake_in(f, f.megatron).empty()) << f.key;
    for (const std::string& name : f.value.names) {
      const json value = f.value.type == FieldType::kNames ? json{name} : json(name);
      EXPECT_EQ(mistake_in(f, value), "") << f.key;
      EXPECT_EQ(typed_value(f, value_text(value)), value) << f.key;
    }
  }
  EXPECT_EQ(find_field("no_such_field"), nullptr);
  EXPECT_EQ(with_flags("[tp] {} x [cp] {}"), "--tensor-model-parallel-size {} x --context-parallel-size {}");
}

// Is a field's value, typed as text on a command line, the value?
RC_GTEST_PROP(Fields, ATypedValueIsTheValue, ()) {
  const Field f = *rc::gen::elementOf(fields());
  if (!f.value.set || f.value.type == FieldType::kText) return;
  const json value = any_value(f);
  RC_ASSERT(mistake_in(f, value).empty());
  RC_ASSERT(typed_value(f, value_text(value)) == value);
}

TEST(Fields, MistakesNameWhatWasExpected) {
  EXPECT_EQ(mistake_in(field("tp"), 0), "expected a whole number of at least 1, found 0");
  EXPECT_EQ(mistake_in(field("tp"), "two"), "expected a whole number, found \"two\"");
  EXPECT_EQ(mistake_in(field("overlaps.tp"), 1), "expected true or false, found 1");
  EXPECT_EQ(mistake_in(field("recompute.method"), "unifrm"),
            "expected one of \"uniform\", \"block\", found \"unifrm\"; the nearest is \"uniform\"");
}

TEST(Fields, TheDocumentHoldsTheTable) {
  const std::string path = std::string(FW_DOCS_DIR) + "/run-file.md";
  std::ifstream in(path);
  const std::string document((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(document == with_field_tables(document, path)) << "renew it: foldwise fields --write docs/run-file.md";
}

// Is every built-in set of defaults readable, every value in it with a source, and the newest of a family the highest?
TEST(Defaults, EveryBuiltInSetIsReadable) {
  for (const std::string& name : built_in_defaults()) {
    const Defaults& set = load_defaults(name);
    EXPECT_EQ(set.name, name);
    for (const auto& [key, cases] : set.values)
      for (const DefaultValue& value : cases) EXPECT_FALSE(value.source.empty()) << name << ' ' << key;
  }
  EXPECT_EQ(newest_defaults("megatron-bridge"), "megatron-bridge-26.04");
}

TEST(Defaults, ASetOfOnesOwnIsNamedByItsPath) {
  const std::string path = testing::TempDir() + "own_defaults.json";
  std::ofstream(path) << R"({"name": "own", "title": "ours", "extends": "megatron-bridge-26.04", "values": {
    "dispatcher": {"value": "deepep", "when": {"system.recipe_graphs": false}, "source": "our cluster"}}})";
  json run = smallest();
  run["defaults"] = path;
  const TrainingRun own = read_text(run.dump());
  EXPECT_EQ(own.options.layer.dispatcher, costmodel::Dispatcher::kDeepEp);
  EXPECT_EQ(own.options.layer.software.cross_entropy, costmodel::CrossEntropy::kTransformerEngine);
  EXPECT_THAT(own.assumed, testing::Contains("dispatcher = deepep (not in the file; own)"));
  run["defaults"] = "megatron-bridge";
  EXPECT_THROW(static_cast<void>(read_text(run.dump())), config::ConfigError);
}

TEST(Defaults, MistakesOfASetAreReportedTogether) {
  const std::string path = testing::TempDir() + "bad_defaults.json";
  std::ofstream(path) << R"({"name": "bad", "title": "ours", "values": {
    "dispatchr": {"value": "deepep", "source": "ours"},
    "tp": {"value": "two", "source": "ours"},
    "cp": {"value": 1, "when": {"model.mo": true}, "source": "ours"},
    "pp": {"value": 1}}})";
  try {
    static_cast<void>(load_defaults(path));
    FAIL() << "four mistakes";
  } catch (const config::ConfigError& error) {
    for (const char* text : {"/values/dispatchr: no field that can have a default",
                             "/values/tp/value: expected a whole number, found \"two\"",
                             "/values/cp/when/model.mo: neither a field nor one of",
                             "/values/pp/source: expected a text in quotes, found nothing"})
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
  }
}

struct BadFile {
  const char *name, *message;
};
class BadRunFile : public testing::TestWithParam<BadFile> {};

TEST_P(BadRunFile, IsReportedWithFileLineAndField) {
  EXPECT_EQ(messages(invalid_file(GetParam().name)), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadRunFile,
    testing::Values(
        BadFile{"absurd",
                "run_absurd.json:4: /num_gpus: expected a whole number of at most 1000000, found 1000000000000"},
        BadFile{"lora_contradiction", "run_lora_contradiction.json:7: /lora: contradicts task = sft"},
        BadFile{"contradictory_sizes",
                "run_contradictory_sizes.json:4: /num_gpus: 64 GPUs contradict tp x cp x pp x dp = 2 x 1 x 4 x 4 = 32"},
        BadFile{"duplicate", "run_duplicate.json:15: /tp: duplicate key; the first is on line 8"},
        BadFile{"empty", "run_empty.json:1: not valid JSON at column 1: expected an object or a list, found nothing"},
        BadFile{"empty_names",
                "run_empty_names.json:2: /model: expected a name or a path, found an empty text\n"
                "run_empty_names.json:3: /system: expected a name or a path, found an empty text"},
        BadFile{"fraction", "run_fraction.json:7: /micro_batch: expected a whole number, found 1.5"},
        BadFile{"indivisible",
                "run_indivisible.json:4: /num_gpus: 64 GPUs cannot be divided by tp x cp x pp = 3 x 1 x 4 = 12"},
        BadFile{
            "layout_of_other_model",
            "run_layout_of_other_model.json:15: /pipeline_layout: expected 32 t, one per decoder layer, found 31 t"},
        BadFile{"missing_model", "run_missing_model.json:1: /model: expected a text in quotes, found nothing"},
        BadFile{"missing_seq_len", "run_missing_seq_len.json:1: /seq_len: expected a whole number, found nothing"},
        BadFile{"mistyped", "run_mistyped.json:8: /tp: expected a whole number, found \"2\""},
        BadFile{"kernel_profile",
                "run_kernel_profile.json:19: /measured/kernel_profile_rank0/kernels_rest_ms: expected a number, found "
                "nothing\n"
                "run_kernel_profile.json:20: /measured/kernel_profile_rank0/wall_ms: expected a number, found \"1 s\"\n"
                "run_kernel_profile.json:25: /measured/kernel_profile_rank0/kernels: expected a list of [\"name\", "
                "calls, milliseconds]"},
        BadFile{"negative", "run_negative.json:8: /tp: expected a whole number of at least 1, found -2"},
        BadFile{"not_an_object",
                "run_not_an_object.json:1: expected one run object, found a list of 0; validate reads lists"},
        BadFile{
            "optimizer_contradiction",
            "run_optimizer_contradiction.json:17: /optimizer/exp_avg_dtype: bf16 contradicts precision_aware = false"},
        BadFile{"recompute_contradiction",
                "run_recompute_contradiction.json:17: /recompute/modules: a list of modules contradicts granularity = "
                "none"},
        BadFile{"several",
                "run_several.json:5: /seq_len: expected a whole number, found \"long\"\n"
                "run_several.json:8: /tp: expected a whole number of at least 1, found 0\n"
                "run_several.json:15: /extra_key: unknown key"},
        BadFile{"split_contradicts_layout",
                "run_split_contradicts_layout.json:16: /decoder_first_pipeline_num_layers: contradicts "
                "pipeline_layout"},
        BadFile{"split_uneven",
                "run_split_uneven.json:15: /decoder_first_pipeline_num_layers: leaves 28 of 32 layers, which cannot be "
                "divided by 3 ranks x vpp = 1"},
        BadFile{"truncated",
                "run_truncated.json:8: not valid JSON at column 1: syntax error while parsing object key - unexpected "
                "end of input; expected string literal"},
        BadFile{"unknown_dispatcher",
                "run_unknown_dispatcher.json:15: /dispatcher: expected one of \"allgather\", \"alltoall\", \"deepep\", "
                "\"hybridep\", found \"deepe\"; the nearest is \"deepep\""},
        BadFile{"unknown_key",
                "run_unknown_key.json:15: /micro_bach: unknown key; the nearest known key is \"micro_batch\""},
        BadFile{"unknown_model",
                "run_unknown_model.json:2: /model: \"mixtral-8x7\": neither a built-in model nor a file; the nearest "
                "built-in is \"mixtral-8x7b\""},
        BadFile{"unknown_nested_key",
                "run_unknown_nested_key.json:16: /overlaps/dp_grd: unknown key; the nearest known key is \"dp_grad\""},
        BadFile{"unknown_system",
                "run_unknown_system.json:3: /system: expected a built-in system (a100-sxm-80gb, a800-sxm-80gb, b100, "
                "b200, b300, gb200-nvl72, gb300-nvl72, gh200, h100-96gb-hbm2e-500w, h100-nvl, h100-pcie, "
                "h100-sxm-80gb, h20, h200, h800, vr-nvl72) or a path "
                "that ends in .json, found \"h2000\"; the nearest is \"h200\""},
        BadFile{"vpp_contradicts_layout",
                "run_vpp_contradicts_layout.json:15: /vpp: 2 contradicts pipeline_layout: 4 stages over pp = 4 make "
                "vpp = 1"}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace foldwise::planner::run_file_test

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

#include "planner/rules/rules.h"
#include "planner/run/names.h"

namespace foldwise::planner {
namespace {

using costmodel::BitSet;
using costmodel::TrainingOptions;
using nlohmann::json;
using TrainingRun = Run;  // Inside a test, Run is one of its members.

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

/// The messages of a bad file, its folder left out.
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

template <typename Enum>
Enum any_of_names(const Names<Enum>& names) {
  const std::pair<std::string, Enum> entry = *rc::gen::elementOf(names);
  return entry.second;
}
template <typename Enum>
BitSet<Enum> any_subset(const Names<Enum>& names) {
  BitSet<Enum> result;
  for (const auto& [name, module] : names)
    if (*rc::gen::arbitrary<bool>())
      result.bits = static_cast<std::uint16_t>(result.bits | static_cast<std::uint16_t>(module));
  return result;
}
std::int64_t power_of_two(int most) { return std::int64_t{1} << *rc::gen::inRange(0, most + 1); }
bool coin() { return *rc::gen::arbitrary<bool>(); }

/// Options as the reader leaves them: what a choice switches off has its default.
TrainingOptions any_options() {
  TrainingOptions o;
  o.set_layout({.tp = power_of_two(3),
                .cp = power_of_two(2),
                .dp = *rc::gen::inRange<std::int64_t>(1, 99),
                .pp = power_of_two(3),
                .vpp = *rc::gen::inRange<std::int64_t>(1, 5),
                .ep = power_of_two(6),
                .etp = power_of_two(2)});
  o.pipeline.global_batch = *rc::gen::inRange<std::int64_t>(1, 100000);
  o.layer.micro_batch = *rc::gen::inRange<std::int64_t>(1, 9);
  o.layer.seq_len = *rc::gen::inRange<std::int64_t>(1, 1000000);
  o.layer.precision = any_of_names(precision_names());
  o.step.sharding = any_of_names(sharding_names());
  o.step.fsdp_group = costmodel::is_fsdp(o.step.sharding) ? power_of_two(6) - 1 : 0;
  o.step.fsdp_outer_optim = costmodel::is_fsdp(o.step.sharding) && coin();
  o.layer.cp_comm = any_of_names(cp_comm_names());
  if (o.layer.cp_comm == costmodel::CpComm::kA2aP2p && coin()) o.layer.cp_a2a_size = o.layer.cp;
  o.step.optimizer_instances = *rc::gen::inRange<std::int64_t>(1, 9);
  o.step.pad_buckets_for_high_nccl_busbw = coin();
  o.layer.dispatcher = any_of_names(dispatcher_names());
  o.layer.recompute.granularity = any_of_names(granularity_names());
  if (o.layer.recompute.granularity == costmodel::RecomputeGranularity::kSelective) {
    o.layer.recompute.modules = any_subset(recompute_module_names());
    if (o.layer.recompute.modules.empty()) o.layer.recompute.modules = {costmodel::RecomputeModule::kMlp};
  }
  if (o.layer.recompute.granularity == costmodel::RecomputeGranularity::kFull) {
    o.pipeline.recompute.method = any_of_names(method_names());
    o.pipeline.recompute.num_layers = *rc::gen::inRange<std::int64_t>(1, 20);
  }
  o.layer.offload_modules = any_subset(offload_module_names());
  if (o.layer.offload_modules.empty() && coin()) {
    o.layer.offload_modules = {costmodel::OffloadModule::kLayer};
    o.pipeline.cpu_offloading_num_layers = *rc::gen::inRange<std::int64_t>(1, 40);
  }
  if (coin()) {
    o.step.offload.optimizer_fraction = *rc::gen::elementOf(std::vector<double>{0.25, 0.5, 1.0});
    o.step.offload.overlap_optimizer_copies = coin();
  }
  o.layer.overlaps = {.tp = o.layer.tp > 1 && coin(), .shared_expert = coin()};  // TP 1 has nothing to overlap.
  o.pipeline.overlaps = {.ep_a2a = coin(), .delay_wgrad = coin()};
  o.step.overlaps = {.dp_grad = coin(), .dp_param = coin(), .param_gather_with_optimizer_step = coin()};
  o.layer.cuda_graph.impl = any_of_names(graph_impl_names());
  if (o.layer.cuda_graph.impl == costmodel::GraphImpl::kLocal ||
      o.layer.cuda_graph.impl == costmodel::GraphImpl::kTransformerEngine)
    o.layer.cuda_graph.modules = any_subset(graph_module_names());
  o.step.optimizer.kind = any_of_names(optimizer_names());
  o.step.optimizer.precision_aware = coin();
  if (o.step.optimizer.precision_aware) {
    o.step.optimizer.exp_avg = any_of_names(data_type_names());
    o.step.optimizer.exp_avg_sq = any_of_names(data_type_names());
    o.step.optimizer.main_params = any_of_names(data_type_names());
    o.step.optimizer.main_grads = any_of_names(data_type_names());
  }
  o.layer.grad_reduce_in_fp32 = coin();
  o.step.optimizer.low_precision_param_gather = coin();
  o.step.optimizer.reuse_grad_buffer = coin();
  o.layer.software = {
      .transformer_engine = coin(),
      .fused_permute = coin(),
      .fused_router = coin(),
      .fused_attention = coin(),
      .grouped_gemm = coin(),
      .fused_grouped_mlp = false,
      .cross_entropy = *rc::gen::element(costmodel::CrossEntropy::kTransformerEngine, costmodel::CrossEntropy::kNative,
                                         costmodel::CrossEntropy::kUnfused, costmodel::CrossEntropy::kTorch),
      .gradient_accumulation_fusion = coin(),
      .router_fp32 = coin()};
  o.layer.software.fused_grouped_mlp = o.layer.software.grouped_gemm && coin();
  o.pipeline.microbatch_group_size = *rc::gen::inRange<std::int64_t>(0, 9);
  if (coin()) o.layer.capacity_factor = *rc::gen::elementOf(std::vector<double>{0.5, 1.0, 1.1, 1.25});
  o.layer.pad_to_capacity = o.layer.capacity_factor && coin();
  o.layer.expert_load = *rc::gen::elementOf(std::vector<double>{0.9, 1.0, 1.5});
  o.layer.fp8_attention = coin();
  o.layer.lora = coin();
  if (o.layer.lora) {
    o.layer.lora_dim = *rc::gen::inRange<std::int64_t>(1, 100);
    o.layer.lora_modules = any_subset(lora_module_names());
    if (o.layer.lora_modules.empty()) o.layer.lora_modules = {costmodel::LoraModule::kLinearQkv};
  }
  return o;
}

RC_GTEST_PROP(RunFile, WritingAndReadingGivesTheSameOptions, ()) {
  const TrainingOptions options = any_options();
  const TrainingRun run = read_text(write_run("mixtral-8x7b", "h200", options.layout().world(), options).dump(1));
  RC_ASSERT(run.options == options);
  RC_ASSERT(run.assumed.empty());
  RC_ASSERT(run.num_gpus == options.layout().world());
}

TEST(RunFile, AWrittenLayoutStringReadsBack) {
  TrainingOptions options;
  options.set_layout({.tp = 1, .cp = 1, .dp = 2, .pp = 2, .vpp = 2, .ep = 2, .etp = 1});
  options.pipeline.layout = "Et*9|t*8|t*8|t*7L";
  EXPECT_EQ(read_text(write_run("mixtral-8x7b", "h200", 4, options).dump()).options, options);
}

TEST(RunFile, EveryPublishedRowLoadsOrSaysWhyNot) {
  // 347 rows: 4 without a sequence length, 3 without a global batch, 7 of two models whose geometry is not public.
  const RunList published = load_runs(std::string(FW_DATA_DIR) + "/runs/published_runs.json");
  EXPECT_EQ(published.runs.size(), 333U);
  ASSERT_EQ(published.unreadable.size(), 14U);
  std::map<std::string, int> reasons;
  for (const Unreadable& row : published.unreadable) {
    for (const char* reason :
         {"seq_len: expected", "global_batch: expected", "\"nemotronh-56b\"", "\"nemotron-3.5-lightning-30b-a3b\""})
      if (row.reason.find(reason) != std::string::npos) ++reasons[reason];
    EXPECT_EQ(row.reason.rfind("line ", 0), 0U) << row.reason;
  }
  EXPECT_THAT(reasons,
              testing::ElementsAre(testing::Pair("\"nemotron-3.5-lightning-30b-a3b\"", 2),
                                   testing::Pair("\"nemotronh-56b\"", 5), testing::Pair("global_batch: expected", 3),
                                   testing::Pair("seq_len: expected", 4)));
}

TEST(RunFile, EveryRowOfOurOwnMeasurementsLoads) {
  for (const auto& [name, count] : {std::pair{"h200x4_runs", 14U}, std::pair{"h200x4_te_runs", 20U}}) {
    const RunList list = load_runs(std::string(FW_DATA_DIR) + "/runs/" + name + ".json");
    EXPECT_EQ(list.runs.size(), count);
    EXPECT_TRUE(list.unreadable.empty());
    for (const TrainingRun& run : list.runs) {
      EXPECT_TRUE(run.measured.step_time_s && run.measured.peak_memory_gib && run.measured.peak_reserved_gib) << run.id;
      EXPECT_TRUE(violations({run.model, run.hardware, run.num_gpus}, run.options).empty()) << run.id;
    }
  }
}

TEST(RunFile, EveryLoadedRowIsWrittenAndReadBack) {
  for (const TrainingRun& run : load_runs(std::string(FW_DATA_DIR) + "/runs/published_runs.json").runs) {
    const TrainingRun again = read_text(write_run(run).dump());
    EXPECT_EQ(again.options, run.options) << run.id;
    EXPECT_EQ(again.model.mtp_num_layers, run.model.mtp_num_layers) << run.id;
    EXPECT_EQ(again.model.num_layers(), run.model.num_layers()) << run.id;
  }
}

TEST(RunFile, OurStockRunHasTheKernelsThatItsSoftwareNames) {
  const RunList list = load_runs(std::string(FW_DATA_DIR) + "/runs/h200x4_runs.json");
  const auto stock = std::find_if(list.runs.begin(), list.runs.end(),
                                  [](const TrainingRun& run) { return run.id == "h200x4-mix-ep4-stock"; });
  ASSERT_NE(stock, list.runs.end());
  const costmodel::Software& software = stock->options.layer.software;
  EXPECT_FALSE(software.transformer_engine || software.fused_attention || software.fused_permute ||
               software.grouped_gemm || software.cross_entropy == costmodel::CrossEntropy::kTransformerEngine ||
               software.gradient_accumulation_fusion);
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

// Megatron's command line fuses neither loss nor permutation unless told to, recipes do both, and SimuMax's notes tell
// of the loss: what does a silent file mean?
TEST(RunFile, SilenceOnFusionsMeansWhatStartedTheRun) {
  using costmodel::CrossEntropy;
  json row = smallest();
  row["model"] = "qwen3-30b-a3b";
  const TrainingRun silent = read_text(row.dump());
  EXPECT_EQ(silent.options.layer.software.cross_entropy, CrossEntropy::kUnfused);
  EXPECT_FALSE(silent.options.layer.software.fused_permute);
  EXPECT_TRUE(assumes(silent, "software.cross_entropy", "unfused"));
  EXPECT_TRUE(assumes(silent, "software.permute", "unfused"));
  for (const char* title : {"Megatron-Bridge performance summary", "DGX Cloud benchmarking recipes 25.05 (NeMo 2)"}) {
    json recipe = published_row();
    recipe["source"]["title"] = title;
    EXPECT_EQ(read_text(recipe.dump()).options.layer.software.cross_entropy, CrossEntropy::kTransformerEngine) << title;
    EXPECT_TRUE(read_text(recipe.dump()).options.layer.software.fused_permute) << title;
  }
  row["notes"] = "Megatron-LM 0.14-era, fused CE";
  EXPECT_EQ(read_text(row.dump()).options.layer.software.cross_entropy, CrossEntropy::kTransformerEngine);
  row["software"] = {{"cross_entropy", "native"}, {"permute", "fused"}};
  const TrainingRun stated = read_text(row.dump());
  EXPECT_EQ(stated.options.layer.software.cross_entropy, CrossEntropy::kNative);
  EXPECT_TRUE(stated.options.layer.software.fused_permute);
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
                                                                       {"recompute", "none"},
                                                                       {"cuda_graph", "none"},
                                                                       {"overlaps.dp_grad", "true"}})
    EXPECT_TRUE(assumes(run, field, value)) << field;
}

TEST(RunFile, ABridgeRowTakesTheDefaultsOfItsRecipes) {
  json row = published_row();
  row["precision"] = "fp8-unspecified";
  const TrainingRun run = read_text(row.dump());
  EXPECT_EQ(run.options.layer.dispatcher, costmodel::Dispatcher::kAllToAll);
  EXPECT_EQ(run.options.layer.precision, costmodel::Precision::kFp8Current);  // Hopper
  EXPECT_FALSE(run.options.layer.grad_reduce_in_fp32);
  EXPECT_TRUE(run.options.step.optimizer.low_precision_param_gather);
  row["system"] = "gb200-nvl72";
  EXPECT_EQ(read_text(row.dump()).options.layer.precision, costmodel::Precision::kMxfp8);
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

TEST(RunFile, AnUnevenSplitIsAssumedForPublishedRowsOnly) {
  json row = published_row();
  row["model"] = "llama3.1-405b";  // 126 layers; with embedding and loss 128 = 8 x 16
  row["num_gpus"] = 64;
  row["pp"] = 8;
  row.erase("ep");
  EXPECT_EQ(read_text(row.dump()).options.pipeline.layout, "Et*15|(t*16|)*6t*15L");
  row.erase("source");
  EXPECT_EQ(read_text(row.dump()).options.pipeline.layout, "");
}

// Every way in which Megatron names a split comes to a layout: 126 layers as 128 places, or with counts of both ends.
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
        BadFile{"empty",
                "run_empty.json:1: not valid JSON at column 1: syntax error while parsing value - unexpected end of "
                "input; expected '[', '{', or a literal"},
        BadFile{"fraction", "run_fraction.json:7: /micro_batch: expected a whole number, found 1.5"},
        BadFile{"indivisible",
                "run_indivisible.json:4: /num_gpus: 64 GPUs cannot be divided by tp x cp x pp = 3 x 1 x 4 = 12"},
        BadFile{
            "layout_of_other_model",
            "run_layout_of_other_model.json:15: /pipeline_layout: expected 32 t, one per decoder layer, found 31 t"},
        BadFile{"missing_model", "run_missing_model.json:1: /model: expected a text in quotes, found nothing"},
        BadFile{"missing_seq_len", "run_missing_seq_len.json:1: /seq_len: expected a whole number, found nothing"},
        BadFile{"mistyped", "run_mistyped.json:8: /tp: expected a whole number, found \"2\""},
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
                "run_unknown_system.json:3: /system: expected a built-in system (a100-sxm-80gb, b200, b300, "
                "gb200-nvl72, gb300-nvl72, h100-96gb-hbm2e-500w, h100-sxm-80gb, h200, h800) or a path that ends in "
                ".json, found \"h20\"; the nearest is \"h200\""},
        BadFile{"vpp_contradicts_layout",
                "run_vpp_contradicts_layout.json:15: /vpp: 2 contradicts pipeline_layout: 4 stages over pp = 4 make "
                "vpp = 1"}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace foldwise::planner

// Do the proposed changes make a run fit, by the same prediction and the same rules as any other run, do they differ in
// what they change, and is none that is cheaper left out?
#include "planner/search/fitting.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "costmodel/step/reserved_memory.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/report/fitting_report.h"
#include "tests/usual_options.h"

namespace foldwise::planner::fitting_test {
namespace {

using costmodel::DataType;
using costmodel::Dispatcher;
using costmodel::Hardware;
using costmodel::ModelSpec;
using costmodel::OffloadModule;
using costmodel::Prediction;
using costmodel::RecomputeGranularity;
using costmodel::RecomputeModule;
using costmodel::TrainingOptions;

const ModelSpec& qwen() {
  static const ModelSpec model = load_model("qwen3-30b-a3b");
  return model;
}

Hardware h100(double capacity_gib) {
  static const Hardware hardware = hwprofiles::load_profile("h100-sxm-80gb").hardware;
  Hardware changed = hardware;
  changed.hbm_capacity = from_gib(capacity_gib);
  return changed;
}

constexpr std::int64_t kGpus = 32;

TrainingOptions pipeline_run() {
  TrainingOptions o = usual_options();
  o.set_layout({.tp = 1, .cp = 1, .dp = 16, .pp = 2, .vpp = 3, .ep = 8, .etp = 1});
  o.pipeline.global_batch = 256;
  o.layer.micro_batch = 2;
  o.layer.dispatcher = Dispatcher::kAllToAll;
  return o;
}

double gib_of(const TrainingOptions& options) {
  return in_gib(costmodel::predict(qwen(), options, h100(80.0)).peak_memory);
}

// Fields of the run file that differ. All sizes and the split of layers count as one. Overlaps that are written only
// because the sizes give them an effect (tp with tensor parallelism) do not count.
std::optional<Fitting> fitted(const Problem& problem, const TrainingOptions& options, std::size_t top = 3) {
  return fitting(problem, options, costmodel::predict(problem.model, options, problem.hardware), top);
}

std::set<std::string> changed_fields(const TrainingOptions& base, const TrainingOptions& changed) {
  const nlohmann::json before = write_run("qwen3-30b-a3b", "h100-sxm-80gb", kGpus, base),
                       after = write_run("qwen3-30b-a3b", "h100-sxm-80gb", kGpus, changed);
  const std::set<std::string> sizes = {
      "tp", "cp", "dp", "pp", "vpp", "ep", "etp", "pipeline_layout", "sequence_parallel"};
  const bool same_overlaps = base.layer.overlaps == changed.layer.overlaps &&
                             base.pipeline.overlaps == changed.pipeline.overlaps &&
                             base.step.overlaps == changed.step.overlaps;
  std::set<std::string> fields;
  for (const auto& [field, value] : after.items())
    if (value != before.value(field, nlohmann::json()) && !(field == "overlaps" && same_overlaps))
      fields.insert(sizes.count(field) > 0 ? "sizes" : field);
  return fields;
}

bool changes_all_of(const std::set<std::string>& fields, const std::set<std::string>& others) {
  return std::includes(fields.begin(), fields.end(), others.begin(), others.end());
}

// A check as done by hand: predicts each changed run, and applies every rule to it.
void expect_true_to_prediction(const Hardware& hardware, const TrainingOptions& base, const Fitting& fitting) {
  const Problem problem{qwen(), hardware, kGpus};
  const Prediction before = costmodel::predict(qwen(), base, hardware);
  EXPECT_NEAR(fitting.over.to<double>(), (before.peak_memory - hardware.hbm_capacity).to<double>(), 1.0);
  EXPECT_EQ(before.memory[fitting.stage].total(), before.peak_memory);
  for (const FittingChange& change : fitting.changes) {
    EXPECT_FALSE(change.steps.empty());
    EXPECT_FALSE(change.options == base);
    EXPECT_FALSE(first_violation(problem, change.options).has_value()) << change.steps.front();
    const Prediction after = costmodel::predict(qwen(), change.options, hardware);
    EXPECT_EQ(after.fits, change.fits);
    EXPECT_DOUBLE_EQ(after.step_time.to<double>(), change.step_time.to<double>());
    EXPECT_DOUBLE_EQ(after.peak_memory.to<double>(), change.peak_memory.to<double>());
    EXPECT_NEAR((before.peak_memory - after.peak_memory).to<double>(), change.saved.to<double>(), 1.0);
    EXPECT_NEAR((after.step_time - before.step_time).to<double>(), change.cost.to<double>(), 1e-12);
    EXPECT_LE(change.host, hardware.host.memory_per_gpu);
  }
}

TEST(Fitting, ProposesNothingForARunThatFits) {
  const Hardware hardware = h100(gib_of(pipeline_run()) + 0.1);
  EXPECT_FALSE(fitted({qwen(), hardware, kGpus}, pipeline_run()).has_value());
}

TEST(Fitting, EveryChangeIsWhatPredictSaysOfIt) {
  for (const double missing : {1.0, 5.0, 15.0, 30.0}) {
    const Hardware hardware = h100(gib_of(pipeline_run()) - missing);
    const auto result = fitted({qwen(), hardware, kGpus}, pipeline_run());
    ASSERT_TRUE(result.has_value());
    EXPECT_NEAR(in_gib(result->over), missing, 1e-6);
    EXPECT_EQ(result->changes.size(), 3U) << missing;
    expect_true_to_prediction(hardware, pipeline_run(), *result);
    EXPECT_TRUE(
        std::is_sorted(result->changes.begin(), result->changes.end(),
                       [](const FittingChange& a, const FittingChange& b) { return a.step_time < b.step_time; }));
    for (const FittingChange& change : result->changes) EXPECT_TRUE(change.fits) << missing;
  }
}

// Single changes written down here independently: is one that fits and is not listed slower than a listed one that
// changes the same field?
TEST(Fitting, NoSingleChangeIsCheaperThanTheListedOneOfItsField) {
  std::vector<TrainingOptions> singles;
  const auto add = [&](auto&& edit) {
    singles.push_back(pipeline_run());
    edit(singles.back());
  };
  for (const RecomputeModule module :
       {RecomputeModule::kCoreAttn, RecomputeModule::kMoeAct, RecomputeModule::kLayerNorm, RecomputeModule::kMoe})
    add([&](TrainingOptions& o) {
      o.set_recompute({.granularity = RecomputeGranularity::kSelective, .modules = {module}});
    });
  add([](TrainingOptions& o) { o.layer.recompute.granularity = RecomputeGranularity::kFull; });
  add([](TrainingOptions& o) { o.layer.micro_batch = 1; });
  add([](TrainingOptions& o) {
    o.step.optimizer.precision_aware = true;
    o.step.optimizer.exp_avg = o.step.optimizer.exp_avg_sq = DataType::kBf16;
  });
  add([](TrainingOptions& o) { o.layer.grad_reduce_in_fp32 = false; });
  add([](TrainingOptions& o) { o.layer.offload_modules = {OffloadModule::kExpertFc1}; });
  add([](TrainingOptions& o) { o.layer.offload_modules = {OffloadModule::kMoeAct}; });
  add([](TrainingOptions& o) {
    o.step.optimizer.precision_aware = true;
    o.step.offload.optimizer_fraction = 1.0;
  });
  add([](TrainingOptions& o) { o.step.offload.optimizer_states = true; });
  add([](TrainingOptions& o) { o.layer.ep = 16; });
  add([](TrainingOptions& o) {
    o.layer.tp = 2;
    o.step.dp = 8;
  });
  add([](TrainingOptions& o) {
    o.layer.cp = 2;
    o.step.dp = 8;
  });
  add([](TrainingOptions& o) {
    o.pipeline.pp = 4;
    o.step.dp = 8;
  });
  for (const double missing : {0.5, 3.0, 8.0, 20.0, 30.0}) {
    const Hardware hardware = h100(gib_of(pipeline_run()) - missing);
    const Problem problem{qwen(), hardware, kGpus};
    const auto result = fitted(problem, pipeline_run(), 40);
    ASSERT_TRUE(result.has_value());
    ASSERT_FALSE(result->changes.empty());
    for (const TrainingOptions& o : singles) {
      ASSERT_FALSE(first_violation(problem, o).has_value());
      const Prediction p = costmodel::predict(qwen(), o, hardware);
      if (!p.fits) continue;
      EXPECT_LE(result->changes.front().step_time.to<double>(), p.step_time.to<double>()) << missing;
      const std::set<std::string> fields = changed_fields(pipeline_run(), o);
      const bool known = std::any_of(result->changes.begin(), result->changes.end(), [&](const FittingChange& change) {
        return change.step_time <= p.step_time &&
               changes_all_of(fields, changed_fields(pipeline_run(), change.options));
      });
      EXPECT_TRUE(known) << missing << ' ' << *fields.begin();
    }
  }
}

// Does each listed change leave alone something that every earlier one changes? From half a GiB short, where most
// single changes suffice, to 70 GiB, where no two do.
TEST(Fitting, ListedChangesDifferInWhatTheyChange) {
  for (const double missing : {0.5, 5.0, 30.0, 70.0}) {
    const Hardware hardware = h100(gib_of(pipeline_run()) - missing);
    const auto result = fitted({qwen(), hardware, kGpus}, pipeline_run(), 40);
    ASSERT_TRUE(result.has_value());
    EXPECT_GE(result->changes.size(), 3U) << missing;
    EXPECT_EQ(result->changes.front().fits, missing < 70.0);
    for (std::size_t later = 1; later < result->changes.size(); ++later)
      for (std::size_t earlier = 0; earlier < later; ++earlier)
        EXPECT_FALSE(changes_all_of(changed_fields(pipeline_run(), result->changes[later].options),
                                    changed_fields(pipeline_run(), result->changes[earlier].options)))
            << missing << ' ' << result->changes[later].steps.front();
  }
}

// Weights alone exceed 4 GiB. Nothing fits, and the change that saves most comes first.
TEST(Fitting, WithoutAnAnswerListsWhatSavesMost) {
  const Hardware hardware = h100(4.0);
  const auto result = fitted({qwen(), hardware, kGpus}, pipeline_run());
  ASSERT_TRUE(result.has_value());
  ASSERT_EQ(result->changes.size(), 3U);
  expect_true_to_prediction(hardware, pipeline_run(), *result);
  for (const FittingChange& change : result->changes) {
    EXPECT_FALSE(change.fits);
    EXPECT_EQ(change.steps.size(), 2U);
  }
  EXPECT_GE(result->changes[0].saved, result->changes[1].saved);
  EXPECT_GE(result->changes[1].saved, result->changes[2].saved);
  EXPECT_NE(fitting_text(*result).find("No one or two changes make it fit"), std::string::npos);
}

// Offloading the optimizer of 30 B parameters needs host memory. On a host without memory nothing may be moved there.
TEST(Fitting, RespectsTheMemoryOfTheHost) {
  Hardware hardware = h100(gib_of(pipeline_run()) - 5.0);
  hardware.host.memory_per_gpu = from_gib(0.001);
  const auto result = fitted({qwen(), hardware, kGpus}, pipeline_run(), 20);
  ASSERT_TRUE(result.has_value());
  for (const FittingChange& change : result->changes) EXPECT_EQ(change.host, Bytes{});
}

// A run that offloads more than the host can hold does not fit, however empty its device. The shortage is named, and
// the proposed changes need less host memory.
TEST(Fitting, NamesAShortageOfHostMemory) {
  TrainingOptions offloading = pipeline_run();
  offloading.step.offload.optimizer_fraction = 1.0;
  Hardware hardware = h100(2.0 * gib_of(pipeline_run()));
  hardware.host.memory_per_gpu = from_gib(1.0);
  const auto result = fitted({qwen(), hardware, kGpus}, offloading);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->over, Bytes{});
  EXPECT_GT(result->host_over, Bytes{});
  ASSERT_FALSE(result->changes.empty());
  EXPECT_TRUE(result->changes.front().fits);
  EXPECT_LE(result->changes.front().host, hardware.host.memory_per_gpu);
}

// Do changes fit when torch's allocator is replayed, and is a run for which it alone has no room answered too?
TEST(Fitting, HasRoomForWhatTorchReserves) {
  const TrainingOptions options = pipeline_run();
  const Hardware hardware = h100(gib_of(options) - 1.0);
  const auto room = [&](const TrainingOptions& o) {
    const costmodel::Step step = costmodel::compose_step(qwen(), o, hardware);
    Prediction prediction = costmodel::predict(step);
    EXPECT_TRUE(costmodel::add_reserved(step, prediction));
    return prediction;
  };
  const auto result = fitted({qwen(), hardware, kGpus}, options);
  ASSERT_TRUE(result.has_value() && !result->changes.empty());
  for (const FittingChange& change : result->changes) EXPECT_TRUE(room(change.options).fits) << change.steps.front();
  Prediction out = costmodel::predict(qwen(), options, h100(gib_of(options) + 1.0));
  out.fits = false;  // As after a replay that ran out.
  const auto of_torch = fitting({qwen(), hardware, kGpus}, options, out);
  ASSERT_TRUE(of_torch.has_value());
  EXPECT_FALSE(of_torch->changes.empty());
}

// Graphs of the router exclude recomputation of the MoE block. A proposal of the latter drops the graphs and says so.
TEST(Fitting, DropsGraphsWhereAChangeExcludesThem) {
  TrainingOptions o = pipeline_run();
  o.layer.cuda_graph = {.impl = costmodel::GraphImpl::kTransformerEngine,
                        .modules = {costmodel::GraphModule::kAttn, costmodel::GraphModule::kMoeRouter,
                                    costmodel::GraphModule::kMoePreprocess}};
  TrainingOptions eager = o;
  eager.layer.cuda_graph = {};
  const Hardware hardware = h100(gib_of(eager) - 10.0);  // Dropping the graphs alone does not suffice.
  const Problem problem{qwen(), hardware, kGpus};
  const auto result = fitted(problem, o, 1000);
  ASSERT_TRUE(result.has_value());
  const auto found = std::find_if(result->changes.begin(), result->changes.end(), [](const FittingChange& c) {
    return c.steps.size() == 2 && c.steps[0].starts_with("recompute") && c.steps[1] == "no CUDA graphs";
  });
  ASSERT_NE(found, result->changes.end());
  const FittingChange& change = *found;
  TrainingOptions kept = change.options;
  EXPECT_EQ(kept.layer.cuda_graph, costmodel::CudaGraph{});
  kept.layer.cuda_graph = o.layer.cuda_graph;
  EXPECT_TRUE(first_violation(problem, kept).has_value());
}

// 48 layers do not split evenly over 2 x 5 stages, nor over 4 x 5: does PP doubled bring a layout string of its own?
TEST(Fitting, SplitsLayersAnewForADeeperPipeline) {
  TrainingOptions o = pipeline_run();
  o.pipeline.vpp = 5;
  o.layer.micro_batch = 1;
  o.layer.seq_len = 512;  // Weights dominate, so more stages save most.
  o.pipeline.layout = "Et*4|t*5|t*5|t*5|t*5|t*5|t*5|t*5|t*5|t*4L";
  const Hardware hardware = h100(4.0);
  const auto result = fitted({qwen(), hardware, kGpus}, o);
  ASSERT_TRUE(result.has_value());
  const FittingChange& deeper = result->changes.front();
  EXPECT_EQ(deeper.steps.back(), "pp 2 -> 4");
  EXPECT_EQ(deeper.options.pipeline.pp, 4);
  EXPECT_EQ(deeper.options.step.dp, 8);
  EXPECT_NE(deeper.options.pipeline.layout, "");
  EXPECT_NE(deeper.options.pipeline.layout, o.pipeline.layout);
}

TEST(Fitting, JsonCarriesARunFileThatFits) {
  planner::Run run;  // Inside a test, Run is a member of the test class.
  run.id = "short";
  run.model_name = "qwen3-30b-a3b";
  run.system_name = "h100-sxm-80gb";
  run.num_gpus = kGpus;
  run.model = qwen();
  run.hardware = h100(gib_of(pipeline_run()) - 3.0);
  run.options = pipeline_run();
  const auto result = fitted({run.model, run.hardware, run.num_gpus}, run.options);
  ASSERT_TRUE(result.has_value());
  const nlohmann::json json = fitting_json(run, *result);
  EXPECT_NEAR(json["over_gib"].get<double>(), 3.0, 1e-6);
  ASSERT_EQ(json["changes"].size(), result->changes.size());
  for (std::size_t i = 0; i < result->changes.size(); ++i) {
    const nlohmann::json& change = json["changes"][i];
    EXPECT_TRUE(change["fits"].get<bool>());
    EXPECT_DOUBLE_EQ(change["step_time_s"].get<double>(), result->changes[i].step_time.to<double>());
    config::Diagnostics diagnostics;
    const config::Document document = config::Document::parse(change["run"].dump(), "run.json");
    config::ObjectReader reader(document, diagnostics);
    EXPECT_EQ(read_run(reader, diagnostics).options, result->changes[i].options);
    diagnostics.throw_if_any();
  }
}

// Is a run that does not fit answered with changes that do fit, or with none, and one that fits with nothing?
RC_GTEST_PROP(Fitting, AnyShortageGetsChangesThatFitOrSaysThatNoneDoes, ()) {
  TrainingOptions o = pipeline_run();
  o.layer.micro_batch = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  o.set_recompute(*rc::gen::elementOf(std::vector<costmodel::Recompute>{
      {}, {.granularity = RecomputeGranularity::kSelective, .modules = {RecomputeModule::kMoeAct}}}));
  const Hardware hardware = h100(*rc::gen::inRange(10, 100));
  const Problem problem{qwen(), hardware, kGpus};
  const auto result = fitted(problem, o);
  RC_ASSERT(result.has_value() != costmodel::predict(qwen(), o, hardware).fits);
  if (!result) return;
  RC_ASSERT(result->over > Bytes{});
  for (const FittingChange& change : result->changes) {
    RC_ASSERT(change.fits == result->changes.front().fits);
    RC_ASSERT(!first_violation(problem, change.options).has_value());
    RC_ASSERT(change.fits == static_cast<bool>(change.peak_memory <= hardware.hbm_capacity));
  }
}

}  // namespace
}  // namespace foldwise::planner::fitting_test

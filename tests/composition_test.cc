// Does a step add up? Stages against layers, memory against its parts, the breakdown against the step time.
#include "costmodel/step/composition.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "costmodel/ops/edit.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"

namespace foldwise::costmodel {
namespace {

const Hardware& gb200() {
  static const Hardware hardware = hwprofiles::load_profile("gb200-nvl72").hardware;
  return hardware;
}

const ModelSpec& deepseek() {
  static const ModelSpec model = planner::load_model("deepseek-v3");
  return model;
}

// The layout published for DeepSeek-V3 on 256 GB200.
TrainingOptions published() {
  TrainingOptions o;
  o.layout = {.tp = 1, .cp = 1, .dp = 64, .pp = 4, .vpp = 4, .ep = 64, .etp = 1};
  o.global_batch = 4096;
  o.precision = Precision::kMxfp8;
  o.dispatcher = Dispatcher::kHybridEp;
  o.recompute = {.granularity = RecomputeGranularity::kSelective, .modules = {RecomputeModule::kMlaUpProj}};
  o.pipeline_layout = "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|tmL";
  return o;
}

TEST(Prediction, BreakdownAddsUpToTheStepAndDetailToTheBreakdown) {
  for (const bool overlap : {false, true}) {
    TrainingOptions o = published();
    o.overlaps.ep_a2a = o.overlaps.delay_wgrad = overlap;
    const Prediction p = predict(deepseek(), o, gb200());
    EXPECT_NEAR(p.breakdown.total().to<double>(), p.step_time.to<double>(), 1e-9);
    EXPECT_GE(p.breakdown.bubble.to<double>(), 0.0);
    Seconds compute{}, communication{};
    for (const DetailEntry& entry : p.detail) {
      if (entry.cause == "compute") compute += entry.seconds;
      if (entry.cause == "exposed_communication") communication += entry.seconds;
    }
    EXPECT_NEAR(compute.to<double>(), p.breakdown.compute.to<double>(), 1e-6);
    EXPECT_NEAR(communication.to<double>(), p.breakdown.exposed_communication.to<double>(), 1e-6);
    for (const StageMemory& stage : p.memory) EXPECT_LE(stage.total(), p.peak_memory);
    EXPECT_TRUE(p.fits);
  }
}

// Tokens per second and TFLOPS follow from the step time: 4096 * 4096 tokens on 256 GPUs.
TEST(Prediction, RatesFollowFromTheStepTime) {
  const Prediction p = predict(deepseek(), published(), gb200());
  const auto seconds = p.step_time.to<double>();
  EXPECT_NEAR(p.tokens_per_s_per_gpu, 65536.0 / seconds, 1e-6);
  const double flops = megatron_flops(deepseek(), 16777216.0, 16777216.0 * 4096.0);
  EXPECT_NEAR(p.model_tflops_per_gpu, flops / seconds / 256.0 / 1e12, 1e-6);
}

TEST(Stages, CostTheSumOfTheirLayers) {
  const TrainingOptions o = published();
  const BuildContext context{deepseek(), o, gb200()};
  const ModelKinds kinds = model_kinds(deepseek());
  ASSERT_EQ(kinds.kinds.size(), 2u);  // Three dense layers, 58 with experts.
  const ModelCosts costs = model_costs(context, kinds);
  const StageCost stage = stage_cost(context, kinds, costs, {.first_layer = 1, .num_layers = 4});  // 2 dense, 2 MoE.
  const auto sum = [](const BlockCost& c) { return (c.forward.compute + c.backward.compute).to<double>(); };
  EXPECT_NEAR(sum(stage.cost), 2.0 * sum(costs.covered[0]) + 2.0 * sum(costs.covered[1]), 1e-12);
  EXPECT_NEAR(stage.cost.parameters.total(),
              2.0 * costs.covered[0].parameters.total() + 2.0 * costs.covered[1].parameters.total(), 1.0);
}

// All parameters of the model sit on some rank: EP 64 and EDP 1 hold each expert once; 671.03 B + MTP 11.61 B + the
// copy of the embedding table that the MTP stage holds.
TEST(Stages, HoldEveryParameterOfTheModel) {
  const TrainingOptions o = published();
  const BuildContext context{deepseek(), o, gb200()};
  const ModelKinds kinds = model_kinds(deepseek());
  const Composition c = compose(context, kinds, model_costs(context, kinds), stage_layout(deepseek(), o));
  double dense = 0.0, expert = 0.0;
  for (const ParameterCount& count : c.parameters) {
    dense += count.dense;
    expert += count.expert;
  }
  const ParameterTotals totals = parameter_totals(deepseek());
  const double embedding_copy = 129280.0 * 7168.0;
  EXPECT_NEAR(dense + 64.0 * expert, static_cast<double>(totals.total_with_mtp) + embedding_copy, 64.0);
}

// bf16 weights 2, fp32 gradients 4, fp32 master and two states 12 / shards: dense over 64 data-parallel ranks, experts
// (EDP 1) unsharded.
TEST(StaticMemory, IsMegatronsSumForTheDistributedOptimizer) {
  TrainingOptions o = published();
  o.precision = Precision::kBf16;
  const BuildContext context{deepseek(), o, gb200()};
  const ParameterCount count{.dense = 64e6, .expert = 1e9};
  const StaticBytes bytes = static_bytes(context, count);
  EXPECT_DOUBLE_EQ(bytes.parameters.to<double>(), 2.0 * 1.064e9);
  EXPECT_DOUBLE_EQ(bytes.gradients.to<double>(), 4.0 * 1.064e9);
  EXPECT_DOUBLE_EQ(bytes.optimizer.to<double>(), 12.0 * (1e6 + 1e9));
}

// What each strategy of Megatron-FSDP shards, per megatron/core/distributed/fsdp: 2, 4 and 12 bytes a parameter over 64
// data-parallel ranks (experts: EDP 1); HSDP over 16 of them, with the optimizer over all on request.
TEST(StaticMemory, FsdpShardsWhatItsStrategySays) {
  TrainingOptions o = published();
  o.precision = Precision::kBf16;
  const ParameterCount count{.dense = 64e6};
  const auto bytes = [&](Sharding sharding, std::int64_t group, bool outer) {
    o.sharding = sharding;
    o.fsdp_group = group;
    o.fsdp_outer_optim = outer;
    const StaticBytes b = static_bytes({deepseek(), o, gb200()}, count);
    return std::vector<double>{b.parameters.to<double>(), b.gradients.to<double>(), b.optimizer.to<double>()};
  };
  using List = std::vector<double>;
  EXPECT_EQ(bytes(Sharding::kFsdpOptim, 0, false), (List{128e6, 256e6, 12e6}));
  EXPECT_EQ(bytes(Sharding::kFsdpOptimGrads, 0, false), (List{128e6, 4e6, 12e6}));
  EXPECT_EQ(bytes(Sharding::kFsdp, 0, false), (List{2e6, 4e6, 12e6}));
  EXPECT_EQ(bytes(Sharding::kFsdp, 16, false), (List{8e6, 16e6, 48e6}));
  EXPECT_EQ(bytes(Sharding::kFsdp, 16, true), (List{8e6, 16e6, 12e6}));
}

// MXFP8 parameters have two layouts of 1 + 1/32 bytes, and a bf16 buffer of their own only on request.
TEST(StaticMemory, Mxfp8ParametersAreGatheredInTheGradientBuffer) {
  TrainingOptions o = published();
  o.precision = Precision::kMxfp8;
  o.optimizer.low_precision_param_gather = true;
  const ParameterCount count{.dense = 1e6, .quantised_dense = 1e6};
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, gb200()}, count).parameters.to<double>(), 2.0625e6);
  o.optimizer.reuse_grad_buffer = false;
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, gb200()}, count).parameters.to<double>(), 4.0625e6);
}

// Master and momentum everywhere, Adam's second state only beside the embedding and the head.
TEST(StaticMemory, MuonKeepsOneStateButForTheEmbeddings) {
  TrainingOptions o = published();
  o.precision = Precision::kBf16;
  o.optimizer.kind = costmodel::OptimizerKind::kMuon;
  const ParameterCount count{.dense = 64e6, .embedding = 16e6};
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, gb200()}, count).optimizer.to<double>(),
                   (8.0 * 64e6 + 4.0 * 16e6) / 64.0);
}

TEST(BalancedStages, LeaveNoStageSlowerThanAnyOtherSplitNeedsTo) {
  // Equal layers, free ends: 61 layers on 16 stages need stages of 4.
  TrainingOptions o = published();
  const BuildContext context{deepseek(), o, gb200()};
  const ModelKinds kinds = model_kinds(deepseek());
  const StageLayout layout = balanced_stages(kinds, model_costs(context, kinds), 1, 4, 4);
  std::int64_t layers = 0;
  for (const StageContent& stage : layout.stages) {
    EXPECT_EQ(stage.first_layer, layers);
    layers += stage.num_layers;
    EXPECT_LE(stage.num_layers, 5);
  }
  EXPECT_EQ(layers, 61);
  EXPECT_TRUE(layout.stages.front().embedding);
  EXPECT_TRUE(layout.stages.back().loss);
  EXPECT_EQ(layout.stages.back().mtp_layers, 1);
}

RC_GTEST_PROP(Prediction, FasterHardwareIsNeverSlower, ()) {
  Hardware faster = gb200();
  const double factor = *rc::gen::inRange(100, 300) / 100.0;
  for (GemmCurve& curve : faster.gemm) curve.peak *= factor;
  faster.hbm_bandwidth *= factor;
  for (AttentionCurve& row : faster.attention) {
    row.forward_rate *= factor;
    row.backward_rate *= factor;
  }
  TrainingOptions o = published();
  o.micro_batch = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2});
  const Seconds before = predict(deepseek(), o, gb200()).step_time, after = predict(deepseek(), o, faster).step_time;
  RC_ASSERT(static_cast<bool>(after <= before));
  RC_ASSERT(static_cast<bool>(factor * after >= before * 0.999 || after < before));
}

RC_GTEST_PROP(Prediction, MoreMicroBatchesTakeLonger, ()) {
  TrainingOptions o = published();
  const std::int64_t steps = *rc::gen::inRange(1, 8);
  o.global_batch = 256 * steps;
  const Seconds shorter = predict(deepseek(), o, gb200()).step_time;
  o.global_batch = 256 * (steps + 1);
  RC_ASSERT(static_cast<bool>(predict(deepseek(), o, gb200()).step_time > shorter));
}

// One stage as a single op list: embedding, layers, head, each piece edited as it is when it is costed alone.
OpList stage_list(const BuildContext& context, const StageContent& content) {
  const BitSet<RecomputeModule> recompute = recomputed_modules(context.options);
  OpList stage;
  const auto add = [&](OpList piece, BitSet<RecomputeModule> modules) {
    apply_recompute(piece, modules);
    append(stage, std::move(piece));
  };
  if (content.embedding) add(embedding_ops(context), {});
  for (std::int64_t i = content.first_layer; i < content.first_layer + content.num_layers; ++i) {
    const LayerSpec& layer = context.model.layers[static_cast<std::size_t>(i)];
    OpList mixer = mixer_ops(context, layer), mlp = mlp_ops(context, layer);
    if (recompute.contains(RecomputeModule::kFull)) {
      append(mixer, std::move(mlp));
      add(std::move(mixer), recompute);
    } else {
      add(std::move(mixer), recompute);
      add(std::move(mlp), recompute);
    }
  }
  if (content.loss) add(head_ops(context, 1), {});
  return stage;
}

// The few numbers that a candidate composes must give what the walk over all tensors of the stage gives.
RC_GTEST_PROP(Memory, ComposedLayersEqualTheWalkOverTheWholeStage, ()) {
  const auto name = *rc::gen::elementOf(
      std::vector<std::string>{"deepseek-v2", "qwen3-235b-a22b", "llama3-70b", "nemotron-3-nano-30b-a3b"});
  const ModelSpec model = planner::load_model(name);
  TrainingOptions o;
  o.layout.tp = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2});
  o.layout.dp = 8 / o.layout.tp;
  o.layout.ep = model.has_moe() ? *rc::gen::elementOf(std::vector<std::int64_t>{1, 4}) : 1;
  o.software.transformer_engine = o.software.gradient_accumulation_fusion = *rc::gen::arbitrary<bool>();
  o.software.cross_entropy =
      *rc::gen::element(costmodel::CrossEntropy::kTransformerEngine, costmodel::CrossEntropy::kNative);
  o.precision = *rc::gen::elementOf(std::vector<Precision>{Precision::kBf16, Precision::kFp8Current});
  o.recompute.granularity = *rc::gen::elementOf(std::vector<RecomputeGranularity>{
      RecomputeGranularity::kNone, RecomputeGranularity::kSelective, RecomputeGranularity::kFull});
  o.recompute.modules.bits = *rc::gen::inRange<std::uint16_t>(0, 128);
  const BuildContext context{model, o, gb200()};
  const ModelKinds kinds = model_kinds(model);
  StageContent content;
  content.first_layer = *rc::gen::inRange<std::int64_t>(0, 20);
  content.num_layers = *rc::gen::inRange<std::int64_t>(0, 12);
  content.embedding = *rc::gen::arbitrary<bool>();
  content.loss = *rc::gen::arbitrary<bool>();
  const MemoryProfile composed = stage_cost(context, kinds, model_costs(context, kinds), content).cost.memory,
                      walked = walk(stage_list(context, content));
  const auto near = [](Bytes a, Bytes b) { return std::abs((a - b).to<double>()) <= 1e-9 * b.to<double>() + 1.0; };
  RC_ASSERT(near(composed.kept, walked.kept));
  RC_ASSERT(near(composed.rests, walked.rests));
  RC_ASSERT(near(composed.forward_high, walked.forward_high));
  RC_ASSERT(near(composed.backward_high, walked.backward_high));
}

// Forward keeps 100 for the second step and 50 for the first; backward needs 30 and 20 of its own, the second step
// hands 10 on to the first: 150 + 30, then 150 + 10 - 100 + 20.
TEST(Memory, WalkFreesWhatAStepKeptWhenItsBackwardIsDone) {
  Op first, second, second_backward, first_backward;
  second.step = second_backward.step = 1;
  first.keeps.push_back({"a", Bytes{50.0}, {}, {}, 0, {}, {}});
  first.keeps.push_back({"b", Bytes{100.0}, {}, {}, 1, {}, {}});
  second.transient = {Bytes{5.0}};
  second_backward.transient = {Bytes{30.0}};
  second_backward.holds = first_backward.releases = Bytes{10.0};
  first_backward.transient = {Bytes{20.0}};
  second_backward.phase = first_backward.phase = Phase::kDgrad;
  const MemoryProfile profile = walk({{first, second}, {second_backward, first_backward}});
  EXPECT_EQ(profile.kept, Bytes{150.0});
  EXPECT_EQ(profile.forward_high, Bytes{155.0});
  EXPECT_EQ(profile.backward_high, Bytes{190.0});
  EXPECT_EQ(profile.repeated(3).backward_high, Bytes{490.0});
}

// At a fixed data-parallel size, splitting a model further never needs more memory for parameters, gradients,
// optimizer.
RC_GTEST_PROP(Memory, MoreTensorExpertOrPipelineParallelismNeverNeedsMoreStaticMemory, ()) {
  const ModelSpec& model = deepseek();
  const ModelKinds kinds = model_kinds(model);
  const auto fullest = [&](const Layout& layout) {
    TrainingOptions o;
    o.layout = layout;
    const BuildContext context{model, o, gb200()};
    const ModelCosts costs = model_costs(context, kinds);
    const Composition c = compose(context, kinds, costs, balanced_stages(kinds, costs, 0, layout.pp, 1));
    Bytes most{};
    for (const ParameterCount& count : c.parameters) {
      const StaticBytes bytes = static_bytes(context, count);
      most = std::max(most, bytes.parameters + bytes.gradients + bytes.optimizer);
    }
    return most;
  };
  Layout layout{.dp = 8};
  layout.tp = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  layout.ep = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  const Bytes before = fullest(layout);
  Layout more_tp = layout, more_ep = layout, more_pp = layout;
  more_tp.tp *= 2;
  more_ep.ep *= 2;
  more_pp.pp = 4;
  RC_ASSERT(static_cast<bool>(fullest(more_tp) <= before));
  RC_ASSERT(static_cast<bool>(fullest(more_ep) <= before));
  RC_ASSERT(static_cast<bool>(fullest(more_pp) <= before));
}

// The search's cheap test of memory must give rank_memory's answer.
RC_GTEST_PROP(Memory, FitsAgreesWithTheFullTable, ()) {
  Hardware small = gb200();
  small.hbm_capacity = from_gib(*rc::gen::inRange(60, 200));
  small.host.memory_per_gpu = from_gib(*rc::gen::inRange(10, 100));
  TrainingOptions o = published();
  o.micro_batch = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  o.recompute = *rc::gen::elementOf(std::vector<Recompute>{{}, o.recompute});
  o.overlaps.ep_a2a = *rc::gen::arbitrary<bool>();
  o.offload.optimizer_fraction = *rc::gen::elementOf(std::vector<double>{0.0, 0.5, 1.0});
  if (*rc::gen::arbitrary<bool>())
    o.cuda_graph = {GraphImpl::kTransformerEngine, {GraphModule::kAttn, GraphModule::kMoeRouter}};
  const BuildContext context{deepseek(), o, small};
  const ModelKinds kinds = model_kinds(deepseek());
  const Composition c = compose(context, kinds, model_costs(context, kinds), stage_layout(deepseek(), o));
  std::vector<PeakTable> peaks;
  bool all = true;
  for (std::int64_t rank = 0; rank < o.layout.pp; ++rank) {
    peaks.push_back(peak_table(c.times.shape, rank));
    const StageMemory memory = rank_memory(context, c, rank, peaks.back());
    all = all && memory.total() <= small.hbm_capacity && memory.host <= small.host.memory_per_gpu;
  }
  RC_ASSERT(static_cast<bool>(fits(context, c, peaks) == all));
}

}  // namespace
}  // namespace foldwise::costmodel

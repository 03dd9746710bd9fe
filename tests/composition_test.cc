// Does a step add up? Stages against layers, memory against its parts, the breakdown against the step time.
#include "costmodel/step/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/ops/edit.h"
#include "costmodel/step/communication.h"
#include "costmodel/step/data_parallel.h"
#include "costmodel/step/ledger.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "costmodel/step/step_timeline.h"
#include "hwprofiles/load/profile.h"
#include "planner/foldwise.h"
#include "planner/models/models.h"
#include "planner/run/run_file.h"
#include "tests/usual_options.h"

namespace foldwise::costmodel::composition_test {
namespace {

const Hardware& gb200() {
  static const Hardware hardware = hwprofiles::load_profile("gb200-nvl72").hardware;
  return hardware;
}

const ModelSpec& deepseek() {
  static const ModelSpec model = planner::load_model("deepseek-v3");
  return model;
}

// The published layout of DeepSeek-V3 on 256 GB200.
TrainingOptions published() {
  TrainingOptions o = usual_options();
  o.set_layout({.tp = 1, .cp = 1, .dp = 64, .pp = 4, .vpp = 4, .ep = 64, .etp = 1});
  o.pipeline.global_batch = 4096;
  o.layer.precision = Precision::kMxfp8;
  o.layer.dispatcher = Dispatcher::kHybridEp;
  o.set_recompute({.granularity = RecomputeGranularity::kSelective, .modules = {RecomputeModule::kMlaUpProj}});
  o.pipeline.layout = "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|tmL";
  return o;
}

// Does an answer that cannot be say in which run it shows?
TEST(Prediction, ThatIsUnsoundNamesTheRun) {
  foldwise::Run run = foldwise::load_run(FW_DOCS_DIR "/examples/deepseek-v3-gb200.json");
  run.hardware.overheads.context = Bytes{-1e15};
  try {
    static_cast<void>(foldwise::predict(run));
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("memory -"), testing::HasSubstr("of the run\n{"),
                                             testing::HasSubstr("\"num_gpus\": 256")));
  }
}

TEST(Prediction, BreakdownAddsUpToTheStepAndDetailToTheBreakdown) {
  for (const bool overlap : {false, true}) {
    TrainingOptions o = published();
    o.pipeline.overlaps.ep_a2a = o.pipeline.overlaps.delay_wgrad = overlap;
    const Prediction p = predict(deepseek(), o, gb200());
    EXPECT_NEAR(p.breakdown.total().to<double>(), p.step_time.to<double>(), 1e-9);
    EXPECT_GE(p.breakdown.bubble.to<double>(), 0.0);
    Seconds compute{}, communication{};
    for (const DetailEntry& entry : p.detail()) {
      if (entry.cause == Cause::kCompute) compute += entry.seconds;
      if (entry.cause == Cause::kCommunication) communication += entry.seconds;
    }
    EXPECT_NEAR(compute.to<double>(), p.breakdown.compute.to<double>(), 1e-6);
    EXPECT_NEAR(communication.to<double>(), p.breakdown.exposed_communication.to<double>(), 1e-6);
    for (const StageMemory& stage : p.memory) EXPECT_LE(stage.total(), p.peak_memory);
    EXPECT_TRUE(p.fits);
  }
}

// Runs of every schedule, with and without overlap, recomputation and offloading.
TrainingOptions any_pipeline_run() {
  TrainingOptions o = published();
  o.pipeline.layout.clear();
  const auto kind = *rc::gen::element(Schedule::kOneF1B, Schedule::kOneF1B, Schedule::kGpipe, Schedule::kZbH1,
                                      Schedule::kZbV, Schedule::kDualPipe, Schedule::kDualPipeV);
  o.pipeline.schedule = kind;
  o.pipeline.vpp = kind == Schedule::kOneF1B     ? *rc::gen::element<std::int64_t>(1, 2, 4)
                   : kind == Schedule::kDualPipe ? 1
                                                 : chunks_of(kind, 1);
  o.layer.tp = *rc::gen::element<std::int64_t>(1, 2);
  o.layer.cp = *rc::gen::element<std::int64_t>(1, 2);
  o.pipeline.pp = *rc::gen::element<std::int64_t>(1, 2, 4);
  if (kind == Schedule::kDualPipe || kind == Schedule::kDualPipeV || o.pipeline.vpp > 1)
    o.pipeline.pp = std::max<std::int64_t>(2, o.pipeline.pp);
  o.step.dp = 256 / (o.layer.tp * o.layer.cp * o.pipeline.pp);
  o.pipeline.global_batch = o.step.dp * *rc::gen::element<std::int64_t>(8, 12, 16);
  o.step.overlaps.dp_grad = *rc::gen::arbitrary<bool>();
  o.step.overlaps.dp_param = o.step.overlaps.dp_grad && *rc::gen::arbitrary<bool>();
  o.step.overlaps.param_gather_with_optimizer_step =
      o.step.overlaps.dp_param && o.pipeline.vpp > 1 && *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) o.step.sharding = Sharding::kDdp;
  const bool pairs = kind == Schedule::kDualPipe || kind == Schedule::kDualPipeV || o.pipeline.vpp > 1;
  o.pipeline.overlaps.ep_a2a = o.pipeline.overlaps.delay_wgrad =
      pairs && kind != Schedule::kZbV && *rc::gen::arbitrary<bool>();
  o.layer.overlaps.tp = *rc::gen::arbitrary<bool>();
  o.set_recompute(*rc::gen::elementOf(std::vector<Recompute>{
      {},
      o.recompute(),
      {.granularity = RecomputeGranularity::kFull},
      {.granularity = RecomputeGranularity::kFull, .method = RecomputeMethod::kBlock, .num_layers = 2}}));
  if (*rc::gen::arbitrary<bool>() && o.layer.recompute.granularity == RecomputeGranularity::kNone)
    o.layer.offload_modules = {OffloadModule::kCoreAttn, OffloadModule::kExpertFc1};
  o.layer.dispatcher = *rc::gen::element(Dispatcher::kAllToAll, Dispatcher::kHybridEp);
  if (kind == Schedule::kOneF1B && !o.pipeline.overlaps.ep_a2a && *rc::gen::arbitrary<bool>())
    o.step.sharding = Sharding::kFsdp;
  o.step.offload.optimizer_states =
      o.step.sharding == Sharding::kDdpDistributedOptimizer && *rc::gen::arbitrary<bool>();
  return o;
}

StageLayout balanced(const TrainingOptions& o) {
  const StepContext context{deepseek(), o, gb200()};
  const ModelKinds kinds = model_kinds(deepseek());
  return balanced_stages(kinds, model_costs(context, kinds), 1, o.pipeline.pp, o.pipeline.vpp);
}

// Has every second of every rank a name, and none two?
RC_GTEST_PROP(Prediction, PartsOfEveryRankAddUpToTheStep, ()) {
  TrainingOptions o = any_pipeline_run();
  o.pipeline.layout = to_layout_string(balanced(o));
  const Prediction p = predict(deepseek(), o, gb200());
  const auto step = p.step_time.to<double>();
  for (const StagePrediction& stage : p.stages) {
    Seconds sum{}, communication{};
    for (const Seconds part : stage.parts) {
      RC_ASSERT(static_cast<bool>(part >= Seconds{}));
      sum += part;
    }
    RC_ASSERT(std::abs(sum.to<double>() - step) <= 1e-9 * step);
    const auto part = [&](Activity a) { return stage.parts[static_cast<std::size_t>(a)]; };
    for (const Activity a :
         {Activity::kTensor, Activity::kContext, Activity::kExpert, Activity::kPipeline, Activity::kData})
      communication += part(a);
    const auto near = [&](Seconds a, Seconds b) { return std::abs((a - b).to<double>()) <= 1e-9 * step; };
    RC_ASSERT(near(communication, stage.exposed_communication));
    RC_ASSERT(near(part(Activity::kCompute) + part(Activity::kRecompute) + part(Activity::kOptimizer), stage.compute));
    RC_ASSERT(near(part(Activity::kOffload), stage.exposed_copy));
    RC_ASSERT(near(part(Activity::kHost), stage.host));
    RC_ASSERT(near(part(Activity::kBubble), stage.bubble));
    RC_ASSERT(static_cast<bool>((o.layer.recompute.granularity != RecomputeGranularity::kNone) ==
                                (part(Activity::kRecompute) > Seconds{})));
  }
}

Step step_of(const TrainingOptions& o) { return compose_step(deepseek(), o, gb200()); }

// Every op of a chunk of a rank, layer by layer: a reference, written independently, for the walks over pieces.
struct ChunkOps {
  std::int64_t position = 0;  // In the order of execution.
  StageContent content;
  std::vector<OpList> lists;
};
std::vector<ChunkOps> ops_by_hand(const TrainingOptions& o, std::size_t rank) {
  const ModelSpec& model = deepseek();
  const ScheduleShape shape = schedule_shape(o);
  const StageLayout layout = stage_layout(model, o);
  const BuildContext context = StepContext{model, o, gb200()}.layer();
  const bool block = o.layer.recompute.granularity == RecomputeGranularity::kFull &&
                     o.pipeline.recompute.method == RecomputeMethod::kBlock;
  std::vector<ChunkOps> chunks;
  for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
    ChunkOps& ops = chunks.emplace_back();
    ops.position = position_of(shape, static_cast<std::int64_t>(rank), chunk);
    ops.content = layout.stages[static_cast<std::size_t>(ops.position) % layout.stages.size()];
    const auto add = [&](OpList list, bool covered) {
      if (covered) {
        apply_recompute(list, recomputed_modules(o.layer));
        apply_offload(list, o.layer.offload_modules, o.layout().world());
      }
      ops.lists.push_back(std::move(list));
    };
    const auto layer = [&](const LayerSpec& spec, bool covered) {
      add(mixer_ops(context, spec), covered);
      add(mlp_ops(context, spec), covered);
    };
    if (ops.content.embedding) add(embedding_ops(context), false);
    for (std::int64_t i = 0; i < ops.content.num_layers; ++i)
      layer(model.layers[static_cast<std::size_t>(ops.content.first_layer + i)],
            !block || i < o.pipeline.recompute.num_layers);
    if (ops.content.mtp_layers > 0) add(mtp_ops(context), false);
    if (ops.content.mtp_layers > 0) layer(model.mtp_layers.front(), !block);
    if (ops.content.loss) add(head_ops(context, 2), false);
  }
  return chunks;
}

// Are the seconds of the ledger those of the ops?
RC_GTEST_PROP(Ledger, HasTheSecondsOfTheOps, ()) {
  TrainingOptions o = any_pipeline_run();
  o.pipeline.layout = to_layout_string(balanced(o));
  const Step step = step_of(o);
  const std::vector<ChunkLedger> ledgers = chunk_ledgers(step);
  const BuildContext context = StepContext{deepseek(), o, gb200()}.layer();
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(o.pipeline.pp); ++rank) {
    const std::vector<ChunkOps> chunks = ops_by_hand(o, rank);
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const std::size_t stage = chunk * static_cast<std::size_t>(o.pipeline.pp) + rank;
      const ChunkLedger& ledger = ledgers[stage];
      const OpList fsdp = shards_gradients(o.step.sharding)
                              ? fsdp_ops({deepseek(), o, gb200()}, step.composition.stage(stage).cost.parameters)
                              : OpList{};
      for (const bool forward : {true, false}) {
        Seconds compute{}, communication{}, copies{}, compute_lines{}, communication_lines{}, copy_lines{};
        for (const OpList& list : chunks[chunk].lists) {
          const std::vector<Op>& ops = forward ? list.forward : list.backward;
          const auto shares = overlap_shares(context, ops);
          for (const Op& op : ops) {
            const OverlapShares& share = shares[static_cast<std::size_t>(op.overlap)];
            const Seconds time = op_time(op, gb200());
            if (is_communication(op))
              communication += share.exposed * time;
            else if (std::holds_alternative<HostCopyWork>(op.work))
              copies += time;
            else if (!std::holds_alternative<HostSyncWork>(op.work))
              compute += share.stretch * time;
          }
        }
        compute += compute_of(forward ? fsdp.forward : fsdp.backward, gb200()).time;
        for (const LedgerLine& line : forward ? ledger.forward : ledger.backward) {
          if (line.kind == kPowerLimit) continue;
          if (line.cause == Cause::kCompute) compute_lines += line.exposed;
          const bool between_stages = line.module == "pipeline", sharded = line.module == "gradients";
          if (line.cause == Cause::kCommunication && !between_stages && !sharded) communication_lines += line.exposed;
          if (line.cause == Cause::kCopy) copy_lines += line.exposed;
        }
        const auto near = [&](Seconds a, Seconds b) {
          return std::abs((a - b).to<double>()) <= 1e-9 * (compute + communication).to<double>();
        };
        RC_ASSERT(near(compute, compute_lines));
        RC_ASSERT(near(communication, communication_lines));
        RC_ASSERT(copy_lines <= copies);
      }
    }
  }
}

// Are the bytes of the communication report those of the ops, wherever a schedule puts a stage?
RC_GTEST_PROP(CommunicationReport, HasTheBytesOfTheOps, ()) {
  TrainingOptions o = any_pipeline_run();
  o.pipeline.layout = to_layout_string(balanced(o));
  const Step step = step_of(o);
  const Prediction p = predict(step);
  const std::size_t rank = p.critical_stage, pp = static_cast<std::size_t>(o.pipeline.pp);
  const StepContext context{deepseek(), o, gb200()};
  const ScheduleShape shape = schedule_shape(o);
  const Composition& c = step.composition;
  std::map<std::pair<std::string, std::string>, double> expected, found;
  const auto add = [&](const std::vector<Op>& ops, double times) {
    for (const Op& op : ops) {
      if (!is_communication(op)) continue;
      const LinkBytes bytes = link_bytes(op);
      const Bytes slowest = bytes.spine > Bytes{} ? bytes.spine : bytes.nic > Bytes{} ? bytes.nic : bytes.nvlink;
      expected[{std::string(kind_name(op)), std::string(group_name(op))}] += times * slowest.to<double>();
    }
  };
  const auto m =
      static_cast<double>(o.pipeline.schedule == Schedule::kDualPipe ? o.num_microbatches() / 2 : o.num_microbatches());
  // Network transfers: between consecutive stages on different ranks, within one copy of the model.
  const auto rank_at = [&](std::int64_t position) {
    for (std::int64_t r = 0; r < shape.pp; ++r)
      for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk)
        if (position_of(shape, r, chunk) == position) return r;
    return std::int64_t{-1};
  };
  const std::int64_t copy = o.pipeline.schedule == Schedule::kDualPipe ? shape.pp : shape.pp * shape.vpp;
  const auto sends = [&](std::int64_t from, std::int64_t to) {
    return to >= 0 && to < shape.pp * shape.vpp && from / copy == to / copy && rank_at(from) != rank_at(to);
  };
  const std::vector<ChunkOps> chunks = ops_by_hand(o, rank);
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    RC_ASSERT(rank_of(shape, chunks[chunk].position) == static_cast<std::int64_t>(rank));
    for (const OpList& list : chunks[chunk].lists) {
      add(list.forward, m);
      add(list.backward, m);
    }
    for (const std::int64_t to : {chunks[chunk].position - 1, chunks[chunk].position + 1})
      if (sends(chunks[chunk].position, to)) add({stage_transfer(context)}, m);
    const ParameterCount& parameters = c.stage(chunk * pp + rank).cost.parameters;
    for (const auto& [list, times] :
         {std::pair{data_parallel_ops(context, parameters), 1.0},
          {shards_gradients(o.step.sharding) ? fsdp_ops(context, parameters) : OpList{}, m}}) {
      add(list.forward, times);
      add(list.backward, times);
    }
  }
  add(step_ops(context, c.parameters[rank]).forward, 1.0);
  for (const CommunicationEntry& entry : communication_report(step, p).entries)
    found[{entry.kind, entry.group}] += entry.bytes.to<double>();
  std::erase_if(expected, [](const auto& sum) { return sum.second <= 0.0; });
  std::erase_if(found, [](const auto& sum) { return sum.second <= 0.0; });
  RC_ASSERT(expected.size() == found.size());
  for (const auto& [name, bytes] : expected) {
    RC_ASSERT(std::abs(found[name] - bytes) <= 1e-9 * bytes);
  }
}

// Layer offloading wraps the layers of Megatron's TransformerBlock, not embedding, MTP and head.
TEST(Stages, OffloadNothingButTheirLayers) {
  TrainingOptions o = published();
  o.set_recompute({});
  o.layer.offload_modules = {OffloadModule::kLayer};
  o.pipeline.cpu_offloading_num_layers = 2;
  const StepContext context{deepseek(), o, gb200()};
  const ModelKinds kinds = model_kinds(deepseek());
  const ModelCosts costs = model_costs(context, kinds);
  const StageCost stage =
      stage_cost(context, kinds, costs, {.first_layer = 0, .num_layers = 3, .embedding = true, .loss = true});
  EXPECT_GT(costs.covered[0].host_bytes, Bytes{});
  EXPECT_DOUBLE_EQ(stage.cost.host_bytes / costs.covered[0].host_bytes, 2.0);
  EXPECT_EQ(costs.mtp.host_bytes, Bytes{});
}

// Which full recomputation reaches the layers of MTP? Megatron replays them with method uniform and warns that it skips
// them with block (multi_token_prediction.py, 0.16.1).
TEST(Stages, RecomputeMtpUniformlyButNotByBlock) {
  TrainingOptions o = published();
  const auto mtp_backward = [&](RecomputeGranularity granularity, RecomputeMethod method) {
    o.set_recompute({.granularity = granularity, .method = method, .num_layers = 1});
    const StepContext context{deepseek(), o, gb200()};
    return model_costs(context, model_kinds(deepseek())).mtp.backward.compute;
  };
  const Seconds none = mtp_backward(RecomputeGranularity::kNone, RecomputeMethod::kUniform);
  EXPECT_GT(mtp_backward(RecomputeGranularity::kFull, RecomputeMethod::kUniform), none);
  EXPECT_EQ(mtp_backward(RecomputeGranularity::kFull, RecomputeMethod::kBlock), none);
}

// Is nothing hidden where nothing overlaps? Transfers between stages run beside compute but in plain 1F1B.
RC_GTEST_PROP(CommunicationReport, HidesNothingWithoutOverlap, ()) {
  TrainingOptions o = any_pipeline_run();
  o.layer.cp = 1;  // The steps of a ring run beside attention.
  o.step.dp = 256 / (o.layer.tp * o.pipeline.pp);
  o.pipeline.global_batch = o.step.dp * 16;
  o.layer.overlaps = {};
  o.pipeline.overlaps = {};
  o.step.overlaps = {.dp_grad = false, .dp_param = false};
  if (is_fsdp(o.step.sharding)) o.step.sharding = Sharding::kDdpDistributedOptimizer;
  o.pipeline.layout = to_layout_string(balanced(o));
  RC_PRE(o.pipeline.schedule != Schedule::kDualPipe && o.pipeline.schedule != Schedule::kDualPipeV);  // They run pairs.
  const Step step = step_of(o);
  for (const CommunicationEntry& entry : communication_report(step, predict(step)).entries) {
    if (entry.kind == "send_recv" && !blocks_on_transfers(o)) continue;
    RC_ASSERT(entry.hidden == Seconds{});
  }
}

// Has every part of a step's end one line?
TEST(Prediction, NamesEachPartOfTheStepsEndOnce) {
  std::set<std::string_view> names;
  for (const StepPart& part : predict(deepseek(), published(), gb200()).step_end)
    EXPECT_TRUE(names.insert(part.name).second) << part.name;
}

// A rank with an empty virtual stage still runs its tasks.
TEST(Prediction, PartsOfARankWithAnEmptyStageAddUp) {
  TrainingOptions o = published();
  o.set_layout({.tp = 1, .cp = 1, .dp = 64, .pp = 4, .vpp = 2, .ep = 64, .etp = 1});
  o.pipeline.layout = "Et*7|t*9|t*9|t*9|t*9|t*9||t*9mL";
  const Prediction p = predict(deepseek(), o, gb200());
  for (const StagePrediction& stage : p.stages) {
    Seconds sum{};
    for (const Seconds part : stage.parts) sum += part;
    EXPECT_NEAR(sum / p.step_time, 1.0, 1e-9);
    EXPECT_NEAR(stage.parts[static_cast<std::size_t>(Activity::kHost)] / stage.host, 1.0, 1e-9);
  }
}

// Where the host binds merged pairs, is what it takes too long named as the host's? The exchange that the pairs hide
// stays hidden.
TEST(Prediction, NamesTheHostThatBindsPairs) {
  TrainingOptions o = published();
  o.pipeline.overlaps.ep_a2a = true;
  Hardware slow_host = gb200();
  slow_host.host.eager_op *= 20.0;
  const Prediction bound = predict(deepseek(), o, slow_host), free = predict(deepseek(), o, gb200());
  ASSERT_GT(bound.step_time, 1.5 * free.step_time);
  const auto part = [](const Prediction& p, Activity activity) {
    return p.stages[1].parts[static_cast<std::size_t>(activity)];
  };
  EXPECT_NEAR(part(bound, Activity::kExpert) / part(free, Activity::kExpert), 1.0, 1e-6);
  EXPECT_GT(part(bound, Activity::kHost), part(free, Activity::kHost) + 0.9 * (bound.step_time - free.step_time));
}

// Does the breakdown's bubble never fall below zero by rounding?
RC_GTEST_PROP(Prediction, BubbleIsTheCriticalRanksAndNotNegative, ()) {
  TrainingOptions o = any_pipeline_run();
  o.pipeline.layout = to_layout_string(balanced(o));
  const Prediction p = predict(deepseek(), o, gb200());
  RC_ASSERT(!std::signbit(p.breakdown.bubble.to<double>()));
  RC_ASSERT(p.breakdown.bubble == p.stages[p.critical_stage].bubble);
  RC_ASSERT(std::abs((p.breakdown.total() - p.step_time).to<double>()) <= 1e-9 * p.step_time.to<double>());
}

// Does the timeline show what the prediction says: the same step, the same seconds of every rank by activity, transfers
// and hidden work beside them, memory up to the same peak? Also where the host binds.
RC_GTEST_PROP(StepTimeline, ShowsWhatThePredictionSays, ()) {
  TrainingOptions o = any_pipeline_run();
  o.pipeline.layout = to_layout_string(balanced(o));
  Hardware hardware = gb200();
  hardware.host.eager_op *= *rc::gen::element(1.0, 5.0, 20.0);
  const Step step = compose_step(deepseek(), o, hardware);
  const Prediction p = predict(step);
  const StepTimeline timeline = step_timeline(step, p);
  const auto seconds = [](std::int64_t ps) { return static_cast<double>(ps) * 1e-12; };
  // Rounding loses at most a picosecond per slice.
  const double rounding = 1e-12 * static_cast<double>(timeline.slices.size()) + 1e-9 * p.step_time.to<double>();
  RC_ASSERT(std::abs(seconds(timeline.end_ps) - p.step_time.to<double>()) <= rounding);
  std::vector<std::array<double, kActivities>> spent(p.stages.size());
  for (const StepTimeline::Slice& slice : timeline.slices) {
    RC_ASSERT(slice.start_ps >= 0 && slice.start_ps + slice.duration_ps <= timeline.end_ps);
    if (slice.in_sequence)
      spent[static_cast<std::size_t>(slice.rank)][static_cast<std::size_t>(slice.activity)] +=
          seconds(slice.duration_ps);
  }
  for (std::size_t rank = 0; rank < p.stages.size(); ++rank) {
    for (std::size_t i = 0; i < kActivities; ++i)
      if (i != static_cast<std::size_t>(Activity::kBubble))
        RC_ASSERT(std::abs(spent[rank][i] - p.stages[rank].parts[i].to<double>()) <= rounding);
    Bytes highest{};
    for (const StepTimeline::Level& level : timeline.memory[rank]) highest = std::max(highest, level.allocated);
    // The additional memory of a pair counts at the peak even if no pair reaches it.
    const auto excess = (highest - p.memory[rank].allocated()).to<double>();
    RC_ASSERT(excess <= 1.0);
    if (!o.pipeline.overlaps.ep_a2a) RC_ASSERT(excess >= -1.0);
  }
}

// DeepSeek-V3's step on 2,048 H800 (arXiv 2505.09343, table 4): 19.93 s, of it 13.95 s in overlapped pairs and 2.06 s
// of bubble. benchmarks/accuracy/deepseek-v3-step.md says what the rest of the difference is.
TEST(Prediction, OfDeepSeeksPublishedStepIsNear) {
  const planner::Run run = planner::load_run(FW_DOCS_DIR "/examples/deepseek-v3-h800-dualpipe.json");
  const Prediction p = predict(run.model, run.options, run.hardware);
  EXPECT_NEAR(p.step_time.to<double>(), 19.93, 0.25 * 19.93);
  EXPECT_NEAR(p.stages[7].tasks.merged.to<double>(), 13.95, 0.25 * 13.95);
  EXPECT_NEAR(p.stages[7].bubble.to<double>(), 2.06, 0.5 * 2.06);
}

// DualPipe has two copies of the model, so every parameter twice. Its V-shaped variant has it once.
TEST(Stages, OfDualPipeHoldTwoCopiesOfTheModel) {
  TrainingOptions o = published();
  o.pipeline.layout.clear();
  const auto parameters = [&](Schedule schedule, std::int64_t vpp) {
    o.pipeline.schedule = schedule;
    o.pipeline.vpp = vpp;
    const StepContext context{deepseek(), o, gb200()};
    const ModelKinds kinds = model_kinds(deepseek());
    double sum = 0.0;
    for (const ParameterCount& count : compose(context, kinds, model_costs(context, kinds), balanced(o)).parameters)
      sum += count.total();
    return sum;
  };
  const double once = parameters(Schedule::kOneF1B, 1);
  EXPECT_DOUBLE_EQ(parameters(Schedule::kDualPipe, 1), 2.0 * once);
  EXPECT_NEAR(parameters(Schedule::kDualPipeV, 2), once, 129280.0 * 7168.0);  // The copy for MTP may not be needed.
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
  Hardware unlimited = gb200();
  unlimited.power = {};  // The power limit depends on the whole stage.
  const StepContext context{deepseek(), o, unlimited};
  const ModelKinds kinds = model_kinds(deepseek());
  ASSERT_EQ(kinds.kinds.size(), 2u);  // Three dense layers, 58 with experts.
  const ModelCosts costs = model_costs(context, kinds);
  const StageCost stage = stage_cost(context, kinds, costs, {.first_layer = 1, .num_layers = 4});  // 2 dense, 2 MoE.
  const auto sum = [](const BlockCost& c) { return (c.forward.compute + c.backward.compute).to<double>(); };
  EXPECT_NEAR(sum(stage.cost), 2.0 * sum(costs.covered[0]) + 2.0 * sum(costs.covered[1]), 1e-12);
  EXPECT_NEAR(stage.cost.parameters.total(),
              2.0 * costs.covered[0].parameters.total() + 2.0 * costs.covered[1].parameters.total(), 1.0);
}

// Does a direction's time solve its definition: products stretched to x lose `lost x duty` of their clocks, duty being
// x over the direction's time, which is that of its stretched kernels or what host and copies take anyway, if that is
// longer? Idle time that stays however slow the products are is part of both. With EP overlap a direction's time is
// half a pair's: less half of the exchange that it hides, and of the idle time that it fills.
TEST(Stages, ThePowerLimitStretchesTheProductsOfEachDirectionByTheirDuty) {
  TrainingOptions o = published();
  const ModelKinds kinds = model_kinds(deepseek());
  const StageContent content{.first_layer = 1, .num_layers = 4};
  Hardware system = gb200();
  std::size_t stretched = 0, filled = 0;
  for (const bool overlap : {false, true})
    for (const double slower_host : {0.0, 1.0, 20.0}) {
      o.pipeline.overlaps.ep_a2a = overlap;
      system.host.eager_op = slower_host * gb200().host.eager_op;
      Hardware unlimited = system;
      unlimited.power = {};
      const StepContext context{deepseek(), o, system}, free{deepseek(), o, unlimited};
      const StageCost limited = stage_cost(context, kinds, model_costs(context, kinds), content),
                      full = stage_cost(free, kinds, model_costs(free, kinds), content);
      EXPECT_EQ(limited.saving > Seconds{}, overlap && slower_host <= 1.0);  // On a slow host nothing can be saved.
      const HostIdle stays =
          overlap ? HostIdle{} : host_idle(limited.cost.forward.sustained, limited.cost.backward.sustained);
      const auto solves = [&](const DirectionCost& slow, const DirectionCost& fast, Seconds host, Seconds idle) {
        const auto products = slow.products.to<double>(), lost = (slow.unclocked / slow.products).to<double>(),
                   x = products + (slow.compute - fast.compute).to<double>(),
                   before = (fast.device() + host - full.saving / 2.0).to<double>(),
                   own = (slow.compute + slow.comm + idle - full.hidden / 2.0).to<double>(),
                   after = std::max(own, before);
        EXPECT_EQ(slow.products, fast.products);
        EXPECT_GT(lost, 0.0);
        EXPECT_NEAR(x * (1.0 - lost * x / after), products, 1e-9 * products);
        ++(own > before ? stretched : filled);
        return after;
      };
      const double both = solves(limited.cost.forward, full.cost.forward, full.host.forward, stays.forward) +
                          solves(limited.cost.backward, full.cost.backward, full.host.backward, stays.backward);
      EXPECT_NEAR((limited.forward() + limited.backward() - limited.saving).to<double>(), both, 1e-9 * both);
    }
  EXPECT_GT(stretched, 0u);
  EXPECT_GT(filled, 0u);
}

// Do products that the power limit stretches fill what the host leaves idle, but not the time after a synchronisation,
// in which nothing runs? A wait that is longer by so much makes a stage that the GPU limits longer by that, less what
// its products gain by the pause: less than a tenth.
TEST(Stages, NothingFillsTheTimeAfterASynchronisation) {
  TrainingOptions o = published();
  o.layer.micro_batch = 8;
  o.layer.dispatcher = Dispatcher::kAllToAll;
  const ModelKinds kinds = model_kinds(deepseek());
  const StageContent content{.first_layer = 3, .num_layers = 4};
  const auto stage = [&](Seconds sync) {
    Hardware system = gb200();
    system.host.sync = sync;
    const StepContext context{deepseek(), o, system};
    return stage_cost(context, kinds, model_costs(context, kinds), content);
  };
  const StageCost short_wait = stage(Seconds{30e-6}), long_wait = stage(Seconds{1030e-6});
  ASSERT_GT(short_wait.cost.forward.unclocked, Seconds{});
  const auto more = (long_wait.forward() - short_wait.forward()).to<double>();
  EXPECT_GT(more, 0.9 * 4.0e-3);
  EXPECT_LT(more, 4.0e-3);
  EXPECT_NEAR((long_wait.host.forward - short_wait.host.forward).to<double>(), 4.0e-3, 1e-9);
}

// Can more work make a stage faster, by the pause that it gives its products? Where they lose less than half, no: a
// search bounds a stage by what part of its work takes.
TEST(Stages, TakeNoLessTimeForMoreWork) {
  const TrainingOptions o = published();
  const StepContext context{deepseek(), o, gb200()};
  const ModelKinds kinds = model_kinds(deepseek());
  const ModelCosts costs = model_costs(context, kinds);
  const StageContent content{.first_layer = 3, .num_layers = 4};
  const auto forward = [&](Seconds comm, Seconds copy, Seconds products, double lost) {
    ModelCosts more = costs;
    DirectionCost& layer = more.covered[1].forward;
    layer.comm += comm;
    layer.copy += copy;
    layer.compute += products;
    layer.products += products;
    layer.unclocked += lost * products;
    return stage_cost(context, kinds, more, content).forward().to<double>();
  };
  double comm = forward(Seconds{}, Seconds{}, Seconds{}, 0.0), copy = comm;
  std::array<double, 3> products{comm, comm, comm};
  constexpr std::array<double, 3> kLost{0.0, 0.25, 0.49};
  for (int step = 0; step < 236; ++step) {
    const Seconds added{1e-5 * std::pow(1.05, step)};  // Up to a second.
    const auto grows = [](double& before, double now) {
      EXPECT_GE(now, before * (1.0 - 1e-12));
      before = now;
    };
    grows(comm, forward(added, Seconds{}, Seconds{}, 0.0));
    grows(copy, forward(Seconds{}, added, Seconds{}, 0.0));
    for (std::size_t i = 0; i < kLost.size(); ++i)
      grows(products.at(i), forward(Seconds{}, Seconds{}, added, kLost.at(i)));
  }
  EXPECT_GT(std::min({comm, copy, products[0]}), 0.9);
}

// All parameters of the model sit on some rank: EP 64 and EDP 1 hold each expert once; 671.03 B + MTP 11.61 B + the
// copy of the embedding table that the MTP stage holds.
TEST(Stages, HoldEveryParameterOfTheModel) {
  const TrainingOptions o = published();
  const StepContext context{deepseek(), o, gb200()};
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

// Has every rank the gradient buffers of its chunks, laid out tensor by tensor in reverse? Only the first chunk of the
// first rank is in buckets; the embedding table, which the MTP stage has too, is alone in one.
TEST(Stages, HoldTheirGradientBuffersPadding) {
  TrainingOptions o = published();
  o.layer.ep = 32;
  for (const auto& [dp, high_nccl_busbw] : {std::pair<std::int64_t, bool>{64, false}, {96, false}, {96, true}}) {
    o.step.dp = dp;
    o.step.pad_buckets_for_high_nccl_busbw = high_nccl_busbw;
    const StepContext context{deepseek(), o, gb200()};
    const ModelKinds kinds = model_kinds(deepseek());
    const StageLayout layout = stage_layout(deepseek(), o);
    const Composition c = compose(context, kinds, model_costs(context, kinds), layout);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      double elements = 0.0, padded = 0.0;
      for (std::size_t i = rank; i < layout.stages.size(); i += 4) {
        const StageContent& content = layout.stages[i];
        const BuildContext block = context.layer();
        std::vector<OpList> pieces;  // In the order of the model's parameters.
        if (content.embedding || content.mtp_layers > 0) pieces.push_back(embedding_ops(block));
        const auto layer = [&](const LayerSpec& spec) {
          pieces.push_back(mixer_ops(block, spec));
          pieces.push_back(mlp_ops(block, spec));
        };
        for (std::int64_t n = 0; n < content.num_layers; ++n)
          layer(deepseek().layers[static_cast<std::size_t>(content.first_layer + n)]);
        if (content.mtp_layers > 0) {
          pieces.push_back(mtp_ops(block));
          for (const LayerSpec& spec : deepseek().mtp_layers) layer(spec);
        }
        if (content.loss) pieces.push_back(head_ops(block, 2));
        const std::int64_t size = i == 0 ? 1'000'000 * dp : 0;
        GradientBuffer dense(dp, size, high_nccl_busbw), expert(dp / 32, size, high_nccl_busbw);
        std::vector<Weight> weights;
        for (const OpList& piece : pieces)
          for (const Op& op : piece.forward) weights.insert(weights.end(), op.weights.begin(), op.weights.end());
        std::reverse(weights.begin(), weights.end());
        for (const Weight& weight : weights) {
          if (weight.name == "word_embeddings") dense.end_bucket();
          for (std::int64_t n = 0; n < weight.tensors; ++n)
            (weight.expert ? expert : dense).add({weight.count / weight.tensors});
          elements += static_cast<double>(weight.count);
        }
        dense.end_bucket();
        expert.end_bucket();
        padded += static_cast<double>(dense.elements() + expert.elements());
        if (i == 0) {
          EXPECT_GT(dense.buckets(), 10);
        }
      }
      EXPECT_EQ(c.parameters[rank].total(), elements) << rank;
      EXPECT_EQ(c.parameters[rank].padding, padded - elements) << rank;
    }
  }
}

// Bytes per element of padding: gradients always, parameters if they are in the buffer.
TEST(StaticMemory, CountsThePaddingOfTheBuffers) {
  TrainingOptions o = published();
  const auto bytes = [&](Precision precision, bool low_precision_primaries) {
    o.layer.precision = precision;
    o.step.optimizer.low_precision_param_gather = low_precision_primaries;
    const StaticBytes with =
        static_bytes({deepseek(), o, gb200()}, {.dense = 1e6, .padding = 100.0, .low_precision_padding = 60.0});
    const StaticBytes without = static_bytes({deepseek(), o, gb200()}, {.dense = 1e6});
    EXPECT_EQ(with.optimizer, without.optimizer);
    EXPECT_EQ(with.low_precision_copies, without.low_precision_copies);
    EXPECT_EQ(with.gradients - without.gradients, Bytes{400.0});
    return (with.parameters - without.parameters).to<double>();
  };
  EXPECT_EQ(bytes(Precision::kFp8Current, true), 2.0 * 40.0 + 60.0);
  EXPECT_EQ(bytes(Precision::kMxfp8, true), 2.0 * 40.0);
}

// bf16 weights 2, fp32 gradients 4, fp32 master and two states 12 / shards: dense over 64 data-parallel ranks, experts
// (EDP 1) unsharded.
TEST(StaticMemory, IsMegatronsSumForTheDistributedOptimizer) {
  TrainingOptions o = published();
  o.layer.precision = Precision::kBf16;
  const StepContext context{deepseek(), o, gb200()};
  const ParameterCount count{.dense = 64e6, .expert = 1e9};
  const StaticBytes bytes = static_bytes(context, count);
  EXPECT_DOUBLE_EQ(bytes.parameters.to<double>(), 2.0 * 1.064e9);
  EXPECT_DOUBLE_EQ(bytes.gradients.to<double>(), 4.0 * 1.064e9);
  EXPECT_DOUBLE_EQ(bytes.optimizer.to<double>(), 12.0 * (1e6 + 1e9));
}

// What does one GPU reach of a CPU's memory that four share? By hand: 120 GB/s together, 50 alone.
TEST(HostLink, IsSharedByTheGpusOfACpu) {
  const auto gb_per_s = [](double v) { return Bandwidth{1e9 * v}; };
  costmodel::HostSpec host;
  host.link_to_host = host.link_from_host = gb_per_s(50.0);
  host.links = 4;
  host.links_to_host = gb_per_s(120.0);
  const std::vector<std::pair<std::int64_t, double>> expected = {
      {1, 50.0}, {2, 50.0}, {3, 40.0}, {4, 30.0}, {64, 30.0}};
  for (const auto& [gpus, rate] : expected) {
    EXPECT_DOUBLE_EQ(host.link(true, gpus).to<double>(), 1e9 * rate) << gpus;
    EXPECT_DOUBLE_EQ(host.link(false, gpus).to<double>(), 50e9) << gpus;
  }
}

// Do copies that nothing hides run beside a host that is late? Kernels of 10 ms, 13 of copies and 5 of idle time
// are 15.
TEST(HostLink, CopiesWhileTheDeviceWaitsForItsHost) {
  const auto ms = [](double v) { return Seconds{1e-3 * v}; };
  costmodel::BlockCost cost;
  cost.forward.compute = ms(10.0);
  cost.forward.copy = ms(13.0);
  cost.backward.compute = ms(10.0);
  cost.backward.copy = ms(20.0);
  const costmodel::HostIdle left = beside_copies(cost, {ms(5.0), ms(5.0)});
  EXPECT_DOUBLE_EQ((cost.forward.device() + left.forward).to<double>(), 15e-3);
  EXPECT_DOUBLE_EQ((cost.backward.device() + left.backward).to<double>(), 20e-3);
}

// Two of four layers are offloaded completely. A copy takes three times a layer's forward, 1.5 times its backward. By
// hand: forward waits 2 and 2 (layer 2 for the copy that began at 1, layer 3 for the next one), backward 0.5 and 0.5
// times a layer's.
TEST(LayerOffload, WaitsInTransformerEnginesOrder) {
  const ModelSpec model = planner::load_model("llama3-8b");
  ModelSpec four = model;
  four.layers.resize(4);
  TrainingOptions o = usual_options();
  o.layer.seq_len = 4096;
  o.layer.offload_modules = {OffloadModule::kLayer};
  o.pipeline.cpu_offloading_num_layers = 2;
  Hardware hardware = hwprofiles::load_profile("h100-sxm-80gb").hardware;
  hardware.power.limit = {};
  const auto direction = [&](bool forward) {
    const Step step = compose_step(four, o, hardware);
    const BlockCost& cost = step.composition.stage(0).cost;
    return forward ? cost.forward : cost.backward;
  };
  const Step plain = compose_step(four, o, hardware);
  const ModelCosts costs = model_costs(plain.context, plain.kinds);
  const Seconds forward = costs.covered.front().forward.busy(), backward = costs.covered.front().backward.busy();
  const Bytes gone = costs.covered.front().host_bytes;
  hardware.host.link_latency = {};
  hardware.host.link_to_host = gone / (3.0 * forward);
  EXPECT_NEAR((direction(true).copy_wait / forward).to<double>(), 4.0, 1e-6);
  hardware.host.link_from_host = gone / (1.5 * backward);
  EXPECT_NEAR((direction(false).copy_wait / backward).to<double>(), 1.0, 1e-6);
}

// Bytes that each strategy of Megatron-FSDP shards (megatron/core/distributed/fsdp): 2, 4 and 12 per parameter over 64
// data-parallel ranks (experts: EDP 1); HSDP over 16 of them, with the optimizer optionally over all.
TEST(StaticMemory, FsdpShardsWhatItsStrategySays) {
  TrainingOptions o = published();
  o.layer.precision = Precision::kBf16;
  const ParameterCount count{.dense = 64e6};
  const auto bytes = [&](Sharding sharding, std::int64_t group, bool outer) {
    o.step.sharding = sharding;
    o.step.fsdp_group = group;
    o.step.fsdp_outer_optim = outer;
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

// Kernels of Megatron-FSDP's reductions in every micro-batch: bf16 gradients are scaled (the collective scales fp32
// ones), and reduced gradients are added to the shard, except of experts on a single rank. By hand, 64 ranks, EDP 1.
TEST(Fsdp, ScalesAndAddsGradients) {
  TrainingOptions o = published();
  o.step.sharding = Sharding::kFsdp;
  const ParameterCount count{.dense = 64e6, .expert = 1e6};
  const auto moved = [&] {
    std::vector<double> bytes;
    for (const Op& op : fsdp_ops({deepseek(), o, gb200()}, count).backward)
      if (const auto* work = std::get_if<MemoryWork>(&op.work)) bytes.push_back(work->bytes.to<double>());
    return bytes;
  };
  EXPECT_EQ(moved(), (std::vector<double>{12.0 * 1e6}));
  o.layer.grad_reduce_in_fp32 = false;
  EXPECT_EQ(moved(), (std::vector<double>{4.0 * 65e6, 6.0 * 1e6}));
}

// Transformer Engine's FP8 copies of bf16 weights are not sharded: two layouts of a byte on Hopper. Of FP8 parameters
// one layout is sharded, and the other one whole until it is dropped.
TEST(StaticMemory, FsdpShardsNoLowPrecisionCopies) {
  TrainingOptions o = published();
  o.layer.precision = Precision::kFp8Current;
  o.step.sharding = Sharding::kFsdp;
  const ParameterCount count{.dense = 64e6, .quantised_dense = 64e6};
  const Hardware h100 = hwprofiles::load_profile("h100-sxm-80gb").hardware;
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, h100}, count).parameters.to<double>(), 2e6 + 128e6);
  o.step.optimizer.low_precision_param_gather = true;
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, h100}, count).parameters.to<double>(), 1e6);
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, h100}, count).setup_transposes.to<double>(), 64e6);
  EXPECT_EQ(static_bytes({deepseek(), o, gb200()}, count).setup_transposes, Bytes{});  // One layout is enough.
}

// MXFP8 parameters have two layouts of 1 + 1/32 bytes, and a bf16 buffer of their own only on request.
TEST(StaticMemory, Mxfp8ParametersAreGatheredInTheGradientBuffer) {
  TrainingOptions o = published();
  o.layer.precision = Precision::kMxfp8;
  o.step.optimizer.low_precision_param_gather = true;
  const ParameterCount count{.dense = 1e6, .quantised_dense = 1e6};
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, gb200()}, count).parameters.to<double>(), 2.0625e6);
  o.step.optimizer.reuse_grad_buffer = false;
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, gb200()}, count).parameters.to<double>(), 4.0625e6);
}

// The optimizer step widens to fp32 bf16 gradients that TE's Adam cannot read, and masters and states below fp32. By
// hand for 64e6 dense parameters on 64 ranks, 1e6 each: 4e6 bytes per widened tensor. The largest has 6.4e6 elements,
// 0.1e6 of them here, written back through a bf16 copy.
TEST(StaticMemory, TheOptimizerStepWidensWhatIsBelowFp32) {
  TrainingOptions o = published();
  o.layer.grad_reduce_in_fp32 = false;
  const ParameterCount count{.dense = 64e6, .largest_dense = 6.4e6};
  const auto bytes = [&](Precision precision) {
    o.layer.precision = precision;
    return static_bytes({deepseek(), o, gb200()}, count);
  };
  EXPECT_EQ(bytes(Precision::kBf16).step_extra, Bytes{4e6});
  o.step.optimizer.precision_aware = true;
  EXPECT_EQ(bytes(Precision::kBf16).step_extra, Bytes{});
  EXPECT_EQ(bytes(Precision::kMxfp8).step_extra, Bytes{4e6});  // Megatron has its own fp32 masters beside FP8 weights.
  o.step.optimizer.exp_avg = DataType::kBf16;
  EXPECT_EQ(bytes(Precision::kBf16).step_extra, Bytes{4e6 + 0.2e6});
  o.step.optimizer.exp_avg_sq = DataType::kBf16;
  o.step.optimizer.main_params = DataType::kFp16;  // TE's masters in any precision; created in the first step.
  EXPECT_EQ(bytes(Precision::kMxfp8).step_extra, Bytes{12e6 + 0.2e6});
  EXPECT_EQ(bytes(Precision::kMxfp8).setup_optimizer, Bytes{});
  EXPECT_EQ(bytes(Precision::kMxfp8).optimizer, Bytes{6e6});
}

// Where are the bytes of offloaded states? Between steps on the host, while the optimizer steps on the device as ever;
// beside parameters and gradients nothing of the optimizer is left. Copied once each way.
TEST(StaticMemory, OffloadedStatesAreOnTheDeviceWhileTheOptimizerSteps) {
  TrainingOptions o = published();
  o.step.optimizer.precision_aware = true;
  o.step.optimizer.exp_avg = o.step.optimizer.exp_avg_sq = DataType::kBf16;
  const ParameterCount count{.dense = 64e6, .expert = 1e9, .largest_dense = 6.4e6, .largest_expert = 1e8};
  for (const Precision precision :
       {Precision::kBf16, Precision::kMxfp8}) {  // TE's masters of 2 bytes, Megatron's of 4.
    o.layer.precision = precision;
    o.step.offload.optimizer_states = false;
    const StepContext context{deepseek(), o, gb200()};
    const StaticBytes before = static_bytes(context, count);
    EXPECT_TRUE(step_ops(context, count).backward.empty());
    o.step.offload.optimizer_states = true;
    const StaticBytes after = static_bytes(context, count);
    EXPECT_EQ(before.optimizer, Bytes{(precision == Precision::kBf16 ? 6.0 : 8.0) * (1e6 + 1e9)});
    EXPECT_EQ(after.optimizer, Bytes{});
    EXPECT_EQ(after.host, before.optimizer);
    EXPECT_EQ(after.returning, before.optimizer);
    EXPECT_EQ(after.step_extra, before.step_extra + before.optimizer);
    EXPECT_EQ(after.parameters, before.parameters);
    EXPECT_EQ(after.gradients, before.gradients);
    EXPECT_EQ(after.setup_optimizer, before.setup_optimizer);
    const OpList ops = step_ops(context, count);
    Bytes out{}, back{};
    for (const Op& op : ops.forward)
      if (const auto* copy = std::get_if<HostCopyWork>(&op.work)) (copy->to_host ? out : back) += copy->bytes;
    EXPECT_EQ(out, before.optimizer);
    EXPECT_EQ(back, Bytes{});
    ASSERT_EQ(ops.backward.size(), 1U);
    const auto* copy = std::get_if<HostCopyWork>(&ops.backward.front().work);
    ASSERT_NE(copy, nullptr);
    EXPECT_FALSE(copy->to_host);
    EXPECT_EQ(copy->bytes, before.optimizer);
  }
}

// What does offloading of the states cost, and what does it save? No run is faster with it, nor slower by more than the
// two copies; no rank needs more memory at any moment, and the optimizer's step needs what it needed.
RC_GTEST_PROP(Prediction, OffloadingOptimizerStatesCostsItsCopiesAtMost, ()) {
  TrainingOptions o = any_pipeline_run();
  o.step.sharding = Sharding::kDdpDistributedOptimizer;
  o.pipeline.layout = to_layout_string(balanced(o));
  o.step.offload.optimizer_states = false;
  const Prediction before = predict(deepseek(), o, gb200());
  o.step.offload.optimizer_states = true;
  const Step step = step_of(o);
  const Prediction after = predict(step);
  Seconds copies{};
  for (const StepTail& tail : step.composition.tails) copies = std::max(copies, tail.copy + tail.reload);
  RC_ASSERT(static_cast<bool>(copies > Seconds{}));
  RC_ASSERT(static_cast<bool>(after.step_time >= before.step_time));
  RC_ASSERT(static_cast<bool>(after.step_time <= before.step_time + 1.0001 * copies));
  for (std::size_t rank = 0; rank < after.memory.size(); ++rank) {
    const StageMemory &with = after.memory[rank], &without = before.memory[rank];
    const auto near = [](Bytes a, Bytes b) { return std::abs((a - b).to<double>()) <= 1.0; };
    RC_ASSERT(near(with.allocated_in_optimizer, without.allocated_in_optimizer));
    RC_ASSERT(near(with.allocated_beside_chunks + with.returning, without.allocated_beside_chunks));
    Bytes copied{};  // Smaller than `returning` by the allocator's rounding.
    const ParameterCount trained = step.composition.parameters[rank].trained(o.layer);
    for (const Op& op : step_ops(step.context, trained).backward) copied += std::get<HostCopyWork>(op.work).bytes;
    RC_ASSERT(near(with.host, without.host + copied));
    RC_ASSERT(static_cast<bool>(copied <= with.returning + Bytes{1.0} && copied >= 0.99 * with.returning));
    RC_ASSERT(near(with.allocated_after_setup, without.allocated_after_setup));
    RC_ASSERT(static_cast<bool>(with.total() <= without.total() + Bytes{1.0}));
    RC_ASSERT(static_cast<bool>(with.optimizer <= with.returning + Bytes{1.0}));
  }
}

// Master and momentum for all parameters; Adam's second moment only for the embedding and the head.
TEST(StaticMemory, MuonKeepsOneStateButForTheEmbeddings) {
  TrainingOptions o = published();
  o.layer.precision = Precision::kBf16;
  o.step.optimizer.kind = costmodel::OptimizerKind::kMuon;
  const ParameterCount count{.dense = 64e6, .embedding = 16e6};
  EXPECT_DOUBLE_EQ(static_bytes({deepseek(), o, gb200()}, count).optimizer.to<double>(),
                   (8.0 * 64e6 + 4.0 * 16e6) / 64.0);
}

TEST(BalancedStages, LeaveNoStageSlowerThanAnyOtherSplitNeedsTo) {
  // Equal layers, free ends: 61 layers on 16 stages need stages of 4.
  TrainingOptions o = published();
  const StepContext context{deepseek(), o, gb200()};
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

// Is the slowest stage as fast as in the best of all contiguous splits, found by dynamic programming?
RC_GTEST_PROP(BalancedStages, AreTheBestContiguousSplit, ()) {
  const auto time = [] { return Seconds{static_cast<double>(*rc::gen::inRange(1, 1000)) * 1e-6}; };
  ModelSpec model;
  const auto layers = *rc::gen::inRange<std::size_t>(1, 20);
  for (std::size_t i = 0; i < layers; ++i)
    model.layers.push_back({.mlp = *rc::gen::element(MlpKind::kDense, MlpKind::kMoe, MlpKind::kNone)});
  const ModelKinds kinds = model_kinds(model);
  ModelCosts costs;
  for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
    costs.covered.emplace_back().forward.compute = time();
    costs.saving.emplace_back();
  }
  costs.embedding.forward.compute = time();
  costs.head.forward.compute = time();
  const std::int64_t pp = *rc::gen::inRange(1, 5), vpp = *rc::gen::inRange(1, 3);
  const auto stages = static_cast<std::size_t>(pp * vpp);
  const auto ends = [&](std::size_t stage) {
    return (stage == 0 ? costs.embedding.forward.compute : Seconds{}) +
           (stage + 1 == stages ? costs.head.forward.compute : Seconds{});
  };
  const auto layer = [&](std::size_t i) {
    return costs.covered[static_cast<std::size_t>(kinds.kind[i])].forward.compute;
  };
  // best[i]: slowest stage so far, if the stages have the first i layers.
  std::vector<double> best(layers + 1, 1e9);
  best[0] = 0.0;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::vector<double> next(layers + 1, 1e9);
    for (std::size_t from = 0; from <= layers; ++from) {
      auto seconds = ends(stage).to<double>();
      for (std::size_t to = from; to <= layers; ++to) {
        next[to] = std::min(next[to], std::max(best[from], seconds));
        if (to < layers) seconds += layer(to).to<double>();
      }
    }
    best = next;
  }
  double slowest = 0.0;
  const StageLayout split = balanced_stages(kinds, costs, 0, pp, vpp);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    auto seconds = ends(stage).to<double>();
    const StageContent& content = split.stages[stage];
    for (std::int64_t i = 0; i < content.num_layers; ++i)
      seconds += layer(static_cast<std::size_t>(content.first_layer + i)).to<double>();
    slowest = std::max(slowest, seconds);
  }
  RC_ASSERT(std::abs(slowest - best[layers]) <= 1e-9 * slowest);
}

// Is a step never slower where products, attention and HBM are faster, and never faster by more than they are?
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
  o.layer.micro_batch = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2});
  const Seconds before = predict(deepseek(), o, gb200()).step_time, after = predict(deepseek(), o, faster).step_time;
  RC_ASSERT(static_cast<bool>(after <= before));
  RC_ASSERT(static_cast<bool>(factor * after >= before * (1.0 - 1e-9)));
}

// Does a larger global batch always take longer?
RC_GTEST_PROP(Prediction, MoreMicroBatchesTakeLonger, ()) {
  TrainingOptions o = published();
  const std::int64_t steps = *rc::gen::inRange(1, 8);
  o.pipeline.global_batch = 256 * steps;
  const Seconds shorter = predict(deepseek(), o, gb200()).step_time;
  o.pipeline.global_batch = 256 * (steps + 1);
  RC_ASSERT(static_cast<bool>(predict(deepseek(), o, gb200()).step_time > shorter));
}

// A stage as a single op list: embedding, layers, head. Each piece is edited as when costed alone.
OpList stage_list(const StepContext& context, const StageContent& content) {
  const BitSet<RecomputeModule> recompute = recomputed_modules(context.options.layer);
  const BuildContext block = context.layer();
  OpList stage;
  const auto add = [&](OpList piece, BitSet<RecomputeModule> modules) {
    apply_recompute(piece, modules);
    append(stage, std::move(piece));
  };
  if (content.embedding) add(embedding_ops(block), {});
  for (std::int64_t i = content.first_layer; i < content.first_layer + content.num_layers; ++i) {
    const LayerSpec& layer = context.model.layers[static_cast<std::size_t>(i)];
    OpList mixer = mixer_ops(block, layer), mlp = mlp_ops(block, layer);
    if (recompute.contains(RecomputeModule::kFull)) {
      append(mixer, std::move(mlp));
      add(std::move(mixer), recompute);
    } else {
      add(std::move(mixer), recompute);
      add(std::move(mlp), recompute);
    }
  }
  if (content.loss) add(head_ops(block, 1), {});
  return stage;
}

// Composing a candidate from a few numbers must give the same as a walk over all tensors of the stage.
RC_GTEST_PROP(Memory, ComposedLayersEqualTheWalkOverTheWholeStage, ()) {
  const auto name = *rc::gen::elementOf(
      std::vector<std::string>{"deepseek-v2", "qwen3-235b-a22b", "llama3-70b", "nemotron-3-nano-30b-a3b"});
  const ModelSpec model = planner::load_model(name);
  TrainingOptions o = usual_options();
  o.layer.tp = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2});
  o.step.dp = 8 / o.layer.tp;
  o.layer.ep = model.has_moe() ? *rc::gen::elementOf(std::vector<std::int64_t>{1, 4}) : 1;
  o.layer.software.transformer_engine = o.layer.software.gradient_accumulation_fusion = *rc::gen::arbitrary<bool>();
  o.layer.software.cross_entropy = *rc::gen::element(
      costmodel::CrossEntropy::kTransformerEngine, costmodel::CrossEntropy::kNative, costmodel::CrossEntropy::kUnfused);
  o.layer.precision = *rc::gen::elementOf(std::vector<Precision>{Precision::kBf16, Precision::kFp8Current});
  o.layer.recompute.granularity = *rc::gen::elementOf(std::vector<RecomputeGranularity>{
      RecomputeGranularity::kNone, RecomputeGranularity::kSelective, RecomputeGranularity::kFull});
  o.layer.recompute.modules.bits = *rc::gen::inRange<std::uint16_t>(0, 128);
  const StepContext context{model, o, gb200()};
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
  first.keeps.push_back({"a", Bytes{50.0}, {}, {}, {}, 0, {}, {}});
  first.keeps.push_back({"b", Bytes{100.0}, {}, {}, {}, 1, {}, {}});
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
    TrainingOptions o = usual_options();
    o.layout() = layout;
    const StepContext context{model, o, gb200()};
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

// The search's fast memory check must agree with rank_memory.
RC_GTEST_PROP(Memory, FitsAgreesWithTheFullTable, ()) {
  Hardware small = gb200();
  small.hbm_capacity = from_gib(*rc::gen::inRange(60, 200));
  small.host.memory_per_gpu = from_gib(*rc::gen::inRange(10, 100));
  TrainingOptions o = published();
  o.layer.micro_batch = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  o.set_recompute(*rc::gen::elementOf(std::vector<Recompute>{{}, o.recompute()}));
  o.pipeline.overlaps.ep_a2a = *rc::gen::arbitrary<bool>();
  o.step.offload.optimizer_fraction = *rc::gen::elementOf(std::vector<double>{0.0, 0.5, 1.0});
  o.step.offload.optimizer_states = o.step.offload.optimizer_fraction == 0.0 && *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>())
    o.layer.cuda_graph = {GraphImpl::kTransformerEngine, {GraphModule::kAttn, GraphModule::kMoeRouter}};
  const StepContext context{deepseek(), o, small};
  const ModelKinds kinds = model_kinds(deepseek());
  const Composition c = compose(context, kinds, model_costs(context, kinds), stage_layout(deepseek(), o));
  std::vector<PeakTable> peaks;
  bool all = true;
  for (std::int64_t rank = 0; rank < o.pipeline.pp; ++rank) {
    peaks.push_back(peak_table(c.times.shape, rank));
    const StageMemory memory = rank_memory(context, c, rank, peaks.back());
    all = all && memory.total() <= small.hbm_capacity && memory.host <= small.host.memory_per_gpu;
  }
  RC_ASSERT(static_cast<bool>(fits(context, c, peaks) == all));
}

}  // namespace
}  // namespace foldwise::costmodel::composition_test

// Is what `predict` and `plan` say about walls, better hardware, single changes and layouts that are no plan what
// predictions of their own say?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planner/foldwise.h"
#include "planner/report/insight_report.h"
#include "planner/search/sensitivity.h"
#include "tests/mini_mixtral.h"

namespace foldwise::planner::insight_test {
namespace {

using nlohmann::json;

constexpr double kHeadroom = 0.05;

Problem problem_of(const Run& run) { return {run.model, run.hardware, run.num_gpus}; }

Insight insight_of(const Run& run) { return insight(problem_of(run), run.options, foldwise::predict(run), kHeadroom); }

double gain(const Insight& insight, Resource resource) {
  return std::ranges::find(insight.sensitivities, resource, &Sensitivity::resource)->gain.to<double>();
}

// Do the walls add up to the step, and are they what the breakdown says?
TEST(Insight, WallsAddUpToTheStep) {
  for (const json& changes : std::vector<json>{
           {},
           {{"recompute", {{"granularity", "full"}, {"method", "uniform"}, {"num_layers", 1}}}},
           {{"offload", {{"type", "fine-grained-activation"}, {"modules", {"expert_fc1"}}}}, {"pp", 1}}}) {
    SCOPED_TRACE(changes.dump());
    const auto run = run_with(changes);
    const costmodel::Prediction p = foldwise::predict(run);
    const Walls w = walls(p, run.hardware);
    EXPECT_NEAR(w.compute + w.memory + w.communication + w.host + w.bubble, 1.0, 1e-9);
    const auto share = [&](Seconds part) { return (part / p.step_time).to<double>(); };
    EXPECT_NEAR(w.communication, share(p.breakdown.exposed_communication), 1e-9);
    EXPECT_NEAR(w.compute + w.memory, share(p.breakdown.compute + p.breakdown.exposed_copy), 1e-9);
    EXPECT_NEAR(w.host, share(p.breakdown.host), 1e-9);
    EXPECT_EQ(w.memory > 0.0, changes.contains("recompute") || p.breakdown.exposed_copy > Seconds{});
    EXPECT_DOUBLE_EQ(w.memory_used, (p.peak_memory / run.hardware.hbm_capacity).to<double>());
  }
}

// Is every gain that of a prediction on that hardware, and none a loss; does what a run does not use gain nothing?
TEST(Insight, SensitivitiesArePredictionsOnOtherHardware) {
  const auto run = run_with({});
  const costmodel::Prediction before = foldwise::predict(run);
  const Insight result = insight_of(run);
  ASSERT_EQ(result.sensitivities.size(), kResources);
  for (const Sensitivity& s : result.sensitivities) {
    SCOPED_TRACE(to_string(s.resource));
    EXPECT_GE(s.gain, -1e-9 * before.step_time);
    if (s.resource == Resource::kHbmCapacity) continue;
    auto better = run;
    better.hardware = with_more(run.hardware, s.resource, Insight::kMore);
    EXPECT_NE(better.hardware, run.hardware);
    EXPECT_EQ(foldwise::predict(better).step_time, s.step_time);
    EXPECT_EQ(s.gain, before.step_time - s.step_time);
  }
  EXPECT_EQ(result.binding, result.sensitivities.front().resource);
  EXPECT_GT(gain(result, Resource::kNic), 0.0);
  EXPECT_EQ(gain(insight_of(run_with({{"num_gpus", 8}})), Resource::kNic), 0.0) << "one NVLink domain";
  const auto one = run_with({{"num_gpus", 1}, {"pp", 1}, {"ep", 1}, {"global_batch", 8}});
  EXPECT_EQ(gain(insight_of(one), Resource::kNvlink), 0.0) << "one GPU";
}

// Does ten times of everything take a tenth of what scales, and does the power limit take back what FLOPs give?
TEST(Insight, MoreOfAResourceIsThatResource) {
  const auto run = run_with({});
  const costmodel::Hardware& h = run.hardware;
  EXPECT_EQ(with_more(h, Resource::kNic, 2.0).network.nic_bandwidth, 2.0 * h.network.nic_bandwidth);
  EXPECT_EQ(with_more(h, Resource::kHbmCapacity, 2.0).hbm_capacity, 2.0 * h.hbm_capacity);
  const costmodel::Hardware flops = with_more(h, Resource::kFlops, 1.1);
  EXPECT_LE(sustained_clock(flops, costmodel::MathFormat::kBf16), sustained_clock(h, costmodel::MathFormat::kBf16));
  auto unlimited = run;
  unlimited.hardware.power = {};
  ASSERT_LT(sustained_clock(flops, costmodel::MathFormat::kBf16), 1.0) << "or the next line says nothing";
  const auto share = [](const planner::Run& r) {
    return gain(insight_of(r), Resource::kFlops) / foldwise::predict(r).step_time.to<double>();
  };
  EXPECT_LT(share(run), share(unlimited));
  EXPECT_EQ(gain(insight_of(unlimited), Resource::kPower), 0.0);
  // A kernel bound by bytes takes bytes / bandwidth.
  const Bytes bytes{1e9};
  const auto time = [&](const costmodel::Hardware& hw) {
    const auto op = costmodel::MemoryOp::kElementwise;
    return memory_time(hw, op, bytes) - hw.memory.at(static_cast<std::size_t>(op)).launch;
  };
  EXPECT_NEAR((time(h) / time(with_more(h, Resource::kHbmBandwidth, 2.0))).to<double>(), 2.0, 1e-9);
}

// Is the best single change a valid run that fits and is as fast as said, and is no other of one yes-or-no or named
// field faster?
TEST(Insight, TheBestChangeIsTheBest) {
  const auto run = run_with({{"overlaps", {{"dp_grad", false}, {"dp_param", false}}}});
  const Insight result = insight_of(run);
  ASSERT_TRUE(result.best.has_value());
  auto changed = run;
  changed.options = result.best->options;
  EXPECT_TRUE(foldwise::check(changed).empty());
  const costmodel::Prediction p = foldwise::predict(changed);
  EXPECT_EQ(p.step_time, result.best->step_time);
  EXPECT_EQ(p.peak_memory, result.best->peak_memory);
  EXPECT_LE(p.peak_memory, (1.0 - kHeadroom) * run.hardware.hbm_capacity);
  EXPECT_EQ(result.neighbours.predicted, static_cast<std::int64_t>(result.neighbours.changes.size()));
  EXPECT_GT(result.neighbours.refused, 0);
  int others = 0;
  for (const Field& f : fields()) {
    if (f.tried == nullptr || (f.value.type != FieldType::kBoolean && f.value.type != FieldType::kName)) continue;
    const PlanFacts facts{
        .model = run.model, .hardware = run.hardware, .num_gpus = 16, .seq_len = 4096, .global_batch = 128};
    for (const json& value : f.tried(facts)) {
      auto other = run;
      f.value.set(other.options, value);
      if (!foldwise::check(other).empty()) continue;
      const costmodel::Prediction there = foldwise::predict(other);
      const costmodel::Imbalance p99 = costmodel::imbalance(other.model, other.options, other.hardware);
      if (!there.fits || there.peak_memory > (1.0 - kHeadroom) * run.hardware.hbm_capacity ||
          p99.p99_memory > run.hardware.hbm_capacity)
        continue;
      EXPECT_GE(there.step_time, result.best->step_time) << f.key << ' ' << value;
      ++others;
    }
  }
  EXPECT_GE(others, 8);
}

/// The complete run file of `run` with the values of `set`, as somebody would type them into it.
planner::Run with_set(const planner::Run& run, const json& set) {
  json file = write_run(run);
  for (const auto& [key, value] : set.items()) {
    const std::size_t dot = key.find('.');
    (dot == std::string::npos ? file[key] : file[key.substr(0, dot)][key.substr(dot + 1)]) = value;
  }
  return foldwise::parse_run(file.dump());
}

// Do the values of every change make the changed run of the complete run file, also where they leave a stated list
// without a meaning?
TEST(Insight, ChangesCanBeAppliedToTheRunFile) {
  std::vector<planner::Run> runs = {
      run_with({{"cuda_graph", {{"impl", "transformer_engine"}, {"scope", {"attn"}}}}}),
      run_with({{"recompute", {{"granularity", "selective"}, {"modules", {"core_attn", "layernorm"}}}}}),
      run_with({{"recompute", {{"granularity", "full"}, {"method", "block"}, {"num_layers", 2}}}}),
      run_with({{"offload", {{"type", "fine-grained-activation"}, {"modules", {"expert_fc1"}}}}, {"pp", 1}}),
      run_with({{"optimizer", {{"precision_aware", true}, {"exp_avg_dtype", "bf16"}}}})};
  std::vector<planner::Run> published = load_runs(FW_ACCURACY_DIR "/runs/published_runs.json").runs;
  for (std::size_t i = 0; i < published.size(); i += published.size() / 8)
    if (foldwise::check(published[i]).empty()) runs.push_back(std::move(published[i]));
  int nulls = 0;
  for (const planner::Run& run : runs) {
    SCOPED_TRACE(write_run(run).dump());
    for (const Change& change : neighbours(problem_of(run), run.options).changes) {
      const json set = change.set(run.options);
      SCOPED_TRACE(set.dump());
      nulls += static_cast<int>(std::ranges::count(set, json(nullptr)));
      try {
        EXPECT_EQ(with_set(run, set).options, change.options);
      } catch (const ConfigError& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  EXPECT_GE(nulls, 10);
}

// Where only memory keeps a faster run away, does more memory say so?
TEST(Insight, MoreMemoryIsWhatItMakesRoomFor) {
  auto run = run_with({{"recompute", {{"granularity", "full"}, {"method", "uniform"}, {"num_layers", 1}}}});
  const Neighbours all = neighbours(problem_of(run), run.options);
  const Change* const fastest = all.fastest(problem_of(run), run.hardware.hbm_capacity, run.hardware.hbm_capacity);
  ASSERT_NE(fastest, nullptr);
  // A device on which the fastest run just does not fit.
  run.hardware.hbm_capacity = 0.98 * fastest->peak_memory / (1.0 - kHeadroom);
  const Insight result = insight_of(run);
  ASSERT_TRUE(result.best_with_more_memory.has_value());
  EXPECT_EQ(result.best_with_more_memory->step_time, fastest->step_time);
  EXPECT_GT(gain(result, Resource::kHbmCapacity), 0.0);
  run.hardware.hbm_capacity = 0.5 * foldwise::predict(run).peak_memory;
  EXPECT_EQ(insight_of(run).binding, Resource::kHbmCapacity) << "it does not fit";
}

// Of whatever somebody has published: do walls add up, does more of nothing cost more than
// 2.5 percent (docs/output.md: hotter products, less to hide behind), and is the best change a run that
// rules accept, that fits and that differs?
TEST(Insight, HoldsForPublishedRuns) {
  const std::vector<planner::Run> runs = load_runs(FW_ACCURACY_DIR "/runs/published_runs.json").runs;
  std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same runs every time.
  int looked_at = 0, changed = 0;
  while (looked_at < 40) {
    const planner::Run& run = runs[random() % runs.size()];
    if (!foldwise::check(run).empty()) continue;
    ++looked_at;
    SCOPED_TRACE(run.id);
    const costmodel::Prediction p = foldwise::predict(run);
    const Insight result = insight(problem_of(run), run.options, p, kHeadroom);
    const Walls& w = result.walls;
    EXPECT_NEAR(w.compute + w.memory + w.communication + w.host + w.bubble, 1.0, 1e-6);
    for (const Sensitivity& s : result.sensitivities) EXPECT_GE(s.gain, -0.025 * p.step_time) << to_string(s.resource);
    if (!result.best) continue;
    ++changed;
    auto best = run;
    best.options = result.best->options;
    EXPECT_NE(best.options, run.options);
    EXPECT_TRUE(foldwise::check(best).empty());
    EXPECT_EQ(foldwise::predict(best).step_time, result.best->step_time);
  }
  EXPECT_GE(changed, 10);
}

// Does *why not* name the rule in Megatron's words?
TEST(Insight, WhyNotNamesTheRule) {
  const PlanProblem problem = foldwise::plan_problem(mini_request());
  const WhyNot why = why_not(problem, foldwise::read_question({{"ep", {"3"}}}));
  ASSERT_FALSE(why.refused.empty());
  EXPECT_THAT(why.refused.front(), testing::HasSubstr("--expert-model-parallel-size 3"));
  EXPECT_FALSE(why.plan || why.shortage);
  EXPECT_THAT(why_not_text(problem, {}, why), testing::HasSubstr("--expert-model-parallel-size 3"));
}

// Does it say how much memory is missing, and where?
TEST(Insight, WhyNotNamesTheMemory) {
  PlanProblem problem = foldwise::plan_problem(mini_request());
  problem.hardware.hbm_capacity = 0.2 * problem.hardware.hbm_capacity;
  const WhyNot why = why_not(
      problem, foldwise::read_question(
                   {{"tp", {"1"}}, {"ep", {"1"}}, {"pp", {"1"}}, {"offload.optimizer_cpu_offload", {"false"}}}));
  ASSERT_TRUE(why.shortage && !why.shortage->nearest.empty());
  const NearMiss& miss = why.shortage->nearest.front();
  EXPECT_EQ(miss.plan.options.layer.ep, 1);
  const costmodel::Prediction p = costmodel::predict(problem.model, miss.plan.options, problem.hardware);
  EXPECT_EQ(miss.over, p.peak_memory - (1.0 - problem.headroom) * problem.hardware.hbm_capacity);
  EXPECT_THAT(why_not_text(problem, {}, why), testing::HasSubstr("GiB more than the"));
  EXPECT_TRUE(why_not_json(problem, {}, why).at("plan").is_null());
}

// Else: is its plan the best with what was asked, and does the waterfall add up to what it loses?
TEST(Insight, WhyNotIsTheBestWithItAndWhatItLoses) {
  const PlanProblem problem = foldwise::plan_problem(mini_request());
  const PlanResult result = plan(problem);
  ASSERT_FALSE(result.plans.empty());
  const std::int64_t tp = result.plans.front().options.layer.tp == 2 ? 4 : 2;
  const WhyNot why = why_not(problem, foldwise::read_question({{"tp", {std::to_string(tp)}}}));
  ASSERT_TRUE(why.plan.has_value());
  EXPECT_EQ(why.plan->options.layer.tp, tp);
  if (why.proven) {
    const PlanResult pinned = plan(foldwise::plan_problem(mini_request({{"tp", {std::to_string(tp)}}})));
    EXPECT_NEAR(why.plan->prediction.step_time.to<double>(), pinned.plans.front().prediction.step_time.to<double>(),
                1e-4 * pinned.plans.front().prediction.step_time.to<double>());
  }
  const json answer = why_not_json(problem, result, why);
  double sum = 0.0;
  for (const json& line : answer.at("waterfall").at("lines"))
    sum += line.at("seconds").at(1).get<double>() - line.at("seconds").at(0).get<double>();
  EXPECT_NEAR(sum, answer.at("slower_s").get<double>(), 1e-9);
  EXPECT_THAT(why_not_text(problem, result, why), testing::HasSubstr("asked - first"));
  const std::string same = std::to_string(result.plans.front().options.layer.tp);
  EXPECT_THAT(why_not_text(problem, result, why_not(problem, foldwise::read_question({{"tp", {same}}}))),
              testing::HasSubstr("That is plan 1."));
}

// Is a question that makes no sense a mistake of the user, whatever else it asks?
TEST(Insight, ABadQuestionIsAMistake) {
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"tpp", "2"}, {"tp", "two"}, {"mtp", "1"}, {"seq_len", "4096"}, {"dispatcher", "pigeons"}}) {
    try {
      (void)foldwise::read_question({{key, {value}}});
      ADD_FAILURE() << key;
    } catch (const config::ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("why_not " + key));
    }
  }
}

}  // namespace
}  // namespace foldwise::planner::insight_test

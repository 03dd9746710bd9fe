// Does `plan` say truly what its choices earn, which plans are the same to it, and why nothing fits?
#include "planner/report/explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/foldwise.h"
#include "planner/report/plan_report.h"
#include "planner/report/validation.h"
#include "planner/rules/rules.h"
#include "planner/search/changes.h"
#include "planner/search/reserve.h"
#include "planner/search/shortage.h"
#include "tests/mini_mixtral.h"

namespace foldwise::planner::explanation_test {
namespace {

using nlohmann::json;

Bytes capacity_of(const PlanProblem& problem) { return (1.0 - problem.headroom) * problem.hardware.hbm_capacity; }

double seconds(const Plan& plan) { return plan.prediction.step_time.to<double>(); }

/// The request with all choices, measured or not.
foldwise::PlanRequest any_evidence(foldwise::PlanRequest request) {
  request.evidence = Evidence::kAny;
  return request;
}

PlanResult explained(const PlanProblem& problem) {
  PlanResult result = plan(problem);
  explain(problem, result);
  return result;
}

void expect_fits(const PlanProblem& problem, const Plan& plan) {
  EXPECT_FALSE(first_violation({problem.model, problem.hardware, problem.num_gpus}, plan.options));
  const costmodel::Prediction again = costmodel::predict(problem.model, plan.options, problem.hardware);
  EXPECT_EQ(again.step_time, plan.prediction.step_time);
  EXPECT_TRUE(again.fits);
  EXPECT_LE(again.peak_memory, capacity_of(problem));
}

// Is each alternative a plan that fits, with the values that it names and that the first has not, and neither faster
// than a search of the whole space with these values nor much slower?
TEST(Explanation, AlternativesAreWhatASearchWithoutTheChoiceFinds) {
  PlanProblem problem = foldwise::plan_problem(any_evidence(mini_request({})));
  problem.hardware.hbm_capacity = 0.4 * problem.hardware.hbm_capacity;  // Makes saving memory a choice.
  problem.hardware.host.virtual_machine = 1.0;                          // Makes the fastest plan come first.
  const PlanResult result = explained(problem);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_GE(result.alternatives.size(), 4U);
  EXPECT_TRUE(std::ranges::is_sorted(result.alternatives, std::ranges::greater{}, [](const Alternative& alternative) {
    return alternative.plan ? seconds(*alternative.plan) : INFINITY;
  }));
  for (const Alternative& alternative : result.alternatives) {
    SCOPED_TRACE(alternative.choice);
    PlanProblem narrow = problem;
    narrow.top = 1;
    bool differs = alternative.set.empty();  // The even split is not a dimension.
    for (const auto& [key, values] : alternative.set) {
      narrow.space.set(key, values);
      const Field& f = field(key);
      differs = differs || std::ranges::count(values, f.value.get(result.plans.front().options)) == 0;
      if (alternative.plan && f.applies_to(alternative.plan->options)) {
        EXPECT_THAT(values, testing::Contains(f.value.get(alternative.plan->options)));
      }
    }
    EXPECT_TRUE(differs);
    const PlanResult whole = plan(narrow);
    if (!alternative.plan) {
      EXPECT_TRUE(alternative.set.empty() || whole.plans.empty());
      continue;
    }
    expect_fits(problem, *alternative.plan);
    EXPECT_GE(seconds(*alternative.plan), seconds(result.plans.front()) * (1.0 - 1e-4));
    if (alternative.set.empty()) continue;
    ASSERT_FALSE(whole.plans.empty());
    if (whole.proven) {
      EXPECT_GE(seconds(*alternative.plan), seconds(whole.plans.front()) * (1.0 - 1e-4));
    }
    EXPECT_LE(seconds(*alternative.plan), seconds(whole.plans.front()) * 1.03);
  }
}

// Does no choice earn more than the first plan loses where it alone is taken back? Within 1 %: where the fastest
// without it reserve too much, what is left is not searched as long.
TEST(Explanation, NoAlternativeIsSlowerThanTheFirstPlanWithoutTheChoice) {
  int compared = 0;
  for (const auto& [model, system, num_gpus] : std::vector<std::tuple<std::string, std::string, std::int64_t>>{
           {"deepseek-v3", "gb200-nvl72", 256}, {"qwen3-30b-a3b", "h100-sxm-80gb", 16}, {"llama3-70b", "h200", 64}}) {
    PlanProblem problem = foldwise::plan_problem(any_evidence({.model = model,
                                                               .system = system,
                                                               .release = {},
                                                               .num_gpus = num_gpus,
                                                               .global_batch = 512,
                                                               .precisions = {},
                                                               .set = {}}));
    problem.effort = 400'000;
    const PlanResult result = explained(problem);
    ASSERT_FALSE(result.plans.empty());
    for (const Alternative& alternative : result.alternatives) {
      SCOPED_TRACE(model + ": " + alternative.choice);
      if (alternative.set.empty()) continue;
      costmodel::TrainingOptions options = result.plans.front().options;
      for (const auto& [key, values] : alternative.set)
        if (const Field& f = field(key); f.applies_to(options) && std::ranges::count(values, f.value.get(options)) == 0)
          options = with_value(rule_problem(problem), options, f, values.front());
      if (first_violation(rule_problem(problem), options)) continue;
      const costmodel::Prediction alone = costmodel::predict(problem.model, options, problem.hardware);
      if (!alone.fits || alone.peak_memory > capacity_of(problem) ||
          costmodel::imbalance(problem.model, options, problem.hardware).p99_memory > problem.hardware.hbm_capacity)
        continue;
      ++compared;
      ASSERT_TRUE(alternative.plan.has_value());
      EXPECT_LE(seconds(*alternative.plan), alone.step_time.to<double>() * 1.01);
    }
  }
  EXPECT_GE(compared, 7);
}

// Is an uneven split set against Megatron's even one, and does the answer not depend on the number of threads?
TEST(Explanation, AnUnevenSplitHasTheEvenOneForAlternative) {
  PlanProblem problem = foldwise::plan_problem({.model = "mini-deepseek-12l",
                                                .system = "h200",
                                                .release = {},
                                                .num_gpus = 8,
                                                .global_batch = 64,
                                                .precisions = {},
                                                .set = {{"pp", {"4"}},
                                                        {"vpp", {"1", "2", "3"}},
                                                        {"cp", {"1"}},
                                                        {"tp", {"1"}},
                                                        {"micro_batch", {"2", "4"}},
                                                        {"recompute.granularity", {"none"}}}});
  problem.effort = 1'000'000;
  std::vector<double> times;
  for (const int threads : {1, 4}) {
    problem.threads = threads;
    const PlanResult result = explained(problem);
    ASSERT_FALSE(result.plans.empty());
    ASSERT_FALSE(result.plans.front().options.pipeline.layout.empty());
    const auto even = std::ranges::find(result.alternatives, "even split of layers", &Alternative::choice);
    ASSERT_NE(even, result.alternatives.end());
    ASSERT_TRUE(even->plan.has_value());
    EXPECT_TRUE(even->plan->options.pipeline.layout.empty());
    expect_fits(problem, *even->plan);
    for (const Alternative& alternative : result.alternatives)
      times.push_back(alternative.plan ? seconds(*alternative.plan) : 0.0);
  }
  ASSERT_EQ(times.size() % 2, 0U);
  const auto half = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  EXPECT_EQ(std::vector<double>(times.begin(), half), std::vector<double>(half, times.end()));
}

// Is a choice that the user left no other value for not taken back?
TEST(Explanation, NamedFieldsAreNoChoices) {
  const PlanProblem problem = foldwise::plan_problem(mini_request({{"tp", {"2"}}, {"overlaps.ep_a2a", {"true"}}}));
  const PlanResult result = explained(problem);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_FALSE(result.alternatives.empty());
  for (const Alternative& alternative : result.alternatives) {
    EXPECT_FALSE(alternative.set.contains("tp"));
    EXPECT_FALSE(alternative.set.contains("overlaps.ep_a2a"));
  }
}

// Where the host's prices are assumed: does the first plan lose least, in the mean over them and those of virtual
// machines, of the plans and alternatives for which torch has room, but for 1 %?
TEST(Explanation, TheFirstPlanLosesLeastOnEitherHost) {
  for (const auto& [model, gpus] : {std::pair("qwen1.5-moe-a2.7b", 8), {"qwen3-30b-a3b", 16}}) {
    PlanProblem problem = foldwise::plan_problem({.model = model,
                                                  .system = "h100-sxm-80gb",
                                                  .release = "0.19.0",
                                                  .num_gpus = gpus,
                                                  .global_batch = 64,
                                                  .precisions = {}});
    foldwise::ask_evidence(Evidence::kRun, problem);
    problem.effort = 400'000;
    const PlanResult result = explained(problem);
    ASSERT_FALSE(result.plans.empty());
    costmodel::Hardware slow = problem.hardware;
    slow.host = problem.hardware.host.of_virtual_machine().value();
    std::vector<std::pair<double, double>> times;  // On the assumed and on the slower host.
    const auto add = [&](Plan plan) {
      const double on_slow = costmodel::predict(problem.model, plan.options, slow).step_time.to<double>();
      EXPECT_DOUBLE_EQ(plan.on_virtual_machine.value().to<double>(), on_slow);
      if (!reserves_too_much(problem, plan)) times.emplace_back(seconds(plan), on_slow);
    };
    for (const Plan& plan : result.plans) add(plan);
    for (const Alternative& alternative : result.alternatives)
      if (alternative.plan) add(*alternative.plan);
    const double least = std::ranges::min_element(times)->first,
                 least_slow = std::ranges::min_element(times, {}, &std::pair<double, double>::second)->second;
    const auto loss = [&](const std::pair<double, double>& time) {
      return 0.5 * (time.first / least + time.second / least_slow) - 1.0;
    };
    EXPECT_GT(times.front().first, 1.04 * least) << model;  // Makes sure that it matters in this question.
    for (const auto& time : times) EXPECT_LE(loss(times.front()), loss(time) + 0.01) << model;
  }
}

// Does an alternative that is faster than an unproven first plan take its place?
TEST(Explanation, NoAlternativeIsFasterThanTheFirstPlan) {
  PlanProblem problem = foldwise::plan_problem({.model = "mini-deepseek-12l",
                                                .system = "h200",
                                                .release = {},
                                                .num_gpus = 8,
                                                .global_batch = 128,
                                                .precisions = {}});
  problem.effort = 400'000;
  const PlanResult result = explained(problem);
  ASSERT_FALSE(result.plans.empty());
  for (const Alternative& alternative : result.alternatives)
    if (alternative.plan) {
      EXPECT_GE(seconds(*alternative.plan), seconds(result.plans.front())) << alternative.choice;
    }
  // The first may be the plainest of those within 1 %.
  EXPECT_TRUE(std::ranges::is_sorted(result.plans.begin() + 1, result.plans.end(), {}, seconds));
  for (const Plan& plan : result.plans) EXPECT_GE(1.01 * seconds(plan), seconds(result.plans.front()));
  EXPECT_LE(result.plans.size(), static_cast<std::size_t>(problem.top));
  for (const Plan& plan : result.plans) {
    expect_fits(problem, plan);
    for (std::size_t i = 0; i < plan.assignment.size(); ++i) {
      const Dimension& d = problem.space.dimensions[i];
      if (d.field->key == "tp" || d.field->key == "sharding") {
        EXPECT_EQ(d.values[plan.assignment[i]], d.field->value.get(plan.options)) << d.field->key;
      }
    }
  }
}

// Is the nearest miss what fits into so much more memory, and nothing into clearly less?
TEST(Explanation, TheNearestMissNeedsTheLeastMoreMemory) {
  PlanProblem problem = foldwise::plan_problem(mini_request({{"offload.optimizer_cpu_offload", {"false"}}}));
  problem.hardware.hbm_capacity = 0.1 * problem.hardware.hbm_capacity;
  const PlanResult result = explained(problem);
  ASSERT_TRUE(result.plans.empty() && result.shortage);
  EXPECT_EQ(result.shortage->cause, Shortage::Cause::kDevice);
  ASSERT_FALSE(result.shortage->nearest.empty());
  EXPECT_LE(result.shortage->nearest.size(), 3U);
  EXPECT_TRUE(std::ranges::is_sorted(result.shortage->nearest, {}, [](const NearMiss& miss) { return miss.over; }));
  const NearMiss& miss = result.shortage->nearest.front();
  const costmodel::Prediction again = costmodel::predict(problem.model, miss.plan.options, problem.hardware);
  EXPECT_FALSE(again.fits);
  EXPECT_EQ(again.memory[miss.stage].total(), again.peak_memory);
  EXPECT_EQ(again.peak_memory - capacity_of(problem), miss.over);
  const auto found_with = [&](double share) {
    PlanProblem larger = problem;
    larger.hardware.hbm_capacity = share * again.peak_memory / (1.0 - problem.headroom);
    return !plan(larger).plans.empty();
  };
  EXPECT_TRUE(found_with(1.0001));
  EXPECT_FALSE(found_with(0.97));
}

// Does something fit under each way out, and nothing under half the change?
TEST(Explanation, WaysOutAreTheLeastThatHelp) {
  PlanProblem problem = foldwise::plan_problem(mini_request({{"offload.optimizer_cpu_offload", {"false"}}}));
  problem.hardware.hbm_capacity = 0.15 * problem.hardware.hbm_capacity;
  const PlanResult result = explained(problem);
  ASSERT_TRUE(result.shortage.has_value());
  ASSERT_FALSE(result.shortage->ways.empty());
  const WayOut& way = result.shortage->ways.front();
  EXPECT_GT(way.num_gpus, problem.num_gpus);
  PlanProblem larger = problem;
  larger.num_gpus = way.num_gpus;
  expect_fits(larger, way.plan);
  foldwise::PlanRequest half = mini_request({{"offload.optimizer_cpu_offload", {"false"}}});
  half.num_gpus = way.num_gpus / 2;
  PlanProblem smaller = foldwise::plan_problem(half);
  smaller.hardware = problem.hardware;
  EXPECT_TRUE(plan(smaller).plans.empty());
}

// Where the host has no room for what the user offloads, is it the host's memory that decides?
TEST(Explanation, HostMemoryDecidesWhereItIsShort) {
  PlanProblem problem = foldwise::plan_problem(any_evidence(mini_request({{"offload.optimizer_cpu_offload", {"true"}},
                                                                          {"offload.fraction", {"1"}},
                                                                          {"optimizer.exp_avg_dtype", {"fp32"}},
                                                                          {"optimizer.exp_avg_sq_dtype", {"fp32"}},
                                                                          {"tp", {"1"}}})));
  problem.hardware.host.memory_per_gpu = Bytes{1e6};
  const PlanResult result = explained(problem);
  ASSERT_TRUE(result.plans.empty() && result.shortage);
  EXPECT_EQ(result.shortage->cause, Shortage::Cause::kHost);
  const NearMiss& miss = result.shortage->nearest.front();
  EXPECT_EQ(miss.over, Bytes{});
  Bytes host{};
  for (const costmodel::StageMemory& memory : miss.plan.prediction.memory) host = std::max(host, memory.host);
  EXPECT_EQ(miss.host_over, host - problem.hardware.host.memory_per_gpu);
  EXPECT_THAT(shortage_text(problem, *result.shortage), testing::HasSubstr("Memory of the host decides"));
}

// Where the batch has no place on the GPUs, is it rules that decide, and is the batch that has one named?
TEST(Explanation, RulesDecideWhereNoMemoryHelps) {
  PlanProblem problem = foldwise::plan_problem(mini_request({{"tp", {"1"}}, {"ep", {"8"}}, {"pp", {"1"}}}));
  problem.stated["global_batch"] = 7;  // foldwise::plan_problem() would reject it.
  const PlanResult result = explained(problem);
  ASSERT_TRUE(result.plans.empty() && result.shortage);
  EXPECT_EQ(result.shortage->cause, Shortage::Cause::kRules);
  EXPECT_TRUE(result.shortage->nearest.empty());
  ASSERT_EQ(result.shortage->ways.size(), 1U);
  EXPECT_EQ(result.shortage->ways.front().global_batch, 56);
  EXPECT_THAT(shortage_text(problem, *result.shortage), testing::HasSubstr("rules refuse it"));
}

// Where what the user named needs a choice that only saves time, is memory still what decides?
TEST(Explanation, MemoryDecidesWhereGroupsOfMicroBatchesNeedInterleaving) {
  foldwise::PlanRequest request =
      mini_request({{"microbatch_group_size", {"8"}}, {"offload.optimizer_cpu_offload", {"false"}}});
  request.set.erase("vpp");
  PlanProblem problem = foldwise::plan_problem(request);
  problem.hardware.hbm_capacity = 0.1 * problem.hardware.hbm_capacity;
  const PlanResult result = explained(problem);
  ASSERT_TRUE(result.plans.empty() && result.shortage);
  EXPECT_EQ(result.shortage->cause, Shortage::Cause::kDevice);
}

Plan of_seconds(double time) {
  Plan plan;
  plan.prediction.step_time = Seconds{time};
  return plan;
}

// Do plans stand together exactly where they are within what the model can tell of the first of them?
TEST(Explanation, GroupsAreWithinWhatTheModelCanTell) {
  const double d = kIndistinguishable;
  const std::vector<Plan> plans = {of_seconds(1.0), of_seconds(1.0 + 0.9 * d), of_seconds(1.0 + 1.1 * d),
                                   of_seconds((1.0 + 1.1 * d) * (1.0 + 0.9 * d)), of_seconds(2.0)};
  using Pair = std::pair<std::size_t, std::size_t>;
  EXPECT_THAT(groups_of(plans), testing::ElementsAre(Pair{0, 1}, Pair{2, 3}, Pair{4, 4}));
  EXPECT_THAT(groups_text(plans), testing::HasSubstr(": 1-2; 3-4\n"));
  EXPECT_EQ(groups_text({of_seconds(1.0), of_seconds(2.0)}), "");
}

}  // namespace
}  // namespace foldwise::planner::explanation_test

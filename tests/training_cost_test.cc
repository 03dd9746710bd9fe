// Are days, energy and goodput of a long run what follows from its step?
#include "planner/report/training_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "costmodel/ops/block_ops.h"
#include "costmodel/step/energy.h"
#include "planner/foldwise.h"

namespace foldwise::planner::training_cost_test {
namespace {

Run small_run(const std::string& changes = "{}") {
  nlohmann::json run = nlohmann::json::parse(
      R"({"model": "mixtral-8x7b", "system": "h200", "num_gpus": 16, "seq_len": 4096, "global_batch": 128,
          "micro_batch": 1, "tp": 1, "cp": 1, "pp": 2, "ep": 8, "etp": 1, "precision": "bf16"})");
  run.update(nlohmann::json::parse(changes));
  return parse_run(run.dump());
}

/// Event-by-event simulation of work over time, for a job with exponentially distributed failures.
double simulated_goodput(double interval, double write, double restart, double mtbf, int checkpoints) {
  std::mt19937_64 random(16);  // The standard defines this generator, but not its distributions.
  const auto failure_after = [&] { return -mtbf * std::log1p(-std::ldexp(static_cast<double>(random() >> 11), -53)); };
  double now = 0.0, failure = failure_after();
  const auto runs_through = [&](double duration) {
    if (now + duration <= failure) {
      now += duration;
      return true;
    }
    now = failure;
    failure = now + failure_after();
    return false;
  };
  for (int done = 0; done < checkpoints;) {
    if (runs_through(interval + write)) {
      ++done;
      continue;
    }
    while (!runs_through(restart)) {
    }
  }
  return interval * checkpoints / now;
}

// Is the closed form the mean of simulated jobs, from rare failures to one every other checkpoint? 200,000 checkpoints
// each: at 0.8 failures a checkpoint their time has a standard deviation of about 0.3 %, less elsewhere.
TEST(TrainingCost, GoodputIsThatOfASimulatedJob) {
  for (const double mtbf : {2e3, 1e4, 1e5})
    for (const double write : {10.0, 200.0})
      for (const double restart : {0.0, 600.0}) {
        const auto interval = daly_interval(Seconds{write}, Seconds{mtbf}).to<double>();
        for (const double factor : {0.5, 1.0, 2.0}) {
          const double expected =
              expected_goodput(Seconds{factor * interval}, Seconds{write}, Seconds{restart}, Seconds{mtbf});
          EXPECT_NEAR(simulated_goodput(factor * interval, write, restart, mtbf, 200'000), expected, 0.01 * expected)
              << mtbf << ' ' << write << ' ' << restart << ' ' << factor;
        }
      }
}

// Is Daly's interval as good as the best one, to a thousandth, and Young's where failures are rare?
TEST(TrainingCost, DalysIntervalIsAboutTheBest) {
  for (const double write : {1.0, 30.0, 600.0}) {
    const Seconds mtbf{3600.0};
    const auto goodput = [&](double interval) {
      return expected_goodput(Seconds{interval}, Seconds{write}, Seconds{300.0}, mtbf);
    };
    double best = 0.0;
    for (int i = 0; i < 1000; ++i) best = std::max(best, goodput(std::pow(1.01, i)));  // 1 to 20,000 s.
    EXPECT_GE(goodput(daly_interval(Seconds{write}, mtbf).to<double>()), 0.999 * best) << write;
  }
  EXPECT_NEAR(daly_interval(Seconds{1.0}, Seconds{1e8}).to<double>(), std::sqrt(2e8), 2.0);
}

// Do days, GPU-hours and money follow from step time, tokens and goodput?
TEST(TrainingCost, TimeAndMoneyFollowFromTheStep) {
  const planner::Run run = small_run();
  const Prediction prediction = predict(run);
  LongRun question{.tokens = 1e12, .price_per_gpu_hour = 2.0, .failures = {}};
  const TrainingCost sound = training_cost(question, run, prediction);
  EXPECT_DOUBLE_EQ(sound.steps, std::ceil(1e12 / (128 * 4096.0)));
  EXPECT_DOUBLE_EQ(sound.wall->to<double>(), sound.steps * prediction.step_time.to<double>());
  EXPECT_DOUBLE_EQ(sound.gpu_hours.value(), 16.0 * sound.wall->to<double>() / 3600.0);
  EXPECT_DOUBLE_EQ(sound.money.value(), 2.0 * *sound.gpu_hours);
  EXPECT_FALSE(sound.goodput.has_value());
  question.failures = Failures{Seconds{3600.0 * 5e4}, gb_per_s(10.0), Seconds{600.0}};
  const TrainingCost failing = training_cost(question, run, prediction);
  const Goodput goodput = failing.goodput.value();
  EXPECT_DOUBLE_EQ(goodput.mtbf.to<double>(), 3600.0 * 5e4 / 16.0);
  EXPECT_DOUBLE_EQ(goodput.write.to<double>(), goodput.checkpoint.to<double>() / 10e9);
  const auto steps = (goodput.interval / prediction.step_time).to<double>();
  EXPECT_NEAR(steps, std::round(steps), 1e-6);
  EXPECT_DOUBLE_EQ(failing.wall->to<double>(), sound.wall->to<double>() / goodput.share);
  EXPECT_EQ(failing.energy_j, sound.energy_j);
  EXPECT_EQ(training_cost_json(question, failing).at("goodput").at("share"), goodput.share);
}

// Where failures come before a checkpoint is written, is it said that the training does not progress, instead of a
// number of days? Do slow checkpoints alone not stop it?
TEST(TrainingCost, ATrainingThatNeverReachesACheckpointHasNoDays) {
  const planner::Run run = small_run();
  const Prediction prediction = predict(run);
  const auto cost = [&](double write_per_mtbf) {
    const Bytes checkpoint = checkpoint_bytes(run.model, run.options).value();
    const Seconds mtbf{3600.0};
    return LongRun{.tokens = 1e12,
                   .price_per_gpu_hour = 2.0,
                   .failures = Failures{16.0 * mtbf, checkpoint / (write_per_mtbf * mtbf), Seconds{1.0}}};
  };
  const LongRun stuck = cost(100.0), slow = cost(1.5);
  const TrainingCost never = training_cost(stuck, run, prediction), late = training_cost(slow, run, prediction);
  EXPECT_FALSE(never.goodput->progresses);
  const nlohmann::json json = training_cost_json(stuck, never);
  for (const char* key : {"days", "gpu_hours", "money"}) EXPECT_TRUE(json.at(key).is_null()) << key;
  EXPECT_THAT(json.at("note").get<std::string>(), testing::HasSubstr("does not progress"));
  const std::string text = training_cost_text(stuck, never);
  EXPECT_THAT(text, testing::HasSubstr("does not progress"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("days")));
  EXPECT_TRUE(late.goodput->progresses);
  EXPECT_GT(late.wall.value(), late.steps * prediction.step_time);
  EXPECT_TRUE(training_cost_json(slow, late).at("note").is_null());
}

// Is a checkpoint 14 bytes a parameter with Adam, 10 with one moment, whatever the layout, and unknown with LoRA?
TEST(TrainingCost, ACheckpointHoldsEachParameterOnce) {
  const planner::Run run = small_run();
  const auto parameters = static_cast<double>(costmodel::parameter_totals(run.model).total_with_mtp);
  EXPECT_DOUBLE_EQ(checkpoint_bytes(run.model, run.options)->to<double>(), 14.0 * parameters);
  const planner::Run other = small_run(R"({"tp": 2, "pp": 4, "ep": 2})");
  EXPECT_EQ(checkpoint_bytes(other.model, other.options), checkpoint_bytes(run.model, run.options));
  const planner::Run sgd = small_run(R"({"optimizer": {"name": "sgd"}})");
  EXPECT_DOUBLE_EQ(checkpoint_bytes(sgd.model, sgd.options)->to<double>(), 10.0 * parameters);
  const planner::Run lora = small_run(R"({"task": "lora"})");
  EXPECT_FALSE(checkpoint_bytes(lora.model, lora.options).has_value());
}

// Is the mean power between the base and the limit, higher for a step that computes more of its time, and unknown where
// the profile has no limit?
TEST(TrainingCost, PowerIsBetweenBaseAndLimit) {
  for (const char* system : {"h200", "h100-sxm-80gb", "b200", "gb200-nvl72"})
    for (const char* precision : {"bf16", "fp8-current"}) {
      const planner::Run run = small_run(nlohmann::json{{"system", system}, {"precision", precision}}.dump());
      const Step step = compose(run);
      const auto power = costmodel::mean_power(step, costmodel::predict(step).step_time);
      ASSERT_TRUE(power.has_value());
      EXPECT_GT(*power, run.hardware.power.base) << system << precision;
      EXPECT_LT(*power, run.hardware.power.limit) << system << precision;
    }
  const auto watts = [](const planner::Run& run) {
    const Step step = compose(run);
    return costmodel::mean_power(step, costmodel::predict(step).step_time)->to<double>();
  };
  EXPECT_GT(watts(small_run()), watts(small_run(R"({"global_batch": 16})"))) << "with less of a pipeline's bubble";
  planner::Run dark = small_run();
  dark.hardware.power = {};
  const Step step = compose(dark);
  EXPECT_FALSE(costmodel::mean_power(step, costmodel::predict(step).step_time).has_value());
}

}  // namespace
}  // namespace foldwise::planner::training_cost_test

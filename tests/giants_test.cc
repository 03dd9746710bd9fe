// Are runs and questions beyond all reason answered or refused, within seconds and 2 GiB, and never with garbage?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/program_test.h"

namespace foldwise::giants_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Giants : public ProgramTest {
 protected:
  static constexpr double kMostSeconds = 120.0;  // For any build on any machine; a release build takes a tenth.

  /// Runs with 2 GiB of address space, unless sanitizers are on, which need terabytes of it.
  [[nodiscard]] Outcome bounded(const std::string& arguments) const {
    const std::string limit = std::string_view(FW_SANITIZE).empty() ? "ulimit -v 2097152; " : "";
    const auto start = std::chrono::steady_clock::now();
    const int code = shell(limit + FW_FOLDWISE + ' ' + arguments + " >" + path("stdout") + " 2>" + path("stderr"));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_LT(taken.count(), kMostSeconds) << arguments;
    return {code, contents(path("stdout")), contents(path("stderr"))};
  }
  [[nodiscard]] Outcome predicted(const json& changes, const std::string& more = "") const {
    json run = small_run();
    run.update(changes);
    return bounded("predict " + write("run.json", run) + more);
  }
};

json pipeline(int pp, int layers, int batch) {
  return {{"num_gpus", pp},
          {"pp", pp},
          {"dp", 1},
          {"ep", 1},
          {"global_batch", batch},
          {"model_overrides", {{"num_hidden_layers", layers}}}};
}

// Schedules with more tasks than memory can hold are refused with the limit. Slightly smaller ones are predicted and
// drawn.
TEST_F(Giants, LongSchedules) {
  for (const json& run : {pipeline(8, 32, 1 << 24), pipeline(80, 80, 20000), pipeline(1000, 1000, 1000)}) {
    const Outcome outcome = predicted(run);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err,
                testing::AllOf(HasSubstr("run.json:1: small: foldwise.schedule_length"), HasSubstr("500000")));
  }
  const Outcome drawn =
      predicted(pipeline(2, 32, 250000 / FW_EVERY), " --trace " + path("trace.json") + " --svg " + path("x.svg"));
  EXPECT_EQ(drawn.code, 0) << drawn.err;
}

// Runs with many layers, ranks or stages are predicted without reserved memory, and the answer says so.
TEST_F(Giants, ManyLayersAndStages) {
  for (const json& run : {pipeline(1, 16384, 128), pipeline(16, 16384, 128), pipeline(500, 500, 1000)}) {
    const Outcome outcome = predicted(run);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("what torch's allocator reserves is left out"));
    EXPECT_THAT(outcome.out, testing::Not(HasSubstr("torch reserves")));
  }
  EXPECT_EQ(predicted({{"num_gpus", 1 << 19}, {"dp", 1 << 18}, {"global_batch", 1 << 18}}).code, 0);
}

// A step too long to count in picoseconds is refused by every command that would predict it.
TEST_F(Giants, StepsOfMonths) {
  const json months = {{"model", "mixtral-8x22b"}, {"system", "h800"}, {"num_gpus", 4}, {"seq_len", 1 << 24},
                       {"global_batch", 1600},     {"pp", 1},          {"dp", 4},       {"ep", 4}};
  const Outcome outcome = predicted(months, " --trace " + path("trace.json"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              testing::ContainsRegex("run.json:1: a step of up to [0-9]{9} s, and steps of at most 1000000 s are"));
  EXPECT_FALSE(std::filesystem::exists(path("trace.json")));
  const std::string run = path("run.json");
  EXPECT_EQ(bounded("compare " + run + ' ' + run).code, 2);
  const Outcome swept = bounded("sweep " + run + " --set seq_len=4096,16777216");
  EXPECT_EQ(swept.code, 3) << swept.err;  // The short one does not fit.
  EXPECT_THAT(swept.out, HasSubstr("steps of at most 1000000 s"));
  EXPECT_EQ(bounded("plan --gpus 64 --seq-len 16777216 --global-batch 1600 --model mixtral-8x22b --system h800").code,
            2);
}

// Numbers at the ends of what a profile may say: is every number of an answer one?
TEST_F(Giants, ExtremeSystems) {
  for (const json& changes :
       {json{{"overheads.context", "900TB"}}, json{{"hbm.capacity", "1B"}}, json{{"hbm.bandwidth", "1e8GB/s"}},
        json{{"hbm.bandwidth", "0.001GB/s"}}, json{{"host.launch", "10000ms"}}, json{{"power.limit", 0}},
        json{{"power.limit", 1e6}}, json{{"peak.bf16", "1e-6TFLOPS"}}, json{{"peak.bf16", "1e7TFLOPS"}}}) {
    const Outcome outcome = predicted({{"system_overrides", changes}}, " --format json");
    EXPECT_THAT(outcome.code, testing::AnyOf(0, 2)) << changes << outcome.err;
    if (outcome.code == 2) continue;
    const json answer = json::parse(outcome.out);
    EXPECT_GT(answer.at("step_time_s").get<double>(), 0.0) << changes;
    for (const json& stage : answer.at("memory")) EXPECT_GE(stage.at("total").get<double>(), 0.0) << changes;
  }
  const Outcome refused = predicted({{"system_overrides", {{"overheads.context", "1e300GiB"}}}});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("/overheads.context: expected a size of 0 to 931323 GiB, found \"1e300GiB\""));
}

}  // namespace
}  // namespace foldwise::giants_test

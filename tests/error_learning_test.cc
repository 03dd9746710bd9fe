// Do the errors that are learnt from measured rows hold for rows that were left out, and is the order of runs that they
// tell apart the measured one?
#include "benchmarks/accuracy/error_learning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/accuracy/ordering.h"
#include "planner/report/validation.h"

namespace foldwise::accuracy::error_learning_test {
namespace {

using namespace planner;

Validation measured_rows(const char* folder) {
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    if (file.path().extension() == ".json") files.push_back(file.path());
  return validate_files(files);
}

// Do intervals that other models, systems and software give hold four of five measured times, whatever the GPU and kind
// of model, and 19 of 20? And are the built-in errors what the rows give today?
TEST(ErrorLearning, IntervalsHoldWhatWasLeftOut) {
  const Validation validation = measured_rows(FW_ACCURACY_DIR "/runs"), hosts = measured_rows(FW_ACCURACY_DIR "/hosts");
  const auto [learnt, coverage] = learn_errors(validation, built_in_roles(), hosts);
  std::set<std::string> asked = {"all", "h100-sxm-80gb", "h200", "blackwell", "moe", "dense", "published"};
  for (const Coverage& c : coverage) {
    if (asked.erase(c.group) == 0) continue;
    EXPECT_GE(c.share_80, 0.745) << c.group;  // 75 % when rounded for printing.
    EXPECT_LE(c.share_80, 0.87) << c.group;
    EXPECT_GE(c.share_95, 0.90) << c.group;
    if (c.group == "all" || c.group == "published") {
      EXPECT_LE(c.half_width_pct, 8.4) << c.group;  // The goal is 8.
    }
  }
  EXPECT_THAT(asked, testing::IsEmpty());
  // Plans that were started are few a machine, and the model looked at most of them: their intervals may be too wide.
  const auto chosen = std::ranges::find(coverage, kChosen, &Coverage::group);
  ASSERT_NE(chosen, coverage.end());
  EXPECT_GE(chosen->predictions, 150);
  EXPECT_GE(chosen->share_80, 0.745);
  EXPECT_GE(chosen->share_95, 0.90);
  const ErrorModel& built_in = built_in_errors();
  EXPECT_NEAR(learnt.layout_sd, built_in.layout_sd, 0.002);
  for (const auto& [name, cause] : learnt.causes) EXPECT_NEAR(cause.sd, built_in.sd_of(name), 0.1 * cause.sd) << name;
}

// Machines whose hosts are each faster or slower by a third, and whose runs are else as predicted: is that what hosts
// differ by, whatever others' rows say, and only if there are five machines?
TEST(ErrorLearning, HostsDifferAsMachinesOfOurOwnDo) {
  const std::string of_runs = FW_ACCURACY_DIR "/runs/", of_hosts = FW_ACCURACY_DIR "/hosts/";
  const Validation published = validate_files({of_runs + "headline_runs.json", of_runs + "model_zoo_runs.json"});
  Validation hosts =
      validate_files({of_hosts + "h100x4_fsdp.json", of_hosts + "h100x4_two_speeds.json", of_hosts + "h200x1.json",
                      of_hosts + "options.json", of_runs + "h200x2_runs.json"});
  std::map<std::string, double> factor;
  for (ValidatedRow& row : hosts.rows) {
    if (!row.step) continue;
    const std::string machine = row.run.json.at("host");
    const double ln = factor.try_emplace(machine, std::log(factor.size() % 2 == 0 ? 1.3 : 1.0 / 1.3)).first->second;
    const Seconds predicted = row.prediction.step_time;
    row.step->seconds = predicted.to<double>() * std::exp(-ln * exposure(row.run, predicted).at("host"));
  }
  const auto host_sd = [](const Validation& runs, const Validation& machines) {
    return learn_errors(runs, built_in_roles(), machines).errors.sd_of("host");
  };
  EXPECT_NEAR(host_sd(published, hosts), std::log(1.3), 1e-6);
  Validation few = hosts;
  std::erase_if(few.rows, [](const ValidatedRow& row) { return row.run.json.at("host") != "R"; });
  EXPECT_GT(std::abs(host_sd(published, few) - std::log(1.3)), 0.05);
}

// Rows whose measured times err as we say by two causes: are their deviations found, in the mean of four draws? Few
// questions have the first, so that one draw finds 0.11 to 0.36 of 0.3, and some of it with TorchTitan, whose rows have
// it.
TEST(ErrorLearning, FindsTheErrorsThatWereMade) {
  Validation validation = measured_rows(FW_ACCURACY_DIR "/runs");
  constexpr int kDraws = 4;
  double domains = 0.0, torchtitan = 0.0, layout = 0.0;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::mt19937_64 bits(static_cast<std::uint64_t>(11 + draw));
    std::normal_distribution<double> normal;
    std::map<std::string, double> by_group;
    for (ValidatedRow& row : validation.rows) {
      if (!row.step) continue;
      const planner::Run& run = row.run;
      // One draw per question: runs of one question share their site.
      const auto [it, is_new] = by_group.try_emplace(question_text(run), normal(bits));
      double error = 0.04 * normal(bits);
      if (mechanisms(run).contains("hopper across NVLink domains")) error += 0.3 * it->second;
      row.step->seconds = row.prediction.step_time.to<double>() * std::exp(error);
    }
    const ErrorModel learnt = learn_errors(validation, built_in_roles()).errors;
    domains += learnt.sd_of("hopper across NVLink domains") / kDraws;
    torchtitan += learnt.sd_of("as torchtitan") / kDraws;
    layout += learnt.layout_sd / kDraws;
  }
  EXPECT_NEAR(domains, 0.3, 0.17);
  EXPECT_LT(torchtitan, 0.15);
  EXPECT_NEAR(layout, 0.04, 0.015);
}

// Is the number that plans are told apart by the one that measured runs give? Of pairs of runs of one source, model,
// system, batch and software that differ in what `plan` chooses, those that the model puts farther apart stand in
// the right order, and of the others some do not.
TEST(Ordering, MeasuredPairsSayWhatTheModelCanTellApart) {
  const Validation validation = measured_rows(FW_ACCURACY_DIR "/runs");
  const Ordering all = orderings(validation, built_in_roles()).front();
  const auto& [near, near_right] = all.predicted_near;
  const auto& [far, far_right] = all.predicted_apart;
  RecordProperty("pairs", std::to_string(near_right) + " of " + std::to_string(near) + " near, " +
                              std::to_string(far_right) + " of " + std::to_string(far) + " far");
  EXPECT_GE(far, 60);
  EXPECT_GE(far_right, far * 95 / 100);
  EXPECT_GE(near, 10);
  EXPECT_LT(100 * near_right, 95 * near);
  EXPECT_GE(all.measured_apart.right, all.measured_apart.pairs * 93 / 100);
}

}  // namespace
}  // namespace foldwise::accuracy::error_learning_test

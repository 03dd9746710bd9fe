// Does `compare` account for every microsecond between runs, and say truly what brings one to the other?
#include "planner/report/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/foldwise.h"
#include "planner/report/explanation.h"
#include "planner/report/prediction_report.h"
#include "planner/report/run_screen.h"
#include "planner/report/waterfall.h"
#include "tests/mini_mixtral.h"

namespace foldwise::planner::comparison_test {
namespace {

using nlohmann::json;

/// Measured runs that the rules accept: they cover every published model, system and option.
const std::vector<Run>& published() {
  static const std::vector<Run> all = [] {
    std::vector<Run> runs;
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(FW_ACCURACY_DIR "/runs"))
      if (file.path().extension() == ".json") files.push_back(file.path());
    std::ranges::sort(files);
    for (const auto& file : files)
      for (Run& run : load_runs(file).runs)
        if (foldwise::check(run).empty()) runs.push_back(std::move(run));
    return runs;
  }();
  return all;
}

ComparedRun compared(const Run& run) { return {run, foldwise::predict(run)}; }

/// Rows of the table below the line `title`: the words at the start, and the last `columns` numbers in microseconds.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> table(const std::string& text, const std::string& title,
                                                                     std::size_t columns) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> rows;
  std::istringstream lines(text.substr(text.find(title)));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);  // Titles.
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.size() < columns) break;
    std::vector<std::int64_t> numbers;
    for (std::size_t i = words.size() - columns; i < words.size(); ++i)
      numbers.push_back(std::llround(std::stod(words[i]) * 1e6));
    words.resize(words.size() - columns);
    std::string name;
    for (const std::string& word : words) name.append(" ").append(word);
    rows.emplace_back(std::move(name), std::move(numbers));
  }
  return rows;
}

/// The rows above "step" must add up to it. The last columns must be differences from the first run.
void expect_adds_up(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& rows,
                    const std::vector<std::int64_t>& steps) {
  ASSERT_FALSE(rows.empty());
  ASSERT_EQ(rows.back().first, " step");
  std::vector<std::int64_t> sum(rows.back().second.size(), 0);
  std::set<std::string> names;
  for (const auto& [name, values] : rows) {
    EXPECT_TRUE(names.insert(name).second) << "twice:" << name;
    for (std::size_t run = 1; run < steps.size(); ++run)
      EXPECT_EQ(values[steps.size() + run - 1], values[run] - values[0]) << name;
    for (std::size_t i = 0; i < sum.size() && name != " step"; ++i) sum[i] += values[i];
  }
  EXPECT_EQ(sum, rows.back().second);
  for (std::size_t run = 0; run < steps.size(); ++run) EXPECT_EQ(rows.back().second[run], steps[run]);
}

// Do all lines of text and JSON add up to the steps and to their difference, to the last microsecond, each with a name
// of its own, whatever two or three runs are put side by side?
TEST(Comparison, EveryMicrosecondIsAccountedFor) {
  ASSERT_GE(published().size(), 200U);
  std::mt19937 random(16);  // NOLINT(cert-msc51-cpp): the same pairs every time.
  int means = 0, stages = 0;
  for (int sample = 0; sample < 80; ++sample) {
    std::vector<ComparedRun> runs;
    const std::size_t count = sample % 8 == 0 ? 3 : 2;
    runs.reserve(count);
    while (runs.size() < count) runs.push_back(compared(published()[random() % published().size()]));
    std::vector<const costmodel::Prediction*> predictions;
    std::vector<std::int64_t> steps;
    std::vector<std::string> titles;
    predictions.reserve(runs.size());
    steps.reserve(runs.size());
    for (const ComparedRun& run : runs) {
      predictions.push_back(&run.prediction);
      steps.push_back(std::llround(run.prediction.step_time.to<double>() * 1e6));
      titles.emplace_back(1, static_cast<char>('A' + titles.size()));
    }
    for (const LoneDifference& lone : distance(runs[0], runs[1], {}).alone)
      EXPECT_TRUE(lone.refused.empty() == (lone.step_time > Seconds{})) << lone.field;
    const Waterfall time = waterfall(predictions);
    (time.stage ? stages : means) += 1;
    const std::string text = waterfall_text(time, titles, 12);
    SCOPED_TRACE(text);
    const std::size_t columns = 2 * runs.size() - 1;
    expect_adds_up(table(text, "Seconds by cause", columns), steps);
    expect_adds_up(table(text, "What explains", columns), steps);

    const json lines = waterfall_json(time).at("lines");
    for (std::size_t run = 0; run < runs.size(); ++run) {
      double sum = 0.0;
      for (const json& line : lines) sum += line.at("seconds").at(run).get<double>();
      EXPECT_NEAR(sum, runs[run].prediction.step_time.to<double>(), 1e-9);
    }
    EXPECT_LT(std::abs(lines.back().at("seconds").at(0).get<double>()), 1e-6 * time.steps[0])
        << "the rest is no place to hide a cause in";
  }
  EXPECT_GE(means, 10);
  EXPECT_GE(stages, 10);
}

// Do whole microseconds add up to the total, each next to its part?
RC_GTEST_PROP(Comparison, RoundedPartsAddUp, ()) {
  std::vector<double> parts;
  for (const int part : *rc::gen::nonEmpty<std::vector<int>>())
    parts.push_back(std::abs(static_cast<double>(part)) * 1e-9);
  const double total = std::accumulate(parts.begin(), parts.end(), 0.0);
  const std::vector<std::int64_t> whole = whole_microseconds(parts, total);
  RC_ASSERT(std::accumulate(whole.begin(), whole.end(), std::int64_t{0}) == std::llround(total * 1e6));
  for (std::size_t i = 0; i < parts.size(); ++i)
    RC_ASSERT(std::abs(static_cast<double>(whole[i]) - parts[i] * 1e6) <= 1.0 + 1e-6);
}

// Are runs compared on the same stage where both are busiest there, else by the mean of their stages?
TEST(Comparison, SaysWhichStagesItComparesThatAreAlike) {
  const ComparedRun a = compared(run_with({})), same = compared(run_with({{"dispatcher", "allgather"}})),
                    other = compared(run_with({{"pp", 4}}));
  EXPECT_EQ(waterfall({&a.prediction, &same.prediction}).stage, a.prediction.critical_stage);
  const Waterfall mean = waterfall({&a.prediction, &other.prediction});
  EXPECT_EQ(mean.stage, std::nullopt);
  double bubble = 0.0;
  for (const costmodel::StagePrediction& stage : other.prediction.stages) bubble += stage.bubble.to<double>() / 4.0;
  const auto line = std::ranges::find(mean.lines, "bubble", &ExplainedTime::cause);
  ASSERT_NE(line, mean.lines.end());
  EXPECT_DOUBLE_EQ(line->seconds[1], bubble);
  EXPECT_THAT(stage_text(mean), testing::HasSubstr("mean over the pipeline stages"));
}

// Is a difference called larger than our error exactly beyond what measured pairs say, and of runs that no pairs were
// measured of beyond what their errors differ by, without those that they share, as two runs of one site do?
TEST(Comparison, AnErrorIsWhatWasMeasured) {
  const ErrorModel errors{.causes = {{"every run", {.sd = 0.1, .rows = {}}}}, .layout_sd = 0.05, .quantile_95 = 2.0};
  const ComparedRun a = compared(run_with({}));
  const auto at = [&](double factor, const json& changes) {
    ComparedRun b = compared(run_with(changes));
    b.prediction.step_time = factor * a.prediction.step_time;
    return distance(a, b, errors, false);
  };
  const json choice = {{"tp", 2}};
  EXPECT_FALSE(at(1.0 + 0.99 * kIndistinguishable, choice).exceeds_error);
  EXPECT_TRUE(at(1.0 + 1.01 * kIndistinguishable, choice).exceeds_error);
  EXPECT_TRUE(at(1.0 / (1.0 + 1.01 * kIndistinguishable), choice).exceeds_error);
  EXPECT_EQ(at(1.0, choice).error_pct, 100.0 * kIndistinguishable);
  const json computes_more = {{"seq_len", 8192}, {"global_batch", 64}};
  const double apart = 1.0 + 0.01 * at(1.0, computes_more).error_pct;
  EXPECT_NEAR(apart, std::exp(kNormal80 * 0.05 * std::sqrt(2.0)), 1e-9);
  EXPECT_FALSE(at(0.99 * apart, computes_more).exceeds_error);
  EXPECT_TRUE(at(1.01 * apart, computes_more).exceeds_error);
  const ErrorModel of_sites{.causes = {{"power", {.sd = 0.2, .rows = {}}}}, .layout_sd = 0.0, .quantile_95 = 2.0};
  const auto error = [&](const json& changes) {
    return distance(a, compared(run_with(changes)), of_sites, false).error_pct;
  };
  EXPECT_LT(error(computes_more), 0.7 * error({{"system", "h100-sxm-80gb"}}));
}

// Is each difference made alone the run file with that field changed, and are those that rules refuse said so?
TEST(Comparison, ALoneDifferenceIsARunOfItsOwn) {
  const json to = {{"tp", 2},
                   {"ep", 8},
                   {"micro_batch", 2},
                   {"overlaps", {{"dp_grad", true}, {"dp_param", true}}},
                   {"recompute", {{"granularity", "selective"}, {"modules", {"core_attn"}}}}};
  const auto from_with = [](json changes) {
    changes.emplace("overlaps", json{{"dp_grad", false}, {"dp_param", false}});
    return run_with(changes);
  };
  const ComparedRun a = compared(from_with(json::object())), b = compared(run_with(to));
  const Distance d = distance(a, b, {});
  std::set<std::string> seen;
  for (const LoneDifference& lone : d.alone) {
    SCOPED_TRACE(lone.field);
    EXPECT_TRUE(seen.insert(lone.field).second);
    if (to.contains(lone.field)) {
      ASSERT_TRUE(lone.refused.empty());
      const auto alone = from_with({{lone.field, to[lone.field]}});
      EXPECT_DOUBLE_EQ(lone.step_time.to<double>(), foldwise::predict(alone).step_time.to<double>());
    } else if (lone.field == "recompute.granularity") {  // With its modules, without effect alone.
      const auto alone = from_with({{"recompute", to["recompute"]}});
      EXPECT_DOUBLE_EQ(lone.step_time.to<double>(), foldwise::predict(alone).step_time.to<double>());
    } else if (lone.field == "overlaps.dp_param") {
      ASSERT_FALSE(lone.refused.empty());
      EXPECT_THAT(lone.refused.front().reason, testing::HasSubstr("--overlap-grad-reduce"));
    }
  }
  EXPECT_THAT(seen, testing::IsSupersetOf({"tp", "ep", "micro_batch", "recompute.granularity", "overlaps.dp_param"}));
  const double sign = d.slower_pct < 0.0 ? -1.0 : 1.0;
  for (std::size_t i = 1; i < d.alone.size(); ++i)
    if (d.alone[i].refused.empty()) {
      EXPECT_LE(sign * d.alone[i].step_time.to<double>(), sign * d.alone[i - 1].step_time.to<double>());
    }
  EXPECT_TRUE(distance(a, a, {}).alone.empty());
}

// Of runs whose steps hold different numbers of tokens, is the one that takes less time per token the faster one, and
// is it said that these are compared? Are steps compared where they hold the same?
TEST(Comparison, StepsOfDifferentWorkAreComparedByTimePerToken) {
  const ComparedRun one = compared(run_with({{"global_batch", 64}})), two = compared(run_with({}));
  ASSERT_GT(two.prediction.step_time, one.prediction.step_time);
  ASSERT_GT(two.prediction.tokens_per_s_per_gpu, one.prediction.tokens_per_s_per_gpu);
  const Distance d = distance(one, two, {}, false);
  EXPECT_TRUE(d.per_token);
  EXPECT_NEAR(d.slower_pct, 100.0 * (one.prediction.tokens_per_s_per_gpu / two.prediction.tokens_per_s_per_gpu - 1.0),
              1e-6);
  EXPECT_EQ(comparison_json({one, two}, {}).at("fastest"), 1);
  EXPECT_EQ(comparison_json({two, one}, {}).at("fastest"), 0);
  const std::string said = "time per token is compared", column = "s/token vs A";
  const std::string text = comparison_text({two, one}, {}, {.width = 200});
  EXPECT_THAT(text, testing::AllOf(testing::HasSubstr(said), testing::HasSubstr("B is "), testing::HasSubstr(column)));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("A is ")));
  // Half of the sequence length and twice the sequences are as many tokens.
  const ComparedRun shorter = compared(run_with({{"seq_len", 2048}, {"global_batch", 256}}));
  EXPECT_DOUBLE_EQ(distance(two, shorter, {}, false).slower_pct,
                   100.0 * ((shorter.prediction.step_time / two.prediction.step_time).to<double>() - 1.0));
  EXPECT_THAT(comparison_text({two, shorter}, {}),
              testing::Not(testing::AnyOf(testing::HasSubstr(said), testing::HasSubstr(column))));
  // Twice the GPUs at twice the batch are the faster job.
  const ComparedRun larger = compared(run_with({{"num_gpus", 32}, {"global_batch", 256}}));
  EXPECT_EQ(comparison_json({two, larger}, {}).at("fastest"), 1);
}

// Is it said how much of MFU is no work? DeepSeek sparse attention reads 2,048 keys of 131,072, a window 128 of 4,096;
// Megatron counts all earlier ones.
TEST(UnreadKeys, AreSaidWithFiguresOfMfu) {
  const auto run_of = [](const std::string& model, std::int64_t seq_len) {
    return foldwise::parse_run(json{{"model", model},
                                    {"system", "h200"},
                                    {"num_gpus", 64},
                                    {"tp", 8},
                                    {"ep", 8},
                                    {"seq_len", seq_len},
                                    {"global_batch", 64}}
                                   .dump(),
                               "run");
  };
  const auto text_of = [](const planner::Run& run) {
    return run_screen({.width = 200}, run, foldwise::predict(run), {}, {}, {});
  };
  const std::string said = "for keys that attention does not read";

  const planner::Run sparse = run_of("deepseek-v3.2", 131072);
  const double unread = unread_keys_pct(sparse.model, sparse.options.layer);
  const double s = 131072.0, all = s * s / 2.0, read = 2048.0 * s - 2048.0 * 2048.0 / 2.0;
  const double attention =
      costmodel::megatron_flops(sparse.model, s, s * s, 8) - costmodel::megatron_flops(sparse.model, s, 0.0, 8);
  EXPECT_NEAR(unread, 100.0 * attention * (1.0 - read / all) / costmodel::megatron_flops(sparse.model, s, s * s, 8),
              1e-9);
  EXPECT_GT(unread, 50.0);
  EXPECT_THAT(text_of(sparse), testing::HasSubstr(said + ": no share of the peak"));
  EXPECT_DOUBLE_EQ(prediction_json(sparse, foldwise::predict(sparse), {}).at("unread_keys_pct"), unread);

  const planner::Run windowed = run_of("gpt-oss-120b", 4096);
  EXPECT_THAT(text_of(windowed),
              testing::AllOf(testing::HasSubstr(said), testing::Not(testing::HasSubstr("no share of the peak"))));
  const planner::Run full = run_of("qwen3-235b-a22b", 131072);
  EXPECT_EQ(unread_keys_pct(full.model, full.options.layer), 0.0);
  EXPECT_THAT(text_of(full), testing::Not(testing::HasSubstr(said)));
  EXPECT_THAT(
      comparison_text({compared(sparse), compared(full)}, ErrorModel{}),
      testing::AllOf(testing::HasSubstr("A: TFLOPS and MFU"), testing::Not(testing::HasSubstr("B: TFLOPS and MFU"))));
}

// Do another system, model and number of GPUs stand among the differences, each alone?
TEST(Comparison, SystemAndModelAreDifferencesToo) {
  const Distance d = distance(compared(run_with({})),
                              compared(run_with({{"system", "h100-sxm-80gb"}, {"num_gpus", 32}, {"mtp", 0}})), {});
  ASSERT_EQ(d.alone.size(), 2U);
  for (const LoneDifference& lone : d.alone) {
    const json change = lone.field == "system" ? json{{"system", "h100-sxm-80gb"}} : json{{"num_gpus", 32}};
    EXPECT_DOUBLE_EQ(lone.step_time.to<double>(), foldwise::predict(run_with(change)).step_time.to<double>());
  }
}

}  // namespace
}  // namespace foldwise::planner::comparison_test

// Is each answer a screen: within its lines and columns, its parts in order, coloured on a terminal alone? Of layout,
// not of figures.
#include "planner/report/screen.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/program_test.h"

namespace foldwise::screen_test {
namespace {

using nlohmann::json;
using planner::columns_of;

constexpr const char* kDense = "plan --model llama3-8b --system h100 --gpus 8 --global-batch 64 --effort 0.1";
constexpr const char* kMoe =
    "plan --model mini-mixtral-8l --system h100 --gpus 8 --global-batch 64 --effort 0.1 --set cp=1";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    result.push_back(line);
  }
  return result;
}

std::string without_colours(const std::string& text) {
  return std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m"), "");
}

class Answers : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) GTEST_SKIP() << "no pseudo-terminals here";
    close(terminal);
  }
  /// Output on a terminal of this width.
  [[nodiscard]] std::string in_terminal(int columns, const std::string& arguments,
                                        const std::string& before = "") const {
    const std::string out = path("terminal");
    const std::string command =
        fmt::format(R"(TERM=xterm {} script -qec "stty cols {}; {} {} 2>/dev/null" /dev/null >{} </dev/null)", before,
                    columns, FW_FOLDWISE, arguments, out);
    EXPECT_EQ(shell(command), 0) << arguments;
    return contents(out);
  }
};

void expect_within(const std::string& text, std::size_t columns, std::size_t most_lines) {
  const std::vector<std::string> lines = lines_of(text);
  EXPECT_LE(lines.size(), most_lines) << text;
  for (const std::string& line : lines) {
    // A command to copy may be wider if one of its words is.
    if (line.find("export ") != std::string::npos || line.ends_with('\\')) continue;
    EXPECT_LE(columns_of(line), columns) << line;
  }
}

void expect_in_order(const std::string& text, const std::vector<std::string>& names) {
  const std::vector<std::string> lines = lines_of(without_colours(text));
  auto at = lines.begin();
  for (const std::string& name : names) {
    at = std::find_if(at, lines.end(), [&](const std::string& line) { return line.starts_with(name); });
    ASSERT_NE(at, lines.end()) << name << " in\n" << text;
  }
}

// Is a plan's answer one screen, in a pipe and in terminals of 80 and 120 columns, of a dense model and of one with
// experts?
TEST_F(Answers, APlanIsOneScreen) {
  for (const std::string question : {kDense, kMoe}) {
    const Outcome piped = foldwise(question);
    ASSERT_EQ(piped.code, 0) << piped.err;
    EXPECT_EQ(piped.err, "");
    EXPECT_EQ(piped.out.find('\033'), std::string::npos);
    expect_within(piped.out, 80, 35);
    const std::vector<std::string> names = {"Plan 1", "Layout", "Memory", "Time",   "Evidence", "Numerics",
                                            "",       " ",      "Limit",  "Search", "Defaults", "Next"};
    expect_in_order(piped.out, names);
    EXPECT_THAT(lines_of(piped.out).front(), testing::HasSubstr(" on 8 x h100-sxm-80gb"));
    for (const int columns : {80, 120}) {
      const std::string shown = in_terminal(columns, question);
      expect_within(shown, static_cast<std::size_t>(columns), 35);
      expect_in_order(shown, names);
      EXPECT_NE(shown.find('\033'), std::string::npos);
      EXPECT_THAT(shown, testing::HasSubstr("optim")) << "of the bar";
    }
  }
  EXPECT_EQ(in_terminal(80, kDense, "NO_COLOR=1").find('\033'), std::string::npos);
}

// Does --explain add the sections that it names, and only those?
TEST_F(Answers, ExplainAddsWhatItNames) {
  const std::string plain = foldwise(kMoe).out, why = foldwise(std::string(kMoe) + " --explain why,search").out,
                    all = foldwise(std::string(kMoe) + " --explain").out;
  const std::string head = plain.substr(0, plain.find("Search"));
  for (const std::string& text : {why, all}) EXPECT_TRUE(text.starts_with(head)) << text;
  EXPECT_THAT(why, testing::HasSubstr("\nWhy plan 1, and what limits it\n"));
  EXPECT_THAT(why, testing::HasSubstr("Rejected: "));
  EXPECT_THAT(why, testing::Not(testing::HasSubstr("What plan 1's choices earn")));
  for (const char* title : {"All plans", "Why plan 1", "Probability that each plan is the fastest",
                            "What plan 1's choices earn", "Plans that no other beats", "What plans take as given"})
    EXPECT_THAT(all, testing::HasSubstr(title));
  EXPECT_EQ(foldwise(std::string(kMoe) + " --explain nothing").code, 2);
}

// Does a plan keep its number, however many are listed?
TEST_F(Answers, ShortListsBeginLongOnes) {
  std::vector<json> lists;
  for (const int top : {3, 12, 25})
    lists.push_back(json::parse(foldwise(fmt::format("{} --top {} --format json", kMoe, top)).out)["plans"]);
  ASSERT_EQ(lists[0].size(), 3U);
  ASSERT_GT(lists[1].size(), 10U);
  for (std::size_t i = 0; i + 1 < lists.size(); ++i)
    for (std::size_t k = 0; k < lists[i].size(); ++k) EXPECT_EQ(lists[i][k]["run"], lists[i + 1][k]["run"]) << k;
}

// Is it said on one screen that nothing fits, and what would?
TEST_F(Answers, NothingFitsOnOneScreen) {
  const Outcome outcome = foldwise(
      "plan --model deepseek-v3 --system h100-sxm-80gb --gpus 8 --global-batch 8 --effort 0.1 --pin "
      "tp=1,cp=1,pp=1,etp=1,micro_batch=1,cuda_graph.impl=none,offload.optimizer_cpu_offload=false");
  EXPECT_EQ(outcome.code, 3);
  expect_within(outcome.out, 80, 35);
  expect_in_order(outcome.out,
                  {"Nothing fits", "Memory of the GPU decides", "Nearest misses", "These were found", "Search"});
}

// Are the other answers as short as they should be, with what decides first?
TEST_F(Answers, OtherAnswersAreShortToo) {
  json other = small_run();
  other["precision"] = "fp8-current";
  const std::string a = write("a.json", small_run()), b = write("b.json", other);
  for (const int columns : {0, 80, 120}) {  // 0: a pipe.
    const auto shown = [&](const std::string& arguments) {
      return columns == 0 ? foldwise(arguments).out : in_terminal(columns, arguments);
    };
    const std::size_t width = columns == 0 ? 80 : static_cast<std::size_t>(columns);
    const std::string run = shown("predict " + a), runs = shown("compare " + a + ' ' + b);
    expect_within(run, width, 20);
    expect_in_order(run, {"mixtral-8x7b", "Step", "Layout", "Memory", "Time", "Largest", "Change"});
    expect_within(runs, width, 15);
    expect_in_order(runs, {"A is ", "   step s", "A ", "B ", "Differs", "B gains"});
  }
}

// Does a table of errors begin with all rows, list few whole, and leave causes to --explain?
TEST_F(Answers, ValidationBeginsWithItsAccuracy) {
  json rows = json::array();
  for (int i = 0; i < 12; ++i) {
    rows.push_back(small_run());
    rows.back()["id"] = fmt::format("row-{}", i);
    rows.back()["measured"]["step_time_s"] = 2.0 + 0.1 * i;
  }
  const std::string file = write("rows.json", rows), text = foldwise("validate " + file).out;
  expect_within(text, 110, 35);
  expect_in_order(text, {"12 rows predicted, 0 skipped", "Errors in percent", "The 10 rows with the largest errors"});
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("What errors come from")));
  const std::string all = foldwise("validate --rows " + file).out;
  for (int i = 0; i < 12; ++i) EXPECT_THAT(all, testing::HasSubstr(fmt::format("row-{}\n", i)));
}

// Do a diagnosis and a calibration begin with what was asked, and is the rest behind --explain?
TEST_F(Answers, ADiagnosisAndACalibrationBeginWithTheirAnswer) {
  const std::string traced = FW_TRACES_DIR "/h200-deepseek-moe-recompute";
  std::filesystem::copy_file(traced + ".rank0.json.gz", path("rank0.json.gz"));
  const std::string diagnose = "diagnose " + traced + ".json --trace " + path("rank0.json.gz");
  const std::string why = foldwise(diagnose).out;
  expect_within(why, 80, 35);
  expect_in_order(why, {"h200-deepseek-moe-recompute on h200", "Step", "Why", "GPU", "Longer than predicted",
                        "Single changes", "More"});
  EXPECT_THAT(why, testing::Not(testing::HasSubstr("Seconds by cause")));
  EXPECT_THAT(foldwise(diagnose + " --explain lines").out, testing::HasSubstr("\nSeconds by cause"));

  const std::string calibrate = "calibrate --records " FW_DATA_DIR "/records/h200-x4.jsonl --out ";
  const std::string fitted = foldwise(calibrate + path("a")).out;
  expect_within(fitted, 80, 35);
  expect_in_order(fitted, {"NVIDIA H200: 308 settings", "Profile", "Files", "Next", "Errors in percent", "  curve"});
  EXPECT_THAT(fitted, testing::Not(testing::HasSubstr("fitted\n")));
  EXPECT_THAT(foldwise(calibrate + path("b") + " --explain").out, testing::HasSubstr("fitted\n"));
}

// Is a sweep CSV in a pipe, in a terminal a table with bars that gives each refusal once?
TEST_F(Answers, ASweepIsATableInATerminal) {
  const std::string command = "sweep " + write("run.json", small_run()) + " --set ep=4,8,48,96";
  EXPECT_TRUE(foldwise(command).out.starts_with("sweep,ep,"));
  const std::string shown = without_colours(in_terminal(120, command));
  expect_within(shown, 120, 12);
  expect_in_order(shown, {"ep", " 4", " 8", "48", "96"});
  EXPECT_THAT(shown, testing::HasSubstr("####"));
  EXPECT_EQ(foldwise(command + " --format table").out, without_colours(foldwise(command + " --format table").out));
}

}  // namespace
}  // namespace foldwise::screen_test

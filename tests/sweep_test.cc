// Does a sweep say of each point what `predict` and `plan` say of it, and does what a killed one has written stay?
#include "planner/sweep/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "planner/models/models.h"
#include "planner/sweep/chart.h"
#include "planner/sweep/row_file.h"
#include "tests/program_test.h"

namespace foldwise::planner::sweep_test {
namespace {

using nlohmann::json;

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

class SweepTest : public FolderTest {
 protected:
  [[nodiscard]] Sweep sweep_of(const json& run, std::vector<Axis> axes, std::optional<LongRun> long_run = {}) const {
    return {RunQuestion{write_text("run.json", run.dump(1)), run}, std::move(axes), long_run};
  }
  /// Text of the ConfigError thrown when the sweep is created.
  [[nodiscard]] std::string mistakes(const json& run, std::vector<Axis> axes) const {
    try {
      static_cast<void>(sweep_of(run, std::move(axes)));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
};

std::vector<SweepRow> all_rows(const Sweep& sweep, int threads = 0) {
  std::vector<SweepRow> rows;
  for_rows(sweep, 0, threads, [&](const SweepRow& row) { rows.push_back(row); });
  return rows;
}

// Do 200 points that are killed in the middle, twice, end with the bytes of a sweep that was left alone, with another
// number of threads?
TEST_F(SweepTest, AKilledSweepGoesOnToTheSameBytes) {
  const std::string run = write_text("run.json", small_run().dump(1));
  for (const std::string format : {"csv", "jsonl"}) {
    const auto arguments = [&](const std::string& out, const std::string& threads) {
      return std::vector<std::string>{"sweep",     run,
                                      "--set",     "tp=1,2,3,4",
                                      "--set",     "micro_batch=1,2,4,8,16",
                                      "--set",     "ep=1,2,4,8,16",
                                      "--set",     "pp=1,2",
                                      "--out",     path(out),
                                      "--format",  format,
                                      "--threads", threads};
    };
    ASSERT_EQ(wait_for(start_foldwise(arguments(format + "-alone", "2"))), 0);
    const std::string alone = contents(path(format + "-alone"));
    const std::size_t header = format == "csv" ? 1 : 0;
    ASSERT_EQ(lines(alone), 200 + header);
    for (const std::size_t until : {std::size_t{30}, std::size_t{90}}) {
      const pid_t child = start_foldwise(arguments(format + "-killed", "1"));
      while (lines(contents(path(format + "-killed"))) < until)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      kill(child, SIGKILL);
      const int status = wait_for(child);
      ASSERT_TRUE(WIFSIGNALED(status));
      ASSERT_LT(lines(contents(path(format + "-killed"))), 200 + header);
    }
    const std::string killed = contents(path(format + "-killed"));
    EXPECT_EQ(alone.compare(0, killed.size(), killed), 0);
    ASSERT_EQ(wait_for(start_foldwise(arguments(format + "-killed", "3"))), 0);
    EXPECT_EQ(contents(path(format + "-killed")), alone);
  }
}

// Wherever the file is cut, is the part of a row that is left taken away, and no row computed that is there?
TEST_F(SweepTest, APartialLastRowIsCut) {
  const Sweep sweep = sweep_of(small_run(), {{"micro_batch", {"1", "2", "4"}}, {"precision", {"bf16", "fp8-current"}}});
  for (const RowFormat format : {RowFormat::kCsv, RowFormat::kJsonLines}) {
    std::string whole = header_text(format, sweep.columns());
    for (const SweepRow& row : all_rows(sweep)) whole += row_text(format, row);
    for (std::size_t size = 0; size <= whole.size(); size += 97) {
      const std::string file = write_text("cut", whole.substr(0, size));
      std::size_t found = 0;
      {
        RowFile rows(file, format, sweep);
        found = rows.found().size();
        for_rows(sweep, found, 1, [&](const SweepRow& row) { rows.append(row_text(format, row)); });
      }
      const std::size_t before = lines(whole.substr(0, size)), header = format == RowFormat::kCsv ? 1 : 0;
      EXPECT_EQ(found, before - std::min(before, header)) << size;
      EXPECT_EQ(contents(file), whole) << size;
    }
  }
}

// Is a file that another program cuts, changes or replaces while a sweep writes it noticed at the next row, or at the
// end?
TEST_F(SweepTest, AFileThatChangesIsNoticed) {
  const Sweep sweep = sweep_of(small_run(), {{"micro_batch", {"1", "2", "4"}}});
  const std::vector<SweepRow> rows = all_rows(sweep);
  const auto noticed = [&](const std::function<void(const std::string&)>& change) {
    const std::string file = write_text("rows", "");
    RowFile out(file, RowFormat::kCsv, sweep);
    out.append(row_text(RowFormat::kCsv, rows[0]));
    EXPECT_NO_THROW(out.expect_unchanged());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // File times have a resolution of milliseconds.
    change(file);
    EXPECT_THROW(out.expect_unchanged(), config::ConfigError);
    EXPECT_THROW(out.append(row_text(RowFormat::kCsv, rows[1])), config::ConfigError);
  };
  noticed([](const std::string& file) { std::filesystem::resize_file(file, 10); });
  noticed([](const std::string& file) { std::ofstream(file, std::ios::app) << "x\n"; });
  noticed([](const std::string& file) { std::fstream(file, std::ios::in | std::ios::out) << 'X'; });
  noticed([](const std::string& file) { std::filesystem::remove(file); });
  noticed([](const std::string& file) {
    std::ofstream(file + ".other") << "x";
    std::filesystem::rename(file + ".other", file);
  });
}

// Is a file of anything else refused with the line, and left as it is?
TEST_F(SweepTest, AFileOfAnotherSweepIsRefused) {
  const Axis axis{"micro_batch", {"1", "2"}};
  const Sweep sweep = sweep_of(small_run(), {axis});
  json other_run = small_run();
  other_run["ep"] = 4;
  const Sweep other = sweep_of(other_run, {axis}), longer = sweep_of(small_run(), {{"micro_batch", {"1", "2", "4"}}});
  for (const RowFormat format : {RowFormat::kCsv, RowFormat::kJsonLines}) {
    const auto text = [&](const Sweep& of) {
      std::string all = header_text(format, of.columns());
      for (const SweepRow& row : all_rows(of)) all += row_text(format, row);
      return all;
    };
    const std::string own = text(sweep);
    for (const std::string& content : {text(other), text(longer), std::string("notes\n"), std::string("notes"),
                                       own + own.substr(own.find('\n') + 1), own + "x"}) {
      const std::string file = write_text("rows", content);
      try {
        const RowFile rows(file, format, sweep);
        ADD_FAILURE() << content;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr(file + ":"));
        EXPECT_THAT(error.what(), testing::HasSubstr("give another file, or remove it"));
      }
      EXPECT_EQ(contents(file), content);
    }
    const RowFile writer(write_text("rows", own), format, sweep);
    EXPECT_THROW(RowFile(path("rows"), format, sweep), ConfigError) << "two at once";
  }
}

// Is a row what the run file of its point is predicted to take, for points of run, model and system, and are those that
// cannot be rows with their reason?
TEST_F(SweepTest, RowsArePredictionsOfTheChangedRun) {
  const Sweep sweep = sweep_of(small_run(), {{"num_gpus", {"16", "32"}},
                                             {"tp", {"1", "3"}},
                                             {"model_overrides.num_hidden_layers", {"16", "32"}},
                                             {"system.nic_bandwidth", {"400Gb/s", "100 GB/s"}},
                                             {"micro_batch", {"1", "8"}}});
  ASSERT_EQ(sweep.size(), 32U);
  const std::vector<SweepRow> rows = all_rows(sweep);
  ASSERT_EQ(rows.size(), 32U);
  int fit = 0, not_fit = 0, refused = 0;
  for (const SweepRow& row : rows) {
    EXPECT_EQ(row.at("tp") == 3, row.at("status") == "refused") << row;
    if (row.at("status") == "refused") {
      ++refused;
      EXPECT_THAT(row.at("reason").get<std::string>(),
                  testing::HasSubstr("cannot be divided by tp x cp x pp = 3 x 1 x 2"));
      EXPECT_TRUE(row.at("step_time_s").is_null());
      continue;
    }
    (row.at("status") == "fits" ? fit : not_fit) += 1;
    EXPECT_EQ(row.at("reason").is_null(), row.at("status") == "fits");
    const planner::Run run = parse_run(row.at("run").dump());
    EXPECT_EQ(run.num_gpus, row.at("num_gpus").get<std::int64_t>());
    EXPECT_EQ(run.options.step.dp, run.num_gpus / 2);
    EXPECT_EQ(run.model.num_layers(), row.at("model_overrides.num_hidden_layers").get<std::int64_t>());
    EXPECT_DOUBLE_EQ(run.hardware.network.nic_bandwidth.to<double>(),
                     row.at("system.nic_bandwidth") == "400Gb/s" ? 50e9 : 100e9);
    const Prediction prediction = predict(run);
    EXPECT_EQ(prediction.step_time.to<double>(), row.at("step_time_s").get<double>());
    EXPECT_EQ(prediction.fits, row.at("status") == "fits");
    EXPECT_DOUBLE_EQ(row.at("compute_s").get<double>() + row.at("exposed_communication_s").get<double>() +
                         row.at("exposed_copy_s").get<double>() + row.at("bubble_s").get<double>() +
                         row.at("host_s").get<double>(),
                     row.at("step_time_s").get<double>());
  }
  EXPECT_EQ(refused, 16);
  EXPECT_GT(fit, 0);
  EXPECT_GT(not_fit, 0);
  EXPECT_LT(rows[2].at("step_time_s"), rows[0].at("step_time_s")) << "a faster NIC";
}

// Is a row of plans the first plan of the same question?
TEST_F(SweepTest, RowsOfPlansAreTheirFirstPlans) {
  PlanQuestion question;
  question.request.model = "mixtral-8x7b";
  question.request.system = "h200";
  question.request.num_gpus = 8;
  question.request.global_batch = 64;
  question.request.set = {{"cp", {"1"}}, {"pp", {"1"}}};
  question.effort = 50'000;
  const Sweep sweep(question, {{"tp", {"1", "2"}}, {"system.hbm.capacity", {"141 GB", "30 GB"}}});
  const std::vector<SweepRow> rows = all_rows(sweep, 1);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows, all_rows(sweep, 2));
  for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
    PlanRequest request = question.request;
    request.set["tp"] = {i == 0 ? "1" : "2"};
    request.set["system.hbm.capacity"] = {"141 GB"};
    PlanProblem problem = plan_problem(request);
    problem.effort = question.effort;
    const PlanResult result = foldwise::plan(problem);
    ASSERT_FALSE(result.plans.empty());
    EXPECT_EQ(rows[i].at("step_time_s"), result.plans.front().prediction.step_time.to<double>());
    EXPECT_EQ(json::parse(rows[i].at("run").dump()), json::parse(run_file(problem, result.plans.front())));
    EXPECT_EQ(predict(parse_run(rows[i].at("run").dump())).step_time, result.plans.front().prediction.step_time);
    EXPECT_EQ(rows[i + 1].at("status"), "does not fit");
    EXPECT_THAT(rows[i + 1].at("reason").get<std::string>(), testing::HasSubstr("the nearest lacks"));
  }
}

// Are all mistakes that are there at every point said at once, before anything is computed?
TEST_F(SweepTest, MistakesOfAllPointsAreSaidAtOnce) {
  const std::string axes =
      mistakes(small_run(), {{"tpp", {"1"}}, {"tp", {"0", "two", "1", "1"}}, {"tp", {"2"}}, {"ep", {""}}});
  for (const char* message :
       {"set tpp: no field of a run file, nor model_overrides.KEY or system.KEY; the nearest is \"tp\"",
        "set tp: expected a whole number of at least 1, found 0", "set tp: expected a whole number, found \"two\"",
        "set tp: 1 stands there twice", "set tp: given twice", "set ep: expected at least one value"})
    EXPECT_THAT(axes, testing::HasSubstr(message));
  const std::string system = mistakes(small_run(), {{"system.hbm.capasity", {"1"}},
                                                    {"system.bandwidth", {"1"}},
                                                    {"system.hbm.capacity", {"-1 GB", "12 GB/s", "12"}},
                                                    {"model_overrides.num_hidden_layer", {"3"}}});
  for (const char* message : {"no number of the system; the nearest is \"hbm.capacity\"", "expected one number, found",
                              "/hbm.capacity: expected a size above 0, found \"-1 GB\"",
                              "/hbm.capacity: expected a size in one of B, MiB, GiB, GB, TB, found \"12 GB/s\"",
                              "GB, TB, found 12", "/num_hidden_layer: unknown key"})
    EXPECT_THAT(system, testing::HasSubstr(message));
  EXPECT_THAT(mistakes(small_run(), {{"model", {"mixtral-8x7b", "mixtral"}}, {"system", {"h2000"}}}),
              testing::AllOf(testing::HasSubstr("mixtral: "), testing::HasSubstr("\"h2000\"")));
  json run = small_run();
  run["tpp"] = 1;
  run.erase("num_gpus");
  EXPECT_THAT(mistakes(run, {{"ep", {"1"}}}),
              testing::AllOf(testing::HasSubstr("/tpp: unknown key"), testing::HasSubstr("/num_gpus")));
  EXPECT_THAT(mistakes(run, {{"num_gpus", {"16"}}}), testing::Not(testing::HasSubstr("/num_gpus")));
}

// Does the identity of a sweep of plans contain all that its answers depend on, and that of a run its defaults' text?
TEST_F(SweepTest, IdentitiesContainTheWholeQuestion) {
  PlanQuestion question;
  question.request.model = "mixtral-8x7b";
  question.request.system = "h200";
  question.request.num_gpus = 8;
  const auto identity = [](const Sweep& sweep) { return sweep.known_cells(0).at("sweep").get<std::string>(); };
  const auto changed = [&](const auto& change) {
    PlanQuestion other = question;
    change(other.request);
    return identity(Sweep(other, {{"tp", {"1", "2"}}}));
  };
  const std::set<std::string> different = {
      changed([](PlanRequest&) {}), changed([](PlanRequest& r) { r.evidence = Evidence::kAny; }),
      changed([](PlanRequest& r) { r.release = "0.17.1"; }), changed([](PlanRequest& r) { r.headroom = 0.1; }),
      changed([](PlanRequest& r) { r.folding = false; })};
  EXPECT_EQ(different.size(), 5U);

  json run = small_run();
  const json defaults = json::parse(R"({"name": "mine", "title": "ours", "megatron": true, "values": {}})");
  run["defaults"] = write_text("defaults.json", defaults.dump());
  const auto of_run = [&] { return identity(sweep_of(run, {{"micro_batch", {"1", "2"}}})); };
  const std::string before = of_run();
  EXPECT_EQ(of_run(), before);
  static_cast<void>(write_text("defaults.json", defaults.dump(1)));
  EXPECT_NE(of_run(), before);
}

// Are points of a model that is an object of the run file predicted like those of its file, and null like a missing
// key?
TEST_F(SweepTest, AModelMayBeAnObject) {
  json run = small_run();
  const std::vector<SweepRow> named = all_rows(sweep_of(run, {{"micro_batch", {"1", "2"}}}));
  const std::string name = run.at("model");
  run["model"] = json::parse(built_in_model_text(name));
  const std::vector<SweepRow> inlined = all_rows(sweep_of(run, {{"micro_batch", {"1", "2"}}}));
  ASSERT_EQ(inlined.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(inlined[i].at("step_time_s"), named[i].at("step_time_s"));
  run["model"] = nullptr;
  EXPECT_EQ(all_rows(sweep_of(run, {{"model", {name}}})).front().at("step_time_s"), named[0].at("step_time_s"));
}

// Is a mistake that every plan has said before anything is planned, and one of some plans in their rows?
TEST_F(SweepTest, MistakesOfAllPlansAreSaidAtOnce) {
  PlanQuestion question;
  question.request.model = "mini-mixtral-8l";
  question.request.system = "h200";
  question.request.num_gpus = 8;
  question.effort = 1'000;
  question.request.set = {{"tpp", {"4"}}};
  EXPECT_THAT(
      [&] {
        static_cast<void>(Sweep(question, {{"tp", {"1", "2"}}}));
      },
      testing::ThrowsMessage<ConfigError>(testing::HasSubstr("set tpp: cannot be set")));
  question.request.set = {{"pp", {"4"}}};
  const std::vector<SweepRow> rows = all_rows(Sweep(question, {{"num_gpus", {"6", "8"}}}));
  EXPECT_EQ(rows.front().at("status"), "refused");
  EXPECT_NE(rows.back().at("status"), "refused") << rows.back();
}

// Does a number that only derivations read change what they derive, and is one that changes nothing a mistake?
TEST_F(SweepTest, ASystemsNumberChangesWhatFollowsFromIt) {
  json run = small_run();
  run["system"] = "gb200-nvl72";
  const std::vector<SweepRow> rows =
      all_rows(sweep_of(run, {{"system.hbm.bandwidth", {"4 TB/s", "8 TB/s", "16 TB/s"}}}));
  EXPECT_GT(rows[0].at("step_time_s"), rows[1].at("step_time_s"));
  EXPECT_GT(rows[1].at("step_time_s"), rows[2].at("step_time_s"));
  // H200's curves, which are measured, already contain the share that kernels reach.
  run["system"] = "h200";
  EXPECT_THAT(mistakes(run, {{"system.hbm.ceiling", {"0.5"}}}), testing::HasSubstr("no time or size of h200 follows"));
  EXPECT_THAT(mistakes(run, {{"system.power.limit", {"150 W"}}}),
              testing::HasSubstr("expected more than the 200 W of /power/base, found 150 W"));
  run["system"] = "a100-sxm-80gb";  // What its products draw is not known, so no limit slows them.
  EXPECT_THAT(mistakes(run, {{"system.power.limit", {"300 W"}}}),
              testing::HasSubstr("no time or size of a100-sxm-80gb follows"));
}

// Has the chart a line for each combination and a mark for each answered point, hollow where it does not fit, and are
// names that look like markup text?
TEST_F(SweepTest, TheChartHasAMarkForEachAnswer) {
  const Sweep sweep = sweep_of(small_run(), {{"micro_batch", {"1", "2", "8"}}, {"tp", {"1", "2", "3"}}});
  const std::vector<SweepRow> rows = all_rows(sweep);
  const std::string svg = sweep_svg(sweep, rows, "step_time_s");
  const auto count = [&](const std::string& part) {
    int n = 0;
    for (std::size_t at = 0; (at = svg.find(part, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  const auto with = [&](const char* status) {
    return std::count_if(rows.begin(), rows.end(), [&](const SweepRow& row) { return row.at("status") == status; });
  };
  EXPECT_EQ(count("<circle"), with("fits") + with("does not fit"));
  EXPECT_EQ(count("fill=\"#fff\"><title>"), with("does not fit"));
  EXPECT_GT(with("does not fit"), 0);
  // Two names of one number have no range between them.
  const Sweep same = sweep_of(small_run(), {{"system.nic_bandwidth", {"400Gb/s", "400.0Gb/s"}}});
  EXPECT_THAT(sweep_svg(same, all_rows(same), "step_time_s"), testing::Not(testing::HasSubstr("nan")));
  EXPECT_EQ(count(">tp "), 3);
  EXPECT_THROW(static_cast<void>(sweep_svg(sweep, rows, "seconds")), ConfigError);
  EXPECT_THROW(static_cast<void>(sweep_svg(sweep, rows, "status")), ConfigError);
}

// Does a text with commas, quotes and numbers come back from CSV as it went in?
TEST_F(SweepTest, CsvIsReadAsItWasWritten) {
  const SweepRow row = {{"a", "1, \"2\""}, {"b", 0.1}, {"c", nullptr}, {"d", true}, {"e", "x"}};
  const std::string line = row_text(RowFormat::kCsv, row);
  EXPECT_EQ(line, "\"1, \"\"2\"\"\",0.1,,true,x\n");
  EXPECT_EQ(read_row(RowFormat::kCsv, {"a", "b", "c", "d", "e"}, line.substr(0, line.size() - 1)), row);
}

// Is any number of a row read back as it was written, to the last bit? Answers and run files are the JSON that rows
// are.
RC_GTEST_PROP(SweepRows, NumbersAreReadBackAsTheyWereWritten, ()) {
  const auto bits = *rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>());
  const auto number = std::bit_cast<double>(bits);
  RC_PRE(std::isfinite(number));
  for (const RowFormat format : {RowFormat::kCsv, RowFormat::kJsonLines}) {
    std::string line = row_text(format, {{"a", number}});
    line.pop_back();
    RC_ASSERT(std::bit_cast<std::uint64_t>(read_row(format, {"a"}, line).at("a").get<double>()) == bits);
  }
}

}  // namespace
}  // namespace foldwise::planner::sweep_test

// Killed by SIGKILL at any moment, does the program lose nothing that was there, is what was finished found, and does
// it end, started again, with the bytes of one that was left alone? 20 kills of each command, 5 of one that measures
// and beneath the sanitizers; FOLDWISE_KILLS=200 for so many of each, which docs/properties.md states.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/program_test.h"

namespace foldwise::kill_test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

class Killed : public ProgramTest {
 protected:
  Killed() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~Killed() override { fmt::print("{} kills, {} of them while it was at work\n", signals_, kills_at_work_); }
  static int kills(int usual = 20) {
    const char* asked = std::getenv("FOLDWISE_KILLS");  // NOLINT(concurrency-mt-unsafe): nothing else runs.
    return asked == nullptr ? std::max(5, usual / FW_EVERY) : std::stoi(asked);
  }
  /// More kills than this must happen during work; 0 for few kills.
  static int enough() { return kills() < 20 ? 0 : kills() / 4; }

  /// Lets it finish, and measures how long that takes.
  void finish(const Arguments& arguments) {
    const Clock::time_point start = Clock::now();
    const int status = wait_for(start_foldwise(arguments));
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0) << fmt::format("{}", fmt::join(arguments, " "));
    duration_ = Clock::now() - start;
  }

  /// Kills it and its child processes at a random time within the duration that finish() measured.
  void kill_once(const Arguments& arguments) {
    const auto moment = std::uniform_real_distribution(0.0, 1.0)(random_) * duration_;
    const pid_t child = start_foldwise(arguments);
    std::this_thread::sleep_for(moment);
    ::kill(-child, SIGKILL);
    ::kill(child, SIGKILL);  // It may not have created its process group yet.
    ++signals_;
    if (WIFSIGNALED(wait_for(child))) ++kills_at_work_;
    while (waitpid(-child, nullptr, 0) > 0) continue;  // Its child processes are ours now.
  }

  std::mt19937 random_{std::random_device{}()};
  Clock::duration duration_{};
  int signals_ = 0, kills_at_work_ = 0;
};

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = contents(entry.path());
  return files;
}

// Are rows that stood in the file still there, and all of them rows of the whole sweep?
TEST_F(Killed, SweepsGoOnFromTheirRows) {
  const std::string run = write("run.json", small_run());
  const auto arguments = [&](const std::string& out) {
    return Arguments{"sweep",      run,     "--set",  "tp=1,2,4", "--set",   "micro_batch=1,2,4,8", "--set",
                     "ep=1,2,4,8", "--set", "pp=1,2", "--out",    path(out), "--threads",           "1"};
  };
  finish(arguments("alone"));
  const std::string alone = contents(path("alone"));
  std::size_t before = 0;
  for (int i = 0; i < kills(); ++i) {
    kill_once(arguments("rows"));
    const std::string rows = contents(path("rows"));
    ASSERT_EQ(alone.compare(0, rows.size(), rows), 0);
    ASSERT_GE(rows.size(), before);
    before = rows.empty() ? 0 : rows.rfind('\n') + 1;  // An incomplete last row is computed again.
    if (rows == alone) fs::remove(path("rows")), before = 0;
  }
  EXPECT_GT(kills_at_work_, enough());
  finish(arguments("rows"));
  EXPECT_EQ(contents(path("rows")), alone);
}

// Is each of the older plans' files where it was, or in before-N, and do the new ones come out the same?
TEST_F(Killed, PlansLeaveTheOlderOnes) {
  const auto arguments = [&](const std::string& out, const std::string& batch) {
    return Arguments{"plan", "--model",   "llama3-8b", "--system",       "h200",   "--gpus",
                     "4",    "--seq-len", "4096",      "--global-batch", batch,    "--effort",
                     "0.1",  "--top",     "3",         "--out",          path(out)};
  };
  const auto plans_in = [&](const std::string& folder) {
    std::map<std::string, std::string> files = files_in(path(folder));
    std::erase_if(files, [](const auto& file) { return !file.first.starts_with("plan-"); });
    std::erase_if(files, [](const auto& file) { return file.first.find(".new-") != std::string::npos; });
    return files;
  };
  finish(arguments("older", "16"));
  finish(arguments("alone", "32"));
  const std::map<std::string, std::string> older = plans_in("older"), alone = plans_in("alone");
  ASSERT_NE(older, alone);
  for (int i = 0; i < kills(); ++i) {
    fs::remove_all(path("plans"));
    fs::copy(path("older"), path("plans"));
    kill_once(arguments("plans", "32"));
    std::vector<std::string> texts;
    for (const auto& [name, text] : files_in(path("plans"))) texts.push_back(text);
    for (const auto& [name, text] : older) ASSERT_THAT(texts, testing::Contains(text)) << name;
    for (const auto& [name, text] : plans_in("plans"))
      ASSERT_TRUE((older.contains(name) && older.at(name) == text) || (alone.contains(name) && alone.at(name) == text))
          << name;
    if (i % 10 == 0) {
      ASSERT_EQ(wait_for(start_foldwise(arguments("plans", "32"))), 0);
      ASSERT_EQ(plans_in("plans"), alone);
    }
  }
  EXPECT_GT(kills_at_work_, enough());
  finish(arguments("plans", "32"));
  EXPECT_EQ(plans_in("plans"), alone);
}

// Are measurements, profile and plot each the old one or the new one, whole?
TEST_F(Killed, CalibrationsOfRecordsLeaveTheOldOrTheNew) {
  std::string records[2];
  for (const int day : {0, 1}) {
    records[day] =
        R"({"schema":1,"session":"s","program":"p","started":"2026-01-01T00:00:00Z","device":"NVIDIA H200","devices":1,)"
        R"("driver":"1","libraries":{},"build":"b","clocks":{}})"
        "\n";
    for (int i = 0; i < 2000; ++i) {
      const int rows = 250 * (i + 1);
      records[day] += nlohmann::json{{"schema", 1},
                                     {"session", "s"},
                                     {"kernel", "memory"},
                                     {"of", {{"op", "elementwise"}}},
                                     {"shape", {{"rows", rows}, {"width", 1000}}},
                                     {"flops", 0.0},
                                     {"bytes", 4000.0 * rows},
                                     {"warmups", 1},
                                     {"samples_us", {(1.0 + 0.1 * day) * (3.0 + rows / 1000.0)}},
                                     {"correct", true},
                                     {"max_relative_error", 0.0}}
                          .dump() +
                      '\n';
    }
  }
  const auto arguments = [&](const std::string& out, int day) {
    return Arguments{"calibrate", "--force", "--records", path(fmt::format("{}.jsonl", day)), "--out", path(out)};
  };
  for (const int day : {0, 1}) static_cast<void>(write_text(fmt::format("{}.jsonl", day), records[day]));
  finish(arguments("older/mine", 0));
  finish(arguments("alone/mine", 1));
  const std::map<std::string, std::string> older = files_in(path("older/mine")), alone = files_in(path("alone/mine"));
  ASSERT_EQ(alone.size(), 3U);
  fs::copy(path("older"), path("killed"), fs::copy_options::recursive);
  for (int i = 0; i < kills(); ++i) {
    kill_once(arguments("killed/mine", i % 2));
    const std::map<std::string, std::string> now = files_in(path("killed/mine"));
    for (const auto& [name, text] : older)
      ASSERT_TRUE(now.contains(name) && (now.at(name) == text || now.at(name) == alone.at(name))) << name;
  }
  EXPECT_GT(kills_at_work_, enough());
  finish(arguments("killed/mine", 1));
  for (const auto& [name, text] : alone) EXPECT_EQ(contents(path("killed/mine/" + name)), text);
}

// Is what a killed calibration has measured still there, and not measured again?
TEST_F(Killed, CalibrationsOfADeviceGoOnFromTheirMeasurements) {
  const auto arguments = [&](const std::string& out) {
    return Arguments{"calibrate", "--device", "cpu", "--quick", "--only", "gemm", "--out", path(out)};
  };
  finish(arguments("alone"));
  const auto settings = [&](const std::string& out) {  // In the session line, and in each measurement.
    std::istringstream in(contents(path(out + "/records.jsonl")));
    std::vector<std::string> found;
    for (std::string line; std::getline(in, line) && !in.eof();) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record.contains("shape")) found.push_back(record["of"].dump() + record["shape"].dump());
    }
    return found;
  };
  const std::vector<std::string> all = settings("alone");
  std::string before;
  for (int i = 0; i < kills(5); ++i) {
    kill_once(arguments("killed"));
    const std::string records = contents(path("killed/records.jsonl"));
    ASSERT_TRUE(records.starts_with(before));
    before = records.substr(0, records.rfind('\n') + 1);
    if (settings("killed").size() == all.size()) fs::remove_all(path("killed")), before.clear();
  }
  EXPECT_GT(kills_at_work_, 0);
  finish(arguments("killed"));
  EXPECT_THAT(settings("killed"), testing::UnorderedElementsAreArray(all));
  EXPECT_TRUE(contents(path("killed/records.jsonl")).starts_with(before));
}

}  // namespace
}  // namespace foldwise::kill_test

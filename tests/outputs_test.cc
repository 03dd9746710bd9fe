// Does the program lose nothing that its user has: inputs, measurements, answers, what was there before?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/program_test.h"

namespace foldwise::outputs_test {
namespace {

using testing::HasSubstr;

class Outputs : public ProgramTest {
 protected:
  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  /// Expects exit code 2 with `message` on stderr and nothing on stdout.
  void expect_refused(const std::string& arguments, const std::string& message) const {
    const Outcome outcome = foldwise(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << arguments;
  }
  [[nodiscard]] std::size_t files() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }
};

// Is an output that names an input refused, however it names it, and the input left as it was?
TEST_F(Outputs, AnInputIsNeverReplaced) {
  const std::string run = write("r.json", small_run()), before = contents(run);
  std::filesystem::create_symlink("r.json", folder_ / "link.json");
  std::filesystem::create_hard_link(run, folder_ / "hard.json");
  for (const char* name : {"r.json", "link.json", "hard.json", "./r.json"}) {
    expect_refused("predict " + run + " --trace " + path(name), "it is read too");
    expect_refused("predict " + run + " --svg " + path(name), "it is read too");
    expect_refused("predict " + run + " --html " + path(name), "it is read too");
    expect_refused(fmt::format("compare {0} {0} --html {1}", run, path(name)), "it is read too");
    expect_refused("plan --from " + run + " --html " + path(name), "it is read too");
    expect_refused("sweep " + run + " --set ep=8 --out " + path(name), "it is read too");
    expect_refused("sweep " + run + " --set ep=8 --svg " + path(name), "it is read too");
  }
  EXPECT_EQ(contents(run), before);

  // A profile that the run file names, and its base; a plan that the next search would replace.
  put("base.json", R"({"base": "h200"})");
  put("mine.json", R"({"base": "base.json"})");
  nlohmann::json of_mine = small_run();
  of_mine["system"] = "mine.json";
  const std::string named = write("named.json", of_mine);
  expect_refused("predict " + named + " --trace " + path("mine.json"), "it is read too");
  expect_refused("predict " + named + " --trace " + path("base.json"), "it is read too");
  // Names without an extension: a run, its model, and a FIFO, which is not read.
  put("model", R"({"architectures": ["none"]})");
  of_mine["model"] = "model";
  const std::string bare = write("run", of_mine);
  expect_refused("predict " + bare + " --trace " + path("model"), "it is read too");
  expect_refused("predict " + bare + " --trace " + path("base.json"), "it is read too");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  expect_refused("predict " + path("fifo") + " --trace " + path("fifo"), "it is read too");
  const std::string plan = write("plan-1.json", small_run());
  expect_refused("plan --from " + plan + " --out " + folder_.string(), "would be replaced");
}

// Does each output get a file of its own?
TEST_F(Outputs, TwoOutputsAreNotOneFile) {
  const std::string run = write("r.json", small_run());
  expect_refused("predict " + run + " --trace " + path("x") + " --svg " + path("./x"), "--trace writes it too");
  std::filesystem::create_symlink("x", folder_ / "y");  // Dangling so far.
  expect_refused("predict " + run + " --trace " + path("x") + " --html " + path("y"), "--trace writes it too");
  expect_refused("sweep " + run + " --set ep=8 --out " + path("x") + " --svg " + path("x"), "--out writes it too");
  expect_refused("predict " + run + " --trace " + path("stdout"), "stdout goes there");
  EXPECT_EQ(foldwise("predict " + run + " --trace /dev/null --svg /dev/null").code, 0);
}

// Is an output that cannot be written found before the work? Of all commands, all at once, and nothing is made.
TEST_F(Outputs, AreCheckedBeforeTheWork) {
  put("file", "");
  const std::string missing = path("none/x"), inside = path("file/x"), folder = folder_.string();
  // The run file is missing, too. The message shows that outputs are checked first.
  for (const std::string arguments :
       {"predict no.json --trace ", "predict no.json --svg ", "predict no.json --html ",
        "compare no.json no.json --html ", "plan --model none --html ", "sweep no.json --set ep=8 --out ",
        "sweep no.json --set ep=8 --svg ", "sweep no.json --set ep=8 --html ", "fields --write "}) {
    expect_refused(arguments + missing, missing + ": cannot be written: No such file or directory");
    expect_refused(arguments + inside, inside + ": cannot be written: Not a directory");
    expect_refused(arguments + folder, folder + ": cannot be written: Is a directory");
    expect_refused(arguments + "''", "expected the path of a file, found nothing");
  }
  for (const std::string arguments : {"plan --model none --out ", "calibrate --records no.jsonl --out "}) {
    expect_refused(arguments + inside, inside + ": cannot be written: Not a directory");
    expect_refused(arguments + "''", "expected the path of a directory, found nothing");
  }
  const Outcome all = foldwise("predict no.json --trace " + missing + " --svg " + inside);
  EXPECT_THAT(all.err, testing::AllOf(HasSubstr("none/x: cannot"), HasSubstr("file/x: cannot")));
  EXPECT_EQ(files(), 3U);  // "file", stdout and stderr.
}

// Does nobody write where he has no right to? Root has every right.
TEST_F(Outputs, RightsAreKept) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const std::string run = write("r.json", small_run());
  std::filesystem::create_directory(folder_ / "closed");
  ::chmod(path("closed").c_str(), 0500);
  expect_refused("predict " + run + " --trace " + path("closed/x"), "Permission denied");
  put("kept", "kept");
  ::chmod(path("kept").c_str(), 0400);
  expect_refused("predict " + run + " --trace " + path("kept"), "Permission denied");
}

// Is a link still a link, a device a device, and a file as open to others as it was?
TEST_F(Outputs, LinksAndDevicesStayWhatTheyAre) {
  const std::string run = write("r.json", small_run());
  put("target.svg", "old");
  ::chmod(path("target.svg").c_str(), 0640);
  std::filesystem::create_symlink("target.svg", folder_ / "link.svg");
  ASSERT_EQ(foldwise("predict " + run + " --svg " + path("link.svg")).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.svg"));
  EXPECT_THAT(contents(path("target.svg")), testing::StartsWith("<svg "));
  EXPECT_EQ(std::filesystem::status(folder_ / "target.svg").permissions(), std::filesystem::perms{0640});

  std::filesystem::create_symlink("later.svg", folder_ / "dangling.svg");
  ASSERT_EQ(foldwise("predict " + run + " --svg " + path("dangling.svg")).code, 0);
  EXPECT_THAT(contents(path("later.svg")), testing::StartsWith("<svg "));

  const Outcome full = foldwise("predict " + run + " --trace /dev/full");
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err, HasSubstr("/dev/full: cannot be written: No space left on device"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));

  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = contents(path("fifo")); });
  EXPECT_EQ(foldwise("predict " + run + " --svg " + path("fifo")).code, 0);
  reader.join();
  EXPECT_THAT(got, testing::StartsWith("<svg "));
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "fifo"));
}

// Does a disk that is full, or a reader that has gone, leave no bug of ours, and the old file?
TEST_F(Outputs, AStdoutThatTakesNothingIsNoBugOfOurs) {
  const std::string run = write("r.json", small_run()), program = FW_FOLDWISE, err = path("err");
  for (const std::string& arguments : {"predict " + run, std::string("models"), std::string("--help"),
                                       std::string("--version"), std::string("predict --help")}) {
    EXPECT_EQ(shell(fmt::format("{} {} >/dev/full 2>{}", program, arguments, err)), 2) << arguments;
    EXPECT_EQ(contents(err), "stdout: cannot be written: No space left on device\n") << arguments;
    EXPECT_EQ(shell(fmt::format("{} {} >&- 2>{}", program, arguments, err)), 2) << arguments;
    EXPECT_EQ(contents(err), "stdout: cannot be written: Bad file descriptor\n") << arguments;
    // With SIGPIPE ignored, as under nohup or some schedulers, and without.
    for (const char* trap : {"trap '' PIPE; ", ""})
      EXPECT_EQ(shell(fmt::format("{}{} {} 2>{} | true", trap, program, arguments, err)), 0);
    EXPECT_EQ(contents(err), "") << arguments;
  }
  // No file that is opened may become the closed stdout.
  EXPECT_EQ(shell(program + " predict " + run + " --svg " + path("x.svg") + " >&- 2>" + err), 2);
  EXPECT_THAT(contents(path("x.svg")), testing::EndsWith("</svg>\n"));
  EXPECT_EQ(shell(program + " predict nothing.json 2>/dev/full"), 2);
}

// A disk with little room: is the old answer there, whole, and nothing else?
TEST_F(Outputs, WhatCannotBeWrittenWholeLeavesWhatWasThere) {
  const std::string run = write("r.json", small_run()), page = path("page.html");
  put("page.html", "old");
  const std::size_t before = files();
  EXPECT_NE(shell("ulimit -f 16; trap '' XFSZ; " + std::string(FW_FOLDWISE) + " predict " + run + " --html " + page +
                  " >/dev/null 2>&1"),
            0);
  EXPECT_EQ(contents(page), "old");
  EXPECT_EQ(files(), before);
}

// Is the answer printed where its files cannot be written, and are the files written where it cannot be printed?
TEST_F(Outputs, AFullDiskLosesNoAnswer) {
  const std::string run = write("r.json", small_run());
  for (const std::string& arguments : {"predict " + run + " --html /dev/full", "predict " + run + " --trace /dev/full",
                                       fmt::format("compare {0} {0} --html /dev/full", run)}) {
    const Outcome outcome = foldwise(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.out, testing::HasSubstr("tokens/s/GPU")) << arguments;
    EXPECT_EQ(outcome.err, "/dev/full: cannot be written: No space left on device\n") << arguments;
  }
  EXPECT_EQ(shell(std::string(FW_FOLDWISE) + " predict " + run + " --html " + path("page.html") + " >/dev/full 2>&1"),
            2);
  EXPECT_THAT(contents(path("page.html")), testing::EndsWith("</html>\n"));
}

// Where there is room for some of a plan's files, is none of them there?
TEST_F(Outputs, APlansFilesAreThereTogether) {
  const std::string plan =
      std::string(FW_FOLDWISE) +
      " plan --model mini-llama-16l --system h200 --gpus 4 --global-batch 16 --effort 0.1 --top 2 --out " +
      path("plans");
  EXPECT_EQ(shell("ulimit -f 60; trap '' XFSZ; " + plan + " >/dev/null 2>&1"), 2);
  EXPECT_FALSE(std::filesystem::exists(path("plans")));
  EXPECT_EQ(shell(plan + " >/dev/null 2>&1"), 0);
  EXPECT_TRUE(std::filesystem::exists(path("plans/plan-2.sbatch")));
}

// Does a program that is asked to end take its lock, and the folder that it made, with it?
TEST_F(Outputs, ASignalLeavesNoLock) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    const pid_t child = start_foldwise({"plan", "--model", "deepseek-v3", "--system", "gb200-nvl72", "--gpus", "256",
                                        "--global-batch", "4096", "--effort", "100", "--out", path("new/plans")});
    while (!std::filesystem::exists(path("new/plans/.foldwise-lock")))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // Its signal handlers are installed after its lock.
    ::kill(child, signal);
    const int status = wait_for(child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
    EXPECT_FALSE(std::filesystem::exists(path("new")));
  }
}

// Killed at any moment of writing: is the old or the new file there, whole?
TEST_F(Outputs, AKillLeavesTheOldOrTheNew) {
  const std::string run = write("r.json", small_run()), svg = path("x.svg");
  ASSERT_EQ(foldwise("predict " + run + " --svg " + svg).code, 0);
  const std::string whole = contents(svg);
  int killed = 0;
  for (int i = 0; i < 25; ++i) {
    put("x.svg", "old");
    const std::string delay = "0." + std::string(i < 10 ? "00" : "0") + std::to_string(i);
    killed += shell(fmt::format("timeout -s KILL {} {} predict {} --svg {} >/dev/null 2>&1", delay, FW_FOLDWISE, run,
                                svg)) != 0
                  ? 1
                  : 0;
    EXPECT_THAT(contents(svg), testing::AnyOf("old", whole));
  }
  EXPECT_GT(killed, 0);
}

class Calibrations : public Outputs {
 protected:
  /// Three settings more than a curve needs, scaled by `scale`.
  [[nodiscard]] std::string records(const std::string& name, double scale) const {
    std::string text =
        R"({"schema":1,"session":"s","program":"p","started":"2026-01-01T00:00:00Z","device":"NVIDIA H200","devices":1,)"
        R"("driver":"1","libraries":{},"build":"b","clocks":{}})"
        "\n";
    for (int i = 0; i < 6; ++i) {
      const double bytes = 1e6 * (1 << (2 * i));
      nlohmann::json line = {{"schema", 1}, {"session", "s"}, {"kernel", "memory"}};
      line["of"] = {{"op", "elementwise"}};
      line["shape"] = {{"rows", static_cast<std::int64_t>(bytes / 4000)}, {"width", 1000}};
      line["flops"] = 0.0;
      line["bytes"] = bytes;
      line["warmups"] = 1;
      line["samples_us"] = {scale * (3.0 + bytes / 4e6)};
      line["correct"] = true;
      line["max_relative_error"] = 0.0;
      text += line.dump() + '\n';
    }
    put(name, text);
    return path(name);
  }
};

// Are measurements of another day kept, unless the user says otherwise?
TEST_F(Calibrations, KeepTheMeasurementsThatAreThere) {
  const std::string first = records("first.jsonl", 1.0), second = records("second.jsonl", 1.1), mine = path("mine");
  const Outcome fitted = foldwise("calibrate --records " + first + " --out " + mine);
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  const std::string kept = contents(mine + "/records.jsonl"), profile = contents(mine + "/profile.json");
  expect_refused("calibrate --records " + second + " --out " + mine, "records.jsonl: holds other measurements");
  EXPECT_EQ(contents(mine + "/records.jsonl"), kept);
  EXPECT_EQ(contents(mine + "/profile.json"), profile);
  // The same records again, also from their final place: nothing is lost.
  EXPECT_EQ(foldwise("calibrate --records " + first + " --out " + mine).code, 0);
  EXPECT_EQ(foldwise("calibrate --records " + mine + "/records.jsonl --out " + mine + "/").code, 0);
  EXPECT_EQ(contents(mine + "/records.jsonl"), kept);
  EXPECT_EQ(foldwise("calibrate --force --records " + second + " --out " + mine).code, 0);
  EXPECT_NE(contents(mine + "/records.jsonl"), kept);
}

// Is a profile that goes to others free of where it was made?
TEST_F(Calibrations, AProfileNamesNoFolder) {
  ASSERT_EQ(foldwise("calibrate --records " + records("r.jsonl", 1.0) + " --out " + path("mine")).code, 0);
  EXPECT_THAT(contents(path("mine/profile.json")),
              testing::AllOf(HasSubstr("\"r.jsonl: p on"), testing::Not(HasSubstr(folder_.string()))));
}

// Does a calibration that fails leave nothing behind?
TEST_F(Calibrations, FailedOnesLeaveNoDirectory) {
  put("bad.jsonl", "{}\n");
  expect_refused("calibrate --records " + path("bad.jsonl") + " --out " + path("a/b"), "bad.jsonl:1");
  expect_refused("calibrate --import " FW_GOLDEN_DIR "/pytorch_trace.json --out " + path("a/b"),
                 "expected more settings of a kernel");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
}

// Is the second of two calibrations into one folder told so?
TEST_F(Calibrations, OneAtATimeWritesIntoAFolder) {
  const std::string file = records("r.jsonl", 1.0), mine = path("mine");
  ASSERT_EQ(foldwise("calibrate --records " + file + " --out " + mine).code, 0);
  EXPECT_FALSE(std::filesystem::exists(mine + "/.foldwise-lock"));
  {
    const std::string lock = mine + "/.foldwise-lock";
    std::ofstream(lock) << "";
    EXPECT_EQ(shell("flock -n " + lock + " " + FW_FOLDWISE + " calibrate --records " + file + " --out " + mine + " 2>" +
                    path("err")),
              2);
    EXPECT_EQ(contents(path("err")), mine + ": another foldwise writes into it\n");
  }
  EXPECT_EQ(foldwise("calibrate --records " + file + " --out " + mine).code, 0);  // Its process is dead.
}

}  // namespace
}  // namespace foldwise::outputs_test

// Is every malformed input a mistake of the user, told in one message of a readable length, and none a bug of ours?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/program_test.h"
#include "tests/sandbox.h"

namespace foldwise::malformed_test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Malformed : public ProgramTest {
 protected:
  void expect_mistake(const std::string& arguments, const std::string& message, std::size_t longest = 2500) const {
    const Outcome outcome = foldwise(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << arguments;
    EXPECT_THAT(outcome.err, Not(HasSubstr("bug of ours"))) << arguments;
    EXPECT_LT(outcome.err.size(), longest) << arguments;
  }
};

// Output of other programs, truncated or of another shape: all files of tests/invalid_inputs/import_*.
TEST_F(Malformed, Imports) {
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(FW_INVALID_INPUTS_DIR)) {
    const std::string name = file.path().filename().string();
    if (!name.starts_with("import_")) continue;
    ++files;
    for (const char* device : {"", " --device-name 'NVIDIA H200'"})
      expect_mistake("calibrate --import " + file.path().string() + device + " --out " + path("out"), name);
  }
  EXPECT_EQ(files, 11U);
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

// A folder, a file larger than any reader accepts, and one nested more deeply, for every reader, with the outputs that
// are compared with the files named in it.
TEST_F(Malformed, FilesBeyondAllReason) {
  const std::string run = write("run.json", small_run()), out = path("out");
  const auto nested = [&](const std::string& name, const std::string& before, const std::string& after) {
    constexpr int kLevels = 1'000'000 / FW_EVERY;  // More than any stack holds.
    return write_text(name, fmt::format("{0}{2:[>{4}}{3:]>{4}}{1}\n", before, after, "", "", kLevels));
  };
  const auto expect_all = [&](std::initializer_list<const char*> commands, const std::string& file,
                              const std::string& message) {
    for (const char* command : commands)
      expect_mistake(
          fmt::format(fmt::runtime(command), fmt::arg("file", file), fmt::arg("run", run), fmt::arg("out", out)),
          fmt::format("{}:{}", file, message));
  };
  const char* const deep = "1: nested more than 100 levels deep";
  expect_all({"predict {file}", "predict {file} --trace {out}", "compare {file} {file}",
              "sweep --set tp=1,2 --out {out} {file}", "models {file}", "systems {file}", "validate {file}"},
             nested("deep.json", "", ""), deep);
  expect_all({"validate {file} --system h200", "calibrate --records {file} --out {out}"}, nested("deep.jsonl", "", ""),
             deep);
  expect_all({"calibrate --import {file} --out {out}"}, nested("tests.json", R"({"results":)", "}"), deep);
  const std::string trace = nested("trace.json", R"({"traceEvents":[{"args":)", "}]}");
  expect_all({"diagnose {run} --trace {file} --html {out}"}, trace, deep);

  const std::string large = write_text("large.json", ""), folder = path("folder.jsonl");
  std::filesystem::resize_file(large, std::uintmax_t{257} << 20U);  // Sparse: takes no space.
  std::filesystem::create_directory(folder);
  for (const auto& [file, message] :
       {std::pair(large, " larger than 256 MiB"), std::pair(folder, " expected a file, found a directory"),
        std::pair(path("none.jsonl"), " no such file")})
    expect_all({"predict {file}", "calibrate --import {file} --out {out}", "calibrate --records {file} --out {out}"},
               file, message);
  expect_all({"import {file}", "diagnose {run} --log {file} --trace {run}"}, large, " larger than 256 MiB");
  EXPECT_FALSE(std::filesystem::exists(out));
}

// Files of moderate size with so many values or mistakes, or with such names, that they would take gigabytes or
// minutes. The message lists the first mistakes, or says that there are too many.
TEST_F(Malformed, FilesOfManyParts) {
  const auto times = [](std::size_t count, const std::string& part) {
    std::string text;
    text.reserve(count * part.size());
    for (std::size_t i = 0; i < count; ++i) text += part;
    return text;
  };
  constexpr std::size_t kMany = 2'000'000;
  const char* const many = ":1: more values, or longer names of them, than are read";
  expect_mistake("predict " + write_text("many.json", '[' + times(kMany, "1,") + "1]"), many);
  const std::string named =
      write_text("named.json", R"({")" + std::string(100'000, 'x') + R"(":[)" + times(1000, "1,") + "1]}");
  for (const char* command : {"predict ", "validate ", "systems ", "models "}) expect_mistake(command + named, many);
  // Each element would give several mistakes.
  constexpr std::size_t kLongest = 40'000;  // 200 lines.
  const std::string runs = write_text("runs.json", '[' + times(100'000, "{},") + "{}]");
  expect_mistake("validate " + runs, "at least 800 more mistakes", kLongest);
  const std::string records = write_text("many.jsonl", times(kMany, "{}\n"));
  expect_mistake("calibrate --records " + records + " --out " + path("out"), "at least 800 more mistakes", kLongest);
  std::string keys = R"({"model": "llama3-8b")";
  for (int i = 0; i < 100'000; ++i) keys += fmt::format(R"(,"k{}": 1)", i);
  expect_mistake("predict " + write_text("keys.json", keys + '}'), "at least 800 more mistakes", kLongest);
  const std::string long_name(std::size_t{2} << 20U, 'x'), run = write("run.json", small_run());
  expect_mistake("diagnose " + run + " --trace " +
                     write_text("trace.json", R"({"traceEvents":[{"name":")" + long_name + R"("}]})"),
                 "a value longer than 1 MiB");
  // Only a log may be long, not a script or a configuration.
  for (const char* name : {"long.sh", "long.yaml"})
    expect_mistake("import --system h200 --gpus 8 " + write_text(name, times(1'000'000, "a: b\n")),
                   "larger than the 4 MiB of a script or a configuration");
}

// A folder or a failing disk (this file's first page cannot be read), for every option that reads a file.
TEST_F(Malformed, FilesThatCannotBeRead) {
  const std::string run = write("run.json", small_run()), out = path("out");
  for (const std::string& file : {folder_.string(), std::string("/proc/self/mem")})
    for (const char* command :
         {"predict {file}", "predict {file} --html {out}", "export {file}", "import {file} --system h200 --gpus 8",
          "validate {file}", "diagnose {run} --trace {file}", "calibrate --import {file} --out {out}",
          "calibrate --records {file} --out {out}", "compare {run} {file}", "plan --from {file}",
          "plan --model {file} --system h200", "plan --measured {file}", "models {file}", "systems {file}",
          "sweep {file} --set tp=1,2 --out {out}", "sweep {run} --set model={file} --out {out}",
          "fields --write {file}"})
      expect_mistake(
          fmt::format(fmt::runtime(command), fmt::arg("file", file), fmt::arg("run", run), fmt::arg("out", out)), "");
}

// With less memory than a file or a search needs: one message, no abort. The program needs about 60 MB of address space
// to start.
TEST_F(Malformed, WithoutEnoughMemory) {
  if (!std::string_view(FW_SANITIZE).empty()) GTEST_SKIP() << "sanitizers take terabytes of addresses";
  std::string log;
  while (log.size() < std::size_t{20} << 20U)
    log += " [2026-01-01 00:00:00] iteration 1/ 10 | elapsed time per iteration (ms): 1000.0 |\n";
  const std::string long_log = write_text("long.log", log), err = path("err");
  const auto limited = [&](int mib, const std::string& arguments) {
    const int code = shell(fmt::format("ulimit -v {}; {} {} >/dev/null 2>{}", mib * 1024, FW_FOLDWISE, arguments, err));
    EXPECT_THAT(code, testing::AnyOf(0, 2)) << mib << ' ' << arguments << contents(err);
    if (code == 2) {
      EXPECT_LE(contents(err).size(), 400U) << contents(err);
    }
    return code;
  };
  int short_of_memory = 0;
  for (const int mib : {60, 100, 150}) {
    short_of_memory += limited(mib, "import " + long_log + " --system h200 --gpus 8") == 2 ? 1 : 0;
    if (contents(err).find("not enough memory") != std::string::npos) ++short_of_memory;
    limited(mib, "plan --model deepseek-v3 --system gb200-nvl72 --gpus 64 --global-batch 512 --effort 0.1");
  }
  EXPECT_GT(short_of_memory, 0);
}

// Short scripts whose words would fill the memory or the stack: the sandbox ends them.
TEST_F(Malformed, ScriptsThatGrow) {
  if (!planner::has_sandbox()) GTEST_SKIP() << "no sandbox here";
  std::string nested = "echo ", sums = "A=xxxxxxxxxx\n", inner;
  for (int i = 0; i < 40; ++i) sums += "A+=$A\n";
  for (int i = 0; i < 100'000; ++i) nested += "${A:-";
  nested.append(100'000, '}') += '\n';
  for (int i = 0; i < 1'000; ++i) inner += fmt::format("V{}=1\necho '--a $V{}'\n", i, i);
  for (const std::string& script : {sums, nested, inner})
    expect_mistake("import --system h200 --gpus 8 " + write_text("grows.sh", script),
                   "found nothing that starts training with Megatron's arguments");
}

// Options that do not apply to this form of the command are reported.
TEST_F(Malformed, OptionsOfValidate) {
  const std::string runs = FW_ACCURACY_DIR "/runs/h200x4_runs.json";
  expect_mistake("validate " + runs + " --system nosuch", "command line: --system: only of kernel records");
}

// A wrong input of 10 kB is not printed completely, nor are a thousand mistakes.
TEST_F(Malformed, MessagesStayReadable) {
  const std::string large(10000, 'x');
  nlohmann::json run = small_run();
  run["precision"] = large;
  run[large] = 1;
  run["tp"] = {large, large};
  expect_mistake("predict " + write("run.json", run), "precision");
  expect_mistake("predict " + large, "");
  expect_mistake("plan --set " + large, "");
  expect_mistake("plan --model " + large, "");
  nlohmann::json many = small_run();
  for (int i = 0; i < 5000; ++i) many["key" + std::to_string(i)] = i;
  const Outcome outcome = foldwise("predict " + write("many.json", many));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("more mistakes"));
  EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 201);
}

// Bytes that are not text, in an argument or in a script.
TEST_F(Malformed, BytesThatAreNoText) {
  const std::string bytes = "$(printf '\\377')";
  for (const char* command : {"plan --set precision=", "plan --model ", "predict ", "models ", "import --env A="})
    expect_mistake(command + bytes, "expected UTF-8");
  EXPECT_EQ(
      foldwise("import --format json --system h200 --gpus 8 " + std::string(FW_FUZZ_DIR) + "/found/launch-bytes").code,
      0);
}

}  // namespace
}  // namespace foldwise::malformed_test

#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// Shared by tests of the program: a folder of files, and a run to change.

/// A temporary folder of the test, removed with it.
class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "foldwise-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string write_text(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return path(name);
  }

  std::filesystem::path folder_;
};

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

#ifdef FW_FOLDWISE
struct Outcome {
  int code = -1;
  std::string out, err;
};

/// Starts the program in its own process group, with output discarded.
inline pid_t start_foldwise(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FW_FOLDWISE);
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  execv(FW_FOLDWISE, words.data());
  _exit(127);
}

inline int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

/// Tests of the program itself.
class ProgramTest : public FolderTest {
 protected:
  [[nodiscard]] std::string write(const std::string& name, const nlohmann::json& value) const {
    return write_text(name, value.dump(1) + '\n');
  }

  /// Runs `foldwise arguments` in a shell. Arguments need no quoting here.
  [[nodiscard]] Outcome foldwise(const std::string& arguments) const {
    const std::filesystem::path out = folder_ / "stdout", err = folder_ / "stderr";
    const int code =
        shell(std::string(FW_FOLDWISE) + " " + arguments + " >" + out.string() + " 2>" + err.string() + " </dev/null");
    return {code, contents(out), contents(err)};
  }
  static int shell(const std::string& command) {
    const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): the shell is what users have.
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};
#endif

inline nlohmann::json small_run() {
  return {{"id", "small"},
          {"model", "mixtral-8x7b"},
          {"system", "h200"},
          {"num_gpus", 16},
          {"seq_len", 4096},
          {"global_batch", 128},
          {"micro_batch", 1},
          {"tp", 1},
          {"cp", 1},
          {"pp", 2},
          {"dp", 8},
          {"ep", 8},
          {"etp", 1},
          {"precision", "bf16"},
          {"dispatcher", "alltoall"}};
}

#pragma once
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <utility>

#include "planner/launch/launch_command.h"
#include "tests/program_test.h"
#include "tests/sandbox.h"

// What import reads of a launch script.
namespace foldwise::planner::script_test {

inline const std::string training_start =
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 ";

inline std::string value_of(const LaunchCommand& command, const std::string& flag) {
  const auto found = std::ranges::find(command.arguments, flag, &Argument::flag);
  if (found == command.arguments.end()) return "(none)";
  std::string value;
  for (const std::string& word : found->values) value += (value.empty() ? "" : " ") + word;
  return value;
}

inline LaunchCommand read(const std::string& text, ImportRequest request = {}) {
  if (request.system.empty()) request.system = "h100-sxm-80gb";
  return read_launch_command(text, "launch.sh", request);
}

inline std::string message_of(const std::string& text, ImportRequest request = {}) {
  try {
    static_cast<void>(read(text, std::move(request)));
    return "";
  } catch (const config::ConfigError& error) {
    return error.what();
  }
}

class Scripts : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_sandbox()) GTEST_SKIP() << "no sandbox here";
  }
};

}  // namespace foldwise::planner::script_test

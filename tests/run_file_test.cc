#include <gtest/gtest.h>
#include "planner/run/run_file.h"
#include <cstdio>
TEST(Tmp, All) {
  for (const char* f : {"published_runs", "h200x4_runs", "h200x4_te_runs"}) {
    const auto list = foldwise::planner::load_runs(std::string(FW_DATA_DIR) + "/runs/" + f + ".json");
    std::printf("%s %zu %zu\n", f, list.runs.size(), list.unreadable.size());
    for (const auto& u : list.unreadable) std::printf("  %s: %s\n", u.id.c_str(), u.reason.c_str());
  }
}

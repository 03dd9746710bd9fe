// Does `import` read every launch, and do our checks and rules say of it what Megatron core_v0.16.1 says?
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "planner/launch/import.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  std::ifstream file(std::string(FW_GOLDEN_DIR) + "/" + name);
  return json::parse(file);
}

TEST(LaunchCases, Dump) {
  const json file = golden("launch_cases.json");
  int agree = 0, disagree = 0;
  for (const json& row : file.at("cases")) {
    const bool starts = row.at("accepted").get<bool>() && row.at("starts").get<bool>();
    ImportRequest request{.system = row.at("arch") == "hopper" ? "h100-sxm-80gb" : "b200",
                          .model = {}, .num_gpus = row.at("world_size").get<std::int64_t>(), .variables = {}};
    for (const auto& [k, v] : row.at("env").items())
      request.variables[k] = v.is_string() ? v.get<std::string>() : v.dump();
    std::string why;
    try {
      const Imported imported = import_launch(row.at("args"), "case", request);
      for (const Argument& a : imported.unknown) why += "unknown " + a.flag + "; ";
      for (const Rejection& r : imported.refused)
        if (!r.rule.starts_with("foldwise.")) why += fmt::format("RULE {}: {}; ", r.rule, r.reason);
    } catch (const config::ConfigError& error) {
      why = std::string("IMPORT ") + error.what();
    }
    if (starts == why.empty()) {
      ++agree;
      continue;
    }
    ++disagree;
    const std::string error =
        !row.at("error").is_null() ? row.at("error").get<std::string>() : row.at("start_error").dump();
    fmt::print("{} megatron {} | {} | ours: {}\n", row.at("id").get<std::string>(), starts ? "starts" : error,
               row.at("at").is_null() ? "" : row.at("at").get<std::string>(), why.empty() ? "ok" : why);
  }
  fmt::print("agree {} disagree {}\n", agree, disagree);
}

}  // namespace
}  // namespace foldwise::planner

// Do the weights on the op lists add up to the parameters that Megatron's modules create?
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "costmodel/ops/block_ops.h"
#include "planner/models/models.h"

namespace foldwise::planner {
namespace {

using costmodel::parameter_totals;

nlohmann::json golden() {
  std::ifstream file(FW_GOLDEN_DIR "/flops_cases.json");
  return nlohmann::json::parse(file);
}

// flops_cases.json names the model and gives exact counts (params.*) with the vocabulary padded to 128.
TEST(Parameters, EqualEveryGoldenCaseOfABuiltInModel) {
  const auto names = built_in_models();
  const nlohmann::json cases = golden();
  int compared = 0;
  for (const auto& test : cases["cases"]) {
    const std::string name = test["model"];
    if (!test.contains("params") || std::find(names.begin(), names.end(), name) == names.end()) continue;
    ++compared;
    costmodel::ModelSpec model = load_model(name);
    model.vocab_size = test["padded_vocab_size"];  // mixtral-8x22b: the case has the vocabulary of v0.3.
    const auto totals = parameter_totals(model);
    EXPECT_EQ(totals.main_total, test["params"]["main_total"].get<std::int64_t>()) << name;
    EXPECT_EQ(totals.main_active, test["params"]["main_active"].get<std::int64_t>()) << name;
    EXPECT_EQ(totals.total_with_mtp, test["params"]["total_with_mtp"].get<std::int64_t>()) << name;
    EXPECT_EQ(totals.active_with_mtp, test["params"]["active_with_mtp"].get<std::int64_t>()) << name;
    EXPECT_EQ(totals.embedding_and_output, test["params"]["embedding_and_output"].get<std::int64_t>()) << name;
  }
  EXPECT_GE(compared, 14);
}

// _derived.total_params of each config counts matrices only: norms, convolutions, sinks and MTP are left out, so a full
// count lies a little above it.
TEST(Parameters, AreCloseToTheDerivedTotalOfEveryBuiltInModel) {
  for (const std::string& name : built_in_models()) {
    const auto json = nlohmann::json::parse(built_in_model_text(name));
    if (!json.contains("_derived")) continue;
    const double derived = json["_derived"]["total_params"];
    const auto totals = parameter_totals(load_model(name));
    EXPECT_NEAR(static_cast<double>(totals.main_total) / derived, 1.0, 0.006) << name;
  }
}

}  // namespace
}  // namespace foldwise::planner

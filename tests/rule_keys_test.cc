// Does every rule say which fields it looks at? A search asks it again only when one of these changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"
#include "tests/random_options.h"

namespace foldwise::planner::rule_keys_test {
namespace {

using costmodel::TrainingOptions;

/// Derives data parallelism from the other sizes. Rules that depend on it list those.
void settle_data_parallel(std::int64_t num_gpus, TrainingOptions& o) {
  o.step.dp = std::max<std::int64_t>(1, num_gpus / (o.layer.tp * o.layer.cp * o.pipeline.pp));
}

bool lists(const Rule& rule, const std::string& key) { return std::ranges::count(rule.keys, key) > 0; }

// Do options that differ in one field get the same verdict of every rule that does not list it?
TEST(RuleKeys, NoOtherFieldChangesAVerdict) {
  constexpr int kStarts = 4000;
  std::vector<costmodel::ModelSpec> models;
  for (const char* name :
       {"mini-mixtral-8l", "mini-deepseek-12l", "deepseek-v3", "mini-llama-16l", "qwen3-next-80b-a3b",
        "nemotron-3-nano-30b-a3b", "gpt-oss-20b", "deepseek-v3.2", "deepseek-v4-flash"})
    models.push_back(load_model(name));
  std::vector<costmodel::Hardware> systems;
  for (const char* name : {"h200", "gb200-nvl72"}) systems.push_back(hwprofiles::load_profile(name).hardware);
  const std::vector<const Field*> all = settable_fields();
  std::vector<std::vector<bool>> seen(rules().size(), std::vector<bool>(all.size(), false));
  std::set<std::string> unlisted;  // "rule key", each reported once.
  RandomOptions random(1);
  for (int start = 0; start < kStarts; ++start) {
    const Problem problem{.model = random.one_of(models),
                          .hardware = random.one_of(systems),
                          .num_gpus = std::int64_t{1} << random.below(7),
                          .folding = random.below(4) != 0,
                          .evidence = random.one_of(std::vector{Evidence::kRun, Evidence::kParts})};
    TrainingOptions before;
    const std::size_t rarity = 1 + random.below(6);
    for (const Field* f : all)
      if (random.below(rarity) == 0) random.give(*f, before);
    if (random.below(4) != 0) settle_data_parallel(problem.num_gpus, before);
    std::vector<bool> verdicts;
    for (const Rule& rule : rules()) verdicts.push_back(rule.violated(problem, before));
    if (verdicts.front()) continue;  // The other rules may rely on it.
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string& key = all[i]->key;
      TrainingOptions after = before;
      random.give(*all[i], after);
      if (key == "tp" || key == "cp" || key == "pp") settle_data_parallel(problem.num_gpus, after);
      if (rules().front().violated(problem, after)) continue;
      for (std::size_t r = 0; r < rules().size(); ++r) {
        const Rule& rule = rules()[r];
        if (rule.violated(problem, after) == verdicts[r]) continue;
        seen[r][i] = true;
        const bool listed =
            lists(rule, key) || (key == "dp" && lists(rule, "tp") && lists(rule, "cp") && lists(rule, "pp"));
        if (!listed && unlisted.insert(std::string(rule.id) + ' ' + key).second)
          ADD_FAILURE() << rule.id << " looks at " << key << ": " << all[i]->value.get(before) << " -> "
                        << all[i]->value.get(after);
      }
    }
  }
  // Can these pairs detect a key that is not listed?
  double listed = 0.0, noticed = 0.0;
  for (std::size_t r = 1; r < rules().size(); ++r)
    for (std::size_t i = 0; i < all.size(); ++i)
      if (lists(rules()[r], all[i]->key)) {
        ++listed;
        noticed += seen[r][i] ? 1.0 : 0.0;
      }
  EXPECT_GE(noticed, 0.85 * listed) << noticed << " of " << listed;
}

}  // namespace
}  // namespace foldwise::planner::rule_keys_test

// Does every rule say which fields it looks at? A search asks it again only when one of these changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"

namespace foldwise::planner::rule_keys_test {
namespace {

using costmodel::TrainingOptions;
using nlohmann::json;

/// A generator with equal numbers on all platforms: the standard library's distributions differ.
class Random {
 public:
  explicit Random(unsigned seed) : bits_(seed) {}
  std::size_t below(std::size_t n) { return bits_() % n; }
  template <typename T>
  T one_of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  std::mt19937 bits_;
};

/// A random value of the field; for numbers small ones and powers of two.
json any_value(const Field& f, Random& random) {
  const FieldValue& v = f.value;
  switch (v.type) {
    case FieldType::kInteger: {
      const std::int64_t n =
          random.below(2) == 0 ? static_cast<std::int64_t>(random.below(9)) : std::int64_t{1} << random.below(8);
      return std::clamp(n, static_cast<std::int64_t>(v.low), static_cast<std::int64_t>(std::min(v.high, 1'000'000.0)));
    }
    case FieldType::kNumber:
      return random.one_of(std::vector<double>{0.0, 0.25, 0.5, 1.0});
    case FieldType::kBoolean:
      return random.below(2) == 0;
    case FieldType::kName:
      return random.one_of(v.names);
    case FieldType::kNames: {
      json list = json::array();
      for (const std::string& name : v.names)
        if (random.below(v.names.size()) < 2) list.push_back(name);
      return list;
    }
    case FieldType::kIntegers:
      return json{std::int64_t{1} << random.below(3), 2};
    case FieldType::kText:
      return random.one_of(
          std::vector<std::string>{"", "Et*6|t*6L", "Et*3|t*3|t*3|t*3L", "Et*3|t*3|t*3|t*3m|L", "Et|L", "E"});
    case FieldType::kObject:
      break;
  }
  return nullptr;
}

/// Fields that can be set.
std::vector<const Field*> options() {
  std::vector<const Field*> list;
  for (const Field& f : fields())
    if (f.is_option() && f.value.set && f.value.type != FieldType::kObject) list.push_back(&f);
  return list;
}

/// Sets the field if it applies and accepts the value (an empty list of modules may be invalid).
void give(const Field& f, const json& value, TrainingOptions& options) {
  if (f.applies_to(options) && mistake_in(f, value).empty()) f.value.set(options, value);
}

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
  const std::vector<const Field*> all = options();
  std::vector<std::vector<bool>> seen(rules().size(), std::vector<bool>(all.size(), false));
  std::set<std::string> unlisted;  // "rule key", each reported once.
  Random random(1);
  for (int start = 0; start < kStarts; ++start) {
    const Problem problem{.model = random.one_of(models),
                          .hardware = random.one_of(systems),
                          .num_gpus = std::int64_t{1} << random.below(7),
                          .folding = random.below(4) != 0,
                          .evidence = random.one_of(std::vector{Evidence::kRun, Evidence::kParts})};
    TrainingOptions before;
    const std::size_t rarity = 1 + random.below(6);
    for (const Field* f : all)
      if (random.below(rarity) == 0) give(*f, any_value(*f, random), before);
    if (random.below(4) != 0) settle_data_parallel(problem.num_gpus, before);
    std::vector<bool> verdicts;
    for (const Rule& rule : rules()) verdicts.push_back(rule.violated(problem, before));
    if (verdicts.front()) continue;  // The other rules may rely on it.
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string& key = all[i]->key;
      TrainingOptions after = before;
      give(*all[i], any_value(*all[i], random), after);
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

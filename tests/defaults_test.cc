// Does a default give way to what a run file states?
#include "planner/run/defaults.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"

namespace foldwise::planner::defaults_test {
namespace {

using costmodel::TrainingOptions;
using nlohmann::json;

/// Values of a field that a user may state alone: all names, all booleans, some numbers.
std::vector<json> values_of(const Field& f) {
  std::vector<json> values;
  if (f.value.type == FieldType::kBoolean) values = {true, false};
  if (f.value.type == FieldType::kName) values.assign(f.value.names.begin(), f.value.names.end());
  if (f.value.type == FieldType::kNames)
    for (const std::string& name : f.value.names) values.push_back(json::array({name}));
  if (f.value.type == FieldType::kInteger) values = {1, 2, 4};
  if (f.value.type == FieldType::kNumber) values = {0.5, 1.0};
  std::erase_if(values, [&](const json& v) { return !mistake_in(f, v).empty(); });
  return values;
}

/// Defaults that do not give way yet, all of megatron-bridge-26.04. A set may require a value of a field that comes
/// earlier in the table, and the search restarts its candidates for every field that a set requires.
bool kept(const std::string& stated, const std::string& silent) {
  if (stated == "cuda_graph.scope") return silent == "cuda_graph.impl";  // A scope requires graphs.
  return (silent == "cuda_graph.impl" && (stated == "offload.type" || stated == "recompute.granularity")) ||
         (silent == "optimizer.precision_aware" && stated == "sharding") ||
         (silent == "optimizer.main_grads_dtype" && stated == "optimizer.grad_reduce_in_fp32");
}

// Of every set, with any value of any field stated beside a layout: is no rule broken that Megatron's own default of a
// silent field would not break? What a user states is refused only for what he states.
TEST(Defaults, GiveWayToWhatIsStated) {
  const std::vector<std::map<std::string, json>> layouts = {{{"num_gpus", 8}},
                                                            {{"tp", 2}, {"pp", 2}},
                                                            {{"tp", 2}, {"pp", 2}, {"vpp", 2}},
                                                            {{"ep", 4}, {"etp", 1}},
                                                            {{"cp", 2}}};
  std::set<std::string> lost;
  int asked = 0, valid = 0;
  for (const std::string& name : built_in_defaults())
    for (const char* system : {"h200", "gb200-nvl72"})
      for (const char* model_name : {"mini-llama-16l", "mini-mixtral-8l", "deepseek-v3", "nemotron-3-nano-30b-a3b"}) {
        const costmodel::ModelSpec model = load_model(model_name);
        const costmodel::Hardware hardware = hwprofiles::load_profile(system).hardware;
        const Problem problem{.model = model, .hardware = hardware, .num_gpus = 8};
        const auto options_with = [&](const Defaults& defaults, std::map<std::string, json> stated) {
          stated.erase("num_gpus");
          stated.emplace("seq_len", 4096);
          stated.emplace("global_batch", 64);
          TrainingOptions o = options_of(defaults, model, hardware, stated);
          if (!model.has_moe() && !stated.contains("etp")) o.layer.etp = 1;
          o.step.dp = std::max<std::int64_t>(1, 8 / (o.layer.tp * o.layer.cp * o.pipeline.pp));
          settle(o);
          return o;
        };
        for (const std::map<std::string, json>& layout : layouts)
          for (const Field& f : fields()) {
            if (!f.value.set || layout.contains(f.key) || f.key == "dp" || f.key == "seq_len" ||
                f.key == "global_batch")
              continue;
            for (const json& value : values_of(f)) {
              if (asked++ % FW_EVERY != 0) continue;
              std::map<std::string, json> stated = layout;
              stated[f.key] = value;
              const TrainingOptions o = options_with(load_defaults(name), stated);
              const std::vector<Rejection> broken = violations(problem, o);
              valid += broken.empty() ? 1 : 0;
              for (const Rejection& rejection : broken) {
                const Rule& rule = *std::ranges::find(rules(), rejection.rule, &Rule::id);
                for (const std::string& key : rule.keys) {  // Would Megatron's own value of a silent one do?
                  const Field& silent = field(key);
                  if (stated.contains(key) || kept(f.key, key) || !silent.value.set || silent.megatron.is_null() ||
                      (silent.megatron.is_string() && silent.value.type == FieldType::kInteger) ||
                      silent.value.get(o) == silent.megatron)
                    continue;
                  TrainingOptions other = o;
                  silent.value.set(other, silent.megatron);
                  settle(other);
                  if (!rule.broken(problem, other))
                    lost.insert(fmt::format("{}: {} = {} beside a silent {} = {} ({})", name, f.key, value.dump(), key,
                                            silent.value.get(o).dump(), rejection.text()));
                }
              }
            }
          }
      }
  fmt::print("{} runs, {} of them valid\n", asked, valid);
  for (const std::string& line : lost) ADD_FAILURE() << line;
  EXPECT_GE(valid, 10'000 / FW_EVERY);
}

}  // namespace
}  // namespace foldwise::planner::defaults_test

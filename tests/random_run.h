#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/rules/rules.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

/// A generator with equal numbers on all platforms: the standard library's distributions differ.
class Random {
 public:
  explicit Random(unsigned seed) : bits_(seed) {}
  std::size_t below(std::size_t n) { return bits_() % n; }

 private:
  std::mt19937 bits_;
};

/// A run that breaks no rule: some fields with values that plan tries, the others with defaults of the newest recipes.
inline std::optional<Run> random_run(const std::string& model, const std::string& system, Random& random) {
  using nlohmann::json;
  Run run;
  run.model_name = model;
  run.system_name = system;
  static std::map<std::string, costmodel::ModelSpec> models;
  static std::map<std::string, costmodel::Hardware> systems;
  if (!models.contains(model)) models[model] = load_model(model);
  if (!systems.contains(system)) systems[system] = hwprofiles::load_profile(system).hardware;
  run.model = models[model];
  run.hardware = systems[system];
  run.num_gpus = std::int64_t{8} << random.below(6);
  const std::int64_t global_batch = run.num_gpus << random.below(4);
  const PlanFacts facts{.model = run.model,
                        .hardware = run.hardware,
                        .num_gpus = run.num_gpus,
                        .seq_len = 4096,
                        .global_batch = global_batch};
  const std::string program = random.below(2) == 0 ? "megatron-lm-0.16" : newest_defaults("megatron-bridge");
  const Defaults& defaults = load_defaults(program);
  std::vector<std::pair<const Field*, std::vector<json>>> tried;
  for (const Field& f : fields()) {
    // Kernels keep their defaults, and so does what belongs to fused experts. Other tests have random orders of ranks
    // (fabric_test, process_groups_test).
    if (f.tried == nullptr || f.key.starts_with("software.") || f.key == "use_tp_pp_dp_mapping" ||
        f.key == "rank_capacity_factor" || f.key == "paged_stash")
      continue;
    std::vector<json> values = f.tried(facts);
    std::erase_if(values, [](const json& v) { return v.is_array() && std::ranges::count(v, "fused_group_mlp") > 0; });
    if (!values.empty()) tried.emplace_back(&f, std::move(values));
  }
  for (int attempt = 0; attempt < 200; ++attempt) {
    std::map<std::string, json> stated = {{"seq_len", 4096}, {"global_batch", global_batch}};
    stated["precision"] = random.below(2) == 0 ? "bf16" : "fp8-current";
    for (const auto& [field, values] : tried) {
      const std::string_view key = field->key;
      const bool size = key == "tp" || key == "pp" || key == "ep" || key == "micro_batch";
      if (random.below(size ? 2 : 8) == 0)
        stated[field->key] = values[random.below(std::min<std::size_t>(values.size(), size ? 4 : values.size()))];
    }
    run.options = options_of(defaults, run.model, run.hardware, stated);
    const costmodel::TrainingOptions& o = run.options;
    const std::int64_t model_parallel = o.layer.tp * o.layer.cp * o.pipeline.pp;
    if (run.num_gpus % model_parallel != 0) continue;
    run.options.step.dp = run.num_gpus / model_parallel;
    settle(run.options);
    if (!violations(run).empty()) continue;
    // Not expressible in a run file, where the modules decide whether offloading is named.
    const json text = write_run(run);
    config::Diagnostics diagnostics;
    config::ObjectReader reader(config::Document::parse(text.dump(), "random"), diagnostics);
    Run read = read_run(reader, diagnostics);
    if (diagnostics.ok()) return read;
  }
  return std::nullopt;
}

}  // namespace foldwise::planner

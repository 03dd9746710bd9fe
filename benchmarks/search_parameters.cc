// What does each strategy of a search gain, and does half or twice of a parameter give faster first plans
// (docs/search.md#parameters)? Plans the same questions without each strategy, and with each parameter changed. Prints
// the mean time of plan 1 and the mean effort, relative to the unchanged search.
//
//   foldwise-search-parameters [--effort SECONDS] [--strategies]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "planner/foldwise.h"
#include "planner/search/search.h"
#include "planner/search/workbench.h"

namespace {

using foldwise::PlanProblem;
using foldwise::PlanRequest;
using foldwise::planner::PlanResult;
using foldwise::planner::SearchParameters;
using foldwise::planner::StrategyName;

struct Variant {
  std::string name;
  std::function<void(SearchParameters&)> change;
};

std::vector<Variant> strategies() {
  std::vector<Variant> list;
  for (std::size_t i = 0; i < foldwise::planner::kStrategies; ++i) {
    const auto name = static_cast<StrategyName>(i);
    list.push_back({fmt::format("no {}", to_string(name)), [name](SearchParameters& p) { p.off.insert(name); }});
  }
  return list;
}

/// Each number halved and doubled, rounded up.
std::vector<Variant> parameters() {
  std::vector<Variant> list;
  const auto add = [&](const std::string& name, auto member) {
    for (const double factor : {0.5, 2.0})
      list.push_back({fmt::format("{} x {}", name, factor), [member, factor](SearchParameters& p) {
                        auto& value = member(p);
                        const double changed = factor * static_cast<double>(value);
                        using Value = std::remove_reference_t<decltype(value)>;
                        value = static_cast<Value>(std::is_floating_point_v<Value> ? changed : std::ceil(changed));
                      }});
  };
  using P = SearchParameters;
  add(
      "dive.most", [](P & p) -> auto& { return p.dive.most; });
  add(
      "dive_rounds", [](P & p) -> auto& { return p.dive_rounds; });
  add(
      "dive_share", [](P & p) -> auto& { return p.dive_share; });
  add(
      "dive_memory_steps", [](P & p) -> auto& { return p.dive_memory_steps; });
  add(
      "local_share", [](P & p) -> auto& { return p.local_share; });
  add(
      "local_centres", [](P & p) -> auto& { return p.local_centres; });
  add(
      "local_batch", [](P & p) -> auto& { return p.local_batch; });
  add(
      "until", [](P & p) -> auto& { return p.until; });
  add(
      "centres", [](P & p) -> auto& { return p.centres; });
  add(
      "own_effort", [](P & p) -> auto& { return p.own_effort; });
  add(
      "neighbour_effort", [](P & p) -> auto& { return p.neighbour_effort; });
  add(
      "wide_dive.most", [](P & p) -> auto& { return p.wide_dive.most; });
  add(
      "longest_effort", [](P & p) -> auto& { return p.longest_effort; });
  add(
      "enough", [](P & p) -> auto& { return p.enough; });
  add(
      "batch", [](P & p) -> auto& { return p.batch; });
  add(
      "first_effort", [](P & p) -> auto& { return p.first_effort; });
  add(
      "node_effort", [](P & p) -> auto& { return p.node_effort; });
  add(
      "patience", [](P & p) -> auto& { return p.patience; });
  return list;
}

/// Dense and MoE models, long sequences, and both scarce and ample memory.
std::vector<PlanProblem> questions() {
  const auto ask = [](const char* model, const char* system, std::int64_t gpus, std::int64_t batch, std::int64_t seq,
                      const char* precision) {
    PlanRequest request{.model = model,
                        .system = system,
                        .release = {},
                        .num_gpus = gpus,
                        .seq_len = seq,
                        .global_batch = batch,
                        .precisions = {},
                        .set = {{"precision", {precision}}}};
    return foldwise::plan_problem(request);
  };
  return {ask("llama3-70b", "h100-sxm-80gb", 64, 256, 8192, "fp8-current"),
          ask("qwen3-30b-a3b", "h100-sxm-80gb", 16, 1024, 4096, "fp8-current"),
          ask("mixtral-8x22b", "h100-sxm-80gb", 128, 64, 131072, "bf16"),
          ask("deepseek-v3", "gb200-nvl72", 256, 4096, 4096, "mxfp8")};
}

struct Outcome {
  double seconds = 0.0, effort = 0.0;
};

std::vector<Outcome> planned(const std::vector<PlanProblem>& questions, double effort, const Variant& variant) {
  std::vector<Outcome> outcomes;
  for (PlanProblem problem : questions) {
    problem.effort = std::llround(1e6 * effort);
    variant.change(problem.parameters);
    foldwise::planner::SharedCosts costs;
    const PlanResult result = foldwise::planner::search(problem, {}, costs);
    outcomes.push_back({result.plans.empty() ? std::numeric_limits<double>::infinity()
                                             : result.plans.front().prediction.step_time.to<double>(),
                        static_cast<double>(result.effort)});
  }
  return outcomes;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What each strategy and parameter of a search earns"};
  double effort = 0.3;
  bool only_strategies = false;
  app.add_option("--effort", effort, "Seconds of a core, about, of each search")->capture_default_str();
  app.add_flag("--strategies", only_strategies, "Only strategies");
  CLI11_PARSE(app, argc, argv);
  const std::vector<PlanProblem> problems = questions();
  std::vector<Variant> variants = strategies();
  if (!only_strategies)
    for (Variant& variant : parameters()) variants.push_back(std::move(variant));
  const std::vector<Outcome> base = planned(problems, effort, {"", [](SearchParameters&) {}});
  fmt::print("| change | first plans slower by | worst | effort |\n|---|---|---|---|\n");
  for (const Variant& variant : variants) {
    const std::vector<Outcome> outcomes = planned(problems, effort, variant);
    double slower = 0.0, worst = -1.0, more = 0.0;
    for (std::size_t i = 0; i < base.size(); ++i) {
      const double by = outcomes[i].seconds / base[i].seconds - 1.0;
      slower += by / static_cast<double>(base.size());
      worst = std::max(worst, by);
      more += (outcomes[i].effort / base[i].effort - 1.0) / static_cast<double>(base.size());
    }
    fmt::print("| {} | {:+.2f} % | {:+.2f} % | {:+.0f} % |\n", variant.name, 100.0 * slower, 100.0 * worst,
               100.0 * more);
    std::fflush(stdout);
  }
}

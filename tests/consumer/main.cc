// consumer RUN: predicts a run file, plans a small cluster and makes a mistake. Prints one line for each.
#include <cstdio>
#include <string>

#include "planner/foldwise.h"

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  const foldwise::Run run = foldwise::load_run(argv[1]);
  if (!foldwise::check(run).empty()) return 1;
  const foldwise::Prediction prediction = foldwise::predict(run);
  std::printf("predict %.17g s, %.17g B\n", prediction.step_time.to<double>(), prediction.peak_memory.to<double>());

  const foldwise::PlanProblem problem =
      foldwise::plan_problem({.model = "mini-qwen3-moe-12l", .system = "h200", .num_gpus = 4, .global_batch = 32});
  const foldwise::PlanResult result = foldwise::plan(problem);
  if (result.plans.empty()) return 1;
  const foldwise::Plan& best = result.plans.front();
  const foldwise::Prediction again = foldwise::predict(foldwise::parse_run(foldwise::run_file(problem, best)));
  std::printf("plan %.17g s, again %.17g s\n", best.prediction.step_time.to<double>(), again.step_time.to<double>());

  try {
    (void)foldwise::parse_run(R"({"model": "deepseek-v3", "sytem": "h200"})", "mine.json");
  } catch (const foldwise::ConfigError& error) {
    std::printf("%s\n", error.what());
  }
}

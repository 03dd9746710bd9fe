// Is what people run ever faster than the plan for the same question, by our own prediction? Prints a table of every
// run of the files that Megatron would accept and that fits.
//
//   foldwise-published-rows [--effort SECONDS] RUNS.json...
#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "planner/foldwise.h"
#include "planner/report/validation.h"

namespace {

using foldwise::costmodel::Layout;

std::string layout_text(const Layout& l) {
  return fmt::format("{}x{}x{}x{} v{} e{}x{}", l.tp, l.cp, l.dp, l.pp, l.vpp, l.etp, l.ep);
}

struct Compared {
  const foldwise::planner::ValidatedRow* row = nullptr;
  foldwise::PlanResult result;
  double ratio = 0.0;  // Step time of the plan relative to the row's; infinity: no plan.
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Plans for the questions that published runs answer, beside the runs");
  std::vector<std::string> files;
  double effort = 2.0;
  app.add_option("runs", files, "Files of runs")->required();
  app.add_option("--effort", effort, "As of plan");
  CLI11_PARSE(app, argc, argv);
  const foldwise::planner::Validation validation = foldwise::planner::validate_files(files);
  std::vector<Compared> compared;
  compared.reserve(validation.rows.size());
  for (const foldwise::planner::ValidatedRow& row : validation.rows)
    if (row.prediction.fits && row.run.options.layer.lora == foldwise::TrainingOptions{}.layer.lora)
      compared.push_back({.row = &row, .result = {}, .ratio = 0.0});
  tbb::parallel_for(std::size_t{0}, compared.size(), [&](std::size_t i) {
    Compared& c = compared[i];
    foldwise::PlanProblem problem = foldwise::question_of(c.row->run);
    problem.top = foldwise::kChosenAmong;  // As foldwise::plan().
    problem.effort = std::llround(effort * 1e6);
    c.result = foldwise::planner::plan(problem);
    c.ratio = c.result.plans.empty()
                  ? HUGE_VAL
                  : (c.result.plans.front().prediction.step_time / c.row->prediction.step_time).to<double>();
  });
  std::stable_sort(compared.begin(), compared.end(), [](const auto& a, const auto& b) { return a.ratio > b.ratio; });
  const auto worse = std::ranges::count_if(compared, [](const Compared& c) { return c.ratio > 1.0 + 1e-9; });
  const auto proven = std::ranges::count_if(compared, [](const Compared& c) { return c.result.proven; });
  fmt::print("{} runs, {} of them faster than the plan; {} plans proven; median of plan / run {:.3f}\n\n",
             compared.size(), worse, proven, compared.empty() ? 0.0 : compared[compared.size() / 2].ratio);
  fmt::print(
      "| run | layout TPxCPxDPxPP vVPP eETPxEP | s | plan | s | plan / run | proven "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const Compared& c : compared) {
    const bool found = !c.result.plans.empty();
    fmt::print("| {} | {} | {:.4g} | {} | {} | {:.3f} | {} |\n", c.row->run.id,
               layout_text(c.row->run.options.layout()), c.row->prediction.step_time.to<double>(),
               found ? layout_text(c.result.plans.front().options.layout()) : "none",
               found ? fmt::format("{:.4g}", c.result.plans.front().prediction.step_time.to<double>()) : "-", c.ratio,
               c.result.proven ? "yes" : "");
  }
  return worse == 0 ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/foldwise.h"
#include "planner/report/plan_report.h"
#include "planner/run/names.h"

namespace foldwise::cli {
namespace {

using costmodel::Precision;

struct PlanOptions {
  std::string model = "deepseek-v3", system = "gb200-nvl72";
  std::int64_t gpus = 256, seq_len = 4096, global_batch = 4096;
  std::string precision;  ///< Empty: mxfp8 where the GPU has it, else bf16.
  std::vector<std::string> pins, sets;
  double headroom_pct = 5.0;
  std::string schedule = "1f1b";
  std::int64_t top = 10;
  int threads = 0;
  double effort_seconds = 2.5;
  std::string format = "text";
};

/// None: plan_problem() chooses.
std::vector<Precision> precisions_of(const PlanOptions& options) {
  std::vector<Precision> result;
  if (options.precision.empty()) return result;
  const costmodel::Hardware hardware = foldwise::load_system(options.system);
  for (const auto& [name, precision] : planner::precision_names())
    if (options.precision == name || (options.precision == "all" && hardware.supports(precision)))
      result.push_back(precision);
  return result;
}

/// "key=value" of --pin, "key=value,value" of --set.
std::map<std::string, std::vector<std::string>> read_sets(const PlanOptions& options,
                                                          config::Diagnostics& diagnostics) {
  std::map<std::string, std::vector<std::string>> sets;
  const auto read = [&](const std::string& option, const std::string& text, bool list) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return diagnostics.error({"command line", 0, option}, fmt::format("expected key=value, found \"{}\"", text));
    std::vector<std::string> values;
    for (std::size_t at = equals + 1; at <= text.size();) {
      const std::size_t end = list ? std::min(text.find(',', at), text.size()) : text.size();
      values.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    const std::string key = text.substr(0, equals);
    if (!sets.emplace(key, values).second) diagnostics.error({"command line", 0, option + " " + key}, "given twice");
  };
  for (const std::string& text : options.pins) read("--pin", text, false);
  for (const std::string& text : options.sets) read("--set", text, true);
  return sets;
}

volatile std::sig_atomic_t interrupted = 0;

/// Ctrl-C ends the search with what it has, a second one the program.
std::function<bool(const planner::Progress&)> progress_line() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
  const bool terminal = isatty(STDERR_FILENO) != 0;  // Nothing in a file or a pipe.
  return [terminal, start = std::chrono::steady_clock::now()](const planner::Progress& progress) {
    if (terminal && std::chrono::steady_clock::now() - start > std::chrono::seconds(2))
      fmt::print(stderr, "\r{:3.0f} % of the effort: best so far {:.4g} s, none below {:.4g} s  ",
                 100.0 * std::min(1.0, progress.effort), progress.best.to<double>(), progress.least.to<double>());
    return interrupted == 0;
  };
}

int plan(const PlanOptions& options) {
  config::Diagnostics diagnostics;
  const std::map<std::string, std::vector<std::string>> set = read_sets(options, diagnostics);
  diagnostics.throw_if_any();
  costmodel::Schedule schedule{};
  for (const auto& [name, value] : planner::schedule_names())
    if (name == options.schedule) schedule = value;
  planner::PlanProblem problem = foldwise::plan_problem({.model = options.model,
                                                         .system = options.system,
                                                         .num_gpus = options.gpus,
                                                         .seq_len = options.seq_len,
                                                         .global_batch = options.global_batch,
                                                         .precisions = precisions_of(options),
                                                         .schedule = schedule,
                                                         .set = set,
                                                         .headroom = options.headroom_pct / 100.0});
  problem.top = options.top;
  problem.threads = options.threads;
  problem.effort = std::llround(options.effort_seconds * 1e6);

  const planner::PlanResult result = foldwise::plan(problem, progress_line());
  if (options.format == "json")
    print_result(planner::plan_json(problem, result, planner::built_in_residuals()));
  else
    print_result(planner::plan_text(problem, result));
  return result.plans.empty() ? kNothingFits : kDone;
}

}  // namespace

void add_plan(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Find the fastest layout that fits");
  command->add_option("--model", options->model, "Built-in model or Hugging Face config.json")->capture_default_str();
  command->add_option("--system", options->system, "Built-in system or profile")->capture_default_str();
  command->add_option("--gpus", options->gpus, "GPUs of the job")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence")
      ->check(CLI::Range(1, 16'777'216))
      ->capture_default_str();
  command->add_option("--global-batch", options->global_batch, "Sequences of a step")
      ->check(CLI::Range(1, 16'777'216))
      ->capture_default_str();
  std::vector<std::string> precisions = {"all"};
  for (const auto& entry : planner::precision_names()) precisions.push_back(entry.first);
  command
      ->add_option("--precision", options->precision,
                   "Precision recipe, or all that the GPU has; default: mxfp8 where it has it, else bf16")
      ->check(CLI::IsMember(precisions));
  command
      ->add_option("--pin", options->pins, "Fix fields: tp=1,ep=64,optimizer.name=sgd; names of a list are joined by +")
      ->delimiter(',');
  command->add_option("--set", options->sets, "Values that a field may have: tp=1,2,4; any field of a run file");
  command->add_option("--headroom", options->headroom_pct, "Percent of the device's memory that a plan leaves free")
      ->check(CLI::Range(0.0, 99.0))
      ->transform([](std::string text) {
        if (!text.empty() && text.back() == '%') text.pop_back();
        return text;
      })
      ->capture_default_str();
  std::vector<std::string> schedules;
  for (const auto& entry : planner::schedule_names()) schedules.push_back(entry.first);
  command
      ->add_option("--schedule", options->schedule,
                   "Pipeline schedule; Megatron runs 1f1b (plain and interleaved), the others are for study")
      ->check(CLI::IsMember(schedules))
      ->capture_default_str();
  command->add_option("--top", options->top, "Plans to print")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--threads", options->threads, "Threads of the search; 0 is one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      ->add_option(
          "--effort", options->effort_seconds,
          "Seconds of a core, about, after which the search ends unproven; counted, so that the answer is the same "
          "everywhere")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return plan(*options); }; });
}

}  // namespace foldwise::cli

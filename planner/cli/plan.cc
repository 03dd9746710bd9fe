#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
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
  std::vector<std::string> pins;
  std::string schedule = "1f1b";
  std::int64_t top = 10;
  int threads = 0;
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

/// Leaves only the pinned value of a dimension, whether or not the search would have tried it.
class Pinning {
 public:
  Pinning(planner::SearchSpace& space, config::Diagnostics& diagnostics) : diagnostics_(diagnostics) {
    sizes_ = {{"tp", &space.tp},
              {"cp", &space.cp},
              {"pp", &space.pp},
              {"vpp", &space.vpp},
              {"ep", &space.ep},
              {"etp", &space.etp},
              {"micro_batch", &space.micro_batch}};
    words_["dispatcher"] = [&space](const std::string& value) {
      for (const auto& [name, dispatcher] : planner::dispatcher_names())
        if (name == value) space.dispatcher = {dispatcher};
      return std::any_of(planner::dispatcher_names().begin(), planner::dispatcher_names().end(),
                         [&](const auto& entry) { return entry.first == value; });
    };
    words_["ep_overlap"] = [&space](const std::string& value) {
      if (value != "true" && value != "false") return false;
      space.ep_overlap = {value == "true"};
      return true;
    };
    words_["recompute"] = [&space](const std::string& value) {
      const auto granularity = std::find_if(planner::granularity_names().begin(), planner::granularity_names().end(),
                                            [&](const auto& entry) { return entry.first == value; });
      if (granularity == planner::granularity_names().end()) return false;
      std::erase_if(space.recompute, [&](const costmodel::Recompute& recompute) {
        return recompute.granularity != granularity->second;
      });
      return true;
    };
  }

  void apply(const std::string& key, const std::string& value) {
    if (const auto size = sizes_.find(key); size != sizes_.end()) {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc{} || end != value.data() + value.size() || number < 1 || number > 1'000'000)
        mistake(key, fmt::format("expected a whole number from 1 to 1000000, found \"{}\"", value));
      else
        *size->second = {number};
      return;
    }
    if (const auto word = words_.find(key); word != words_.end()) {
      if (!word->second(value)) mistake(key, fmt::format("\"{}\" is no value of it", value));
      return;
    }
    std::vector<std::string> known;
    for (const auto& entry : sizes_) known.push_back(entry.first);
    for (const auto& entry : words_) known.push_back(entry.first);
    const std::string nearest = config::nearest(key, known);
    mistake(key, nearest.empty() ? fmt::format("cannot be pinned; these can: {}", fmt::join(known, ", "))
                                 : fmt::format("cannot be pinned; the nearest that can is \"{}\"", nearest));
  }

 private:
  void mistake(const std::string& key, std::string message) {
    diagnostics_.error({"command line", 0, "--pin " + key}, std::move(message));
  }

  config::Diagnostics& diagnostics_;
  std::map<std::string, std::vector<std::int64_t>*> sizes_;
  std::map<std::string, std::function<bool(const std::string&)>> words_;
};

planner::Pins read_pins(const std::vector<std::string>& texts, config::Diagnostics& diagnostics) {
  planner::Pins pins;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      diagnostics.error({"command line", 0, "--pin"}, fmt::format("expected name=value, found \"{}\"", text));
    else if (!pins.emplace(text.substr(0, equals), text.substr(equals + 1)).second)
      diagnostics.error({"command line", 0, "--pin " + text.substr(0, equals)}, "given twice");
  }
  return pins;
}

/// One line on a terminal, nothing in a file or a pipe.
std::function<void(std::int64_t, std::int64_t)> progress_line() {
  if (isatty(STDERR_FILENO) == 0) return {};
  auto last = std::make_shared<std::atomic<std::int64_t>>(-1);
  return [last](std::int64_t done, std::int64_t all) {
    const std::int64_t percent = all > 0 ? 100 * done / all : 100;
    std::int64_t before = last->load();
    while (percent > before)
      if (last->compare_exchange_weak(before, percent)) {
        fmt::print(stderr, "\r{:3} % of {} candidates{}", percent, all, percent == 100 ? "\n" : "");
        return;
      }
  };
}

int plan(const PlanOptions& options) {
  planner::PlanProblem problem = foldwise::plan_problem({.model = options.model,
                                                         .system = options.system,
                                                         .num_gpus = options.gpus,
                                                         .seq_len = options.seq_len,
                                                         .global_batch = options.global_batch,
                                                         .precisions = precisions_of(options)});
  problem.top = options.top;
  problem.threads = options.threads;
  for (const auto& [name, schedule] : planner::schedule_names())
    if (name == options.schedule) problem.base.pipeline.schedule = schedule;
  config::Diagnostics diagnostics;
  const planner::Pins pins = read_pins(options.pins, diagnostics);
  Pinning pinning(problem.space, diagnostics);
  for (const auto& [key, value] : pins) pinning.apply(key, value);
  diagnostics.throw_if_any();

  const planner::PlanResult result = planner::plan(problem, progress_line());
  if (options.format == "json")
    print_result(planner::plan_json(problem, pins, result, planner::built_in_residuals()));
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
  command->add_option("--pin", options->pins, "Fix dimensions: tp=1,ep=64")->delimiter(',');
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
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return plan(*options); }; });
}

}  // namespace foldwise::cli

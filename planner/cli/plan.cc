#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

#include "hwprofiles/load/profile.h"
#include "planner/cli/commands.h"
#include "planner/models/models.h"
#include "planner/report/plan_report.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"
#include "planner/search/search.h"

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

std::vector<Precision> precisions_of(const std::string& text, const costmodel::Hardware& hardware) {
  if (text.empty()) return {hardware.supports(Precision::kMxfp8) ? Precision::kMxfp8 : Precision::kBf16};
  std::vector<Precision> result;
  for (const auto& [name, precision] : planner::precision_names())
    if (text == name || (text == "all" && hardware.supports(precision))) result.push_back(precision);
  return result;
}

/// Fields that something else decides.
const std::vector<std::pair<std::string_view, std::string_view>> kDecided = {
    {"seq_len", "give --seq-len"},
    {"global_batch", "give --global-batch"},
    {"schedule", "give --schedule"},
    {"dp", "it follows from the other sizes"},
    {"pipeline_layout", "the search splits the layers"},
    {"overlaps.delay_wgrad", "it follows overlaps.ep_a2a"},
    {"task", "only pretraining is planned"}};

/// Leaves only the pinned value of a dimension; the value of a field that is none is fixed for all candidates.
void pin(const std::string& key, const std::string& text, planner::SearchSpace& space,
         std::map<std::string, nlohmann::json>& stated, config::Diagnostics& diagnostics) {
  const auto mistake = [&](std::string message) {
    diagnostics.error({"command line", 0, "--pin " + key}, std::move(message));
  };
  const planner::Field* field = planner::find_field(key);
  if (field == nullptr || !field->value.set) {
    std::vector<std::string> known;
    for (const planner::Field& f : planner::fields())
      if (f.value.set) known.push_back(f.key);
    const std::string nearest = config::nearest(key, known);
    return mistake(nearest.empty() ? "cannot be pinned; `foldwise fields` lists what can"
                                   : fmt::format("cannot be pinned; the nearest that can is \"{}\"", nearest));
  }
  for (const auto& [decided, why] : kDecided)
    if (decided == field->key) return mistake(fmt::format("cannot be pinned: {}", why));
  const nlohmann::json value = planner::typed_value(*field, text);
  if (const std::string wrong = planner::mistake_in(*field, value); !wrong.empty()) return mistake(wrong);
  if (!space.pin(field->key, value)) stated[field->key] = value;
}

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
  planner::PlanProblem problem;
  problem.model_name = options.model;
  problem.system_name = options.system;
  problem.model = planner::load_model(options.model);
  problem.hardware = hwprofiles::load_profile(options.system).hardware;
  problem.num_gpus = options.gpus;
  problem.top = options.top;
  problem.threads = options.threads;

  problem.space = planner::default_space(problem.model, problem.hardware, options.gpus, options.seq_len,
                                         precisions_of(options.precision, problem.hardware));
  config::Diagnostics diagnostics;
  const planner::Pins pins = read_pins(options.pins, diagnostics);
  std::map<std::string, nlohmann::json> stated = {
      {"seq_len", options.seq_len}, {"global_batch", options.global_batch}, {"schedule", options.schedule}};
  for (const auto& [key, value] : pins) pin(key, value, problem.space, stated, diagnostics);
  for (const Precision precision : problem.space.precision)
    if (!problem.hardware.supports(precision))
      diagnostics.error({"command line", 0, "--precision"},
                        fmt::format("{} has no {}", options.system, planner::name_of(precision)));
  diagnostics.throw_if_any();
  problem.defaults = planner::newest_defaults("megatron-bridge");
  problem.base = planner::not_searched(planner::load_defaults(problem.defaults), problem.model, problem.hardware,
                                       problem.space, std::move(stated));

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
  command
      ->add_option("--pin", options->pins,
                   "Fix fields: tp=1,ep=64,optimizer.name=muon; names of a list are joined by +")
      ->delimiter(',');
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

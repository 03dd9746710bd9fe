#include "planner/cli/plan_arguments.h"

#include <iterator>
#include <string>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/run/names.h"

namespace foldwise::cli {

namespace {

std::string without_percent(std::string text) {
  if (!text.empty() && text.back() == '%') text.pop_back();
  return text;
}

void add_question(CLI::App& command, PlanArguments& arguments) {
  const auto add = [&](const char* name, auto& value, const std::string& what) {
    return command.add_option(name, value, what)->group(kQuestion);
  };
  arguments = planner::usual_question();
  add("--model", arguments.model, "Built-in model or Hugging Face config.json")->capture_default_str();
  add("--system", arguments.system, "Built-in system or profile")->capture_default_str();
  add("--gpus", arguments.gpus, "GPUs of the job")->transform(counts())->capture_default_str();
  add("--seq-len", arguments.seq_len, "Tokens of a sequence: 4096, 4k, 128K")
      ->transform(counts(true))
      ->capture_default_str();
  add("--global-batch", arguments.global_batch, "Sequences of a step: 2048, 2k is 2000")
      ->transform(counts())
      ->capture_default_str();
  std::vector<std::string> precisions = {"all"};
  for (const auto& entry : planner::precision_names()) precisions.push_back(entry.first);
  add("--precision", arguments.precision,
      "Precision recipe, or all that the GPU has; default: mxfp8 where it has it, else bf16")
      ->check(CLI::IsMember(precisions));
  add_release(command, arguments.release);
  add("--pin", arguments.pins, "Fix fields: tp=1,ep=64,optimizer.name=sgd; names of a list are joined by +")
      ->delimiter(',');
  add("--headroom", arguments.headroom_pct, "Percent of the device's memory that a plan leaves free")
      ->transform(without_percent)
      ->capture_default_str();
  add("--evidence", arguments.evidence,
      "What of a plan must have been measured on the GPU's generation: all choices in one run, each in some run, "
      "nothing")
      ->check(CLI::IsMember({"run", "parts", "any"}))
      ->capture_default_str();
  std::vector<std::string> schedules;
  for (const auto& entry : planner::schedule_names()) schedules.push_back(entry.first);
  add("--schedule", arguments.schedule,
      "Pipeline schedule; Megatron runs 1f1b (plain and interleaved), the others are for study")
      ->check(CLI::IsMember(schedules))
      ->capture_default_str();
  command
      .add_flag("--no-folding", arguments.no_folding,
                "Experts take attention's TP, and EP divides DP: to see what folding buys")
      ->group(kQuestion);
}

}  // namespace

void add_plan_arguments(CLI::App& command, PlanArguments& arguments) {
  add_question(command, arguments);
  command
      .add_option("--effort", arguments.effort_seconds,
                  "Seconds of a core, about, after which a search ends unproven; counted, so that the answer is the "
                  "same everywhere")
      ->capture_default_str()
      ->group(kSearch);
  command.add_option("--threads", arguments.threads, "Threads; 0 is one per core")
      ->capture_default_str()
      ->group(kSearch);
}

std::vector<planner::Run> read_runs(const std::vector<std::string>& files, config::Diagnostics& diagnostics) {
  std::vector<planner::Run> runs;
  for (const std::string& file : files) {
    try {
      planner::RunList list = planner::load_runs(file);
      for (const planner::Unreadable& row : list.unreadable)
        for (const config::Diagnostic& mistake : row.mistakes) diagnostics.error(mistake.where, mistake.message);
      runs.insert(runs.end(), std::make_move_iterator(list.runs.begin()), std::make_move_iterator(list.runs.end()));
    } catch (const config::ConfigError& error) {
      diagnostics.add(error);
    }
  }
  return runs;
}

void add_cost_arguments(CLI::App& command, CostArguments& arguments) {
  const auto add = [&](const char* name, auto& value, const char* what) {
    command.add_option(name, value, what)->group(kCost);
  };
  add("--tokens", arguments.tokens, "Tokens of a whole training, for its days and GPU-hours: 14.8T, 500B");
  add("--price", arguments.price, "Money a GPU-hour");
  add("--mtbf", arguments.mtbf_hours, "Hours between failures of one GPU, on average, that stop the job");
  add("--storage", arguments.storage_gb_s, "GB/s at which the job writes a checkpoint, in the step's way");
  add("--restart", arguments.restart_s, "Seconds from a failure until steps run again");
}

}  // namespace foldwise::cli

#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/foldwise.h"
#include "planner/report/training_cost.h"

// Arguments that several commands share, from the command line or from Python. The functions that read them add every
// mistake to `diagnostics` under the name of the command-line option.
namespace foldwise::planner {

/// The question of `plan`, and of each point of `sweep --plan`.
struct PlanArguments {
  std::string model, system;
  std::string evidence = "run";  ///< Evidence that a plan's choices need: evidence_names().
  std::string release;           ///< Megatron-Core release. Empty: the one of `from`, or the newest numbered one.
  std::int64_t gpus = 1, seq_len = 4096, global_batch = 4096;
  std::string precision;  ///< Empty: mxfp8 if the GPU supports it, else bf16.
  std::vector<std::string> pins;
  double headroom_pct = 5.0;
  bool no_folding = false;
  std::string schedule = "1f1b";
  std::int64_t top = 10;
  int threads = 0;
  double effort_seconds = static_cast<double>(kUsualEffort) * 1e-6;
};
/// What a program plans that was asked nothing: a model, a system and a number of GPUs.
[[nodiscard]] PlanArguments usual_question();
[[nodiscard]] PlanRequest request_of(const PlanArguments& arguments, config::Diagnostics& diagnostics);
/// See PlanProblem::effort.
[[nodiscard]] std::int64_t effort_of(const PlanArguments& arguments);

/// {file, line, field, message}: an entry of "errors".
[[nodiscard]] nlohmann::json mistake_json(const config::Diagnostic& mistake);

/// The name that is meant (planner/run/near_names.h); `otherwise`, with a mistake, if there is none.
[[nodiscard]] std::string meant(std::string (*meaning)(const std::string&), const std::string& name,
                                config::Diagnostics& diagnostics, const std::string& otherwise = "");

/// Arguments for the cost of a training: --tokens and its companions.
struct CostArguments {
  std::string tokens;  ///< "14.8T"; empty: no cost.
  std::optional<double> price, mtbf_hours, storage_gb_s, restart_s;
};
[[nodiscard]] std::optional<LongRun> long_run(const CostArguments& arguments, config::Diagnostics& diagnostics);

/// The field or override that `key` names, for PlanRequest::set and the axes of a sweep.
[[nodiscard]] std::string set_key(const std::string& key, config::Diagnostics& diagnostics);

/// Splits "key=value,value" texts, in order. A text without a key is reported as a mistake of `option`.
[[nodiscard]] std::vector<std::pair<std::string, std::vector<std::string>>> read_sets(
    const std::string& option, const std::vector<std::string>& texts, config::Diagnostics& diagnostics);

template <typename Value>
void check_range(const char* option, Value value, Value least, Value most, config::Diagnostics& diagnostics) {
  if (!(value >= least && value <= most))
    diagnostics.error({config::kArguments, 0, option}, fmt::format("expected {} to {}, found {}", least, most, value));
}

}  // namespace foldwise::planner

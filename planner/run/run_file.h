#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "planner/run/measured.h"
#include "planner/run/release.h"

namespace foldwise::hwprofiles {
struct Profile;
}

// The run file (docs/run-file.md): one JSON object that describes one run. Every command reads it.
namespace foldwise::planner {

struct Run {
  std::string id;                       ///< May be empty.
  std::string file;                     ///< File that it was read from.
  int line = 0;                         ///< Line of the run's object in that file.
  std::string date_or_release;          ///< A label from the source.
  const Release* release = nullptr;     ///< Release of Megatron-Core; null: none is named.
  std::string defaults;                 ///< Name of the set of defaults that was used.
  std::string task = "pretrain";        ///< "pretrain", "sft" or "lora".
  std::string model_name, system_name;  ///< Built-in names, or paths relative to the working directory.
  std::int64_t num_gpus = 1;
  costmodel::ModelSpec model;  ///< Includes overrides and MTP.
  costmodel::Hardware hardware;
  costmodel::TrainingOptions options;
  Measured measured;
  bool chosen = false;               ///< A search chose this run. Its choice favours errors of the prediction.
  bool out_of_memory = false;        ///< The source reports that the run ran out of memory.
  nlohmann::json json;               ///< The object as read, for writing it again.
  std::vector<std::string> assumed;  ///< "micro_batch = 1 (not in the file; ...)".
  /// (key, reason): values in the file that its source does not state (benchmarks/accuracy/state_inferences.py).
  std::vector<std::pair<std::string, std::string>> inferred;
};

/// The run's id; if it has none, its place as file:line.
[[nodiscard]] std::string run_name(const Run& run);

/// PYTORCH_CUDA_ALLOC_CONF of the run; null: the file does not say. No member of TrainingOptions has it.
[[nodiscard]] std::optional<std::string> alloc_conf_of(const Run& run);

/// The run's system with the run file's changes (`system_overrides`): hwprofiles/load/profile.h.
[[nodiscard]] hwprofiles::Profile profile_of(const Run& run);

/// A row that cannot become a Run, with the reason. validate lists these; other commands report them as errors.
struct Unreadable {
  std::string id, reason;
  std::vector<config::Diagnostic> mistakes;  ///< The mistakes that `reason` joins in one line.
};

/// Reads one run object. Every mistake is added to the diagnostics. The result is usable only if there was none.
[[nodiscard]] Run read_run(config::ObjectReader& reader, config::Diagnostics& diagnostics);

/// Reads a file with one run object. A `release` replaces the one that the file names. Throws config::ConfigError.
[[nodiscard]] Run load_run(const std::string& path, const Release* release = nullptr);

/// The same from text. Messages use `name` as the file.
[[nodiscard]] Run parse_run(std::string_view text, const std::string& name = "run");

/// The run as another release has it. Throws config::ConfigError with what it states and the release lacks.
[[nodiscard]] Run in_release(const Run& run, const Release& release);

struct RunList {
  std::vector<Run> runs;
  std::vector<Unreadable> unreadable;  ///< In file order, e.g. rows with an unknown model.
};
/// Reads an array of runs, or one run. Mistakes of form (not JSON, duplicate or unknown keys, wrong types, numbers out
/// of range) throw config::ConfigError. Mistakes of content make a row `unreadable`: an unknown model, system or
/// choice, a required field that is null, or a contradiction.
[[nodiscard]] RunList load_runs(const std::string& path, const Release* release = nullptr);

/// The complete run file of (model, system, options). Reading it gives the same options.
[[nodiscard]] nlohmann::json write_run(const std::string& model, const std::string& system, std::int64_t num_gpus,
                                       const costmodel::TrainingOptions& options);

/// The complete run file of `run`, including what it states about its model (overrides, MTP depth). Measurements are
/// left out.
[[nodiscard]] nlohmann::json write_run(const Run& run);

}  // namespace foldwise::planner

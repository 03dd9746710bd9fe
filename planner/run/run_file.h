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
#include "planner/run/release.h"

namespace foldwise::hwprofiles {
struct Profile;
}

// The run file (docs/run-file.md): one JSON object describes one run, and every command speaks it.
namespace foldwise::planner {

/// Kernels of a profiled step of the first rank: sums by name, and what of the step they were.
struct KernelProfile {
  struct Kernel {
    std::string name;
    double ms = 0.0;
  };
  std::vector<Kernel> kernels;
  double kernels_rest_ms = 0.0;  ///< Of those whose names it leaves out.
  double wall_ms = 0.0, busy_ms = 0.0, compute_ms = 0.0, exposed_comm_ms = 0.0, exposed_host_copy_ms = 0.0;
};

/// What a run measured; unset where the source is silent.
struct Measured {
  std::optional<double> step_time_s, tokens_per_s_per_gpu, tflops_per_gpu, mfu_pct;
  std::optional<double> peak_memory_gib, peak_reserved_gib;
  std::optional<double> allocated_after_setup_gib, allocated_between_steps_gib;  ///< Of the first rank.
  std::int64_t num_alloc_retries = 0;  ///< Of one rank in one step, the most: torch gave memory back and tried again.
  bool tokens_are_rounded = false;     ///< To a whole number of global samples a second.
  std::vector<double> peak_memory_gib_per_rank, peak_reserved_gib_per_rank;  ///< Global ranks; may be empty.
  /// The pipeline rank that ran alone and that all this is of: it waited for no other. Unset: all ranks ran.
  std::optional<std::int64_t> pipeline_rank;
  std::optional<KernelProfile> kernel_profile;  ///< kernel_profile_rank0.
};

struct Run {
  std::string id;                       ///< May be empty.
  std::string file;                     ///< Where it was read from.
  int line = 0;                         ///< Of the run's object in that file.
  std::string date_or_release;          ///< A label of the source's.
  const Release* release = nullptr;     ///< Of Megatron-Core; null: none is named.
  std::string defaults;                 ///< Name of the set that silent fields took.
  std::string task = "pretrain";        ///< "pretrain", "sft" or "lora".
  std::string model_name, system_name;  ///< Built-in names, or paths from where the program runs.
  std::int64_t num_gpus = 1;
  costmodel::ModelSpec model;  ///< Overrides and MTP applied.
  costmodel::Hardware hardware;
  costmodel::TrainingOptions options;
  Measured measured;
  bool chosen = false;               ///< By a search, whose choice has errors in its own favour.
  bool out_of_memory = false;        ///< The source says that this run ran out of memory.
  nlohmann::json json;               ///< The object as read, for re-emission.
  std::vector<std::string> assumed;  ///< "micro_batch = 1 (not in the file; ...)".
  /// (key, reason): what the file states without its source (benchmarks/accuracy/state_inferences.py).
  std::vector<std::pair<std::string, std::string>> inferred;
};

/// Its id, or else where it stands: file:line.
[[nodiscard]] std::string run_name(const Run& run);

/// Its system with what its file says of it (`system_overrides`): hwprofiles/load/profile.h.
[[nodiscard]] hwprofiles::Profile profile_of(const Run& run);

/// A row that cannot become a Run, and why (validate lists these; other commands report them as errors).
struct Unreadable {
  std::string id, reason;
  std::vector<config::Diagnostic> mistakes;  ///< What `reason` has in one line.
};

/// Reads one run object. Adds diagnostics for everything wrong with it; the result is usable only if none were added.
[[nodiscard]] Run read_run(config::ObjectReader& reader, config::Diagnostics& diagnostics);

/// Reads a file that holds one run object. With a `release` it is that one's run, whatever the file says. Throws
/// config::ConfigError.
[[nodiscard]] Run load_run(const std::string& path, const Release* release = nullptr);

/// The same from text; `name` stands for the file in messages.
[[nodiscard]] Run parse_run(std::string_view text, const std::string& name = "run");

struct RunList {
  std::vector<Run> runs;
  std::vector<Unreadable> unreadable;  ///< In file order; e.g. a model that is not built in.
};
/// Reads an array of runs (or one run). Mistakes of form (not JSON, duplicate or unknown keys, wrong types, numbers out
/// of range) throw config::ConfigError. Rows of good form that are no run that we can compute, because they name an
/// unknown model, system or choice, leave a needed field null or contradict themselves, are returned as `unreadable`.
[[nodiscard]] RunList load_runs(const std::string& path, const Release* release = nullptr);

/// The complete run file of (model, system, options): reading it back gives the same options.
[[nodiscard]] nlohmann::json write_run(const std::string& model, const std::string& system, std::int64_t num_gpus,
                                       const costmodel::TrainingOptions& options);

/// The complete run file of `run`, with what it says about its model (overrides, MTP depth); nothing measured.
[[nodiscard]] nlohmann::json write_run(const Run& run);

}  // namespace foldwise::planner

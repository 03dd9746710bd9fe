#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/config/json.h"

// What a run file says that was measured (docs/run-file.md).
namespace foldwise::planner {

/// Kernels of a profiled step of rank 0: their sums by name, and their parts of the step.
struct KernelProfile {
  struct Kernel {
    std::string name;
    double ms = 0.0;
  };
  std::vector<Kernel> kernels;
  double kernels_rest_ms = 0.0;  ///< Sum of the kernels that are not named.
  double wall_ms = 0.0, busy_ms = 0.0, compute_ms = 0.0, exposed_comm_ms = 0.0, exposed_host_copy_ms = 0.0;
};

/// Measurements of a run; unset if the source does not give them.
struct Measured {
  std::optional<double> step_time_s, tokens_per_s_per_gpu, tflops_per_gpu, mfu_pct;
  std::optional<double> peak_memory_gib, peak_reserved_gib;
  std::optional<double> allocated_after_setup_gib, allocated_between_steps_gib;  ///< Of rank 0.
  /// Most retries of a rank in a step. A retry: torch gives cached memory back and allocates again.
  std::int64_t num_alloc_retries = 0;
  bool tokens_are_rounded = false;  ///< Rounded to a whole number of global samples per second.
  std::vector<double> peak_memory_gib_per_rank, peak_reserved_gib_per_rank;  ///< By global rank; may be empty.
  /// If set, this pipeline rank ran alone, all measurements are of it, and it waited for no other. Unset: all ranks
  /// ran.
  std::optional<std::int64_t> pipeline_rank;
  std::optional<KernelProfile> kernel_profile;  ///< From kernel_profile_rank0.
};

/// Reads the object `measured` of a run with `pipeline_ranks`. Mistakes are reported.
[[nodiscard]] Measured read_measured(config::ObjectReader& in, std::int64_t pipeline_ranks);

}  // namespace foldwise::planner

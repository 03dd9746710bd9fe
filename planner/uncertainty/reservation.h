#pragma once
#include <cstdint>
#include <string_view>

#include "planner/run/run_file.h"

namespace foldwise::planner {

/// Why the error of a measured run says little about the model. Decided by the run's source, not by its error: another
/// program than Megatron ran it (Defaults::megatron); it does not state the micro-batch, for which Megatron has no
/// default; it does not state recomputation (nor then graphs and dispatcher); a rank ran without the others
/// (Measured::pipeline_rank); or PyTorch ran short of memory (Measured::num_alloc_retries).
enum class Reservation : std::uint8_t {
  kNone,
  kOtherSoftware,
  kMicroBatchUnknown,
  kRecomputationUnknown,
  kRankAlone,
  kMemoryGone
};
[[nodiscard]] Reservation reservation(const Run& run);

/// "micro-batch not stated"; empty for kNone.
[[nodiscard]] std::string_view name_of(Reservation reservation);

/// Whether the predicted run may differ from the measured one.
[[nodiscard]] bool is_silent(Reservation reservation);

}  // namespace foldwise::planner

#pragma once
#include <cstdint>
#include <string_view>

#include "planner/run/run_file.h"

namespace foldwise::planner {

/// Why the error of a measured run says little of the model, by its source whatever the error: a program other than
/// Megatron ran it (Defaults::megatron), it does not state the micro-batch, for which Megatron has no default, or what
/// was recomputed, where it is silent on graphs and dispatcher too, the other ranks were not there
/// (Measured::pipeline_rank), or the memory was not there that torch wanted (Measured::num_alloc_retries).
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

/// Whether what is predicted may not be what ran.
[[nodiscard]] bool is_silent(Reservation reservation);

}  // namespace foldwise::planner

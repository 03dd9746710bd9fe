#include "planner/uncertainty/reservation.h"

#include "planner/run/defaults.h"

namespace foldwise::planner {

Reservation reservation(const Run& run) {
  if (run.measured.pipeline_rank) return Reservation::kRankAlone;
  if (run.measured.num_alloc_retries > 0) return Reservation::kMemoryGone;
  if (!load_defaults(run.defaults).megatron) return Reservation::kOtherSoftware;
  const auto states = [&](const char* key) { return run.json.contains(key) && !run.json.at(key).is_null(); };
  if (!states("micro_batch")) return Reservation::kMicroBatchUnknown;
  return states("recompute") ? Reservation::kNone : Reservation::kRecomputationUnknown;
}

std::string_view name_of(Reservation reservation) {
  switch (reservation) {
    case Reservation::kNone:
      return "";
    case Reservation::kOtherSoftware:
      return "other software";
    case Reservation::kMicroBatchUnknown:
      return "micro-batch not stated";
    case Reservation::kRecomputationUnknown:
      return "recomputation not stated";
    case Reservation::kRankAlone:
      return "a rank alone";
    case Reservation::kMemoryGone:
      return "memory gone";
  }
  return "";
}

bool is_silent(Reservation reservation) {
  return reservation == Reservation::kMicroBatchUnknown || reservation == Reservation::kRecomputationUnknown;
}

}  // namespace foldwise::planner

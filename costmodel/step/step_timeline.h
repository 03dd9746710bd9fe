#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/pipeline/pipeline_graph.h"
#include "costmodel/step/step.h"

// A whole step of every pipeline rank on its streams, for the trace and the drawing. Data-parallel replicas of a rank
// do the same at the same time, so one rank stands for all of its replicas.
namespace foldwise::costmodel {

struct StepTimeline {
  /// A stretch of a chunk's task, a transfer between ranks, a chunk's parameter gather or gradient reduction (two
  /// slices if the rank waits for only part of it), or a part of the end of the step. The place of exposed
  /// communication inside a task is not known; it is drawn after the compute.
  struct Slice {
    std::int32_t rank = 0;
    Stream stream = Stream::kCompute;
    Activity activity = Activity::kCompute;
    std::string_view name{};  ///< Name of what happens once per step; else empty.
    std::int32_t task = -1;   ///< Index into `ranks[rank]`; -1 for what happens once per step.
    bool in_sequence = true;  ///< The rank does nothing else meanwhile. These slices and the bubble add up to the step.
    std::int64_t start_ps = 0, duration_ps = 0;
    std::int64_t slack_ps = 0;  ///< How much longer it could take; 0 on a critical path, -1 if unknown.
  };
  struct Flow {
    std::int32_t from = 0, to = 0;  ///< Slices of two ranks.
  };
  struct Level {
    std::int32_t task = -1;  ///< See Slice::task.
    std::int64_t at_ps = 0;
    Bytes allocated{};  ///< Allocated bytes from this time on.
  };
  std::vector<std::vector<ScheduledTask>> ranks;  ///< [pp]
  std::vector<Slice> slices;
  std::vector<Flow> flows;
  std::vector<std::vector<Level>> memory;  ///< [pp], sorted by time.
  std::int64_t end_ps = 0;
};

/// `prediction` must belong to `step`.
[[nodiscard]] StepTimeline step_timeline(const Step& step, const Prediction& prediction);

}  // namespace foldwise::costmodel

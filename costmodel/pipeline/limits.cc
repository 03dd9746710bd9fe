#include "costmodel/pipeline/limits.h"

#include <algorithm>

#include "costmodel/pipeline/schedule.h"

namespace foldwise::costmodel {

Seconds makespan_upper_bound(const PipelineTimes& times) {
  Seconds slowest{}, once{}, reload{};
  for (const StageTime& stage : times.stages) {
    slowest = std::max(slowest, stage.forward + stage.backward + 2.0 * stage.send);
    once += stage.gather + stage.reduction + stage.first_forward_delay + stage.last_backward_delay;
  }
  for (const Seconds rank : times.reload) reload = std::max(reload, rank);
  // A rank's tasks, and a micro-batch's way up and back before and after them.
  const double turns = static_cast<double>(times.shape.num_microbatches) *
                           static_cast<double>(chunks_of(times.shape.kind, times.shape.vpp)) +
                       4.0 * static_cast<double>(times.stages.size());
  return turns * slowest + once + reload;
}

std::string too_long(Seconds bound, Seconds most) {
  return "a step of up to " + std::to_string(static_cast<std::int64_t>(std::min(bound.to<double>(), 1e18))) +
         " s, and steps of at most " + std::to_string(static_cast<std::int64_t>(most.to<double>())) +
         " s are predicted: a smaller global batch or sequence, more GPUs or less recomputation take less";
}

}  // namespace foldwise::costmodel

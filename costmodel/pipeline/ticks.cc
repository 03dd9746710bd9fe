#include "costmodel/pipeline/ticks.h"

#include <cstddef>
#include <stdexcept>
#include <string>

#include "costmodel/check.h"
#include "costmodel/pipeline/limits.h"

namespace foldwise::costmodel {

void to_ticks(const PipelineTimes& times, std::vector<ChunkTicks>& ticks) {
  if (const Seconds most = makespan_upper_bound(times); !(most <= kMostSeconds))
    throw std::range_error(too_long(most, kMostSeconds));
  const ScheduleShape& shape = times.shape;
  const auto chunks = static_cast<std::size_t>(shape.pp * shape.vpp), pp = static_cast<std::size_t>(shape.pp);
  FW_CHECK(times.stages.size() == chunks,
           std::to_string(times.stages.size()) + " chunk times for " + std::to_string(chunks) + " chunks");
  ticks.assign(chunks, {});
  for (std::size_t x = 0; x < chunks; ++x) {
    const StageTime& stage = times.stages[x];
    ticks[x].forward = to_ps(stage.forward);
    ticks[x].backward = to_ps(stage.backward);
    ticks[x].weight_gradient = to_ps(stage.weight_gradient);
    ticks[x].saving = to_ps(stage.merged_pair_saving);
    ticks[x].gather = to_ps(stage.gather);
    ticks[x].reduction = to_ps(stage.reduction);
    ticks[x].first_forward_delay = to_ps(stage.first_forward_delay);
    ticks[x].last_backward_delay = to_ps(stage.last_backward_delay);
    FW_CHECK(ticks[x].gather >= 0 && ticks[x].reduction >= 0 && ticks[x].first_forward_delay >= 0 &&
             ticks[x].last_backward_delay >= 0);
    FW_CHECK(ticks[x].forward >= 0 && ticks[x].backward >= ticks[x].weight_gradient && ticks[x].weight_gradient >= 0 &&
             ticks[x].saving >= 0 && stage.send >= Seconds{});
  }
  if (shape.pp == 1) return;
  if (shape.kind == Schedule::kOneF1B) {
    for (std::size_t x = 0; x + 1 < chunks; ++x)
      ticks[x].send_forward = ticks[x + 1].send_backward = to_ps(times.stages[x].send);
    return;
  }
  std::vector<std::size_t> at(chunks);  // The chunk at each position.
  for (std::size_t x = 0; x < chunks; ++x)
    at[static_cast<std::size_t>(
        position_of(shape, static_cast<std::int64_t>(x % pp), static_cast<std::int64_t>(x / pp)))] = x;
  for (std::size_t i = 0; i + 1 < chunks; ++i)
    if (transfers(shape, static_cast<std::int64_t>(i)))
      ticks[at[i]].send_forward = ticks[at[i + 1]].send_backward = to_ps(times.stages[at[i]].send);
}

void to_reload_ticks(const PipelineTimes& times, std::vector<Picoseconds>& ticks) {
  FW_CHECK(times.reload.empty() || times.reload.size() == static_cast<std::size_t>(times.shape.pp));
  ticks.clear();
  for (const Seconds reload : times.reload) ticks.push_back(to_ps(reload));
}

std::int64_t ChunkTicks::of(TaskKind kind) const {
  switch (kind) {
    case TaskKind::kForward:
      return forward;
    case TaskKind::kBackward:
      return backward;
    case TaskKind::kInputGradient:
      return backward - weight_gradient;
    case TaskKind::kWeightGradient:
      return weight_gradient;
  }
  FW_CHECK(false, "an unknown kind of task");
  return 0;
}

std::vector<ChunkTicks> chunk_ticks(const PipelineTimes& times) {
  std::vector<ChunkTicks> ticks;
  to_ticks(times, ticks);
  return ticks;
}

std::vector<std::int64_t> reload_ticks(const PipelineTimes& times) {
  std::vector<std::int64_t> ticks;
  to_reload_ticks(times, ticks);
  return ticks;
}

}  // namespace foldwise::costmodel

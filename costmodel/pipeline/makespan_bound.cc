#include <algorithm>
#include <cstddef>

#include "costmodel/pipeline/ticks.h"

// Closed-form bounds of a makespan.
namespace foldwise::costmodel {
namespace {

/// Work of the busiest rank if every task that may run merged does.
Seconds busiest_rank(const ScheduleShape& shape, const std::vector<ChunkTicks>& ticks) {
  Picoseconds most = 0;
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    Picoseconds work = 0;
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
      const ChunkTicks& t = ticks[static_cast<std::size_t>(chunk * shape.pp + rank)];
      work += chunk_microbatches(shape) * (t.forward + t.backward - t.saving);
    }
    most = std::max(most, work);
  }
  return Seconds{static_cast<double>(most) * 1e-12};
}

/// Number of entries of `chunk` among the first `n` of the schedule table. Closed form, O(1).
std::int64_t table_count(const ScheduleShape& shape, std::int64_t n, std::int64_t chunk) {
  const std::int64_t group = shape.vpp == 1 ? shape.num_microbatches : schedule_group_size(shape);
  const std::int64_t whole = n / (group * shape.vpp);                                 // Whole groups before entry n.
  const std::int64_t size = std::min(group, shape.num_microbatches - whole * group);  // Size of the group of entry n.
  const std::int64_t inside = n - whole * group * shape.vpp;
  return whole * group + std::clamp(inside - chunk * size, std::int64_t{0}, std::max(size, std::int64_t{0}));
}

}  // namespace

Seconds makespan_lower_bound(const PipelineTimes& times) {
  thread_local std::vector<ChunkTicks> stages;
  to_ticks(times, stages);
  const ScheduleShape& shape = times.shape;
  if (shape.kind != Schedule::kOneF1B) return busiest_rank(shape, stages);
  const std::int64_t m = shape.num_microbatches, total = m * shape.vpp;
  const bool merges = merges_pairs(shape), blocking = !times.overlap_p2p;
  const auto last_chunk = static_cast<std::size_t>((shape.vpp - 1) * shape.pp);

  // Time of one micro-batch through every stage, up and back; and through the stages above a rank's last chunk.
  Picoseconds all_up = 0, all_down = 0;
  Picoseconds above_up = 0, above_down = 0;  // Including the transfers out of these stages.
  for (std::size_t x = 0; x < stages.size(); ++x) {
    all_up += stages[x].forward + stages[x].send_forward + (blocking ? stages[x].gather : 0);
    all_down += stages[x].backward + stages[x].send_backward;
    if (x < last_chunk) continue;
    above_up += stages[x].forward + stages[x].send_forward;
    above_down += stages[x].backward + stages[x].send_backward;
  }
  Picoseconds bound = all_up + all_down;
  Picoseconds up = 0;    // The first micro-batch on its way to this rank's chunk 0.
  Picoseconds down = 0;  // The last micro-batch on its way from this rank's chunk 0 to the end.
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    const ChunkTicks& first = stages[static_cast<std::size_t>(rank)];
    const ChunkTicks& last = stages[last_chunk + static_cast<std::size_t>(rank)];
    up = blocking ? up + first.gather : std::max(up, first.gather);
    above_up -= last.forward + last.send_forward;
    above_down -= last.backward + last.send_backward;
    down += first.send_backward;

    // The rank's work, including blocking sends.
    const std::int64_t warm = num_warmup(shape, rank), pairs = total - warm;
    const std::int64_t late = std::min(warm + (merges ? 0 : 1), total);
    const std::int64_t early = std::max(pairs - (merges ? 0 : 1), std::int64_t{0});
    Picoseconds work = 0;
    Picoseconds forwards_before = 0;  // Forwards that end before the first backward (pair) starts.
    Picoseconds backwards_after = 0;  // Backwards that start after the last forward (pair).
    Picoseconds savings = 0;
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
      const ChunkTicks& stage = stages[static_cast<std::size_t>(chunk * shape.pp + rank)];
      const std::int64_t turn = shape.vpp - 1 - chunk;  // Chunk of its backwards in the table.
      const Picoseconds forward = stage.forward + (blocking ? stage.send_forward : 0);
      const Picoseconds backward = stage.backward + (blocking ? stage.send_backward : 0);
      work += m * (forward + backward) + stage.first_forward_delay + stage.last_backward_delay;
      forwards_before += table_count(shape, late, chunk) * forward + stage.first_forward_delay;
      backwards_after += (m - table_count(shape, early, turn)) * backward + stage.last_backward_delay;
      if (merges) savings += stage.saving * (m - table_count(shape, warm, chunk) + table_count(shape, pairs, turn));
    }
    work -= savings / 2;  // Each stage of a pair saves half, rounded down.

    // (1) The rank works without a pause from the arrival of the first micro-batch until the last one has left.
    const Picoseconds tail = down - (blocking ? first.send_backward : 0);  // A blocking send counts as work.
    bound = std::max(bound, up + work + tail);
    // (2) Its first backward waits for the first micro-batch to go up through every stage and come back.
    bound = std::max(bound, all_up + above_down + work - forwards_before + tail);
    // (3) After its last forward, the last micro-batch goes up through the stages above and back through every stage.
    //     (A blocking pair sends a gradient after its activations: what follows them is not simply a path.)
    if (!(merges && blocking)) {
      const Picoseconds send = blocking ? 0 : last.send_forward;
      bound = std::max(bound, up + work - backwards_after + send + above_up + all_down);
    }
    up += first.forward + first.send_forward;
    down += first.backward;
  }
  // Rank 0's last backward is followed by its reduction and its reload.
  const Picoseconds reload = times.reload.empty() ? 0 : to_ps(times.reload.front());
  return Seconds{static_cast<double>(bound + std::max(stages.front().reduction, reload)) * 1e-12};
}

}  // namespace foldwise::costmodel

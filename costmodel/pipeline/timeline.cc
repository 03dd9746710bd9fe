#include "costmodel/pipeline/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "costmodel/check.h"

// Every rank's order is fixed, so no event queue is needed: a rank runs its next tasks for as long as their inputs are
// known, then the next rank has its turn. Each task is executed once, when its start is known for good; the order of
// the turns cannot change a time. Forwards travel up the ranks and backwards down, so the turns sweep up and down.
//
// An input is a time in an array over (virtual stage, micro-batch), written by the task that produces it, kUnknown
// until then. A task writes its output straight into the neighbour's slot, transfer included. A backward waits for the
// backward of the next stage only: that one waited for its own forward, which waited for ours.
namespace foldwise::costmodel {
namespace {

using Picoseconds = std::int64_t;
constexpr Picoseconds kUnknown = -1;

/// The only place where a time is rounded.
Picoseconds to_ps(Seconds time) { return static_cast<Picoseconds>(std::llround(time.to<double>() * 1e12)); }

/// The times in picoseconds, [stage].
struct StageTicks {
  Picoseconds forward = 0, backward = 0, saving = 0;
  Picoseconds send_forward = 0;   ///< Its activations to the next stage; 0 at the last stage.
  Picoseconds send_backward = 0;  ///< Its gradient to the previous stage; 0 at the first stage.
};

void to_ticks(const PipelineTimes& times, std::vector<StageTicks>& ticks) {
  const auto stages = static_cast<std::size_t>(times.shape.pp * times.shape.vpp);
  FW_CHECK(times.stages.size() == stages,
           std::to_string(times.stages.size()) + " stage times for " + std::to_string(stages) + " virtual stages");
  ticks.assign(stages, {});
  for (std::size_t x = 0; x < stages; ++x) {
    const StageTime& stage = times.stages[x];
    ticks[x].forward = to_ps(stage.forward);
    ticks[x].backward = to_ps(stage.backward);
    ticks[x].saving = to_ps(stage.merged_pair_saving);
    FW_CHECK(ticks[x].forward >= 0 && ticks[x].backward >= 0 && ticks[x].saving >= 0 && stage.send >= Seconds{});
    if (times.shape.pp == 1 || x + 1 == stages) continue;  // One rank: its chunks hand over in place.
    ticks[x].send_forward = to_ps(stage.send);
    ticks[x + 1].send_backward = ticks[x].send_forward;
  }
}

/// Merging needs the extra warm-up forward, which plain 1F1B over several ranks does not have (rule epov.vpp).
bool merges_pairs(const ScheduleShape& shape) {
  return shape.overlap_moe_expert_parallel_comm && (shape.pp == 1 || shape.vpp > 1);
}

/// Compute time of a merged pair. Work is not done faster than the longer of its two halves.
Picoseconds merged_pair(const StageTicks& forward, const StageTicks& backward) {
  return std::max({forward.forward + backward.backward - (forward.saving + backward.saving) / 2, forward.forward,
                   backward.backward});
}

/// Buffers of one simulation, kept from call to call: the search calls millions of times.
struct Scratch {
  struct Item {
    std::int32_t chunk;
    std::int32_t slot;  ///< Index of (rank 0's stage of the chunk, micro-batch) in the arrays of inputs.
  };
  struct Rank {
    std::size_t next_forward = 0, next_backward = 0, warm = 0;
    Picoseconds free = 0;
  };
  ScheduleShape shape{.num_microbatches = 0};  ///< Shape that `forwards`, `backwards` and `warm` belong to.
  std::vector<Item> forwards, backwards;       ///< The schedule table.
  std::vector<std::size_t> warm;               ///< [rank]
  std::vector<StageTicks> ticks;               ///< [rank][chunk], so that a rank's are together.
  std::vector<StageTicks> by_stage;
  std::vector<Picoseconds> forward_input, backward_input;  ///< [stage][micro-batch]
  std::vector<Rank> ranks;
};

void prepare(const PipelineTimes& times, Scratch& scratch) {
  const ScheduleShape& shape = times.shape;
  const auto pp = static_cast<std::size_t>(shape.pp), vpp = static_cast<std::size_t>(shape.vpp);
  const auto m = static_cast<std::size_t>(shape.num_microbatches);
  if (scratch.shape != shape) {
    scratch.forwards.clear();
    scratch.backwards.clear();
    FW_CHECK(pp * vpp * m < (std::size_t{1} << 31));
    for (const Task& task : schedule_table(shape)) {
      const auto reversed = static_cast<std::int32_t>(shape.vpp) - 1 - task.chunk;
      const auto stride = static_cast<std::int32_t>(pp * m);
      scratch.forwards.push_back({task.chunk, task.chunk * stride + task.micro_batch});
      scratch.backwards.push_back({reversed, reversed * stride + task.micro_batch});
    }
    scratch.warm.clear();
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
      scratch.warm.push_back(static_cast<std::size_t>(num_warmup(shape, rank)));
    }
    scratch.shape = shape;
  }
  to_ticks(times, scratch.by_stage);
  scratch.ticks.resize(pp * vpp);
  for (std::size_t x = 0; x < pp * vpp; ++x) scratch.ticks[x % pp * vpp + x / pp] = scratch.by_stage[x];
  scratch.forward_input.assign(pp * vpp * m, kUnknown);
  std::fill_n(scratch.forward_input.begin(), m, Picoseconds{0});  // The data loader feeds the first stage.
  scratch.backward_input.assign(pp * vpp * m, kUnknown);
  scratch.ranks.assign(pp, {});
  for (std::size_t rank = 0; rank < pp; ++rank) scratch.ranks[rank].warm = scratch.warm[rank];
}

/// Runs the schedule in `scratch`; `record(rank, forward or backward item, start, end, send)` sees every task.
template <bool kBlocking, bool kMerges, typename Record>
Picoseconds run(const ScheduleShape& shape, Scratch& scratch, const Record& record) {
  using Item = Scratch::Item;
  const auto pp = static_cast<std::size_t>(shape.pp), vpp = static_cast<std::size_t>(shape.vpp);
  const auto m = static_cast<std::size_t>(shape.num_microbatches);
  const std::size_t total = scratch.forwards.size(), slots = pp * vpp * m;
  const Item* const forwards = scratch.forwards.data();
  const Item* const backwards = scratch.backwards.data();
  Picoseconds* const forward_input = scratch.forward_input.data();
  Picoseconds* const backward_input = scratch.backward_input.data();

  // Runs rank's tasks until one waits for an input that is not known; true if any ran.
  const auto take_turn = [&](std::size_t rank) {
    Scratch::Rank state = scratch.ranks[rank];
    const StageTicks* const ticks = scratch.ticks.data() + rank * vpp;
    const std::size_t base = rank * m;
    const std::size_t before = state.next_forward + state.next_backward;
    // Outputs land in the neighbouring stage's slot; the last stage's forward is the input of its own backward.
    const auto deliver_forward = [&](std::size_t slot, Picoseconds end, Picoseconds send) {
      if (slot + m < slots) {
        forward_input[slot + m] = end + send;
      } else {
        backward_input[slot] = end;
      }
    };
    const auto deliver_backward = [&](std::size_t slot, Picoseconds end, Picoseconds send) {
      if (slot >= m) backward_input[slot - m] = end + send;
    };
    while (state.next_backward < total) {
      const bool warm_up = state.next_forward < state.warm;
      const bool forward_turn =
          warm_up || (state.next_forward < total && state.next_forward - state.warm == state.next_backward);
      if (kMerges && forward_turn && !warm_up) {
        const Item f = forwards[state.next_forward], b = backwards[state.next_backward];
        const std::size_t f_slot = base + static_cast<std::size_t>(f.slot);
        const std::size_t b_slot = base + static_cast<std::size_t>(b.slot);
        const Picoseconds f_ready = forward_input[f_slot], b_ready = backward_input[b_slot];
        if (f_ready == kUnknown || b_ready == kUnknown) break;
        const StageTicks &ft = ticks[f.chunk], &bt = ticks[b.chunk];
        const Picoseconds start = std::max({state.free, f_ready, b_ready});
        const Picoseconds end = start + merged_pair(ft, bt);
        state.free = kBlocking ? end + ft.send_forward + bt.send_backward : end;
        // A blocking pair sends its activations first, then its gradient.
        deliver_forward(f_slot, end, ft.send_forward);
        deliver_backward(b_slot, kBlocking ? end + ft.send_forward : end, bt.send_backward);
        record(rank, true, state.next_forward, start, end, kBlocking ? ft.send_forward : 0);
        record(rank, false, state.next_backward, start, end, kBlocking ? ft.send_forward + bt.send_backward : 0);
        ++state.next_forward;
        ++state.next_backward;
      } else if (forward_turn) {
        const Item f = forwards[state.next_forward];
        const std::size_t slot = base + static_cast<std::size_t>(f.slot);
        const Picoseconds ready = forward_input[slot];
        if (ready == kUnknown) break;
        const StageTicks& stage = ticks[f.chunk];
        const Picoseconds start = std::max(state.free, ready), end = start + stage.forward;
        state.free = kBlocking ? end + stage.send_forward : end;
        deliver_forward(slot, end, stage.send_forward);
        record(rank, true, state.next_forward, start, end, kBlocking ? stage.send_forward : 0);
        ++state.next_forward;
      } else {
        const Item b = backwards[state.next_backward];
        const std::size_t slot = base + static_cast<std::size_t>(b.slot);
        const Picoseconds ready = backward_input[slot];
        if (ready == kUnknown) break;
        const StageTicks& stage = ticks[b.chunk];
        const Picoseconds start = std::max(state.free, ready), end = start + stage.backward;
        state.free = kBlocking ? end + stage.send_backward : end;
        deliver_backward(slot, end, stage.send_backward);
        record(rank, false, state.next_backward, start, end, kBlocking ? stage.send_backward : 0);
        ++state.next_backward;
      }
    }
    scratch.ranks[rank] = state;
    return state.next_forward + state.next_backward != before;
  };

  bool progress = true;
  while (progress && scratch.ranks[0].next_backward < total) {
    progress = false;
    for (std::size_t rank = 0; rank < pp; ++rank) progress |= take_turn(rank);
    for (std::size_t rank = pp; rank-- > 0;) progress |= take_turn(rank);
  }
  // Rank 0's last backward needs every other rank's last backward, so all are done.
  FW_CHECK(scratch.ranks[0].next_backward == total,
           "the schedule deadlocks: pp " + std::to_string(shape.pp) + ", vpp " + std::to_string(shape.vpp) + ", m " +
               std::to_string(shape.num_microbatches) + ", group " + std::to_string(shape.group_size));
  Picoseconds makespan = 0;
  for (const Scratch::Rank& rank : scratch.ranks) makespan = std::max(makespan, rank.free);
  return makespan;
}

template <typename Record>
Picoseconds execute(const PipelineTimes& times, const Record& record) {
  thread_local Scratch scratch;
  prepare(times, scratch);
  const bool merges = merges_pairs(times.shape);
  if (times.overlap_p2p) {
    return merges ? run<false, true>(times.shape, scratch, record) : run<false, false>(times.shape, scratch, record);
  }
  return merges ? run<true, true>(times.shape, scratch, record) : run<true, false>(times.shape, scratch, record);
}

/// How many of the first `n` entries of the schedule table belong to `chunk`. Closed form, O(1).
std::int64_t table_count(const ScheduleShape& shape, std::int64_t n, std::int64_t chunk) {
  const std::int64_t group = shape.vpp == 1 ? shape.num_microbatches : schedule_group_size(shape);
  const std::int64_t whole = n / (group * shape.vpp);                                 // Whole groups before entry n.
  const std::int64_t size = std::min(group, shape.num_microbatches - whole * group);  // Size of the group of entry n.
  const std::int64_t inside = n - whole * group * shape.vpp;
  return whole * group + std::clamp(inside - chunk * size, std::int64_t{0}, std::max(size, std::int64_t{0}));
}

}  // namespace

Timeline simulate(const PipelineTimes& times) {
  const std::vector<Task> table = schedule_table(times.shape);
  Timeline timeline;
  timeline.ranks.resize(static_cast<std::size_t>(times.shape.pp));
  for (std::vector<ScheduledTask>& tasks : timeline.ranks) tasks.reserve(2 * table.size());
  timeline.makespan_ps = execute(times, [&](std::size_t rank, bool forward, std::size_t index, Picoseconds start,
                                            Picoseconds end, Picoseconds send) {
    Task task = table[index];
    if (!forward) task.chunk = static_cast<std::int32_t>(times.shape.vpp) - 1 - task.chunk;
    task.forward = forward;
    timeline.ranks[rank].push_back({.task = task, .start_ps = start, .end_ps = end, .send_ps = send});
  });
  return timeline;
}

Seconds simulate_makespan(const PipelineTimes& times) {
  const Picoseconds makespan =
      execute(times, [](std::size_t, bool, std::size_t, Picoseconds, Picoseconds, Picoseconds) {});
  return Seconds{static_cast<double>(makespan) * 1e-12};
}

Seconds makespan_lower_bound(const PipelineTimes& times) {
  thread_local std::vector<StageTicks> stages;
  to_ticks(times, stages);
  const ScheduleShape& shape = times.shape;
  const std::int64_t m = shape.num_microbatches, total = m * shape.vpp;
  const bool merges = merges_pairs(shape), blocking = !times.overlap_p2p;
  const auto last_chunk = static_cast<std::size_t>((shape.vpp - 1) * shape.pp);

  // One micro-batch through every stage, up and back; and through the stages above the last chunk of a rank.
  Picoseconds all_up = 0, all_down = 0;
  Picoseconds above_up = 0, above_down = 0;  // The transfers out of these stages included.
  for (std::size_t x = 0; x < stages.size(); ++x) {
    all_up += stages[x].forward + stages[x].send_forward;
    all_down += stages[x].backward + stages[x].send_backward;
    if (x < last_chunk) continue;
    above_up += stages[x].forward + stages[x].send_forward;
    above_down += stages[x].backward + stages[x].send_backward;
  }
  Picoseconds bound = all_up + all_down;
  Picoseconds up = 0;    // The first micro-batch on its way to this rank's chunk 0.
  Picoseconds down = 0;  // The last micro-batch on its way from this rank's chunk 0 to the end.
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    const StageTicks& first = stages[static_cast<std::size_t>(rank)];
    const StageTicks& last = stages[last_chunk + static_cast<std::size_t>(rank)];
    above_up -= last.forward + last.send_forward;
    above_down -= last.backward + last.send_backward;
    down += first.send_backward;

    // The rank's work, blocking sends included.
    const std::int64_t warm = num_warmup(shape, rank), pairs = total - warm;
    const std::int64_t late = std::min(warm + (merges ? 0 : 1), total);
    const std::int64_t early = std::max(pairs - (merges ? 0 : 1), std::int64_t{0});
    Picoseconds work = 0;
    Picoseconds forwards_before = 0;  // Forwards that end before the first backward (pair) starts.
    Picoseconds backwards_after = 0;  // Backwards that start after the last forward (pair).
    Picoseconds savings = 0;
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
      const StageTicks& stage = stages[static_cast<std::size_t>(chunk * shape.pp + rank)];
      const std::int64_t turn = shape.vpp - 1 - chunk;  // Its backwards' chunk in the table.
      const Picoseconds forward = stage.forward + (blocking ? stage.send_forward : 0);
      const Picoseconds backward = stage.backward + (blocking ? stage.send_backward : 0);
      work += m * (forward + backward);
      forwards_before += table_count(shape, late, chunk) * forward;
      backwards_after += (m - table_count(shape, early, turn)) * backward;
      if (merges) savings += stage.saving * (m - table_count(shape, warm, chunk) + table_count(shape, pairs, turn));
    }
    work -= savings / 2;  // Each stage of a pair saves half, rounded down.

    // (1) It works without a pause, once the first micro-batch has come and until the last one has left.
    const Picoseconds tail = down - (blocking ? first.send_backward : 0);  // A blocking send is work.
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
  return Seconds{static_cast<double>(bound) * 1e-12};
}

}  // namespace foldwise::costmodel

#include "costmodel/pipeline/timeline.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/pipeline/limits.h"
#include "costmodel/pipeline/pipeline_graph.h"

// The fast engine, for 1F1B at chunk level: a search simulates thousands of candidates. pipeline_graph.h is the general
// one, and the tests hold the two equal.
//
// Every rank's order is fixed, so no event queue is needed: a rank runs its next tasks for as long as their inputs are
// known, then the next rank has its turn. Each task is executed once, when its start is known for good; the order of
// the turns cannot change a time. Forwards travel up the ranks and backwards down, so the turns sweep up and down.
//
// An input is a time in an array over (virtual stage, micro-batch), written by the task that produces it, kUnknown
// until then. A task writes its output straight into the neighbour's slot, transfer included. A backward waits for the
// backward of the next stage only: that one waited for its own forward, which waited for ours.
//
// A chunk's first forward and last backward differ from the others (gather, delays): their items name a second entry of
// the chunk, at vpp + chunk. They never run in a pair: warm-up and cool-down are longer than that.
namespace foldwise::costmodel {
namespace {

using Picoseconds = std::int64_t;
constexpr Picoseconds kUnknown = -1;
constexpr auto kNever = static_cast<std::size_t>(-1);

/// The only place where a time is rounded. None is negative, and llround is a call.
// NOLINTNEXTLINE(bugprone-incorrect-roundings)
Picoseconds to_ps(Seconds time) { return static_cast<Picoseconds>(time.to<double>() * 1e12 + 0.5); }

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

/// Buffers of one simulation, kept from call to call: the search calls millions of times.
struct Scratch {
  struct Item {
    std::int32_t chunk;  ///< Entry of the rank's ticks.
    std::int32_t slot;   ///< Index of (rank 0's stage of the chunk, micro-batch) in the arrays of inputs.
  };
  struct Rank {
    std::size_t next_forward = 0, next_backward = 0, warm = 0;
    Picoseconds free = 0;
    Picoseconds sent_forward = 0, sent_backward = 0;  ///< Ends of its last transfers of activations and of gradients.
    std::size_t launched = 0, next_launch = 0;        ///< Gathers and reductions; the next one's Launch::after.
    Picoseconds collected = 0;                        ///< End of its last gather or reduction.
    Picoseconds reloaded = 0;                         ///< End of its reload.
  };
  struct Collective {
    std::size_t after;  ///< Launch::after.
    std::size_t chunk;  ///< vpp + chunk for a reduction.
  };
  ScheduleShape shape{.num_microbatches = 0};  ///< Shape that `forwards`, `backwards` and `warm` belong to.
  std::vector<Item> forwards, backwards;       ///< The schedule table.
  std::vector<std::size_t> warm;               ///< [rank]
  std::vector<Collective> collectives;         ///< [rank][2 vpp + 1] gathers, reductions, and one that never comes.
  std::vector<Picoseconds> gathered;           ///< [rank][chunk] end of its gather.
  std::vector<ChunkTicks> ticks;               ///< [rank][2 vpp], so that a rank's are together.
  std::vector<ChunkTicks> by_stage;            ///< As PipelineTimes::stages.
  std::vector<Picoseconds> forward_input, backward_input;  ///< [stage][micro-batch]
  std::vector<Rank> ranks;
  std::vector<Picoseconds> reload;  ///< As PipelineTimes::reload.
};

/// For `times` on this shape, which may have fewer micro-batches.
void prepare(const PipelineTimes& times, const ScheduleShape& shape, Scratch& scratch) {
  const auto pp = static_cast<std::size_t>(shape.pp), vpp = static_cast<std::size_t>(shape.vpp);
  const auto m = static_cast<std::size_t>(shape.num_microbatches);
  if (scratch.shape != shape) {
    scratch.forwards.clear();
    scratch.backwards.clear();
    FW_CHECK(pp * vpp * m < (std::size_t{1} << 31));
    for (const Task& task : schedule_table(shape)) {
      const auto reversed = static_cast<std::int32_t>(shape.vpp) - 1 - task.chunk;
      const auto stride = static_cast<std::int32_t>(pp * m);
      const auto v = static_cast<std::int32_t>(vpp);
      scratch.forwards.push_back(
          {task.micro_batch == 0 ? v + task.chunk : task.chunk, task.chunk * stride + task.micro_batch});
      scratch.backwards.push_back({task.micro_batch + 1 == shape.num_microbatches ? v + reversed : reversed,
                                   reversed * stride + task.micro_batch});
    }
    scratch.collectives.clear();
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
      for (const Launch& launch : gather_launches(shape, rank))
        scratch.collectives.push_back({static_cast<std::size_t>(launch.after), static_cast<std::size_t>(launch.chunk)});
      for (const Launch& launch : reduction_launches(shape, rank))
        scratch.collectives.push_back(
            {static_cast<std::size_t>(launch.after), vpp + static_cast<std::size_t>(launch.chunk)});
      scratch.collectives.push_back({kNever, 0});
    }
    scratch.warm.clear();
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
      scratch.warm.push_back(static_cast<std::size_t>(num_warmup(shape, rank)));
    }
    scratch.shape = shape;
  }
  to_ticks(times, scratch.by_stage);
  scratch.ticks.resize(2 * pp * vpp);
  for (std::size_t x = 0; x < pp * vpp; ++x) {
    const ChunkTicks& ticks = scratch.by_stage[x];
    ChunkTicks* const chunk = scratch.ticks.data() + 2 * (x % pp) * vpp + x / pp;
    chunk[0] = chunk[vpp] = ticks;
    chunk[vpp].forward += ticks.first_forward_delay;
    chunk[vpp].backward += ticks.last_backward_delay;
  }
  to_reload_ticks(times, scratch.reload);
  scratch.gathered.assign(pp * vpp, 0);
  scratch.forward_input.assign(pp * vpp * m, kUnknown);
  std::fill_n(scratch.forward_input.begin(), m, Picoseconds{0});  // The data loader feeds the first stage.
  scratch.backward_input.assign(pp * vpp * m, kUnknown);
  scratch.ranks.assign(pp, {});
  for (std::size_t rank = 0; rank < pp; ++rank) {
    scratch.ranks[rank].warm = scratch.warm[rank];
    scratch.ranks[rank].next_launch = scratch.collectives[rank * (2 * vpp + 1)].after;
  }
}

/// Runs the schedule in `scratch`; `record` sees every task, a rank's in issue order: rank, start, end, its blocking
/// transfer, its wait for a gather.
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
    const ChunkTicks* const ticks = scratch.ticks.data() + 2 * rank * vpp;
    const Scratch::Collective* const collectives = scratch.collectives.data() + rank * (2 * vpp + 1);
    Picoseconds* const gathered = scratch.gathered.data() + rank * vpp;
    const std::size_t base = rank * m;
    const std::size_t before = state.next_forward + state.next_backward;
    // Outputs land in the neighbouring stage's slot; the last stage's forward is the input of its own backward.
    const auto deliver_forward = [&](std::size_t slot, Picoseconds end, Picoseconds send) {
      if (slot + m < slots) {
        forward_input[slot + m] = state.sent_forward = std::max(end, state.sent_forward) + send;
      } else {
        backward_input[slot] = end;
      }
    };
    const auto deliver_backward = [&](std::size_t slot, Picoseconds end, Picoseconds send) {
      if (slot >= m) backward_input[slot - m] = state.sent_backward = std::max(end, state.sent_backward) + send;
    };
    for (;;) {
      if (state.next_forward + state.next_backward == state.next_launch) [[unlikely]] {
        state.collected = std::max(state.collected, state.free);
        const std::size_t chunk = collectives[state.launched].chunk;
        if (chunk >= vpp)
          state.collected += ticks[chunk].reduction;
        else if (!kBlocking)
          gathered[chunk] = state.collected += ticks[chunk].gather;
        state.next_launch = collectives[++state.launched].after;
        continue;
      }
      if (state.next_backward == total) break;
      const bool warm_up = state.next_forward < state.warm;
      const bool forward_turn =
          warm_up || (state.next_forward < total && state.next_forward - state.warm == state.next_backward);
      if (kMerges && forward_turn && !warm_up) {
        const Item f = forwards[state.next_forward], b = backwards[state.next_backward];
        const std::size_t f_slot = base + static_cast<std::size_t>(f.slot);
        const std::size_t b_slot = base + static_cast<std::size_t>(b.slot);
        const Picoseconds f_ready = forward_input[f_slot], b_ready = backward_input[b_slot];
        if (f_ready == kUnknown || b_ready == kUnknown) break;
        const ChunkTicks &ft = ticks[f.chunk], &bt = ticks[b.chunk];
        const Picoseconds start = std::max({state.free, f_ready, b_ready});
        const Picoseconds end = start + merged_pair(ft, bt);
        state.free = kBlocking ? end + ft.send_forward + bt.send_backward : end;
        // A blocking pair sends its activations first, then its gradient.
        deliver_forward(f_slot, end, ft.send_forward);
        deliver_backward(b_slot, kBlocking ? end + ft.send_forward : end, bt.send_backward);
        record(rank, start, end, kBlocking ? ft.send_forward : 0, 0);
        record(rank, start, end, kBlocking ? ft.send_forward + bt.send_backward : 0, 0);
        ++state.next_forward;
        ++state.next_backward;
      } else if (forward_turn) {
        const Item f = forwards[state.next_forward];
        const std::size_t slot = base + static_cast<std::size_t>(f.slot);
        const Picoseconds ready = forward_input[slot];
        if (ready == kUnknown) break;
        const ChunkTicks& stage = ticks[f.chunk];
        Picoseconds start = std::max(state.free, ready), gather = 0;
        if (static_cast<std::size_t>(f.chunk) >= vpp) {
          gather = kBlocking ? stage.gather
                             : std::max<Picoseconds>(0, gathered[static_cast<std::size_t>(f.chunk) - vpp] - start);
          start += gather;
        }
        const Picoseconds end = start + stage.forward;
        state.free = kBlocking ? end + stage.send_forward : end;
        deliver_forward(slot, end, stage.send_forward);
        record(rank, start, end, kBlocking ? stage.send_forward : 0, gather);
        ++state.next_forward;
      } else {
        const Item b = backwards[state.next_backward];
        const std::size_t slot = base + static_cast<std::size_t>(b.slot);
        const Picoseconds ready = backward_input[slot];
        if (ready == kUnknown) break;
        const ChunkTicks& stage = ticks[b.chunk];
        const Picoseconds start = std::max(state.free, ready), end = start + stage.backward;
        state.free = kBlocking ? end + stage.send_backward : end;
        deliver_backward(slot, end, stage.send_backward);
        record(rank, start, end, kBlocking ? stage.send_backward : 0, 0);
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
  for (std::size_t i = 0; i < pp; ++i) {
    Scratch::Rank& rank = scratch.ranks[i];
    rank.collected = std::max(rank.collected, rank.free);
    rank.reloaded = rank.free + (scratch.reload.empty() ? 0 : scratch.reload[i]);
    makespan = std::max({makespan, rank.collected, rank.reloaded});
  }
  return makespan;
}

Scratch& scratch_of_thread() {
  thread_local Scratch scratch;
  return scratch;
}

template <typename Record>
Picoseconds execute(const PipelineTimes& times, const ScheduleShape& shape, Scratch& scratch, const Record& record) {
  prepare(times, shape, scratch);
  const bool merges = merges_pairs(shape);
  if (times.overlap_p2p)
    return merges ? run<false, true>(shape, scratch, record) : run<false, false>(shape, scratch, record);
  return merges ? run<true, true>(shape, scratch, record) : run<true, false>(shape, scratch, record);
}

/// Where a schedule repeats itself. Pair q of a rank is its forward warm-up + q and its backward q. Between the first
/// forwards of the chunks and the last backwards, pair q + period is pair q, `group` micro-batches later, and waits for
/// nothing more than `lag` pairs before it. So where all times of lag + 1 pairs in turn are one `shift` later in the
/// next period, all that follow are, up to the last backwards, and those are `shift` later for each group more.
struct Repeats : Repetition {
  explicit Repeats(const ScheduleShape& shape)
      : Repetition(repetition(shape, 0)),
        lag(2 * group + 2),
        least(group + lag + 2 * period + std::max(warmup, period)) {}
  std::int64_t lag;
  std::int64_t least;  ///< Forwards of whole groups that a run needs to show it, if its pair `group` is steady.
};

/// The shift of the pairs from `first` on, if all have the same.
std::optional<Picoseconds> shift_from(const Repeats& repeats, std::int64_t first, const ScheduleShape& shape,
                                      const Scratch& scratch, const std::vector<Picoseconds>& ends) {
  const auto pp = static_cast<std::size_t>(shape.pp), m = static_cast<std::size_t>(shape.num_microbatches);
  const auto period = static_cast<std::size_t>(repeats.period), begin = static_cast<std::size_t>(first);
  const std::size_t total = scratch.forwards.size(), end = begin + static_cast<std::size_t>(repeats.lag) + 1;
  const Picoseconds shift = ends[scratch.warm[0] + 2 * (begin + period)] - ends[scratch.warm[0] + 2 * begin];
  for (std::size_t rank = 0; rank < pp; ++rank) {
    const std::size_t warm = scratch.warm[rank];
    const Picoseconds* const ended = ends.data() + rank * 2 * total + warm;
    const auto later = [&](const std::vector<Picoseconds>& inputs, const std::vector<Scratch::Item>& items,
                           std::size_t i) {
      const auto input = [&](std::size_t at) { return inputs[rank * m + static_cast<std::size_t>(items[at].slot)]; };
      return input(i + period) - input(i);
    };
    for (std::size_t q = begin; q < end; ++q) {
      if (ended[2 * (q + period)] - ended[2 * q] != shift || ended[2 * (q + period) + 1] - ended[2 * q + 1] != shift ||
          later(scratch.backward_input, scratch.backwards, q) != shift)
        return std::nullopt;
      const bool loads = rank == 0 && static_cast<std::size_t>(scratch.forwards[warm + q].slot) < m;  // Data: at 0.
      if (!loads && later(scratch.forward_input, scratch.forwards, warm + q) != shift) return std::nullopt;
    }
  }
  return shift;
}

/// The makespan by a run with fewer groups of micro-batches, if that shows how the others go on.
std::optional<Picoseconds> by_repeats(const PipelineTimes& times) {
  struct Short {
    Scratch scratch;
    std::vector<Picoseconds> ends;  ///< [rank][2 m vpp] of the tasks, in issue order.
    std::vector<std::size_t> next;  ///< [rank]
  };
  constexpr std::int64_t kSettling = 16;  // Pairs, after which most pipelines are steady.
  thread_local Short run;
  const Repeats repeats(times.shape);
  ScheduleShape shape = times.shape;
  const std::int64_t groups = (repeats.least + kSettling + repeats.period - 1) / repeats.period;
  shape.num_microbatches = groups * repeats.group + times.shape.num_microbatches % repeats.group;
  if (2 * shape.num_microbatches > times.shape.num_microbatches) return std::nullopt;
  const auto tasks = static_cast<std::size_t>(2 * shape.num_microbatches * shape.vpp);
  run.ends.resize(static_cast<std::size_t>(shape.pp) * tasks);
  run.next.assign(static_cast<std::size_t>(shape.pp), 0);
  const Picoseconds makespan =
      execute(times, shape, run.scratch, [&](std::size_t rank, Picoseconds, Picoseconds end, Picoseconds, Picoseconds) {
        run.ends[rank * tasks + run.next[rank]++] = end;
      });
  const std::int64_t first = groups * repeats.period - repeats.least + repeats.group;
  const std::optional<Picoseconds> by = shift_from(repeats, first, shape, run.scratch, run.ends);
  if (!by) return std::nullopt;
  return makespan + (times.shape.num_microbatches - shape.num_microbatches) / repeats.group * *by;
}

/// Work of the busiest rank, if everything that may run merged does.
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

/// How many of the first `n` entries of the schedule table belong to `chunk`. Closed form, O(1).
std::int64_t table_count(const ScheduleShape& shape, std::int64_t n, std::int64_t chunk) {
  const std::int64_t group = shape.vpp == 1 ? shape.num_microbatches : schedule_group_size(shape);
  const std::int64_t whole = n / (group * shape.vpp);                                 // Whole groups before entry n.
  const std::int64_t size = std::min(group, shape.num_microbatches - whole * group);  // Size of the group of entry n.
  const std::int64_t inside = n - whole * group * shape.vpp;
  return whole * group + std::clamp(inside - chunk * size, std::int64_t{0}, std::max(size, std::int64_t{0}));
}

}  // namespace

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

// Work is not done faster than the longer of the two halves.
std::int64_t merged_pair(const ChunkTicks& forward, const ChunkTicks& backward) {
  return std::max({forward.forward + backward.backward - (forward.saving + backward.saving) / 2, forward.forward,
                   backward.backward});
}

Timeline simulate(const PipelineTimes& times) {
  if (times.shape.kind != Schedule::kOneF1B) return timeline_of(pipeline_graph(times));
  Timeline timeline;
  for (std::int64_t rank = 0; rank < times.shape.pp; ++rank) {
    std::vector<ScheduledTask>& tasks = timeline.ranks.emplace_back();
    for (const Task& task : rank_tasks(times.shape, rank)) tasks.push_back({.task = task});
  }
  std::vector<std::size_t> next(timeline.ranks.size(), 0);
  Scratch& scratch = scratch_of_thread();
  timeline.makespan_ps =
      execute(times, times.shape, scratch,
              [&](std::size_t rank, Picoseconds start, Picoseconds end, Picoseconds send, Picoseconds gather) {
                ScheduledTask& scheduled = timeline.ranks[rank][next[rank]++];
                scheduled.start_ps = start;
                scheduled.end_ps = end;
                scheduled.send_ps = send;
                scheduled.gather_ps = gather;
              });
  for (const Scratch::Rank& rank : scratch.ranks) {
    timeline.reduced_ps.push_back(rank.collected);
    timeline.reloaded_ps.push_back(rank.reloaded);
  }
  return timeline;
}

Seconds simulate_makespan(const PipelineTimes& times) {
  if (times.shape.kind != Schedule::kOneF1B) return simulate(times).makespan();
  std::optional<Picoseconds> makespan = by_repeats(times);
  if (!makespan)
    makespan = execute(times, times.shape, scratch_of_thread(),
                       [](std::size_t, Picoseconds, Picoseconds, Picoseconds, Picoseconds) {});
  return Seconds{static_cast<double>(*makespan) * 1e-12};
}

Seconds makespan_lower_bound(const PipelineTimes& times) {
  thread_local std::vector<ChunkTicks> stages;
  to_ticks(times, stages);
  const ScheduleShape& shape = times.shape;
  if (shape.kind != Schedule::kOneF1B) return busiest_rank(shape, stages);
  const std::int64_t m = shape.num_microbatches, total = m * shape.vpp;
  const bool merges = merges_pairs(shape), blocking = !times.overlap_p2p;
  const auto last_chunk = static_cast<std::size_t>((shape.vpp - 1) * shape.pp);

  // One micro-batch through every stage, up and back; and through the stages above the last chunk of a rank.
  Picoseconds all_up = 0, all_down = 0;
  Picoseconds above_up = 0, above_down = 0;  // The transfers out of these stages included.
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

    // The rank's work, blocking sends included.
    const std::int64_t warm = num_warmup(shape, rank), pairs = total - warm;
    const std::int64_t late = std::min(warm + (merges ? 0 : 1), total);
    const std::int64_t early = std::max(pairs - (merges ? 0 : 1), std::int64_t{0});
    Picoseconds work = 0;
    Picoseconds forwards_before = 0;  // Forwards that end before the first backward (pair) starts.
    Picoseconds backwards_after = 0;  // Backwards that start after the last forward (pair).
    Picoseconds savings = 0;
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
      const ChunkTicks& stage = stages[static_cast<std::size_t>(chunk * shape.pp + rank)];
      const std::int64_t turn = shape.vpp - 1 - chunk;  // Its backwards' chunk in the table.
      const Picoseconds forward = stage.forward + (blocking ? stage.send_forward : 0);
      const Picoseconds backward = stage.backward + (blocking ? stage.send_backward : 0);
      work += m * (forward + backward) + stage.first_forward_delay + stage.last_backward_delay;
      forwards_before += table_count(shape, late, chunk) * forward + stage.first_forward_delay;
      backwards_after += (m - table_count(shape, early, turn)) * backward + stage.last_backward_delay;
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
  // All of it ends with the last backward of rank 0.
  const Picoseconds reload = times.reload.empty() ? 0 : to_ps(times.reload.front());
  return Seconds{static_cast<double>(bound + std::max(stages.front().reduction, reload)) * 1e-12};
}

}  // namespace foldwise::costmodel

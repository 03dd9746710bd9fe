#include "costmodel/pipeline/timeline.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/pipeline/pipeline_graph.h"
#include "costmodel/pipeline/ticks.h"

// The fast engine for 1F1B at chunk level, because a search simulates thousands of candidates. pipeline_graph.h has the
// general engine, and tests hold the two equal.
//
// Every rank's order is fixed, so no event queue is needed. A rank runs its next tasks as long as their inputs are
// known, and then the next rank has its turn. Each task is executed once, when its start is final, so the order of
// turns cannot change a time. Forwards travel up the ranks and backwards down, so the turns sweep up and down.
//
// An input is a time in an array over (virtual stage, micro-batch). The task that produces it writes it, and it is
// kUnknown before. A task writes its output, including the transfer, into its neighbour's slot. A backward waits only
// for the backward of the next stage, because that one has waited for its own forward, which has waited for ours.
//
// Before and after an interleaved schedule's pairs a rank waits for its own transfer, which waits until the neighbour
// has done its task before (blocked_forward, blocked_backward). Those ends are kept by rank and index.
//
// A chunk's first forward and last backward differ from the others (gather, delays). Their items refer to a second
// entry of the chunk, at vpp + chunk. They never run in a pair, because warm-up and cool-down are long enough.
namespace foldwise::costmodel {
namespace {

constexpr Picoseconds kUnknown = -1;
constexpr auto kNever = static_cast<std::size_t>(-1);

/// Buffers of one simulation. They are reused, because a search calls this millions of times.
struct Scratch {
  struct Item {
    std::int32_t chunk;  ///< Entry of the rank's ticks.
    std::int32_t slot;   ///< Index of (rank 0's stage of the chunk, micro-batch) in the arrays of inputs.
  };
  struct Rank {
    std::size_t next_forward = 0, next_backward = 0, warm = 0;
    Picoseconds free = 0;
    Picoseconds sent_forward = 0, sent_backward = 0;  ///< Ends of its last transfers of activations and of gradients.
    std::size_t launched = 0, next_launch = 0;        ///< Number of collectives launched; the next one's Launch::after.
    Picoseconds collected = 0;                        ///< End of its last gather or reduction.
    Picoseconds reloaded = 0;                         ///< End of its reload.
  };
  struct Collective {
    std::size_t after;  ///< See Launch::after.
    std::size_t chunk;  ///< vpp + chunk for a reduction.
  };
  ScheduleShape shape{.num_microbatches = 0};  ///< Shape of `forwards`, `backwards` and `warm`.
  std::vector<Item> forwards, backwards;       ///< The schedule table.
  std::vector<std::size_t> warm;               ///< [rank]
  std::vector<Collective> collectives;         ///< [rank][2 vpp + 1] gathers, reductions, and one that never comes.
  std::vector<Picoseconds> gathered;           ///< [rank][chunk] end of its gather.
  std::vector<ChunkTicks> ticks;               ///< [rank][2 vpp], so that a rank's ticks are adjacent.
  std::vector<ChunkTicks> by_stage;            ///< As PipelineTimes::stages.
  std::vector<Picoseconds> forward_input, backward_input;  ///< [stage][micro-batch]
  std::vector<Picoseconds> forward_end, backward_end;      ///< [rank][index in the rank's order]; if interleaved.
  std::vector<Rank> ranks;
  std::vector<Picoseconds> reload;  ///< As PipelineTimes::reload.
};

/// Prepares for `times` on this shape, which may have fewer micro-batches.
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
  scratch.forward_end.assign(vpp > 1 ? pp * vpp * m : 0, kUnknown);
  scratch.backward_end.assign(vpp > 1 ? pp * vpp * m : 0, kUnknown);
  scratch.ranks.assign(pp, {});
  for (std::size_t rank = 0; rank < pp; ++rank) {
    scratch.ranks[rank].warm = scratch.warm[rank];
    scratch.ranks[rank].next_launch = scratch.collectives[rank * (2 * vpp + 1)].after;
  }
}

/// A rank's turn: runs its tasks until one waits for an unknown input. `record` gets every task of a rank in issue
/// order: rank, start, end, its blocking transfer, its wait for a gather.
template <bool kBlocking, bool kMerges, typename Record>
class Turn {
 public:
  Turn(const ScheduleShape& shape, Scratch& scratch, std::size_t rank, const Record& record)
      : vpp_(static_cast<std::size_t>(shape.vpp)),
        m_(static_cast<std::size_t>(shape.num_microbatches)),
        total_(scratch.forwards.size()),
        slots_(static_cast<std::size_t>(shape.pp) * vpp_ * m_),
        rank_(rank),
        base_(rank * m_),
        forwards_(scratch.forwards.data()),
        backwards_(scratch.backwards.data()),
        ticks_(scratch.ticks.data() + 2 * rank * vpp_),
        collectives_(scratch.collectives.data() + rank * (2 * vpp_ + 1)),
        gathered_(scratch.gathered.data() + rank * vpp_),
        forward_input_(scratch.forward_input.data()),
        backward_input_(scratch.backward_input.data()),
        forward_end_(scratch.forward_end.data()),
        backward_end_(scratch.backward_end.data()),
        last_rank_(rank + 1 == static_cast<std::size_t>(shape.pp)),
        record_(record),
        state_(scratch.ranks[rank]) {}

  /// Returns whether any task ran, and writes the rank's new state to `rank`.
  bool take(Scratch::Rank& rank) {
    const std::size_t before = done();
    for (;;) {
      if (done() == state_.next_launch) [[unlikely]] {
        launch();
        continue;
      }
      if (state_.next_backward == total_) break;
      const bool warm_up = state_.next_forward < state_.warm;
      const bool forward_turn =
          warm_up || (state_.next_forward < total_ && state_.next_forward - state_.warm == state_.next_backward);
      if (!(kMerges && forward_turn && !warm_up ? pair() : forward_turn ? forward() : backward())) break;
    }
    rank = state_;
    return done() != before;
  }

 private:
  using Item = Scratch::Item;
  [[nodiscard]] std::size_t done() const { return state_.next_forward + state_.next_backward; }
  [[nodiscard]] std::size_t slot_of(const Item& item) const { return base_ + static_cast<std::size_t>(item.slot); }

  void launch() {
    state_.collected = std::max(state_.collected, state_.free);
    const std::size_t chunk = collectives_[state_.launched].chunk;
    if (chunk >= vpp_)
      state_.collected += ticks_[chunk].reduction;
    else if (!kBlocking)
      gathered_[chunk] = state_.collected += ticks_[chunk].gather;
    state_.next_launch = collectives_[++state_.launched].after;
  }

  // Outputs go to the neighbouring stage's slot. The last stage's forward is the input of its own backward.
  void deliver_forward(std::size_t slot, Picoseconds end, Picoseconds send) {
    if (slot + m_ < slots_)
      forward_input_[slot + m_] = state_.sent_forward = std::max(end, state_.sent_forward) + send;
    else
      backward_input_[slot] = end;
  }
  void deliver_backward(std::size_t slot, Picoseconds end, Picoseconds send) {
    if (slot >= m_) backward_input_[slot - m_] = state_.sent_backward = std::max(end, state_.sent_backward) + send;
  }

  // Each of these runs the next task or pair; false if an input is unknown.
  bool pair() {
    const Item f = forwards_[state_.next_forward], b = backwards_[state_.next_backward];
    const Picoseconds f_ready = forward_input_[slot_of(f)], b_ready = backward_input_[slot_of(b)];
    if (f_ready == kUnknown || b_ready == kUnknown) return false;
    const ChunkTicks &ft = ticks_[f.chunk], &bt = ticks_[b.chunk];
    const Picoseconds blocked = forward_blocked();
    if (blocked == kUnknown) return false;
    const Picoseconds start = std::max({state_.free, f_ready, b_ready, blocked}), end = start + merged_pair(ft, bt);
    state_.free = kBlocking ? end + ft.send_forward + bt.send_backward : end;
    // A blocking pair first sends its activations, then its gradient.
    deliver_forward(slot_of(f), end, ft.send_forward);
    deliver_backward(slot_of(b), kBlocking ? end + ft.send_forward : end, bt.send_backward);
    record_(rank_, start, end, kBlocking ? ft.send_forward : 0, 0);
    record_(rank_, start, end, kBlocking ? ft.send_forward + bt.send_backward : 0, 0);
    forward_ended(end);
    backward_ended(end);
    return true;
  }

  bool forward() {
    const Item f = forwards_[state_.next_forward];
    const Picoseconds ready = forward_input_[slot_of(f)];
    if (ready == kUnknown) return false;
    const ChunkTicks& stage = ticks_[f.chunk];
    const Picoseconds blocked = forward_blocked();
    if (blocked == kUnknown) return false;
    Picoseconds start = std::max({state_.free, ready, blocked}), gather = 0;
    if (const auto entry = static_cast<std::size_t>(f.chunk); entry >= vpp_) {
      gather = kBlocking ? stage.gather : std::max<Picoseconds>(0, gathered_[entry - vpp_] - start);
      start += gather;
    }
    const Picoseconds end = start + stage.forward;
    state_.free = kBlocking ? end + stage.send_forward : end;
    deliver_forward(slot_of(f), end, stage.send_forward);
    record_(rank_, start, end, kBlocking ? stage.send_forward : 0, gather);
    forward_ended(end);
    return true;
  }

  bool backward() {
    const Item b = backwards_[state_.next_backward];
    const Picoseconds ready = backward_input_[slot_of(b)];
    if (ready == kUnknown) return false;
    const ChunkTicks& stage = ticks_[b.chunk];
    const Picoseconds blocked = backward_blocked();
    if (blocked == kUnknown) return false;
    const Picoseconds start = std::max({state_.free, ready, blocked}), end = start + stage.backward;
    state_.free = kBlocking ? end + stage.send_backward : end;
    deliver_backward(slot_of(b), end, stage.send_backward);
    record_(rank_, start, end, kBlocking ? stage.send_backward : 0, 0);
    backward_ended(end);
    return true;
  }

  /// When the transfer of the forward before ends, if the next one waits for it; kUnknown if that is not known yet.
  [[nodiscard]] Picoseconds forward_blocked() const {
    const std::size_t k = state_.next_forward;
    if (vpp_ == 1 || !blocked_forward(k, state_.warm)) return 0;
    return transfer_ended(k, last_rank_ ? nullptr : forward_end_ + (rank_ + 1) * total_, state_.sent_forward);
  }
  [[nodiscard]] Picoseconds backward_blocked() const {
    const std::size_t k = state_.next_backward;
    if (vpp_ == 1 || !blocked_backward(k, state_.warm, total_)) return 0;
    return transfer_ended(k, rank_ == 0 ? nullptr : backward_end_ + (rank_ - 1) * total_, state_.sent_backward);
  }
  /// The transfer before task `k` is `sent` when the receiver has ended its task before: one of `ends`, if it has any.
  [[nodiscard]] static Picoseconds transfer_ended(std::size_t k, const Picoseconds* ends, Picoseconds sent) {
    const Picoseconds taken = ends == nullptr || k < 2 ? 0 : ends[k - 2];
    return taken == kUnknown ? kUnknown : std::max(sent, taken);
  }
  void forward_ended(Picoseconds end) {
    if (vpp_ > 1) forward_end_[rank_ * total_ + state_.next_forward] = end;
    ++state_.next_forward;
  }
  void backward_ended(Picoseconds end) {
    if (vpp_ > 1) backward_end_[rank_ * total_ + state_.next_backward] = end;
    ++state_.next_backward;
  }

  const std::size_t vpp_, m_, total_, slots_, rank_, base_;
  const Item* const forwards_;
  const Item* const backwards_;
  const ChunkTicks* const ticks_;
  const Scratch::Collective* const collectives_;
  Picoseconds* const gathered_;
  Picoseconds* const forward_input_;
  Picoseconds* const backward_input_;
  Picoseconds* const forward_end_;
  Picoseconds* const backward_end_;
  const bool last_rank_;
  const Record& record_;
  Scratch::Rank state_;  ///< A copy, because no other rank writes it.
};

/// Runs the schedule in `scratch`.
template <bool kBlocking, bool kMerges, typename Record>
Picoseconds run(const ScheduleShape& shape, Scratch& scratch, const Record& record) {
  const auto pp = static_cast<std::size_t>(shape.pp);
  const std::size_t total = scratch.forwards.size();
  const auto take_turn = [&](std::size_t rank) {
    return Turn<kBlocking, kMerges, Record>(shape, scratch, rank, record).take(scratch.ranks[rank]);
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

/// Shows where a schedule repeats itself. Pair q of a rank is its forward warm-up + q and its backward q. Between the
/// first forwards and the last backwards of the chunks, pair q + period is pair q of the micro-batches one `group`
/// later. It waits for nothing more than `lag` pairs earlier. So if all times of lag + 1 consecutive pairs are the same
/// `shift` later in the next period, so are all following pairs up to the last backwards. These are then `shift` later
/// for each further group.
struct Repeats : Repetition {
  explicit Repeats(const ScheduleShape& shape)
      : Repetition(repetition(shape, 0)),
        lag(2 * group + 2),
        least(group + lag + 2 * period + std::max(warmup, period)) {}
  std::int64_t lag;
  std::int64_t least;  ///< Forwards of whole groups that a run needs to show this, if its pair `group` is steady.
};

/// The common shift of the pairs from `first` on; nothing if they differ.
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
      const bool loads =
          rank == 0 && static_cast<std::size_t>(scratch.forwards[warm + q].slot) < m;  // Data is available at 0.
      if (!loads && later(scratch.forward_input, scratch.forwards, warm + q) != shift) return std::nullopt;
    }
  }
  return shift;
}

/// The makespan from a run with fewer groups of micro-batches, if that shows how the others continue.
std::optional<Picoseconds> by_repeats(const PipelineTimes& times) {
  struct Short {
    Scratch scratch;
    std::vector<Picoseconds> ends;  ///< [rank][2 m vpp] ends of the tasks, in issue order.
    std::vector<std::size_t> next;  ///< [rank]
  };
  constexpr std::int64_t kSettling = 16;  // Pairs after which most pipelines are steady.
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

}  // namespace

// A pair takes at least as long as the longer of its two tasks.
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

}  // namespace foldwise::costmodel

#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/pipeline/schedule.h"
#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// Times of one model chunk of a rank.
struct StageTime {
  Seconds forward{}, backward{};
  Seconds merged_pair_saving{};  ///< Time that a merged (F, B) pair saves for this chunk's F or B (half for each).
  Seconds send{};                ///< Transfer of its output to the next position, and of the gradient back.
  Seconds weight_gradient{};     ///< Part of `backward` that a schedule may split off.
  Seconds gather{};              ///< Data-parallel gather of its parameters before its first forward.
  Seconds reduction{};           ///< Data-parallel reduction of its gradients after its last backward.
  Seconds first_forward_delay{},
      last_backward_delay{};  ///< Slowdown of these tasks by gathers and reductions beside them.
};

/// A pipeline's schedule with times.
struct PipelineTimes {
  ScheduleShape shape;
  std::vector<StageTime> stages;  ///< [pp * vpp]; a rank's chunk is at chunk * pp + rank.
  /// Transfers run beside compute (default if interleaved); otherwise sender and receiver wait.
  bool overlap_p2p = true;
  /// [pp] Copy of a rank's optimizer states back to the device, from the rank's last task on; empty if there is none.
  std::vector<Seconds> reload{};
};

struct ScheduledTask {
  Task task;
  std::int64_t start_ps = 0, end_ps = 0;  ///< Both tasks of a merged pair span the pair.
  std::int64_t send_ps = 0;               ///< Wait for its own transfer, after end_ps (blocking transfers only).
  std::int64_t gather_ps = 0;             ///< Wait for its chunk's parameters alone, before start_ps.
  bool operator==(const ScheduledTask&) const = default;
};

struct Timeline {
  std::vector<std::vector<ScheduledTask>> ranks;  ///< [pp], in issue order.
  std::vector<std::int64_t> reduced_ps;  ///< [pp] End of the rank's last task with its transfer and its last reduction.
  std::vector<std::int64_t> reloaded_ps;  ///< [pp] End of the rank's reload; if it has none, of its last task.
  std::int64_t makespan_ps = 0;
  [[nodiscard]] Seconds makespan() const { return Seconds{static_cast<double>(makespan_ps) * 1e-12}; }
};

/// Executes every rank's order. A forward starts after the forward at the previous position and its transfer. A
/// backward (input gradient) starts after that of the next position and its transfer, and after its own forward. A rank
/// runs one task at a time, in issue order. Its transfers of one direction run one after another. With blocking
/// transfers the sending rank is busy until its send is done. Gathers and reductions of a rank run one after another
/// beside its tasks, in the order of gather_launches() and reduction_launches(). A chunk's first forward starts after
/// its gather. With blocking transfers the host launches the gather after the forward's input has arrived, so both take
/// their time in sequence. Reloads run beside the reductions. The step ends with the last reduction or reload. A merged
/// (F, B) pair is one step: it needs both inputs at its start, has both outputs at its end, and takes
///   max(F, B, F + B - (saving of F's chunk + saving of B's chunk) / 2).
/// Source: docs/formulas.md#pipeline. Throws std::logic_error for a shape that deadlocks (rule pp.group_range rejects
/// it).
[[nodiscard]] Timeline simulate(const PipelineTimes& times);

/// Only the makespan, without keeping tasks. It equals simulate(times).makespan(). If a run with fewer groups of
/// micro-batches shows that 1F1B only repeats itself, the other groups are not run. Allocates nothing after a thread's
/// first calls with the largest 1F1B shape.
[[nodiscard]] Seconds simulate_makespan(const PipelineTimes& times);

/// Lower bound of simulate_makespan(), O(pp * vpp). It is the longest, over the ranks, of
///   (1) fill + the rank's work + drain;
///   (2) the first micro-batch up and back to the rank + the work from its first backward on + drain;
///   (3) fill + the rank's work until its last forward + the last micro-batch up and back through every stage;
/// plus the longer of rank 0's reload and the reduction of its first chunk. For a study schedule it is the work of the
/// busiest rank.
[[nodiscard]] Seconds makespan_lower_bound(const PipelineTimes& times);

/// Chunk times in picoseconds. If nothing is sent, the transfer takes 0.
struct ChunkTicks {
  std::int64_t forward = 0, backward = 0, weight_gradient = 0, saving = 0;
  std::int64_t send_forward = 0;   ///< Activations to the next position.
  std::int64_t send_backward = 0;  ///< Gradient to the previous position.
  std::int64_t gather = 0, reduction = 0;
  std::int64_t first_forward_delay = 0, last_backward_delay = 0;
  [[nodiscard]] std::int64_t of(TaskKind kind) const;
};
/// The ticks of `times.stages`.
[[nodiscard]] std::vector<ChunkTicks> chunk_ticks(const PipelineTimes& times);
/// The ticks of `times.reload`.
[[nodiscard]] std::vector<std::int64_t> reload_ticks(const PipelineTimes& times);

/// Duration of a merged pair.
[[nodiscard]] std::int64_t merged_pair(const ChunkTicks& forward, const ChunkTicks& backward);

/// Makespan of 1F1B with equal stages and free transfers: (m + p - 1)(f + b). The oracle of the tests.
[[nodiscard]] constexpr Seconds one_f_one_b_makespan(std::int64_t pp, std::int64_t m, Seconds forward,
                                                     Seconds backward) {
  return static_cast<double>(m + pp - 1) * (forward + backward);
}

}  // namespace foldwise::costmodel

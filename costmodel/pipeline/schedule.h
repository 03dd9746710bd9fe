#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/parallel/options.h"

// The work that a pipeline rank issues, and its order. Times are in timeline.h.
namespace foldwise::costmodel {

/// What a task computes. A schedule may split a backward into input gradient and weight gradient (B and W of the
/// zero-bubble papers).
enum class TaskKind : std::uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };

/// One micro-batch through one model chunk of the rank.
struct Task {
  TaskKind kind = TaskKind::kForward;
  std::int32_t micro_batch = 0;
  std::int32_t chunk = 0;  ///< Model chunk on this rank. Its place in the pipeline is position_of().
  bool merged = false;     ///< Runs as one step with the rank's next task: (F, B) pairs of EP overlap and of DualPipe.
  [[nodiscard]] bool forward() const { return kind == TaskKind::kForward; }
  /// Whether it frees what the forward kept. In a split backward the weight gradient does, because it needs the saved
  /// inputs.
  [[nodiscard]] bool frees() const { return kind == TaskKind::kBackward || kind == TaskKind::kWeightGradient; }
  bool operator==(const Task&) const = default;
};

/// Shape of a schedule. The order of execution is a function of it.
struct ScheduleShape {
  std::int64_t pp = 1;
  std::int64_t vpp = 1;  ///< Model chunks that a rank holds.
  std::int64_t num_microbatches = 1;
  std::int64_t group_size = 0;                    ///< microbatch_group_size_per_vp_stage; 0 is pp.
  bool overlap_moe_expert_parallel_comm = false;  ///< One extra warm-up chunk; (F, B) pairs run merged.
  Schedule kind = Schedule::kOneF1B;
  bool operator==(const ScheduleShape&) const = default;
};

/// Whether Megatron has the schedule: 1F1B, plain and interleaved. Plans use other schedules only if asked to.
[[nodiscard]] constexpr bool runnable(Schedule schedule) { return schedule == Schedule::kOneF1B; }

/// Chunks of a rank: `vpp` for 1F1B; 2 for the V-shaped schedules and for DualPipe, where a rank has a stage of each of
/// two copies of the model; otherwise 1.
[[nodiscard]] std::int64_t chunks_of(Schedule schedule, std::int64_t vpp);

/// Place of a rank's chunk in the order of execution: chunk * pp + rank. The second chunk of a V runs in reverse, at 2
/// pp - 1 - rank. DualPipe's second copy of the model enters at the last rank and has the positions pp to 2 pp - 1.
[[nodiscard]] std::int64_t position_of(const ScheduleShape& shape, std::int64_t rank, std::int64_t chunk);

/// The rank whose chunk is at this position.
[[nodiscard]] std::int64_t rank_of(const ScheduleShape& shape, std::int64_t position);

/// Whether the stage at this position hands its output to the next position.
[[nodiscard]] bool hands_over(const ScheduleShape& shape, std::int64_t position);

/// Whether it does so over the network. Within a rank, as at the turn of a V, nothing is transferred.
[[nodiscard]] bool transfers(const ScheduleShape& shape, std::int64_t position);

/// Micro-batches that run through each chunk: all, or half of them in DualPipe.
[[nodiscard]] std::int64_t chunk_microbatches(const ScheduleShape& shape);

/// Whether the steady (F, B) pairs of 1F1B run merged. That needs the extra warm-up forward, which plain 1F1B over
/// several ranks does not have (rule epov.vpp).
[[nodiscard]] constexpr bool merges_pairs(const ScheduleShape& shape) {
  return shape.overlap_moe_expert_parallel_comm && (shape.pp == 1 || shape.vpp > 1);
}

/// Micro-batches that run through one chunk before the next chunk: group_size, or pp if that is 0.
[[nodiscard]] std::int64_t schedule_group_size(const ScheduleShape& shape);

/// Megatron's schedule table: every rank's forwards in issue order [m * vpp]. Backwards have the same order with chunk
/// vpp - 1 - chunk. Source: get_schedule_table in megatron/core/pipeline_parallel/schedules.py.
[[nodiscard]] std::vector<Task> schedule_table(const ScheduleShape& shape);

/// Warm-up forwards of `rank`: min(pp - rank - 1, m) plain; min(2 (pp - rank - 1) + (vpp - 1) group [+ 1], m vpp)
/// interleaved. 1F1B only. Source: get_pp_rank_microbatches in megatron/core/pipeline_parallel/schedules.py.
[[nodiscard]] std::int64_t num_warmup(const ScheduleShape& shape, std::int64_t rank);

/// Whether forward `k`, in a rank's order, of an interleaved schedule waits until the forward before is sent. Megatron
/// overlaps transfers with compute between the pairs only. Before them a rank waits for what it sends, and the next
/// rank takes that when its own forward before is done. So no rank is more than two forwards ahead of the next one.
/// Source: send_forward_recv_forward without overlap_p2p_comm in schedules.py:1492 of core_v0.16.1;
/// benchmarks/accuracy/journal.md#interleaving has it measured.
[[nodiscard]] constexpr bool blocked_forward(std::size_t k, std::size_t warm_up) { return k > 0 && k <= warm_up; }
/// The same of backward `k` of `tasks`, after the pairs.
[[nodiscard]] constexpr bool blocked_backward(std::size_t k, std::size_t warm_up, std::size_t tasks) {
  return k > tasks - warm_up;
}

/// The rank's tasks in issue order.
///   1F1B       forwards of the warm-up, then (F, B) pairs, then the remaining backwards. With pp = 1: F, B, F, ...
///              (one forward ahead with EP overlap).
///   GPipe      every forward, then every backward in reverse order. Huang et al., arXiv 1811.06965, figure 2.
///   ZB-H1      1F1B with split backwards. Rank r delays its weight gradients by r micro-batches, so every rank has as
///              many in flight as rank 0 in 1F1B. Qi et al., arXiv 2401.10241, section 2.2.
///   ZB-V       two chunks in a V. Qi et al., arXiv 2405.15362, V-ZB; order of ScheduleZBVZeroBubble in PyTorch's
///              torch/distributed/pipelining/schedules.py.
///   DualPipe   two copies of the model in opposite directions, half of the micro-batches each; needs an even pp and an
///              even m >= 2 pp. Order of DualPipe.step in dualpipe/dualpipe.py of github.com/deepseek-ai/DualPipe.
///   DualPipeV  half of DualPipe in a V, with one copy; m >= 2 pp. Order of dualpipe/dualpipev.py there.
[[nodiscard]] std::vector<Task> rank_tasks(const ScheduleShape& shape, std::int64_t rank);

/// Data-parallel communication of a chunk. It is launched after `after` tasks of the rank; 0: at the begin of the step.
struct Launch {
  std::int32_t chunk = 0, after = 0;
  bool operator==(const Launch&) const = default;
};
/// Parameter gathers of a rank's chunks, in order. Interleaved (--align-param-gather): the first two at once, and that
/// of chunk c with the forward that runs while rank 0 begins chunk c - 1. Otherwise all at once, in order of first use.
/// Source: forward_step_helper_preprocess in megatron/core/pipeline_parallel/schedules.py.
[[nodiscard]] std::vector<Launch> gather_launches(const ScheduleShape& shape, std::int64_t rank);
/// Gradient reductions, in order. Interleaved (--align-grad-reduce): every rank launches a chunk's reduction after the
/// backward that runs while rank 0 ends the chunk, but no later than after its last task. Otherwise when the chunk's
/// last backward has ended. Source: backward_step_helper_postprocess there.
[[nodiscard]] std::vector<Launch> reduction_launches(const ScheduleShape& shape, std::int64_t rank);

/// Largest number of chunks in flight in the rank's order: their forward has started, and no backward has freed them
/// yet.
[[nodiscard]] std::int64_t peak_in_flight(const ScheduleShape& shape, std::int64_t rank);

/// The period of 1F1B's steady phase. Once per group of micro-batches a rank runs its next `period` forwards and
/// backwards.
struct Repetition {
  std::int64_t group = 0;   ///< Micro-batches.
  std::int64_t period = 0;  ///< group * vpp.
  std::int64_t warmup = 0;  ///< Forwards of the rank before the steady phase, for any number of micro-batches.
};
[[nodiscard]] Repetition repetition(ScheduleShape shape, std::int64_t rank);

/// The same schedule with fewer whole groups of micro-batches, if it passes through the same moments. In the steady
/// phase the moments repeat once per group, because every chunk gains and loses one group of micro-batches. So groups
/// beyond those that the warm-up fills, and two more that show the period, add nothing new. A shorter last group stays.
/// GPipe has no steady phase: nothing is left out.
[[nodiscard]] ScheduleShape without_repeats(ScheduleShape shape, std::int64_t rank);

/// Numbers of chunks in flight per model chunk of the rank, at the moments that can be the peak. Only moments with the
/// same kind of task (direction and chunk) are compared, because the task's own transient memory depends on it. Moments
/// that another one dominates are left out, and so are those between two others in a run of equal steps. Exact for any
/// bytes per chunk and any transient memory per kind of task.
struct InFlight {
  std::vector<std::int32_t> count;  ///< [vpp], including the running chunk. A merged pair holds one chunk, not two.
  Task running;                     ///< The first task with these counts.
};
[[nodiscard]] std::vector<InFlight> in_flight_peaks(const ScheduleShape& shape, std::int64_t rank);

/// Content of one virtual stage, in order: decoder layers [first_layer, first_layer + num_layers), and the extras.
struct StageContent {
  std::int64_t first_layer = 0, num_layers = 0;
  bool embedding = false;
  std::int64_t mtp_layers = 0;
  bool loss = false;
  bool operator==(const StageContent&) const = default;
};

/// Content of every virtual stage, in execution order.
struct StageLayout {
  std::vector<StageContent> stages;
  bool operator==(const StageLayout&) const = default;
};

/// Megatron's even split: embedding first, loss (with every MTP layer) last. With
/// --account-for-embedding-in-pipeline-split (--account-for-loss-in-pipeline-split) the embedding (loss) replaces a
/// decoder layer of the first (last) stage. Requires (num_layers + places taken) % (pp * vpp) == 0.
[[nodiscard]] StageLayout even_stages(std::int64_t num_layers, std::int64_t mtp_layers, std::int64_t pp,
                                      std::int64_t vpp, bool account_for_embedding = false,
                                      bool account_for_loss = false);

/// The split with --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers. The first and the last
/// rank have these numbers of layers; the ranks between share the others evenly. Every rank's layers % vpp == 0.
/// Requires pp > 1 and numbers that divide. Source: get_num_layers_to_build in
/// megatron/core/transformer/transformer_block.py.
[[nodiscard]] StageLayout first_last_stages(std::int64_t num_layers, std::int64_t mtp_layers, std::int64_t pp,
                                            std::int64_t vpp, std::int64_t first, std::int64_t last);

/// Result of parsing a --pipeline-model-parallel-layout string such as "Et*3|(tt|)*29,m|L".
struct ParsedLayout {
  std::optional<StageLayout> stages;
  std::string error;  ///< If there are no stages: what was expected, what was found.
};
/// Expands as megatron/core/transformer/pipeline_parallel_layer_layout.py does: first every "(...)*n", then every
/// "c*n"; commas are dropped. Checks the alphabet, one E at the begin, one L at the end, the numbers of t and m, m
/// after t, and all m in one stage.
[[nodiscard]] ParsedLayout parse_layout(std::string_view text, std::int64_t num_layers, std::int64_t mtp_layers);

/// The shortest layout string for `stages` whose groups end with a stage: "Ettt|(t*4|)*30tttL".
[[nodiscard]] std::string to_layout_string(const StageLayout& stages);

}  // namespace foldwise::costmodel

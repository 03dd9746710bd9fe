#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Which work a pipeline rank issues in which order. No times here: see timeline.h.
namespace foldwise::costmodel {

/// Forward or backward of one micro-batch through one model chunk of the rank.
struct Task {
  bool forward = true;
  std::int32_t micro_batch = 0;
  std::int32_t chunk = 0;  ///< Model chunk on this rank; its virtual stage is chunk * pp + rank.
  bool operator==(const Task&) const = default;
};

/// Shape of a schedule; the executed order is a function of it.
struct ScheduleShape {
  std::int64_t pp = 1, vpp = 1;
  std::int64_t num_microbatches = 1;
  std::int64_t group_size = 0;                    ///< microbatch_group_size_per_vp_stage; 0 is pp.
  bool overlap_moe_expert_parallel_comm = false;  ///< One extra warm-up chunk; (F, B) pairs run merged.
  bool operator==(const ScheduleShape&) const = default;
};

/// Micro-batches that run through one chunk before the next chunk's turn: group_size, or pp where that is 0.
[[nodiscard]] std::int64_t schedule_group_size(const ScheduleShape& shape);

/// Megatron's schedule table: every rank's forwards in issue order [m * vpp]. Backwards follow the same order with
/// chunk vpp - 1 - chunk. Source: get_schedule_table in megatron/core/pipeline_parallel/schedules.py.
[[nodiscard]] std::vector<Task> schedule_table(const ScheduleShape& shape);

/// Warm-up forwards of `rank`: min(pp - rank - 1, m) plain; min(2 (pp - rank - 1) + (vpp - 1) group [+ 1], m vpp)
/// interleaved. Source: get_pp_rank_microbatches in megatron/core/pipeline_parallel/schedules.py.
[[nodiscard]] std::int64_t num_warmup(const ScheduleShape& shape, std::int64_t rank);

/// The rank's tasks in issue order. With pp = 1: forward, backward, forward, ... (with EP overlap one forward ahead).
[[nodiscard]] std::vector<Task> rank_tasks(const ScheduleShape& shape, std::int64_t rank);

/// Most chunks whose forward ran and whose backward has not finished, over the rank's order (a forward counts from its
/// start).
[[nodiscard]] std::int64_t peak_in_flight(const ScheduleShape& shape, std::int64_t rank);

/// The same schedule with fewer whole groups of micro-batches, if it passes through the same moments. In the steady
/// phase the moments repeat once per group: every chunk gains and loses one group of micro-batches. So whole groups
/// beyond those that the warm-up fills, plus two that show the period, add nothing new; a shorter last group stays.
[[nodiscard]] ScheduleShape without_repeats(ScheduleShape shape, std::int64_t rank);

/// Counts of chunks in flight, per model chunk of the rank, at the moments that can hold the peak. Moments are compared
/// with those that run the same kind of task (direction and chunk) only, because a task's own transient memory depends
/// on it; among these no count is dominated by another. Exact for any bytes per chunk and any transient per kind of
/// task.
struct InFlight {
  std::vector<std::int32_t> count;  ///< [vpp], the running chunk included.
  Task running;                     ///< The first task that reaches these counts.
};
[[nodiscard]] std::vector<InFlight> in_flight_peaks(const ScheduleShape& shape, std::int64_t rank);

/// What one virtual stage holds, in order: decoder layers [first_layer, first_layer + num_layers), and the extras.
struct StageContent {
  std::int64_t first_layer = 0, num_layers = 0;
  bool embedding = false;
  std::int64_t mtp_layers = 0;
  bool loss = false;
  bool operator==(const StageContent&) const = default;
};

/// Content of every virtual stage, in execution order (stage i is on rank i % pp, chunk i / pp).
struct StageLayout {
  std::vector<StageContent> stages;
  bool operator==(const StageLayout&) const = default;
};

/// Megatron's even split: embedding first, loss (with every MTP layer) last. With
/// --account-for-embedding-in-pipeline-split
/// (--account-for-loss-in-pipeline-split) the embedding (the loss) takes the place of a decoder layer in the first
/// (last) stage. Requires (num_layers + places taken) % (pp * vpp) == 0.
[[nodiscard]] StageLayout even_stages(std::int64_t num_layers, std::int64_t mtp_layers, std::int64_t pp,
                                      std::int64_t vpp, bool account_for_embedding = false,
                                      bool account_for_loss = false);

/// Result of parsing a --pipeline-model-parallel-layout string such as "Et*3|(tt|)*29,m|L".
struct ParsedLayout {
  std::optional<StageLayout> stages;
  std::string error;  ///< Set when `stages` is not: what was expected, what was found.
};
/// Expansion as in megatron/core/transformer/pipeline_parallel_layer_layout.py: first every "(...)*n", then every
/// "c*n", commas dropped. Checks the alphabet, one E first, one L last, counts of t and m, m after t, all m in one
/// stage.
[[nodiscard]] ParsedLayout parse_layout(std::string_view text, std::int64_t num_layers, std::int64_t mtp_layers);

/// The shortest layout string that parses back to `stages`, of those whose groups end with a stage:
/// "Ettt|(t*4|)*30tttL".
[[nodiscard]] std::string to_layout_string(const StageLayout& stages);

}  // namespace foldwise::costmodel

#include "costmodel/pipeline/schedule.h"

#include <algorithm>
#include <cstddef>

#include "costmodel/check.h"
#include "costmodel/pipeline/study_schedules.h"

// Orders without times. Study schedules are in study_schedules.cc.
//
// Megatron runs virtual micro-batches: all (micro-batch, chunk) pairs of a rank in one fixed order, the schedule table.
// Micro-batches are cut in groups; inside a group every chunk runs all of the group's micro-batches before the next
// chunk starts. Backward walks the same table with the chunks reversed. A rank runs `num_warmup` forwards ahead, then
// one forward and one backward in turn, then the backwards that are left.
namespace foldwise::costmodel {
namespace {

void check_shape(const ScheduleShape& shape, std::int64_t rank) {
  FW_CHECK(shape.pp >= 1 && shape.vpp >= 1 && shape.num_microbatches >= 1 && shape.group_size >= 0);
  FW_CHECK(rank >= 0 && rank < shape.pp);
}

/// Whether two moments are comparable: the same direction runs in the same chunk.
bool same_kind(const Task& a, const Task& b) { return a.forward() == b.forward() && a.chunk == b.chunk; }

bool dominates(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](std::int32_t x, std::int32_t y) { return x >= y; });
}

}  // namespace

std::int64_t chunks_of(Schedule schedule, std::int64_t vpp) {
  switch (schedule) {
    case Schedule::kOneF1B:
      return vpp;
    case Schedule::kGpipe:
    case Schedule::kZbH1:
      return 1;
    case Schedule::kZbV:
    case Schedule::kDualPipe:
    case Schedule::kDualPipeV:
      return 2;
  }
  FW_CHECK(false, "an unknown schedule");
  return 0;
}

std::int64_t position_of(const ScheduleShape& shape, std::int64_t rank, std::int64_t chunk) {
  const bool back = chunk == 1 && shape.kind != Schedule::kOneF1B;
  return back ? 2 * shape.pp - 1 - rank : chunk * shape.pp + rank;
}

std::int64_t rank_of(const ScheduleShape& shape, std::int64_t position) {
  const bool back = position >= shape.pp && shape.kind != Schedule::kOneF1B;
  return back ? 2 * shape.pp - 1 - position : position % shape.pp;
}

bool hands_over(const ScheduleShape& shape, std::int64_t position) {
  return position >= 0 && position + 1 < shape.pp * shape.vpp &&
         !(shape.kind == Schedule::kDualPipe && position + 1 == shape.pp);
}

bool transfers(const ScheduleShape& shape, std::int64_t position) {
  const bool turn = shape.kind != Schedule::kOneF1B && position + 1 == shape.pp;
  return hands_over(shape, position) && shape.pp > 1 && !turn;
}

std::int64_t chunk_microbatches(const ScheduleShape& shape) {
  return shape.kind == Schedule::kDualPipe ? shape.num_microbatches / 2 : shape.num_microbatches;
}

std::int64_t schedule_group_size(const ScheduleShape& shape) {
  return shape.group_size > 0 ? shape.group_size : shape.pp;
}

std::int64_t num_warmup(const ScheduleShape& shape, std::int64_t rank) {
  check_shape(shape, rank);
  FW_CHECK(shape.kind == Schedule::kOneF1B);
  const std::int64_t overlap = shape.overlap_moe_expert_parallel_comm ? 1 : 0;
  const std::int64_t total = shape.num_microbatches * shape.vpp;
  if (shape.vpp == 1) return std::min(shape.pp == 1 ? overlap : shape.pp - rank - 1, total);
  return std::min(2 * (shape.pp - rank - 1) + (shape.vpp - 1) * schedule_group_size(shape) + overlap, total);
}

std::vector<Task> schedule_table(const ScheduleShape& shape) {
  check_shape(shape, 0);
  const std::int64_t group = shape.vpp == 1 ? shape.num_microbatches : schedule_group_size(shape);
  std::vector<Task> table;
  table.reserve(static_cast<std::size_t>(shape.num_microbatches * shape.vpp));
  for (std::int64_t first = 0; first < shape.num_microbatches; first += group) {
    const std::int64_t last = std::min(first + group, shape.num_microbatches);
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
      for (std::int64_t micro_batch = first; micro_batch < last; ++micro_batch) {
        table.push_back({.kind = TaskKind::kForward,
                         .micro_batch = static_cast<std::int32_t>(micro_batch),
                         .chunk = static_cast<std::int32_t>(chunk)});
      }
    }
  }
  return table;
}

std::vector<Task> rank_tasks(const ScheduleShape& shape, std::int64_t rank) {
  check_shape(shape, rank);
  if (shape.kind != Schedule::kOneF1B) return study_tasks(shape, rank);
  const std::vector<Task> table = schedule_table(shape);
  const auto total = table.size();
  const auto warm = static_cast<std::size_t>(num_warmup(shape, rank));
  const bool merges = merges_pairs(shape);
  std::vector<Task> tasks;
  tasks.reserve(2 * total);
  tasks.insert(tasks.end(), table.begin(), table.begin() + static_cast<std::ptrdiff_t>(warm));
  for (std::size_t i = 0; i < total; ++i) {
    if (warm + i < total) {
      tasks.push_back(table[warm + i]);
      tasks.back().merged = merges;
    }
    tasks.push_back({.kind = TaskKind::kBackward,
                     .micro_batch = table[i].micro_batch,
                     .chunk = static_cast<std::int32_t>(shape.vpp) - 1 - table[i].chunk});
  }
  return tasks;
}

std::vector<Launch> gather_launches(const ScheduleShape& shape, std::int64_t rank) {
  check_shape(shape, rank);
  std::vector<Launch> launches;
  if (shape.kind == Schedule::kOneF1B) {
    const std::int64_t group = std::min(schedule_group_size(shape), shape.num_microbatches);
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk)
      launches.push_back(
          {static_cast<std::int32_t>(chunk),
           static_cast<std::int32_t>(chunk < 2 ? 0 : std::max((chunk - 1) * group - rank, std::int64_t{0}))});
    return launches;
  }
  for (const Task& task : rank_tasks(shape, rank))
    if (task.forward() && std::none_of(launches.begin(), launches.end(),
                                       [&](const Launch& launch) { return launch.chunk == task.chunk; }))
      launches.push_back({task.chunk, 0});
  return launches;
}

std::vector<Launch> reduction_launches(const ScheduleShape& shape, std::int64_t rank) {
  check_shape(shape, rank);
  std::vector<Launch> launches;
  if (shape.kind == Schedule::kOneF1B) {
    const std::int64_t total = shape.num_microbatches * shape.vpp, warm = num_warmup(shape, rank);
    const std::int64_t group = std::min(schedule_group_size(shape), shape.num_microbatches);
    const std::int64_t rest = shape.num_microbatches % group, last_group = rest > 0 ? rest : group;
    for (std::int64_t chunk = shape.vpp; chunk-- > 0;) {
      const std::int64_t backwards = std::min(total, total - chunk * last_group + rank);
      // As many forwards as fit beside them.
      launches.push_back(
          {static_cast<std::int32_t>(chunk), static_cast<std::int32_t>(backwards + std::min(total, warm + backwards))});
    }
    return launches;
  }
  const std::vector<Task> tasks = rank_tasks(shape, rank);
  for (std::size_t i = tasks.size(); i-- > 0;)
    if (tasks[i].frees() && std::none_of(launches.begin(), launches.end(),
                                         [&](const Launch& launch) { return launch.chunk == tasks[i].chunk; }))
      launches.push_back({tasks[i].chunk, static_cast<std::int32_t>(i + (tasks[i].merged ? 2 : 1))});
  std::reverse(launches.begin(), launches.end());
  return launches;
}

std::int64_t peak_in_flight(const ScheduleShape& shape, std::int64_t rank) {
  // In the steady phase a forward starts on top of the warm-up's, then a backward ends, and so on.
  if (shape.kind == Schedule::kOneF1B) return std::min(num_warmup(shape, rank) + 1, shape.num_microbatches * shape.vpp);
  std::int64_t now = 0, peak = 0;
  for (const Task& task : rank_tasks(shape, rank)) {
    if (task.forward()) peak = std::max(peak, ++now);
    if (task.frees()) --now;
  }
  return peak;
}

Repetition repetition(ScheduleShape shape, std::int64_t rank) {
  const std::int64_t group = shape.vpp == 1 ? 1 : schedule_group_size(shape);
  shape.num_microbatches = 4 * shape.pp + group;  // Large enough that the warm-up's limit does not bind.
  return {.group = group, .period = group * shape.vpp, .warmup = num_warmup(shape, rank)};
}

ScheduleShape without_repeats(ScheduleShape shape, std::int64_t rank) {
  if (shape.kind == Schedule::kGpipe) return shape;  // All are in flight.
  if (shape.kind != Schedule::kOneF1B) {
    // Two a rank (in DualPipe for both directions together) fill the pipeline, and four more show its steady phase.
    shape.num_microbatches = std::min(shape.num_microbatches, 2 * shape.pp + 4);
    return shape;
  }
  const auto [group, period, warmup] = repetition(shape, rank);
  const std::int64_t groups = warmup / period + 3;
  shape.num_microbatches = std::min(shape.num_microbatches, groups * group + shape.num_microbatches % group);
  return shape;
}

std::vector<InFlight> in_flight_peaks(const ScheduleShape& shape, std::int64_t rank) {
  std::vector<InFlight> peaks;
  std::vector<std::int32_t> count(static_cast<std::size_t>(shape.vpp), 0);
  const auto of = [&count](const Task& task) -> std::int32_t& { return count[static_cast<std::size_t>(task.chunk)]; };
  const auto offer = [&](const Task& running) {
    const bool covered = std::any_of(peaks.begin(), peaks.end(), [&](const InFlight& peak) {
      return same_kind(peak.running, running) && dominates(peak.count, count);
    });
    if (covered) return;
    std::erase_if(
        peaks, [&](const InFlight& peak) { return same_kind(peak.running, running) && dominates(count, peak.count); });
    peaks.push_back({.count = count, .running = running});
  };
  const std::vector<Task> tasks = rank_tasks(without_repeats(shape, rank), rank);
  // If every second task is alike, the counts at every second moment change in equal steps. Bytes are linear in the
  // counts, so no moment inside such a run needs more than both of its ends.
  const auto repeats = [&](std::size_t i) {
    return i >= 2 && tasks[i].kind == tasks[i - 2].kind && tasks[i].chunk == tasks[i - 2].chunk &&
           tasks[i].merged == tasks[i - 2].merged;
  };
  std::size_t ahead = 0, run = 0;  // Number of consecutive tasks up to `ahead` that repeat.
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    if (task.forward()) ++of(task);
    for (; ahead < tasks.size() && ahead <= i + 2; ++ahead) run = repeats(ahead) ? run + 1 : 0;
    const bool between = i + 2 < tasks.size() && run >= 4;
    // The two tasks of a pair alternate layer by layer, so together they hold one chunk.
    const bool shares = task.merged || (i > 0 && tasks[i - 1].merged);
    if (!between) {
      if (shares) --of(task);
      offer(task);
      if (shares) ++of(task);
    }
    if (task.frees()) --of(task);
  }
  return peaks;
}

}  // namespace foldwise::costmodel

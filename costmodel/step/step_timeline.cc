#include "costmodel/step/step_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/step/ledger.h"

namespace foldwise::costmodel {
namespace {

// Forward copies go to the host, backward copies come back.
Stream stream_of(Activity activity, bool forward) {
  switch (activity) {
    case Activity::kCompute:
    case Activity::kRecompute:
    case Activity::kOptimizer:
    case Activity::kBubble:
      return Stream::kCompute;
    case Activity::kTensor:
    case Activity::kContext:
      return Stream::kTensor;
    case Activity::kExpert:
      return Stream::kExpert;
    case Activity::kPipeline:
      return Stream::kSendActivations;
    case Activity::kData:
      return Stream::kData;
    case Activity::kOffload:
      return forward ? Stream::kCopyToHost : Stream::kCopyFromHost;
    case Activity::kHost:
      return Stream::kHost;
  }
  FW_CHECK(false, "an unknown activity");
  return Stream::kCompute;
}

using Ticks = std::array<std::int64_t, kActivities>;

std::size_t index_of(Activity activity) { return static_cast<std::size_t>(activity); }

// Differences of sums may be below zero by a rounding error.
std::int64_t ticks_of(Seconds time) {
  return static_cast<std::int64_t>(std::floor(std::max(0.0, time.to<double>()) * 1e12));
}

// A chunk's directions by activity. Compute is the rest of the task's length, so that rounding loses nothing.
struct ChunkParts {
  Ticks forward{}, backward{};
};

Ticks ticks_by_activity(const std::vector<LedgerLine>& lines) {
  const ActivityTimes times = by_activity(lines);
  Ticks ticks{};
  std::transform(times.begin(), times.end(), ticks.begin(), ticks_of);
  return ticks;
}

std::int64_t others(const Ticks& parts) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < kActivities; ++i) sum += i == index_of(Activity::kCompute) ? 0 : parts[i];
  return sum;
}

void add_stretches(const Ticks& parts, bool forward, std::int64_t duration, std::int64_t beside,
                   std::vector<Stretch>& out) {
  Ticks exact = parts;
  exact[index_of(Activity::kCompute)] = std::max<std::int64_t>(0, duration - others(parts));
  std::int64_t excess = others(exact) + exact[index_of(Activity::kCompute)] - duration;
  constexpr std::array<Activity, 9> kOrder = {Activity::kHost,     Activity::kRecompute, Activity::kCompute,
                                              Activity::kTensor,   Activity::kContext,   Activity::kExpert,
                                              Activity::kPipeline, Activity::kData,      Activity::kOffload};
  for (const Activity activity : kOrder) {
    std::int64_t& part = exact[index_of(activity)];
    const std::int64_t cut = std::min(excess, part);  // Picoseconds of rounding.
    part -= cut;
    excess -= cut;
    if (activity == Activity::kCompute && beside > 0)
      out.push_back({.stream = Stream::kExpert,
                     .duration_ps = std::min(beside, part),
                     .label = static_cast<std::int32_t>(Activity::kExpert),
                     .beside = true});
    if (part > 0)
      out.push_back(
          {.stream = stream_of(activity, forward), .duration_ps = part, .label = static_cast<std::int32_t>(activity)});
  }
}

Stretches stretches_of(const Composition& c, std::vector<ChunkLedger> ledgers) {
  std::vector<ChunkParts> parts;
  parts.reserve(ledgers.size());
  for (const ChunkLedger& ledger : ledgers)
    parts.push_back({ticks_by_activity(ledger.forward), ticks_by_activity(ledger.backward)});
  return [&c, ledgers = std::move(ledgers), parts = std::move(parts), ticks = chunk_ticks(c.times),
          pairs = std::map<std::pair<std::size_t, std::size_t>, Ticks>{}, pp = c.times.shape.pp](
             std::int64_t rank, const Task& task, const Task* second, std::vector<Stretch>& out) mutable {
    const auto at = [&](const Task& t) { return static_cast<std::size_t>(t.chunk * pp + rank); };
    if (task.kind == TaskKind::kWeightGradient) return;  // One stretch of compute.
    const std::size_t i = at(task);
    if (second == nullptr) {
      add_stretches(task.forward() ? parts[i].forward : parts[i].backward, task.forward(), ticks[i].of(task.kind), 0,
                    out);
      return;
    }
    const std::size_t j = at(*second);
    const std::int64_t duration = merged_pair(ticks[i], ticks[j]);
    const auto [pair, is_new] = pairs.try_emplace({i, j});
    if (is_new)
      pair->second = ticks_by_activity(pair_lines(ledgers[i].forward, ledgers[j].backward,
                                                  (c.stage(i).hidden + c.stage(j).hidden) / 2.0,
                                                  Seconds{static_cast<double>(duration) * 1e-12}));
    const std::size_t expert = index_of(Activity::kExpert);
    const std::int64_t exchange = parts[i].forward[expert] + parts[j].backward[expert] - pair->second[expert];
    add_stretches(pair->second, false, duration, exchange, out);
  };
}

// Levels at the moments of the memory walk, in schedule order. rank_memory() takes their maximum.
std::vector<StepTimeline::Level> levels_of(const Composition& c, std::int64_t rank,
                                           const std::vector<ScheduledTask>& tasks, const StageMemory& memory,
                                           std::int64_t makespan_ps) {
  const ScheduleShape& shape = c.times.shape;
  const Bytes fixed = memory.allocated_beside_chunks;
  Bytes kept{};
  std::vector<StepTimeline::Level> levels{{.task = -1, .at_ps = 0, .allocated = fixed}};
  const auto profile = [&](const Task& task) -> const MemoryProfile& {
    return c.stage(static_cast<std::size_t>(task.chunk * shape.pp + rank)).cost.memory;
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::size_t first = i, last = tasks[i].task.merged ? i + 1 : i;
    Bytes highest{};
    for (std::size_t j = first; j <= last; ++j) {
      const Task& task = tasks[j].task;
      const MemoryProfile& chunk = profile(task);
      if (task.forward()) kept += chunk.kept;
      Bytes level = fixed + kept + (task.forward() ? chunk.forward_high : chunk.backward_high) - chunk.kept;
      if (last > first) level += c.overlapped - chunk.kept;  // A pair holds one chunk (in_flight_peaks).
      highest = std::max(highest, level);
      if (task.frees()) kept -= chunk.kept;
    }
    i = last;
    levels.push_back({static_cast<std::int32_t>(first), tasks[first].start_ps, highest});
    levels.push_back({static_cast<std::int32_t>(first), tasks[first].end_ps, fixed + kept});
  }
  levels.push_back({-1, makespan_ps, memory.allocated_in_optimizer});
  return levels;
}

// The end of the step. It begins on all ranks when the last rank is done and every gradient is reduced. Adds its tasks
// after those of the chunks, and returns their parts.
std::vector<StepPart> add_step_end(const Step& step, PipelineGraph& pipeline) {
  const std::vector<std::int32_t> last = pipeline.graph.last_of_streams();
  std::vector<StepPart> parts;
  for (std::size_t rank = 0; rank < pipeline.ranks.size(); ++rank) {
    std::int32_t before = -1;
    for (const StepPart& part : step_parts(step, static_cast<std::int64_t>(rank), {})) {
      const std::int64_t duration = ticks_of(part.exposed);  // Without what runs beside the chunks.
      if (duration <= 0) continue;
      const std::int32_t node =
          pipeline.graph.add({static_cast<std::int32_t>(rank), stream_of(part.activity, true), duration});
      pipeline.labels.push_back(static_cast<std::int32_t>(part.activity));
      parts.push_back(part);
      if (before >= 0)
        pipeline.graph.depend(node, before);
      else
        for (const std::int32_t task : last) pipeline.graph.depend(node, task);
      before = node;
    }
  }
  return parts;
}

Activity activity_of(std::int32_t label) {
  if (label >= 0) return static_cast<Activity>(label);
  return label == kTransferLabel ? Activity::kPipeline : label == kReloadLabel ? Activity::kOffload : Activity::kData;
}

// Name of what happens once per step beside the chunks; else empty.
std::string_view collective_name(std::int32_t label) {
  return label == kGatherLabel      ? "param_gather"
         : label == kReductionLabel ? "grad_reduce"
         : label == kReloadLabel    ? "reload_states"
                                    : "";
}

// A slice for each task of the graph, with the task of the chunk that it belongs to.
std::vector<StepTimeline::Slice> slices_of(const PipelineGraph& pipeline, bool overlap_p2p) {
  const Execution execution = execute(pipeline.graph);
  const CriticalPath path = critical_path(pipeline.graph);
  const std::vector<GraphTask>& tasks = pipeline.graph.tasks();
  std::vector<StepTimeline::Slice> slices;
  slices.reserve(tasks.size() + pipeline.ranks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::int32_t label = pipeline.labels[i];
    const std::string_view name = collective_name(label);
    slices.push_back({.rank = tasks[i].rank,
                      .stream = tasks[i].stream,
                      .activity = activity_of(label),
                      .name = name,
                      .in_sequence = label == kTransferLabel ? !overlap_p2p : name.empty(),
                      .start_ps = execution.start_ps[i],
                      .duration_ps = tasks[i].duration_ps,
                      .slack_ps = path.slack_ps[i]});
  }
  const auto at = [&](std::int32_t node) -> StepTimeline::Slice& { return slices[static_cast<std::size_t>(node)]; };
  for (const std::vector<PipelineGraph::Placed>& rank : pipeline.ranks)
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const PipelineGraph::Placed& placed = rank[i];
      if (placed.send >= 0) at(placed.send).task = static_cast<std::int32_t>(i);
      if (i > 0 && placed.first == rank[i - 1].first) continue;  // A pair's stretches belong to its first task.
      const std::int32_t first = placed.beside < 0 ? placed.first : std::min(placed.first, placed.beside);
      for (std::int32_t node = first; node <= placed.last; ++node) at(node).task = static_cast<std::int32_t>(i);
      if (placed.beside >= 0) at(placed.beside).in_sequence = false;
    }
  return slices;
}

// Transfers between ranks, among the first `chunk_tasks` tasks.
std::vector<StepTimeline::Flow> flows_of(const PipelineGraph& pipeline, std::size_t chunk_tasks) {
  const std::vector<GraphTask>& tasks = pipeline.graph.tasks();
  std::vector<StepTimeline::Flow> flows;
  for (const auto& [from, to] : pipeline.graph.edges()) {
    const auto first = static_cast<std::size_t>(from), then = static_cast<std::size_t>(to);
    if (then < chunk_tasks && pipeline.labels[then] != kGatherLabel && tasks[first].rank != tasks[then].rank)
      flows.push_back({from, to});
  }
  return flows;
}

// Separates what a rank waits for from what runs beside its tasks. It waits for a gather until its chunk's first
// forward starts, for a reduction after its last task, and for a reload after the reduction.
void split_waits(const PipelineGraph& pipeline, const Timeline& timeline, std::size_t chunk_tasks,
                 std::vector<StepTimeline::Slice>& slices) {
  const auto split = [&](std::size_t node, std::int64_t at) {
    StepTimeline::Slice& slice = slices[node];
    if (at >= slice.start_ps + slice.duration_ps) return;
    StepTimeline::Slice waited = slice;
    waited.in_sequence = true;
    waited.start_ps = std::max(at, slice.start_ps);
    waited.duration_ps = slice.start_ps + slice.duration_ps - waited.start_ps;
    slice.duration_ps -= waited.duration_ps;
    slices.push_back(waited);
  };
  std::vector<std::int64_t> done(timeline.ranks.size(), 0);
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    for (std::size_t i = 0; i < timeline.ranks[rank].size(); ++i) {
      const ScheduledTask& task = timeline.ranks[rank][i];
      const std::int32_t gather = pipeline.ranks[rank][i].gather;
      done[rank] = std::max(done[rank], task.end_ps + task.send_ps);
      if (gather >= 0) split(static_cast<std::size_t>(gather), task.start_ps - task.gather_ps);
    }
  for (std::size_t node = 0; node < chunk_tasks; ++node)
    if (pipeline.labels[node] == kReductionLabel)
      split(node, done[static_cast<std::size_t>(pipeline.graph.tasks()[node].rank)]);
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    if (pipeline.reload[rank] >= 0) split(static_cast<std::size_t>(pipeline.reload[rank]), timeline.reduced_ps[rank]);
}

}  // namespace

StepTimeline step_timeline(const Step& step, const Prediction& prediction) {
  const Composition& c = step.composition;
  PipelineGraph pipeline = pipeline_graph(c.times, stretches_of(c, chunk_ledgers(step)));
  const Timeline timeline = timeline_of(pipeline);
  const std::size_t chunk_tasks = pipeline.graph.tasks().size();
  const std::vector<StepPart> end_parts = add_step_end(step, pipeline);

  StepTimeline result;
  result.ranks = timeline.ranks;
  result.slices = slices_of(pipeline, c.times.overlap_p2p);
  for (std::size_t i = 0; i < end_parts.size(); ++i) result.slices[chunk_tasks + i].name = end_parts[i].name;
  for (const StepTimeline::Slice& slice : result.slices)
    result.end_ps = std::max(result.end_ps, slice.start_ps + slice.duration_ps);
  result.flows = flows_of(pipeline, chunk_tasks);
  split_waits(pipeline, timeline, chunk_tasks, result.slices);
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    result.memory.push_back(levels_of(c, static_cast<std::int64_t>(rank), timeline.ranks[rank], prediction.memory[rank],
                                      timeline.makespan_ps));
  return result;
}

}  // namespace foldwise::costmodel

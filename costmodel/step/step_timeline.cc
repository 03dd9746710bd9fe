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

// Forward copies to the host, backward back.
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

// Differences of sums may lie a rounding error below zero.
std::int64_t ticks_of(Seconds time) {
  return static_cast<std::int64_t>(std::floor(std::max(0.0, time.to<double>()) * 1e12));
}

// One chunk's directions by activity. Compute is what is left of the task's whole length, so that nothing is lost to
// rounding.
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

// The moments of the memory walk in the order of the schedule (rank_memory takes their maximum).
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

}  // namespace

StepTimeline step_timeline(const Step& step, const Prediction& prediction) {
  const Composition& c = step.composition;
  const auto pp = static_cast<std::size_t>(c.times.shape.pp);
  PipelineGraph pipeline = pipeline_graph(c.times, stretches_of(c, chunk_ledgers(step)));
  const Timeline timeline = timeline_of(pipeline);

  // The end of the step begins everywhere once the last rank is done and every gradient reduced.
  std::vector<std::int32_t> last;
  for (std::size_t i = pipeline.graph.tasks().size(); i-- > 0;) {
    const GraphTask& task = pipeline.graph.tasks()[i];
    const bool seen = std::any_of(last.begin(), last.end(), [&](std::int32_t other) {
      const GraphTask& t = pipeline.graph.tasks()[static_cast<std::size_t>(other)];
      return t.rank == task.rank && t.stream == task.stream;
    });
    if (!seen) last.push_back(static_cast<std::int32_t>(i));
  }
  const std::size_t chunk_tasks = pipeline.graph.tasks().size();
  std::vector<StepPart> end_parts;  // By graph task after `chunk_tasks`.
  for (std::size_t rank = 0; rank < pp; ++rank) {
    std::int32_t before = -1;
    for (const StepPart& part : step_parts(step, static_cast<std::int64_t>(rank), {})) {
      const std::int64_t duration = ticks_of(part.exposed);  // Nothing of what lies beside the chunks.
      if (duration <= 0) continue;
      const std::int32_t node =
          pipeline.graph.add({static_cast<std::int32_t>(rank), stream_of(part.activity, true), duration});
      pipeline.labels.push_back(static_cast<std::int32_t>(part.activity));
      end_parts.push_back(part);
      if (before >= 0)
        pipeline.graph.depend(node, before);
      else
        for (const std::int32_t task : last) pipeline.graph.depend(node, task);
      before = node;
    }
  }
  const Execution execution = execute(pipeline.graph);
  const CriticalPath path = critical_path(pipeline.graph);

  StepTimeline result;
  result.ranks = timeline.ranks;
  result.end_ps = execution.makespan_ps;
  const std::vector<GraphTask>& tasks = pipeline.graph.tasks();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::int32_t label = pipeline.labels[i];
    StepTimeline::Slice slice{.rank = tasks[i].rank,
                              .stream = tasks[i].stream,
                              .activity = label >= 0                ? static_cast<Activity>(label)
                                          : label == kTransferLabel ? Activity::kPipeline
                                          : label == kReloadLabel   ? Activity::kOffload
                                                                    : Activity::kData,
                              .start_ps = execution.start_ps[i],
                              .duration_ps = tasks[i].duration_ps,
                              .slack_ps = path.slack_ps[i]};
    if (label == kTransferLabel) slice.in_sequence = !c.times.overlap_p2p;
    if (label == kGatherLabel || label == kReductionLabel || label == kReloadLabel) {
      slice.name = label == kGatherLabel ? "param_gather" : label == kReductionLabel ? "grad_reduce" : "reload_states";
      slice.in_sequence = false;
    }
    if (i >= chunk_tasks) slice.name = end_parts[i - chunk_tasks].name;
    result.slices.push_back(slice);
  }
  for (std::size_t rank = 0; rank < pp; ++rank)
    for (std::size_t i = 0; i < pipeline.ranks[rank].size(); ++i) {
      const PipelineGraph::Placed& placed = pipeline.ranks[rank][i];
      if (placed.send >= 0) result.slices[static_cast<std::size_t>(placed.send)].task = static_cast<std::int32_t>(i);
      if (i > 0 && placed.first == pipeline.ranks[rank][i - 1].first) continue;  // A pair's stretches are its first's.
      for (std::int32_t node = std::min(placed.first, placed.beside < 0 ? placed.first : placed.beside);
           node <= placed.last; ++node)
        result.slices[static_cast<std::size_t>(node)].task = static_cast<std::int32_t>(i);
      if (placed.beside >= 0) result.slices[static_cast<std::size_t>(placed.beside)].in_sequence = false;
    }
  for (const auto& [from, to] : pipeline.graph.edges())
    if (static_cast<std::size_t>(to) < chunk_tasks && pipeline.labels[static_cast<std::size_t>(to)] != kGatherLabel &&
        tasks[static_cast<std::size_t>(from)].rank != tasks[static_cast<std::size_t>(to)].rank)
      result.flows.push_back({from, to});
  // What of a rank's collectives it waits for: a gather until its chunk's first forward starts, a reduction once the
  // last task has ended, a reload once that is done too.
  const auto split = [&](std::size_t node, std::int64_t at) {
    StepTimeline::Slice& slice = result.slices[node];
    if (at >= slice.start_ps + slice.duration_ps) return;
    StepTimeline::Slice waited = slice;
    waited.in_sequence = true;
    waited.start_ps = std::max(at, slice.start_ps);
    waited.duration_ps = slice.start_ps + slice.duration_ps - waited.start_ps;
    slice.duration_ps -= waited.duration_ps;
    result.slices.push_back(waited);
  };
  std::vector<std::int64_t> done(pp, 0);
  for (std::size_t rank = 0; rank < pp; ++rank)
    for (std::size_t i = 0; i < timeline.ranks[rank].size(); ++i) {
      const ScheduledTask& task = timeline.ranks[rank][i];
      const std::int32_t gather = pipeline.ranks[rank][i].gather;
      done[rank] = std::max(done[rank], task.end_ps + task.send_ps);
      if (gather >= 0) split(static_cast<std::size_t>(gather), task.start_ps - task.gather_ps);
    }
  for (std::size_t node = 0; node < chunk_tasks; ++node)
    if (pipeline.labels[node] == kReductionLabel) split(node, done[static_cast<std::size_t>(tasks[node].rank)]);
  for (std::size_t rank = 0; rank < pp; ++rank)
    if (pipeline.reload[rank] >= 0) split(static_cast<std::size_t>(pipeline.reload[rank]), timeline.reduced_ps[rank]);
  for (std::size_t rank = 0; rank < pp; ++rank)
    result.memory.push_back(levels_of(c, static_cast<std::int64_t>(rank), timeline.ranks[rank], prediction.memory[rank],
                                      timeline.makespan_ps));
  return result;
}

}  // namespace foldwise::costmodel

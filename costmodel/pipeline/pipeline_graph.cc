#include "costmodel/pipeline/pipeline_graph.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

/// The task that produces each position's output, by micro-batch; -1 until it is placed.
struct Producers {
  std::size_t micro_batches;
  std::vector<std::int32_t> output, transfer;  ///< [position][micro-batch]: last stretch, and its transfer if any.
  Producers(std::size_t positions, std::size_t m)
      : micro_batches(m), output(positions * m, -1), transfer(positions * m, -1) {}
  [[nodiscard]] std::size_t at(std::int64_t position, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(position) * micro_batches + static_cast<std::size_t>(micro_batch);
  }
  /// What a task at the neighbouring position waits for.
  [[nodiscard]] std::int32_t arrival(std::int64_t position, std::int32_t micro_batch) const {
    const std::size_t i = at(position, micro_batch);
    return transfer[i] >= 0 ? transfer[i] : output[i];
  }
};

/// Where each chunk of a rank's tasks begins and ends: its first forward, and the last task that frees.
struct ChunkEnds {
  std::vector<std::size_t> first, last;  ///< [vpp] index into the tasks.
  ChunkEnds(const std::vector<Task>& tasks, std::int64_t vpp)
      : first(static_cast<std::size_t>(vpp), tasks.size()), last(static_cast<std::size_t>(vpp), 0) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const auto chunk = static_cast<std::size_t>(tasks[i].chunk);
      if (tasks[i].forward()) first[chunk] = std::min(first[chunk], i);
      if (tasks[i].frees()) last[chunk] = i;
    }
  }
};

}  // namespace

PipelineGraph pipeline_graph(const PipelineTimes& times, const Stretches& stretches) {
  const ScheduleShape& shape = times.shape;
  const std::vector<ChunkTicks> ticks = chunk_ticks(times);
  const std::vector<std::int64_t> reloads = reload_ticks(times);
  const auto positions = static_cast<std::size_t>(shape.pp * shape.vpp);
  const auto m = static_cast<std::size_t>(shape.num_microbatches);
  Producers forwards(positions, m), backwards(positions, m);
  PipelineGraph pipeline;
  std::vector<Stretch> parts;
  const auto chunk_of = [&](std::int64_t rank, const Task& task) -> const ChunkTicks& {
    return ticks[static_cast<std::size_t>(task.chunk * shape.pp + rank)];
  };
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    std::vector<PipelineGraph::Placed>& placed = pipeline.ranks.emplace_back();
    const std::vector<Task> tasks = rank_tasks(shape, rank);
    placed.reserve(tasks.size());
    const ChunkEnds ends(tasks, shape.vpp);
    const auto add = [&](Stream stream, std::int64_t picoseconds, std::int32_t label, std::int32_t after) {
      const std::int32_t node = pipeline.graph.add({static_cast<std::int32_t>(rank), stream, picoseconds});
      pipeline.labels.push_back(label);
      if (after >= 0) pipeline.graph.depend(node, after);
      return node;
    };
    std::int32_t before = -1;  // What the rank's next task follows.
    const std::vector<Launch> gathers = gather_launches(shape, rank), reductions = reduction_launches(shape, rank);
    std::vector<std::int32_t> gathered(static_cast<std::size_t>(shape.vpp), -1);
    std::size_t next_gather = 0, next_reduction = 0;
    std::int32_t reduced = -1;
    const auto launch = [&](std::size_t done) {
      const auto due = [&](const std::vector<Launch>& launches, std::size_t next) {
        return next < launches.size() && static_cast<std::size_t>(launches[next].after) == done;
      };
      for (; due(gathers, next_gather); ++next_gather) {
        const Launch& gather = gathers[next_gather];
        const ChunkTicks& chunk = ticks[static_cast<std::size_t>(gather.chunk * shape.pp + rank)];
        if (times.overlap_p2p && chunk.gather > 0)
          gathered[static_cast<std::size_t>(gather.chunk)] = add(Stream::kData, chunk.gather, kGatherLabel, before);
      }
      for (; due(reductions, next_reduction); ++next_reduction) {
        const ChunkTicks& chunk = ticks[static_cast<std::size_t>(reductions[next_reduction].chunk * shape.pp + rank)];
        if (chunk.reduction > 0) reduced = add(Stream::kData, chunk.reduction, kReductionLabel, before);
      }
    };
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      launch(i);
      const Task& task = tasks[i];
      const Task* const second = task.merged ? &tasks.at(i + 1) : nullptr;
      const std::int64_t duration = second != nullptr ? merged_pair(chunk_of(rank, task), chunk_of(rank, *second))
                                                      : chunk_of(rank, task).of(task.kind);
      parts.clear();
      if (stretches) stretches(rank, task, second, parts);
      std::int64_t in_sequence = 0;
      for (const Stretch& part : parts) in_sequence += part.beside ? 0 : part.duration_ps;
      FW_CHECK(parts.empty() || in_sequence == duration,
               "stretches of " + std::to_string(in_sequence) + " ps for " + std::to_string(duration));
      if (in_sequence == 0) parts.push_back({.stream = Stream::kCompute, .duration_ps = duration});
      const auto delay = [&](std::size_t index) {
        const Task& part = tasks[index];
        const ChunkTicks& chunk = chunk_of(rank, part);
        const auto number = static_cast<std::size_t>(part.chunk);
        return (ends.first[number] == index ? chunk.first_forward_delay : 0) +
               (ends.last[number] == index ? chunk.last_backward_delay : 0);
      };
      if (const std::int64_t delayed = delay(i) + (second != nullptr ? delay(i + 1) : 0); delayed > 0)
        parts.push_back({.stream = Stream::kCompute, .duration_ps = delayed, .label = kDelayLabel});

      PipelineGraph::Placed here{.task = task, .first = -1, .last = before, .before = before};
      for (std::size_t index = i; index <= (second != nullptr ? i + 1 : i); ++index) {
        const auto number = static_cast<std::size_t>(tasks[index].chunk);
        if (ends.first[number] != index) continue;
        const std::int64_t gather = chunk_of(rank, tasks[index]).gather;
        here.gather =
            times.overlap_p2p || gather == 0 ? gathered[number] : add(Stream::kData, gather, kGatherLabel, before);
      }
      const std::int32_t earlier = before;
      for (const Stretch& part : parts) {
        const std::int32_t node = add(part.stream, part.duration_ps, part.label, part.beside ? earlier : here.last);
        if (part.beside) {
          here.beside = node;
          continue;
        }
        if (here.first < 0) here.first = node;
        here.last = node;
      }
      before = here.last;
      std::int32_t own_send = -1;  // A blocking pair sends its activations first, then its gradient.
      std::int64_t blocked = 0;
      const auto place = [&](const Task& part) {
        const std::int64_t position = position_of(shape, rank, part.chunk);
        const ChunkTicks& chunk = chunk_of(rank, part);
        PipelineGraph::Placed result = here;
        result.task = part;
        if (part.kind == TaskKind::kWeightGradient) {
          placed.push_back(result);
          return;
        }
        const std::int64_t send = part.forward() ? chunk.send_forward : chunk.send_backward;
        if (transfers(shape, part.forward() ? position : position - 1)) {
          result.send =
              add(part.forward() ? Stream::kSendActivations : Stream::kSendGradients, send, kTransferLabel, here.last);
          if (!times.overlap_p2p) {
            if (own_send >= 0) pipeline.graph.depend(result.send, own_send);
            own_send = before = result.send;
            blocked += send;
          }
        }
        result.blocked_ps = blocked;
        Producers& outputs = part.forward() ? forwards : backwards;
        outputs.output[outputs.at(position, part.micro_batch)] = here.last;
        outputs.transfer[outputs.at(position, part.micro_batch)] = result.send;
        placed.push_back(result);
      };
      place(task);
      if (second != nullptr) {
        here.gather = -1;
        place(*second);
        ++i;
      }
    }
    launch(tasks.size());
    pipeline.last.push_back(reduced);
    const std::int64_t reload = reloads.empty() ? 0 : reloads[static_cast<std::size_t>(rank)];
    pipeline.reload.push_back(reload > 0 ? add(Stream::kCopyFromHost, reload, kReloadLabel, before) : -1);
  }
  // What comes from other ranks, or from the rank's own forward at the last position, which hands over to its backward.
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    for (PipelineGraph::Placed& placed : pipeline.ranks[static_cast<std::size_t>(rank)]) {
      const Task& task = placed.task;
      if (placed.gather >= 0) pipeline.graph.depend(placed.first, placed.gather);
      if (task.kind == TaskKind::kWeightGradient) continue;
      const std::int64_t position = position_of(shape, rank, task.chunk);
      std::int32_t input = -1;
      if (!task.forward())
        input = hands_over(shape, position) ? backwards.arrival(position + 1, task.micro_batch)
                                            : forwards.output[forwards.at(position, task.micro_batch)];
      else if (hands_over(shape, position - 1))
        input = forwards.arrival(position - 1, task.micro_batch);
      if (input < 0) continue;
      placed.input = input;
      pipeline.graph.depend(placed.first, input);
      if (placed.gather >= 0 && !times.overlap_p2p) pipeline.graph.depend(placed.gather, input);
      if (placed.beside >= 0) pipeline.graph.depend(placed.beside, input);
    }
  }
  return pipeline;
}

Timeline timeline_of(const PipelineGraph& pipeline) {
  const Execution execution = execute(pipeline.graph);
  const std::vector<GraphTask>& tasks = pipeline.graph.tasks();
  Timeline timeline;
  timeline.makespan_ps = execution.makespan_ps;
  for (const std::vector<PipelineGraph::Placed>& rank : pipeline.ranks) {
    std::vector<ScheduledTask>& out = timeline.ranks.emplace_back();
    out.reserve(rank.size());
    const auto end_of = [&](std::int32_t node) {
      const auto i = static_cast<std::size_t>(node);
      return node < 0 ? 0 : execution.start_ps[i] + tasks[i].duration_ps;
    };
    std::int64_t end = 0;
    for (const PipelineGraph::Placed& placed : rank) {
      const std::int64_t start = execution.start_ps[static_cast<std::size_t>(placed.first)];
      const std::int64_t ready = std::max(end_of(placed.before), end_of(placed.input));
      out.push_back({.task = placed.task,
                     .start_ps = start,
                     .end_ps = end_of(placed.last),
                     .send_ps = placed.blocked_ps,
                     .gather_ps = placed.gather >= 0 ? start - ready : 0});
      end = std::max(end, out.back().end_ps + out.back().send_ps);
    }
    const std::size_t i = timeline.ranks.size() - 1;
    timeline.reduced_ps.push_back(std::max(end, end_of(pipeline.last[i])));
    timeline.reloaded_ps.push_back(std::max(end, end_of(pipeline.reload[i])));
  }
  return timeline;
}

}  // namespace foldwise::costmodel

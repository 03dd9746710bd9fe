#include "costmodel/pipeline/pipeline_graph.h"

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

}  // namespace

PipelineGraph pipeline_graph(const PipelineTimes& times, const Stretches& stretches) {
  const ScheduleShape& shape = times.shape;
  const std::vector<ChunkTicks> ticks = chunk_ticks(times);
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
    std::int32_t before = -1;  // What the rank's next task follows.
    for (std::size_t i = 0; i < tasks.size(); ++i) {
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

      PipelineGraph::Placed here{.task = task, .first = -1, .last = before};
      const std::int32_t earlier = before;
      for (const Stretch& part : parts) {
        const std::int32_t node = pipeline.graph.add({static_cast<std::int32_t>(rank), part.stream, part.duration_ps});
        pipeline.labels.push_back(part.label);
        const std::int32_t after = part.beside ? earlier : here.last;
        if (after >= 0) pipeline.graph.depend(node, after);
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
          result.send = pipeline.graph.add({static_cast<std::int32_t>(rank),
                                            part.forward() ? Stream::kSendActivations : Stream::kSendGradients, send});
          pipeline.labels.push_back(-1);
          pipeline.graph.depend(result.send, here.last);
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
        place(*second);
        ++i;
      }
    }
  }
  // What comes from other ranks, or from the rank's own forward at the last position, which hands over to its backward.
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    for (const PipelineGraph::Placed& placed : pipeline.ranks[static_cast<std::size_t>(rank)]) {
      const Task& task = placed.task;
      if (task.kind == TaskKind::kWeightGradient) continue;
      const std::int64_t position = position_of(shape, rank, task.chunk);
      std::int32_t input = -1;
      if (!task.forward())
        input = hands_over(shape, position) ? backwards.arrival(position + 1, task.micro_batch)
                                            : forwards.output[forwards.at(position, task.micro_batch)];
      else if (hands_over(shape, position - 1))
        input = forwards.arrival(position - 1, task.micro_batch);
      if (input < 0) continue;
      pipeline.graph.depend(placed.first, input);
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
    for (const PipelineGraph::Placed& placed : rank) {
      const auto first = static_cast<std::size_t>(placed.first), last = static_cast<std::size_t>(placed.last);
      out.push_back({.task = placed.task,
                     .start_ps = execution.start_ps[first],
                     .end_ps = execution.start_ps[last] + tasks[last].duration_ps,
                     .send_ps = placed.blocked_ps});
    }
  }
  return timeline;
}

}  // namespace foldwise::costmodel

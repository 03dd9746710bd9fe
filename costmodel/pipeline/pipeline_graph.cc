#include "costmodel/pipeline/pipeline_graph.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

/// The tasks that produce the outputs of each position, by micro-batch; -1 until placed.
struct Producers {
  std::size_t micro_batches;
  std::vector<std::int32_t> output, transfer;  ///< [position][micro-batch]: last stretch; its transfer, if any.
  Producers(std::size_t positions, std::size_t m)
      : micro_batches(m), output(positions * m, -1), transfer(positions * m, -1) {}
  [[nodiscard]] std::size_t at(std::int64_t position, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(position) * micro_batches + static_cast<std::size_t>(micro_batch);
  }
  /// The task that a task at the neighbouring position waits for.
  [[nodiscard]] std::int32_t arrival(std::int64_t position, std::int32_t micro_batch) const {
    const std::size_t i = at(position, micro_batch);
    return transfer[i] >= 0 ? transfer[i] : output[i];
  }
};

/// First forward of each chunk of a rank, and the last task that frees its activations.
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

/// The outputs of all positions, by direction.
struct Outputs {
  Producers forwards, backwards;
  Outputs(std::size_t positions, std::size_t m) : forwards(positions, m), backwards(positions, m) {}
  [[nodiscard]] Producers& of(const Task& task) { return task.forward() ? forwards : backwards; }
  /// The task whose output a task at `position` waits for: its neighbour's, or at the last position the rank's own
  /// forward, which hands over to its backward. -1 if none.
  [[nodiscard]] std::int32_t input_of(const ScheduleShape& shape, const Task& task, std::int64_t position) const {
    if (task.forward()) return hands_over(shape, position - 1) ? forwards.arrival(position - 1, task.micro_batch) : -1;
    return hands_over(shape, position) ? backwards.arrival(position + 1, task.micro_batch)
                                       : forwards.output[forwards.at(position, task.micro_batch)];
  }
};

/// Places the tasks of one rank in their issue order, with its transfers and collectives.
class RankBuilder {
 public:
  RankBuilder(const PipelineTimes& times, const std::vector<ChunkTicks>& ticks, std::int64_t rank, Outputs& outputs,
              PipelineGraph& pipeline)
      : times_(times),
        ticks_(ticks),
        rank_(rank),
        outputs_(outputs),
        pipeline_(pipeline),
        placed_(pipeline.ranks.emplace_back()),
        tasks_(rank_tasks(times.shape, rank)),
        ends_(tasks_, times.shape.vpp),
        gathers_(gather_launches(times.shape, rank)),
        reductions_(reduction_launches(times.shape, rank)),
        gathered_(static_cast<std::size_t>(times.shape.vpp), -1) {
    placed_.reserve(tasks_.size());
  }

  void place(const Stretches& stretches, std::int64_t reload) {
    for (std::size_t i = 0; i < tasks_.size(); i += steps_at(i)) {
      launch(i);
      cut(i, stretches);
      PipelineGraph::Placed here = run(i);
      for (std::size_t part = i; part < i + steps_at(i); ++part) {
        if (part > i) here.gather = -1;  // The pair waits once.
        hand_over(tasks_[part], here);
      }
    }
    launch(tasks_.size());
    pipeline_.last.push_back(reduced_);
    pipeline_.reload.push_back(reload > 0 ? add(Stream::kCopyFromHost, reload, kReloadLabel, before_) : -1);
  }

 private:
  /// Number of tasks in the step from `i` on: two for a merged pair.
  [[nodiscard]] std::size_t steps_at(std::size_t i) const { return tasks_[i].merged ? 2 : 1; }
  [[nodiscard]] const ChunkTicks& chunk(std::int32_t number) const {
    return ticks_[static_cast<std::size_t>(number * times_.shape.pp + rank_)];
  }
  /// Whether task `i` is its chunk's first forward.
  [[nodiscard]] bool begins_chunk(std::size_t i) const {
    return ends_.first[static_cast<std::size_t>(tasks_[i].chunk)] == i;
  }

  std::int32_t add(Stream stream, std::int64_t picoseconds, std::int32_t label, std::int32_t after) {
    const std::int32_t node = pipeline_.graph.add({static_cast<std::int32_t>(rank_), stream, picoseconds});
    pipeline_.labels.push_back(label);
    if (after >= 0) pipeline_.graph.depend(node, after);
    return node;
  }

  /// Launches gathers and reductions that are due after `done` tasks. With blocking transfers the host launches a
  /// gather with its chunk's first forward (in run()).
  void launch(std::size_t done) {
    const auto due = [done](const std::vector<Launch>& launches, std::size_t next) {
      return next < launches.size() && static_cast<std::size_t>(launches[next].after) == done;
    };
    for (; due(gathers_, next_gather_); ++next_gather_) {
      const std::int32_t number = gathers_[next_gather_].chunk;
      if (times_.overlap_p2p && chunk(number).gather > 0)
        gathered_[static_cast<std::size_t>(number)] = add(Stream::kData, chunk(number).gather, kGatherLabel, before_);
    }
    for (; due(reductions_, next_reduction_); ++next_reduction_) {
      const std::int64_t reduction = chunk(reductions_[next_reduction_].chunk).reduction;
      if (reduction > 0) reduced_ = add(Stream::kData, reduction, kReductionLabel, before_);
    }
  }

  /// Cuts the step at task `i` into stretches, stored in `parts_`.
  void cut(std::size_t i, const Stretches& stretches) {
    const Task& task = tasks_[i];
    const Task* const second = task.merged ? &tasks_.at(i + 1) : nullptr;
    const std::int64_t duration =
        second != nullptr ? merged_pair(chunk(task.chunk), chunk(second->chunk)) : chunk(task.chunk).of(task.kind);
    parts_.clear();
    if (stretches) stretches(rank_, task, second, parts_);
    std::int64_t in_sequence = 0;
    for (const Stretch& part : parts_) in_sequence += part.beside ? 0 : part.duration_ps;
    FW_CHECK(parts_.empty() || in_sequence == duration,
             "stretches of " + std::to_string(in_sequence) + " ps for " + std::to_string(duration));
    if (in_sequence == 0) parts_.push_back({.stream = Stream::kCompute, .duration_ps = duration});
    std::int64_t delay = 0;
    for (std::size_t part = i; part < i + steps_at(i); ++part) {
      const ChunkTicks& ticks = chunk(tasks_[part].chunk);
      if (begins_chunk(part)) delay += ticks.first_forward_delay;
      if (ends_.last[static_cast<std::size_t>(tasks_[part].chunk)] == part) delay += ticks.last_backward_delay;
    }
    if (delay > 0) parts_.push_back({.stream = Stream::kCompute, .duration_ps = delay, .label = kDelayLabel});
  }

  /// Places `parts_`, the stretches of the step at task `i`, after the previous step.
  PipelineGraph::Placed run(std::size_t i) {
    PipelineGraph::Placed here{.task = tasks_[i], .first = -1, .last = before_, .before = before_};
    for (std::size_t part = i; part < i + steps_at(i); ++part) {
      if (!begins_chunk(part)) continue;
      const std::int64_t gather = chunk(tasks_[part].chunk).gather;
      here.gather = times_.overlap_p2p || gather == 0 ? gathered_[static_cast<std::size_t>(tasks_[part].chunk)]
                                                      : add(Stream::kData, gather, kGatherLabel, before_);
    }
    for (const Stretch& part : parts_) {
      const std::int32_t node = add(part.stream, part.duration_ps, part.label, part.beside ? before_ : here.last);
      if (part.beside) {
        here.beside = node;
        continue;
      }
      if (here.first < 0) here.first = node;
      here.last = node;
    }
    before_ = here.last;
    own_send_ = -1;
    return here;
  }

  /// Sends the output of `task`, which belongs to the step of `here`. A blocking pair first sends its activations, then
  /// its gradient.
  void hand_over(const Task& task, PipelineGraph::Placed& here) {
    here.task = task;
    here.send = -1;
    if (task.kind != TaskKind::kWeightGradient) {
      const std::int64_t position = position_of(times_.shape, rank_, task.chunk);
      if (transfers(times_.shape, task.forward() ? position : position - 1)) {
        const std::int64_t send = task.forward() ? chunk(task.chunk).send_forward : chunk(task.chunk).send_backward;
        here.send =
            add(task.forward() ? Stream::kSendActivations : Stream::kSendGradients, send, kTransferLabel, here.last);
        if (!times_.overlap_p2p) {
          if (own_send_ >= 0) pipeline_.graph.depend(here.send, own_send_);
          own_send_ = before_ = here.send;
          here.blocked_ps += send;
        }
      }
      Producers& outputs = outputs_.of(task);
      const std::size_t at = outputs.at(position, task.micro_batch);
      outputs.output[at] = here.last;
      outputs.transfer[at] = here.send;
    }
    placed_.push_back(here);
  }

  const PipelineTimes& times_;
  const std::vector<ChunkTicks>& ticks_;
  std::int64_t rank_;
  Outputs& outputs_;
  PipelineGraph& pipeline_;
  std::vector<PipelineGraph::Placed>& placed_;
  std::vector<Task> tasks_;
  ChunkEnds ends_;
  std::vector<Launch> gathers_, reductions_;
  std::size_t next_gather_ = 0, next_reduction_ = 0;
  std::vector<std::int32_t> gathered_;  ///< [vpp] the chunk's gather, or -1.
  std::int32_t reduced_ = -1;           ///< The rank's last reduction, or -1.
  std::int32_t before_ = -1;            ///< The task before the rank's next one.
  std::int32_t own_send_ = -1;          ///< Transfer of the step that was placed last, if transfers block.
  std::vector<Stretch> parts_;
};

/// Adds the dependencies on other ranks' tasks.
void link_ranks(const PipelineTimes& times, const Outputs& outputs, PipelineGraph& pipeline) {
  for (std::int64_t rank = 0; rank < times.shape.pp; ++rank) {
    for (PipelineGraph::Placed& placed : pipeline.ranks[static_cast<std::size_t>(rank)]) {
      if (placed.gather >= 0) pipeline.graph.depend(placed.first, placed.gather);
      if (placed.task.kind == TaskKind::kWeightGradient) continue;
      placed.input = outputs.input_of(times.shape, placed.task, position_of(times.shape, rank, placed.task.chunk));
      if (placed.input < 0) continue;
      pipeline.graph.depend(placed.first, placed.input);
      if (placed.gather >= 0 && !times.overlap_p2p) pipeline.graph.depend(placed.gather, placed.input);
      if (placed.beside >= 0) pipeline.graph.depend(placed.beside, placed.input);
    }
  }
}

/// Adds the waits for transfers before and after an interleaved schedule's pairs (blocked_forward in schedule.h).
void link_transfers(const PipelineTimes& times, PipelineGraph& pipeline) {
  const ScheduleShape& shape = times.shape;
  if (shape.kind != Schedule::kOneF1B || shape.vpp == 1) return;
  using Order = std::vector<PipelineGraph::Placed*>;
  std::vector<Order> forwards(pipeline.ranks.size()), backwards(pipeline.ranks.size());
  for (std::size_t rank = 0; rank < pipeline.ranks.size(); ++rank)
    for (PipelineGraph::Placed& placed : pipeline.ranks[rank])
      (placed.task.forward() ? forwards : backwards)[rank].push_back(&placed);
  const auto block = [&](const Order& own, const Order* next, std::size_t k) {
    std::size_t sender = k - 1;
    while (sender > 0 && own[sender]->send < 0) --sender;
    own[k]->sent = own[sender]->send;
    own[k]->taken = next != nullptr && k >= 2 ? (*next)[k - 2]->last : -1;
    for (const std::int32_t node : {own[k]->sent, own[k]->taken}) {
      if (node < 0) continue;
      pipeline.graph.depend(own[k]->first, node);
      if (own[k]->gather >= 0 && !times.overlap_p2p) pipeline.graph.depend(own[k]->gather, node);
    }
  };
  for (std::size_t rank = 0; rank < pipeline.ranks.size(); ++rank) {
    const auto warm_up = static_cast<std::size_t>(num_warmup(shape, static_cast<std::int64_t>(rank)));
    for (std::size_t k = 0; k < forwards[rank].size(); ++k) {
      if (blocked_forward(k, warm_up))
        block(forwards[rank], rank + 1 < forwards.size() ? &forwards[rank + 1] : nullptr, k);
      if (blocked_backward(k, warm_up, forwards[rank].size()))
        block(backwards[rank], rank > 0 ? &backwards[rank - 1] : nullptr, k);
    }
  }
}

}  // namespace

PipelineGraph pipeline_graph(const PipelineTimes& times, const Stretches& stretches) {
  const ScheduleShape& shape = times.shape;
  const std::vector<ChunkTicks> ticks = chunk_ticks(times);
  const std::vector<std::int64_t> reloads = reload_ticks(times);
  Outputs outputs(static_cast<std::size_t>(shape.pp * shape.vpp), static_cast<std::size_t>(shape.num_microbatches));
  PipelineGraph pipeline;
  pipeline.ranks.reserve(static_cast<std::size_t>(shape.pp));
  for (std::int64_t rank = 0; rank < shape.pp; ++rank)
    RankBuilder(times, ticks, rank, outputs, pipeline)
        .place(stretches, reloads.empty() ? 0 : reloads[static_cast<std::size_t>(rank)]);
  link_ranks(times, outputs, pipeline);
  link_transfers(times, pipeline);
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
      const std::int64_t ready =
          std::max({end_of(placed.before), end_of(placed.input), end_of(placed.sent), end_of(placed.taken)});
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
